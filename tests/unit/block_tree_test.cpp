#include <toki/block_tree.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "unit/token_ranges.hpp"

using namespace toki;

namespace {

const Scope kScope({"model"});

}  // namespace

TEST_CASE("tree: a match is exact into the last block") {
  BlockTree tree({.block_size = 8, .max_blocks = 1000});
  tree.insert(kScope, range(1, 50));
  CHECK(tree.match(kScope, range(1, 50)).tokens == 50);
  CHECK(tree.match(kScope, range(1, 50) + range(900, 30)).tokens == 50);
  CHECK(tree.match(kScope, range(1, 21) + range(900, 30)).tokens == 21);
  CHECK(tree.match(kScope, range(1, 21) + range(900, 30)).blocks == 2);
  CHECK(tree.match(kScope, range(1, 3)).tokens == 3);
  CHECK(tree.match(kScope, range(2, 50)).tokens == 0);
  CHECK(tree.match(kScope, {}).tokens == 0);
}

TEST_CASE("tree: scopes share nothing") {
  BlockTree tree;
  tree.insert(kScope, range(1, 100));
  CHECK(tree.match(Scope({"other"}), range(1, 100)).tokens == 0);
}

TEST_CASE("tree: prompts with a common prefix share its blocks") {
  BlockTree tree({.block_size = 8, .max_blocks = 1000});
  CHECK(tree.insert(kScope, range(1, 80) + range(1000, 8)) == 11);
  CHECK(tree.insert(kScope, range(1, 80) + range(2000, 8)) == 1);
  CHECK(tree.insert(kScope, range(1, 80) + range(2000, 8)) == 0);
  CHECK(tree.blocks() == 12);
}

TEST_CASE("tree: a longer prompt replaces the partial end of a shorter one") {
  BlockTree tree({.block_size = 8, .max_blocks = 1000});
  tree.insert(kScope, range(1, 11));
  CHECK(tree.blocks() == 2);
  tree.insert(kScope, range(1, 20));
  CHECK(tree.blocks() == 3);
  tree.insert(kScope, range(1, 13));
  CHECK(tree.blocks() == 3);
  CHECK(tree.match(kScope, range(1, 30)).tokens == 20);
  tree.check_invariants();
}

TEST_CASE("tree: never more blocks than its budget, and survivors are right") {  // B47
  // A million chains of 64 tokens, a hundred times what there is room for.
  constexpr Token kChains = 1000000;
  constexpr std::size_t kMost = 10000;
  BlockTree tree({.block_size = 32, .max_blocks = kMost});
  const auto chain = [](Token i) { return range(i * 100, 64); };
  std::size_t most_bytes = 0;
  bool within = true;
  for (Token i = 0; i < kChains; ++i) {
    tree.insert(kScope, chain(i));
    within = within && tree.blocks() <= kMost;
    if (i == kChains / 10) most_bytes = tree.bytes();
  }
  CHECK(within);
  CHECK(tree.bytes() <= most_bytes + most_bytes / 50);
  tree.check_invariants();
  std::size_t survivors = 0;
  for (Token i = 0; i < kChains; ++i) {
    const std::size_t known = tree.match(kScope, chain(i)).tokens;
    within = within && (known == 0 || known == 32 || known == 64);
    survivors += known == 64 ? 1 : 0;
  }
  CHECK(within);
  CHECK(survivors > kMost / 4);
  CHECK(survivors <= kMost / 2);
  CHECK(tree.match(kScope, chain(kChains - 1)).tokens == 64);
  CHECK(tree.match(kScope, chain(0)).tokens == 0);
}

TEST_CASE("tree: one giant prompt does not flush what was used twice") {
  BlockTree tree({.block_size = 8, .max_blocks = 100});
  const Tokens system = range(1, 160);
  tree.insert(kScope, system + range(5000, 8));
  tree.insert(kScope, system + range(6000, 8));
  tree.insert(kScope, range(100000, 8 * 500));
  CHECK(tree.match(kScope, system).tokens == 160);
  tree.check_invariants();
}

