#include <toki/block_tree.hpp>

#include <catch2/catch.hpp>

#include <numeric>

using namespace toki;

namespace {

const Scope kScope({"model"});

Tokens range(Token first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

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
  BlockTree tree({.block_size = 32, .max_blocks = 1000});
  for (Token i = 0; i < 20000; ++i) {
    tree.insert(kScope, range(i * 100, 64));
    REQUIRE(tree.blocks() <= 1000);
  }
  tree.check_invariants();
  CHECK(tree.match(kScope, range(19999 * 100, 64)).tokens == 64);
  CHECK(tree.match(kScope, range(0, 64)).tokens == 0);
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
  CHECK(tree.bytes() == 0);
  CHECK(tree.match(kScope, range(1, 100)).tokens == 0);
  tree.insert(kScope, range(1, 100));
  CHECK(tree.match(kScope, range(1, 100)).tokens == 100);
}
