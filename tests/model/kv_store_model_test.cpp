// The KV store against a naive twin: the set of all prefixes that are stored, one by one. Prompts
// are over few tokens, so that they part everywhere. Composed files are compared byte by byte with
// those a server would write.
#include <toki/kv_store.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/kv_files.hpp"

using namespace toki;
using namespace toki::test;

namespace {

class Twin {
 public:
  void take(const Tokens& tokens) { prompts_.insert(tokens); }
  std::size_t match(TokenSpan prompt) const {
    std::size_t longest = 0;
    for (const Tokens& stored : prompts_) {
      longest = std::max(longest, common_prefix(stored, prompt));
    }
    return longest;
  }
  // Of the prompt, only what others share and its first `left` tokens stay.
  void forget(const Tokens& tokens, std::size_t left) {
    std::set<Tokens> rest;
    for (const Tokens& stored : prompts_) {
      const std::size_t shared = common_prefix(stored, tokens);
      rest.insert(shared == stored.size()
                      ? Tokens(stored.begin(),
                               stored.begin() + static_cast<std::ptrdiff_t>(std::min(shared, left)))
                      : stored);
    }
    rest.erase(Tokens{});
    prompts_ = std::move(rest);
  }
  const std::set<Tokens>& prompts() const { return prompts_; }
  void clear() { prompts_.clear(); }

 private:
  std::set<Tokens> prompts_;
};

class Model {
 public:
  explicit Model(unsigned seed) : random_(seed) {
    bench_.shape = {.streams = seed % 2 == 0 ? 1U : 3U, .transposed = seed % 3 == 0};
    scopes_[0] = Scope{"a"};
    scopes_[1] = Scope{"b"};
    REQUIRE(bench_.open());
  }

  void step() {
    const std::size_t which = below(2);
    bench_.scope = scopes_[which];
    Twin& twin = twins_[which];
    bench_.now_ms += 1;
    switch (below(12)) {
      case 0: REQUIRE(bench_.open()); break;
      case 1: forget(); break;
      case 2:
        if (below(20) == 0) {
          REQUIRE(bench_.store->forget(std::nullopt));
          twins_[0].clear();
          twins_[1].clear();
        }
        break;
      case 3: bench_.store->maintain(); break;
      case 4:
      case 5:
      case 6: {
        const Tokens prompt = some_prompt(twin);
        const std::size_t known = twin.match(prompt);
        const auto taken = bench_.take(prompt, false, static_cast<std::uint32_t>(below(streams())));
        REQUIRE(taken);
        CHECK(taken->new_tokens == prompt.size() - known);
        twin.take(prompt);
        break;
      }
      default: {
        const Tokens prompt = some_prompt(twin);
        const std::size_t limit = below(3) == 0 ? below(prompt.size() + 1) : prompt.size();
        CHECK(bench_.store->match(bench_.scope, prompt).tokens == twin.match(prompt));
        CHECK(bench_.restored(prompt, limit, static_cast<std::uint32_t>(below(streams()))) ==
              static_cast<std::int64_t>(std::min(twin.match(prompt), limit)));
      }
    }
  }

  // Each row of each prefix is on the disk once.
  void check_sharing() {
    std::uint64_t tokens = 0;
    for (const Twin& twin : twins_) {
      const Tokens* before = nullptr;
      for (const Tokens& prompt : twin.prompts()) {  // in order: neighbours share most
        tokens += prompt.size() - (before != nullptr ? common_prefix(*before, prompt) : 0);
        before = &prompt;
      }
    }
    CHECK(bench_.store->stats().tokens == tokens);
    CHECK(bench_.store->stats().bytes == bench_.bytes_on_disk());
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::uint32_t streams() const { return bench_.shape.streams; }

  Tokens some_prompt(const Twin& twin) {
    Tokens prompt;
    if (!twin.prompts().empty() && below(4) != 0) {
      prompt = *std::next(twin.prompts().begin(),
                          static_cast<std::ptrdiff_t>(below(twin.prompts().size())));
      prompt.resize(below(2) == 0 ? prompt.size() : below(prompt.size() + 1));
    }
    // Beyond a tile now and then, and beyond what is still merged.
    const std::size_t more = below(5) == 0 ? below(600) : below(12);
    for (std::size_t i = 0; i < more + (prompt.empty() ? 1 : 0); ++i) {
      prompt.push_back(static_cast<Token>(below(3)));
    }
    return prompt;
  }

  void forget() {
    const auto prompts = bench_.store->prompts(1000);
    if (prompts.empty()) {
      return;
    }
    const StoredPrompt& chosen = prompts[below(prompts.size())];
    // Which one it is: the twin's prompt of this length that loses its end.
    std::vector<std::pair<std::size_t, Tokens>> candidates;
    for (std::size_t i = 0; i < 2; ++i) {
      for (const Tokens& prompt : twins_[i].prompts()) {
        candidates.emplace_back(i, prompt);
      }
    }
    const auto gone = bench_.store->forget(chosen.id);
    if (!gone) {
      CHECK(gone.error().code == Errc::busy);
      return;
    }
    std::size_t found = 0;
    for (const auto& [i, prompt] : candidates) {
      const std::size_t left = bench_.store->match(scopes_[i], prompt).tokens;
      if (prompt.size() == chosen.tokens && left < prompt.size()) {
        ++found;
        twins_[i].forget(prompt, left);
      }
    }
    CHECK(found == 1);
  }

  std::mt19937 random_;
  KvBench bench_;
  Scope scopes_[2];
  Twin twins_[2];
};

}  // namespace

TEST_CASE("the KV store gives what a list of all prompts gives") {
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U, 5U, 6U);
  Model model(seed);
  for (int step = 0; step < 400; ++step) {
    INFO("seed " << seed << ", step " << step);
    model.step();
    model.check_sharing();
  }
}
