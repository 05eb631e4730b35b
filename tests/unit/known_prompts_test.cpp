#include "core/known_prompts.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>

using namespace toki;

namespace {

const Scope kA({"a"});
const Scope kB({"b"});

Tokens run(Token from, Token to) {
  Tokens tokens;
  for (Token t = from; t < to; ++t) {
    tokens.push_back(t);
  }
  return tokens;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

KnownPrompts::Remembered remember(KnownPrompts& known, std::uint64_t id, const Scope& scope,
                                  const Tokens& tokens, std::int64_t now = 0) {
  auto result = known.remember(id, scope, tokens, hash_embedding(tokens), nullptr, now);
  known.check_invariants();
  return result;
}

}  // namespace

TEST_CASE("known prompts: a conversation that goes on is one prompt, a branch is another") {
  KnownPrompts known({});
  const Tokens first = run(0, 100);
  const Tokens second = joined(first, run(500, 600));
  const Tokens other = joined(run(0, 50), run(700, 800));
  CHECK(remember(known, 1, kA, first).is_new);
  const auto grown = remember(known, 2, kA, second);
  CHECK(grown.is_new);
  CHECK(grown.prompt->id == 1);
  CHECK(grown.prompt->use == Approx(2));
  CHECK_FALSE(remember(known, 3, kA, first).is_new);
  CHECK(remember(known, 4, kA, other).is_new);
  CHECK(remember(known, 5, kB, first).is_new);
  CHECK(known.size() == 3);
}

TEST_CASE("known prompts: the nearest one shares the longest prefix, and says where they part") {
  KnownPrompts known({});
  remember(known, 1, kA, joined(run(0, 100), run(500, 600)));
  remember(known, 2, kA, joined(run(0, 50), run(700, 800)));
  const auto near = known.nearest(kA, joined(run(0, 70), {9, 9, 9}));
  REQUIRE(near.prompt != nullptr);
  CHECK(near.prompt->id == 1);
  CHECK(near.common == 70);
  CHECK(known.nearest(kA, {}).prompt == nullptr);
  CHECK(known.nearest(kB, run(0, 70)).prompt == nullptr);
}

TEST_CASE("known prompts: what was computed is forgotten when the backend starts again") {
  KnownPrompts known({});
  const Tokens whole = run(0, 200);
  remember(known, 1, kA, whole);
  CHECK(known.computed(kA, joined(run(0, 150), {7})) == 150);
  known.forget_computed();
  known.check_invariants();
  CHECK(known.computed(kA, whole) == 0);
  CHECK(known.nearest(kA, whole).common == 200);
  remember(known, 2, kA, run(0, 40));  // the beginning of what is known, computed anew
  CHECK(known.computed(kA, whole) == 40);
}

TEST_CASE("known prompts: budgets are hard, and the longest unused goes first") {
  KnownPrompts known({.prompts = 2, .bytes = 100000});
  remember(known, 1, kA, run(0, 100));
  remember(known, 2, kA, run(1000, 1100));
  remember(known, 3, kA, run(0, 100));  // used again
  const auto done = remember(known, 4, kA, run(2000, 2100));
  CHECK(done.evicted == std::vector<std::uint64_t>{2});
  CHECK(known.nearest(kA, run(0, 100)).common == 100);
  CHECK(remember(known, 5, kA, run(0, 30000)).prompt == nullptr);  // larger than all
  CHECK(known.bytes() <= 100000);
}

TEST_CASE("known prompts: similarity nominates, token ids decide") {
  KnownPrompts known({});
  const Tokens stored = joined(run(0, 300), run(5000, 5100));
  remember(known, 1, kA, stored);
  remember(known, 2, kA, run(9000, 9400));
  const Tokens asked = joined(run(0, 300), run(6000, 6100));
  const auto found = known.similar(kA, asked, hash_embedding(asked));
  REQUIRE(found.prompt != nullptr);
  CHECK(found.prompt->id == 1);
  CHECK(found.common == 300);
  Tokens shifted = asked;
  shifted.insert(shifted.begin(), 42);  // as similar as can be, and no common prefix
  CHECK(known.similar(kA, shifted, hash_embedding(shifted)).common == 0);
  CHECK(known.similar(kB, asked, hash_embedding(asked)).prompt == nullptr);
}

TEST_CASE("known prompts: embeddings of two kinds or two models are never compared") {
  KnownPrompts known({});
  const Tokens tokens = run(0, 100);
  remember(known, 1, kA, tokens);
  const Embedding one{EmbeddingKind::model, {1, 0, 0}, "one"};
  const Embedding two{EmbeddingKind::model, {1, 0, 0}, "two"};
  CHECK(known.similar(kA, tokens, one).prompt == nullptr);
  REQUIRE(known.embed(1, one) != nullptr);
  known.check_invariants();
  CHECK(known.similar(kA, tokens, one).common == 100);
  CHECK(known.similar(kA, tokens, two).prompt == nullptr);
  CHECK(known.similar(kA, tokens, hash_embedding(tokens)).common == 100);
  CHECK(known.embed(7, one) == nullptr);
  CHECK(known.embed(1, {EmbeddingKind::model, std::vector<float>(kMaxDimension + 1), "huge"}) ==
        nullptr);
  CHECK(known.embed(1, {EmbeddingKind::model, {}, "empty"}) == nullptr);
}

TEST_CASE("known prompts: adopted ones are known, not computed, and never displace") {
  KnownPrompts known({.prompts = 2});
  CHECK(known.adopt({.id = 5, .scope = kA, .tokens = run(0, 100), .use = 3, .last_used_ms = 9}));
  CHECK_FALSE(known.adopt({.id = 5, .scope = kB, .tokens = run(0, 100)}));
  CHECK_FALSE(known.adopt({.id = 6, .scope = kA, .tokens = run(0, 50)}));
  CHECK_FALSE(known.adopt({.id = 7, .scope = kA, .tokens = {}}));
  CHECK(known.adopt({.id = 8, .scope = kB, .tokens = run(0, 100)}));
  CHECK_FALSE(known.adopt({.id = 9, .scope = kB, .tokens = run(4, 100)}));
  known.check_invariants();
  CHECK(known.computed(kA, run(0, 100)) == 0);
  CHECK(known.nearest(kA, run(0, 100)).prompt->use == Approx(3));
  CHECK(known.list(9).front()->id == 5);
}

// The naive twin keeps every prompt in a list and compares with all of them.
TEST_CASE("known prompts: agree with a naive twin over random steps") {
  std::mt19937 random(11);
  KnownPrompts known({.prompts = 24});
  struct Twin {
    const Scope* scope;
    Tokens tokens;
    std::size_t computed;
  };
  std::map<std::uint64_t, Twin> twins;
  const auto some = [&] {
    Tokens tokens;
    for (std::size_t n = random() % 12; n > 0; --n) {
      tokens.push_back(static_cast<Token>(random() % 2));
    }
    tokens.push_back(2);
    return random() % 3 == 0 ? tokens : joined(tokens, {static_cast<Token>(random() % 3)});
  };
  for (std::uint64_t step = 1; step <= 4000; ++step) {
    const Scope& scope = random() % 2 == 0 ? kA : kB;
    const Tokens tokens = some();
    std::size_t best = 0;
    std::size_t computed = 0;
    for (const auto& [id, twin] : twins) {
      if (*twin.scope == scope) {
        const std::size_t common = common_prefix(twin.tokens, tokens);
        best = std::max(best, common);
        computed = std::max(computed, std::min(common, twin.computed));
      }
    }
    CHECK(known.nearest(scope, tokens).common == best);
    CHECK(known.computed(scope, tokens) == computed);
    if (random() % 50 == 0) {
      known.forget_computed();
      for (auto& [id, twin] : twins) {
        twin.computed = 0;
      }
    }
    const auto done = remember(known, step, scope, tokens, static_cast<std::int64_t>(step));
    for (const std::uint64_t id : done.evicted) {
      REQUIRE(twins.erase(id) == 1);
    }
    REQUIRE(done.prompt != nullptr);
    Twin& twin = twins[done.prompt->id];
    const std::size_t before = done.is_new ? 0 : twin.computed;
    twin = {done.prompt->scope == kA ? &kA : &kB, done.prompt->tokens,
            std::max(before, tokens.size())};
    REQUIRE(twins.size() == known.size());
  }
}

TEST_CASE("known prompts: in the order of their tokens, neighbours tell what any two share") {
  std::mt19937 random(7);
  KnownPrompts known({});
  std::map<std::uint64_t, std::pair<Scope, Tokens>> twin;
  for (std::uint64_t id = 1; id <= 60; ++id) {
    Tokens tokens;
    const std::size_t length = 5 + random() % 30;
    for (std::size_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<Token>(random() % 2));
    }
    tokens.push_back(static_cast<Token>(100 + id));  // none is the beginning of another
    const Scope& scope = random() % 3 == 0 ? kB : kA;
    REQUIRE(remember(known, id, scope, tokens).is_new);
    twin.emplace(id, std::pair(scope, tokens));
  }
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{25}, std::size_t{99}}) {
    const auto placed = known.in_order(count);
    REQUIRE(placed.size() == std::min<std::size_t>(count, 60));
    for (std::size_t a = 0; a < placed.size(); ++a) {
      CHECK(placed[a].prompt->id > 60 - placed.size());  // the most recently used ones
      std::size_t least = placed[a].prompt->tokens.size();
      for (std::size_t b = a + 1; b < placed.size(); ++b) {
        least = std::min(least, placed[b].common);
        const auto& one = twin.at(placed[a].prompt->id);
        const auto& other = twin.at(placed[b].prompt->id);
        CHECK(least == (one.first == other.first ? common_prefix(one.second, other.second) : 0));
      }
    }
    CHECK((placed.empty() || placed[0].common == 0));
  }
}