TEST_CASE("tree: what was used last stays, however often the rest was used before") {
  BlockTree tree({.block_size = 8, .max_blocks = 100});
  for (Token i = 0; i < 10; ++i) {
    tree.insert(kScope, range(1000 * i, 80));
    tree.insert(kScope, range(1000 * i, 80));
  }
  for (Token i = 100; i < 110; ++i) {
    tree.insert(kScope, range(1000 * i, 80));
    CHECK(tree.match(kScope, range(1000 * i, 80)).tokens == 80);
  }
  CHECK(tree.match(kScope, range(1000 * 108, 80)).tokens == 80);
  tree.check_invariants();
}

TEST_CASE("tree: a giant prompt takes a fifth of what was used again, even when that is old") {
  BlockTree tree({.block_size = 8, .max_blocks = 100});
  for (Token i = 0; i < 5; ++i) {
    tree.insert(kScope, range(1000 * i, 80));
    tree.insert(kScope, range(1000 * i, 80));
  }
  for (Token i = 100; i < 105; ++i) {
    tree.insert(kScope, range(1000 * i, 80));
  }
  tree.insert(kScope, range(1000000, 8 * 500));
  std::size_t kept = 0;
  for (Token i = 0; i < 5; ++i) {
    kept += tree.match(kScope, range(1000 * i, 80)).blocks;
  }
  CHECK(kept >= 50 - 21);
  CHECK(tree.match(kScope, range(1000000, 8 * 500)).blocks == 100 - kept);
  tree.check_invariants();
}

TEST_CASE("tree: a prompt larger than the budget keeps its beginning") {
  BlockTree tree({.block_size = 8, .max_blocks = 4});
  tree.insert(kScope, range(1, 100));
  CHECK(tree.match(kScope, range(1, 100)).tokens == 32);
  tree.check_invariants();
}

TEST_CASE("tree: clear forgets everything") {
  BlockTree tree;
  tree.insert(kScope, range(1, 100));
  tree.clear();
  CHECK(tree.blocks() == 0);
  CHECK(tree.match(kScope, range(1, 5)).tokens == 0);
  CHECK(tree.match(kScope, range(1, 100)).tokens == 0);
  tree.insert(kScope, range(1, 100));
  CHECK(tree.match(kScope, range(1, 100)).tokens == 100);
}

TEST_CASE("tree: a hash that collides everywhere finds what is there and nothing else") {  // B72
  BlockTree tree({.block_size = 8, .max_blocks = 100, .hash = [](const Token*, std::size_t) {
                    return std::uint64_t{0};
                  }});
  tree.insert(kScope, range(1, 8));
  CHECK(tree.match(kScope, range(9000, 8)).tokens == 0);
  CHECK(tree.match(kScope, range(1, 8)).tokens == 8);
}

TEST_CASE("tree: keys are the same in every run and on every machine") {  // B72
  BlockTree tree({.block_size = 64, .max_blocks = 100});
  const auto keys = tree.keys(Scope({"model"}), range(1, 64));
  REQUIRE(keys.size() == 1);
  CHECK(keys[0] == 0xe25de35c01fb006fULL);
}

TEST_CASE("tree: a prompt with its keys given is matched and inserted like without") {
  BlockTree tree({.block_size = 8, .max_blocks = 100});
  const Tokens prompt = range(1, 100);
  const auto keys = tree.keys(kScope, prompt);
  CHECK(keys.size() == 12);
  CHECK(tree.insert(kScope, prompt, keys) == 13);
  CHECK(tree.match(kScope, prompt, keys).tokens == 100);
  CHECK(tree.match(kScope, prompt).blocks == 12);
}

