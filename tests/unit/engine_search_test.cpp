// The engine's search: what is known of a prompt, where it was found, and what is remembered.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;

namespace {

const Scope kScope({"model"});

struct Bench {
  std::chrono::steady_clock::time_point now{};
  std::int64_t unix_ms = 1000;
  Engine engine;

  explicit Bench(std::uint32_t slots, EngineOptions options = {})
      : engine(
            options, [this] { return now; }, [this] { return unix_ms; }) {
    engine.backend_changed(
        {.slots = slots, .slots_used = std::vector<bool>(slots, false), .own_cache = false});
  }

  Account run(const Tokens& tokens, std::optional<std::uint64_t> cached = {},
              const Embedding* embedding = nullptr) {
    Query query{.scope = kScope, .tokens = tokens};
    query.embedding = embedding;
    auto ticket = engine.begin(query);
    REQUIRE(ticket);
    ticket->sent();
    const std::uint64_t reused = cached.value_or(ticket->predicted());
    return std::move(*ticket).finish({.ending = Ending::completed,
                                      .computed = true,
                                      .prompt_tokens = tokens.size(),
                                      .cached_tokens = reused,
                                      .generated_tokens = 4});
  }
  Lookup lookup(const Tokens& tokens, const Embedding* embedding = nullptr) {
    Query query{.scope = kScope, .tokens = tokens};
    query.embedding = embedding;
    return engine.lookup(query);
  }
};

// A tree that forgets at once, so that only prompts remembered whole are left.
EngineOptions small_tree() {
  return {.tree = {.max_blocks = 4}};
}

}  // namespace

TEST_CASE("search: a hit is told by the step that found the most of it") {
  Bench b(1);
  const Tokens first = range(1, 300);
  CHECK(b.lookup(first).source == Source::none);
  b.run(first);
  CHECK(b.lookup(first + range(900, 5)).source == Source::slot);
  b.run(first + range(900, 5));
  CHECK(b.engine.stats().source_slot == 1);
  b.run(range(2000, 300));  // takes the slot
  CHECK(b.lookup(first).source == Source::tree);
  CHECK(b.lookup(first).available == 300);
  CHECK(b.lookup(first).predicted == 0);
  b.run(first, 200);  // found in a place of the backend's own
  CHECK(b.engine.stats().source_tree == 1);
  CHECK(b.engine.stats().source_none == 0);
}

TEST_CASE("search: similarity finds what the tree has forgotten, and only that is its gain") {
  Bench b(1, small_tree());
  const Tokens known = range(1, 300);
  b.run(known);
  b.run(range(5000, 300));
  const Tokens asked = range(1, 280) + range(9000, 40);
  const Embedding embedding = hash_embedding(asked);
  REQUIRE(b.engine.wants_embedding(kScope, asked));
  const Lookup without = b.lookup(asked);
  CHECK(without.available == 0);
  CHECK(without.source == Source::none);
  const Lookup with = b.lookup(asked, &embedding);
  CHECK(with.available == 280);
  CHECK(with.source == Source::similar);
  b.run(asked, 100, &embedding);
  CHECK(b.engine.stats().similar_searches_total == 1);
  CHECK(b.engine.stats().similar_gained_tokens_total == 280);
  CHECK(b.engine.stats().source_similar == 1);
}

TEST_CASE("search: an index of the program's own is asked, and made anew when all is forgotten") {
  // Finds nothing, however near.
  class Blind final : public SimilarityIndex {
   public:
    explicit Blind(std::size_t dimension) : vectors_(make_scan_index(dimension)) {}
    void put(std::uint64_t id, const Scope& scope, std::span<const float> vector) override {
      vectors_->put(id, scope, vector);
    }
    bool remove(std::uint64_t id) override { return vectors_->remove(id); }
    void clear() override { vectors_->clear(); }
    std::vector<Neighbour> search(const Scope&, std::span<const float>,
                                  std::size_t) const override {
      return {};
    }
    std::size_t dimension() const noexcept override { return vectors_->dimension(); }
    std::size_t size() const noexcept override { return vectors_->size(); }
    std::size_t bytes() const noexcept override { return vectors_->bytes(); }

   private:
    std::unique_ptr<SimilarityIndex> vectors_;
  };
  std::vector<std::size_t> made;
  EngineOptions options = small_tree();
  options.make_index = [&](std::size_t dimension) {
    made.push_back(dimension);
    return std::make_unique<Blind>(dimension);
  };
  Bench b(1, options);
  CHECK(made == std::vector<std::size_t>{kHashDimension});
  b.run(range(1, 300));
  b.run(range(5000, 300));
  const Tokens asked = range(1, 280) + range(9000, 40);
  const Embedding embedding = hash_embedding(asked);
  CHECK(b.lookup(asked, &embedding).source == Source::none);
  const Embedding model{EmbeddingKind::model, {0.6F, 0.8F}, "m"};
  b.run(range(7000, 300), {}, &model);
  CHECK(made == std::vector<std::size_t>{kHashDimension, 2});
  b.engine.forget_all();
  CHECK(made == std::vector<std::size_t>{kHashDimension, 2, kHashDimension});
}

