// Random operations on the tree and on a naive twin: the list of all prompts ever given. With a
// budget the twin is an upper bound; without, both must agree.
#include <toki/block_tree.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "model/block_tree_script.hpp"

using namespace toki;

namespace {

// Prompts that branch a lot: few distinct tokens, cut and continued from earlier ones.
Tokens next_prompt(std::mt19937& random, const std::vector<Tokens>& seen) {
  Tokens prompt;
  if (!seen.empty() && random() % 4 != 0) {
    prompt = seen[random() % seen.size()];
    prompt.resize(random() % (prompt.size() + 1));
  }
  for (std::size_t n = random() % 40; n > 0; --n) {
    prompt.push_back(static_cast<Token>(random() % 3));
  }
  return prompt;
}

std::size_t longest(const std::vector<Tokens>& seen, const Tokens& prompt) {
  std::size_t best = 0;
  for (const Tokens& other : seen) {
    best = std::max(best, common_prefix(other, prompt));
  }
  return best;
}

}  // namespace

TEST_CASE("tree model: 10000 random steps agree with a list of prompts") {
  const unsigned seed = GENERATE(1U, 2U, 3U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<Scope> scopes{Scope({"a"}), Scope({"b"})};
  BlockTree tree({.block_size = 8, .max_blocks = 1 << 20});
  std::vector<std::vector<Tokens>> seen(scopes.size());
  for (int step = 0; step < 3334; ++step) {
    const std::size_t which = random() % scopes.size();
    const Tokens prompt = next_prompt(random, seen[which]);
    REQUIRE(tree.match(scopes[which], prompt).tokens == longest(seen[which], prompt));
    if (random() % 3 == 0) {
      tree.insert(scopes[which], prompt);
      seen[which].push_back(prompt);
      tree.check_invariants();
    }
  }
}

TEST_CASE("tree model: under a budget nothing is ever matched that was not inserted") {
  const unsigned seed = GENERATE(4U, 5U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Scope scope({"a"});
  BlockTree tree({.block_size = 8, .max_blocks = 60});
  std::vector<Tokens> seen;
  for (int step = 0; step < 2000; ++step) {
    const Tokens prompt = next_prompt(random, seen);
    REQUIRE(tree.match(scope, prompt).tokens <= longest(seen, prompt));
    tree.insert(scope, prompt);
    seen.push_back(prompt);
    REQUIRE(tree.blocks() <= 60);
    tree.check_invariants();
  }
}

TEST_CASE(
    "tree model: hundreds of siblings that begin alike, coming and going, agree with a list") {
  const unsigned seed = GENERATE(6U, 7U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Scope scope({"a"});
  BlockTree tree({.block_size = 16, .max_blocks = 400});
  std::vector<Tokens> seen;
  for (int step = 0; step < 4000; ++step) {
    Tokens prompt(2 + random() % 3, 1);
    for (std::size_t n = random() % 20; n > 0; --n) {
      prompt.push_back(static_cast<Token>(random() % 200) - 100);
    }
    REQUIRE(tree.match(scope, prompt).tokens <= longest(seen, prompt));
    tree.insert(scope, prompt);
    REQUIRE(tree.match(scope, prompt).tokens == prompt.size());
    seen.push_back(prompt);
    if (step % 50 == 0) {
      tree.check_invariants();
    }
  }
}

TEST_CASE(
    "tree model: with a hash that is the same for all blocks nothing is matched wrongly") {  // B72
  std::mt19937 random(8);
  const Scope scope({"a"});
  BlockTree tree({.block_size = 8, .max_blocks = 3000, .hash = [](const Token*, std::size_t) {
                    return std::uint64_t{0};
                  }});
  std::vector<Tokens> seen;
  for (int step = 0; step < 1000; ++step) {
    const Tokens prompt = next_prompt(random, seen);
    REQUIRE(tree.match(scope, prompt).tokens == longest(seen, prompt));
    tree.insert(scope, prompt);
    seen.push_back(prompt);
  }
  tree.check_invariants();
}

TEST_CASE("tree model: random scripts of 10000 steps agree with a list, invariants after each") {
  // The first byte: unbounded; the hash that is 0 for all blocks; a budget; both.
  const auto [first, seed] = GENERATE(table<int, unsigned>(
      {{0, 11}, {4, 12}, {1, 13}, {9, 14}, {2 + 4 * 40, 15}, {2 + 4 * 9, 16}, {3 + 4 * 50, 17}}));
  CAPTURE(first, seed);
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes{static_cast<std::uint8_t>(first)};
  while (bytes.size() < 20000) {  // at most two bytes a step
    bytes.push_back(static_cast<std::uint8_t>(random()));
  }
  CHECK(test::BlockTreeScript(bytes).run() == "");
}

TEST_CASE("tree model: the tree in big pages agrees with a list, too") {
  // Reserving makes it large from the beginning; without, it grows from small pages into big ones.
  const bool reserved = GENERATE(true, false);
  CAPTURE(reserved);
  std::mt19937 random(21);
  const Scope scope({"a"});
  BlockTree tree({.block_size = 64, .max_blocks = 90000});
  if (reserved) {
    tree.reserve(90000);
  }
  std::vector<Tokens> seen;
  while (tree.bytes() < (24 << 20) || tree.blocks() < 80000) {
    Tokens prompt;
    if (!seen.empty() && random() % 2 == 0) {
      prompt = seen[random() % seen.size()];
      prompt.resize(random() % (prompt.size() + 1));
    }
    for (std::size_t n = 2000 + random() % 9000; n > 0; --n) {
      prompt.push_back(static_cast<Token>(random() % 1000));
    }
    REQUIRE(tree.match(scope, prompt).tokens == longest(seen, prompt));
    tree.insert(scope, prompt);
    REQUIRE(tree.match(scope, prompt).tokens == prompt.size());
    seen.push_back(std::move(prompt));
  }
  for (const Tokens& prompt : seen) {
    REQUIRE(tree.match(scope, prompt).tokens == prompt.size());
  }
  tree.check_invariants();
}