TEST_CASE("tree: pinned prompts survive whatever comes, and go when they are unpinned") {
  BlockTree tree({.block_size = 8, .max_blocks = 20});
  const Tokens pinned = range(1, 60);
  REQUIRE(tree.pin(kScope, pinned));
  for (Token i = 1; i < 200; ++i) {
    tree.insert(kScope, range(1000 * i, 100));
  }
  CHECK(tree.match(kScope, pinned).tokens == 60);
  tree.check_invariants();
  CHECK_FALSE(tree.pin(kScope, range(7000, 8 * 30)));
  tree.unpin(kScope, pinned);
  for (Token i = 1; i < 200; ++i) {
    tree.insert(kScope, range(1000 * i, 100));
  }
  CHECK(tree.match(kScope, pinned).tokens == 0);
  tree.check_invariants();
}

TEST_CASE("tree: a pinned beginning of a known prompt is released by its own unpin") {
  BlockTree tree({.block_size = 8, .max_blocks = 20});
  const Tokens beginning = range(1, 10);
  tree.insert(kScope, beginning + range(500, 5));
  REQUIRE(tree.pin(kScope, beginning));
  tree.insert(kScope, beginning + range(400, 5));
  REQUIRE(tree.pin(kScope, beginning + range(400, 5)));
  tree.unpin(kScope, beginning + range(300, 5));  // never pinned: nothing happens
  tree.unpin(kScope, beginning);
  const auto flood = [&] {
    for (Token i = 1; i < 200; ++i) {
      tree.insert(kScope, range(1000 * i, 100));
    }
    tree.check_invariants();
  };
  flood();
  CHECK(tree.match(kScope, beginning + range(400, 5)).tokens == 15);
  tree.unpin(kScope, beginning + range(400, 5));
  flood();
  CHECK(tree.match(kScope, beginning).tokens == 0);
}

TEST_CASE("tree: the hottest prefix ends where the prompts part") {
  BlockTree tree({.block_size = 8, .max_blocks = 1000});
  const Tokens system = range(1, 160);
  for (Token i = 0; i < 20; ++i) {
    tree.insert(kScope, system + range(5000 + 100 * i, 40));
  }
  tree.insert(kScope, range(90000, 400));
  const auto hot = tree.hottest(1, 16);
  REQUIRE(hot.size() == 1);
  CHECK(hot[0].tokens == system);
  CHECK(hot[0].scope == kScope);
  CHECK(hot[0].use == Approx(20).epsilon(0.05));
  CHECK(tree.hottest(9, 1000).empty());
}

TEST_CASE("tree: a byte budget holds, and the index takes at most 64 bytes a block") {
  const std::size_t tokens_bytes = 32 * sizeof(Token);
  BlockTree tree({.block_size = 32, .max_blocks = 1 << 20, .max_bytes = 4 << 20});
  for (Token i = 0; i < 3000; ++i) {
    tree.insert(kScope, range(1000 * i, 320));
  }
  CHECK(tree.bytes() <= 4 << 20);
  CHECK(tree.bytes() > (4 << 20) / 4 * 3);
  BlockTree small({.block_size = 32, .max_blocks = 1 << 20, .max_bytes = 300 << 10});
  for (Token i = 0; i < 1000; ++i) {
    small.insert(kScope, range(1000 * i, 320));
  }
  CHECK(small.bytes() <= 300 << 10);
  CHECK(small.blocks() > 500);
  BlockTree large({.block_size = 32, .max_blocks = 200000});
  for (Token i = 0; large.blocks() < 190000; ++i) {
    large.insert(kScope, range(1000 * i, 3200));
  }
  CHECK(static_cast<double>(large.bytes()) / static_cast<double>(large.blocks()) <=
        64.0 + tokens_bytes);
}