TEST_CASE("search: no embedding is wanted where it could not find more than the tree") {
  Bench whole(1);
  CHECK_FALSE(whole.engine.wants_embedding(kScope, range(1, 300)));
  whole.run(range(5000, 300));
  CHECK_FALSE(whole.engine.wants_embedding(kScope, range(1, 300)));  // the tree forgot nothing

  Bench b(1, small_tree());
  b.run(range(5000, 300));
  CHECK(b.engine.wants_embedding(kScope, range(1, 300)));
  CHECK_FALSE(b.engine.wants_embedding(kScope, range(5000, 128)));  // a good match
  CHECK_FALSE(b.engine.wants_embedding(kScope, {}));
}

TEST_CASE("search: a good match in the tree is not searched by similarity") {
  Bench b(1, small_tree());
  b.run(range(5000, 300));
  const Tokens asked = range(5000, 128) + range(9000, 10);
  const Embedding embedding = hash_embedding(asked);
  CHECK(b.lookup(asked, &embedding).source == Source::slot);
  b.run(asked, {}, &embedding);
  CHECK(b.engine.stats().similar_searches_total == 0);
}

TEST_CASE("search: a lookup takes nothing and counts nothing") {
  Bench b(1);
  b.run(range(1, 100));
  const auto before = b.engine.stats();
  const Lookup found = b.lookup(range(1, 100) + range(700, 3));
  CHECK(found.slot == 0U);
  CHECK_FALSE(found.busy);
  REQUIRE(found.nearest);
  CHECK(found.nearest->tokens == 100);
  CHECK(found.common == 100);
  CHECK(b.engine.stats().requests_total == before.requests_total);
  CHECK(b.engine.idle_slots() == 1);
  auto ticket = b.engine.begin({.scope = kScope, .tokens = range(900, 9)});
  CHECK(b.lookup(range(1, 100)).busy);
}

TEST_CASE("remembering: every change is told once, with what a restart needs") {
  Bench b(1, {.max_prompts = 2});
  std::vector<PromptChange> changes;
  b.engine.on_prompt_change([&](PromptChange change) { changes.push_back(std::move(change)); });
  using Kind = PromptChange::Kind;
  b.unix_ms = 5000;
  const Account first = b.run(range(1, 100));
  b.run(range(1, 100));
  const Account grown = b.run(range(1, 100) + range(500, 10));
  b.run(range(2000, 100));
  b.run(range(3000, 100));
  std::vector<Kind> kinds;
  for (const auto& change : changes) {
    kinds.push_back(change.kind);
  }
  CHECK(kinds ==
        std::vector<Kind>{Kind::put, Kind::used, Kind::put, Kind::put, Kind::put, Kind::removed});
  CHECK(first.prompt != 0);
  CHECK(grown.prompt == first.prompt);
  CHECK(changes[0].prompt.id == first.prompt);
  CHECK(changes[0].prompt.tokens == range(1, 100));
  CHECK(changes[0].prompt.scope == kScope);
  CHECK(changes[0].prompt.last_used_ms == 5000);
  CHECK(changes[0].prompt.embedding.kind == EmbeddingKind::hash);
  CHECK(changes[1].prompt.use == Approx(2));
  CHECK(changes[5].prompt.id == first.prompt);
}

TEST_CASE("remembering: what an engine told, another one knows after adopting it") {
  std::vector<PromptRecord> kept;
  Bench first(1);
  first.engine.on_prompt_change(
      [&](PromptChange change) { kept.insert(kept.begin(), change.prompt); });
  first.run(range(1, 100));
  first.run(range(2000, 100));

  Bench second(1);
  second.engine.adopt(kept);
  const Lookup found = second.lookup(range(1, 90) + range(900, 9));
  CHECK(found.available == 90);
  CHECK(found.source == Source::tree);
  CHECK(found.predicted == 0);
  CHECK(found.nearest->id == kept[1].id);
  CHECK(second.engine.prompts(9).size() == 2);
  CHECK(second.engine.prompts(9)[0].id == kept[0].id);
  const Account next = second.run(range(7000, 50));
  CHECK(next.prompt > kept[0].id);
}

TEST_CASE("remembering: a late embedding of the model joins its prompt") {
  Bench b(1);
  std::vector<PromptChange> changes;
  b.engine.on_prompt_change([&](PromptChange change) { changes.push_back(std::move(change)); });
  const Account done = b.run(range(1, 100));
  CHECK(done.wants_embedding);
  b.engine.embedded(done.prompt, {EmbeddingKind::model, {0.6F, 0.8F}, "m"});
  b.engine.embedded(done.prompt + 7, {EmbeddingKind::model, {0.6F, 0.8F}, "m"});
  REQUIRE(changes.size() == 2);
  CHECK(changes[1].prompt.embedding.values.size() == 2);
  CHECK(b.engine.prompts(1)[0].embedding == EmbeddingKind::model);
}

TEST_CASE("remembering: a prompt the backend counted differently is told to nobody") {
  Bench b(1);
  int changes = 0;
  b.engine.on_prompt_change([&](const PromptChange&) { ++changes; });
  auto ticket = b.engine.begin({.scope = kScope, .tokens = range(1, 100)});
  ticket->sent();
  const Account account =
      std::move(*ticket).finish({.ending = Ending::completed, .prompt_tokens = 99});
  CHECK(account.prompt == 0);
  CHECK(changes == 0);
}