TEST_CASE("tree: scopes take room as blocks do, and go with their last block") {
  const std::size_t budget = 1 << 20;
  BlockTree tree({.block_size = 32, .max_blocks = 1 << 20, .max_bytes = budget});
  const std::string text(1000, 'x');
  std::size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    tree.insert(Scope({text, std::to_string(i)}), range(1000, 40));
    most = std::max(most, tree.bytes());
  }
  CHECK(most <= budget);
  CHECK(tree.match(Scope({text, "19999"}), range(1000, 40)).tokens == 40);
  CHECK(tree.match(Scope({text, "1"}), range(1000, 40)).tokens == 0);
  tree.check_invariants();
  for (Token i = 0; i < 3000; ++i) {  // one takes the room of all of them
    tree.insert(kScope, range(1000 * i, 320));
  }
  CHECK(tree.bytes() <= budget);
  CHECK(tree.blocks() >= tree.capacity() - 2);
  tree.check_invariants();
}

TEST_CASE("tree: an empty prompt can be pinned, and leaves nothing behind") {
  BlockTree tree({.block_size = 8, .max_blocks = 100});
  CHECK(tree.pin(kScope, {}));
  tree.insert(Scope({"other"}), range(1, 8));
  tree.unpin(kScope, {});
  tree.insert(Scope({"other"}), range(9, 8));
  CHECK(tree.match(kScope, range(1, 8)).tokens == 0);
  tree.check_invariants();
}

TEST_CASE("tree: a path that ends where its page ends is found whole") {
  constexpr std::size_t kPage = 1024;  // numbers a page; the root has the first
  for (const std::size_t blocks : {kPage - 2, kPage - 1, kPage, 2 * kPage - 1}) {
    BlockTree tree({.block_size = 8, .max_blocks = 10000});
    const Tokens prompt = range(1, 8 * blocks);
    tree.insert(kScope, prompt);
    CHECK(tree.match(kScope, prompt).blocks == blocks);
    CHECK(tree.match(kScope, prompt + range(1, 80)).blocks == blocks);
    CHECK(tree.match(kScope, prompt + range(1, 800), tree.keys(kScope, prompt + range(1, 800)))
              .tokens == 8 * blocks);
  }
}

TEST_CASE("tree: a small tree takes no big pages, and a large one keeps its byte budget in them") {
  BlockTree small;
  small.insert(kScope, range(1, 1000));
  CHECK(small.bytes() < 1 << 20);
  const std::size_t budget = 40 << 20;
  BlockTree large({.block_size = 64, .max_blocks = 1 << 20, .max_bytes = budget});
  for (Token i = 0; i < 4000; ++i) {
    large.insert(kScope, range(10000 * i, 6400));
  }
  CHECK(large.bytes() <= budget);
  CHECK(large.bytes() > budget / 10 * 9);
  large.check_invariants();
}

TEST_CASE("tree: inserting what was reserved takes no more memory") {
  const std::size_t blocks = GENERATE(std::size_t{100}, std::size_t{200000});
  BlockTree tree({.block_size = 16, .max_blocks = 1 << 20});
  tree.reserve(blocks);
  tree.reserve(blocks);
  tree.insert(kScope, range(1, 16));  // so that the scope is there
  const std::size_t before = tree.bytes();
  tree.insert(kScope, range(1, 16 * blocks));
  CHECK(tree.blocks() == blocks);
  CHECK(tree.bytes() == before);
  tree.check_invariants();
}

TEST_CASE("tree: a moved tree is the same tree") {
  BlockTree first({.block_size = 8, .max_blocks = 100});
  first.insert(kScope, range(1, 100));
  BlockTree second = std::move(first);
  CHECK(second.match(kScope, range(1, 100)).tokens == 100);
  CHECK(second.options().block_size == 8);
  BlockTree third({.block_size = 16, .max_blocks = 10});
  third.insert(kScope, range(500, 32));
  third = std::move(second);
  CHECK(third.match(kScope, range(1, 100)).tokens == 100);
  CHECK(third.match(kScope, range(500, 32)).tokens == 0);
  CHECK(third.options().max_blocks == 100);
}
