// NamedStates against a naive twin (a list of what lies under which name) and a folder of a backend
// that really holds what was saved. Prompts are over few tokens, so that they part everywhere.
#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/named_states.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/wait.hpp"

using namespace toki;

namespace {

struct Lies {
  Scope scope;
  Tokens tokens;
  std::uint64_t unknown = 0;
  bool whole = false;
};

class Model {
 public:
  explicit Model(unsigned seed) : random_(seed), names_(1 + seed % 5) { open(); }

  void step() {
    now_ += static_cast<std::int64_t>(pick(100000));
    switch (pick(8)) {
      case 0:
      case 1:
      case 2: save(); break;
      case 3:
      case 4: restore(); break;
      case 5: end_one_restore(); break;
      case 6: pick(4) == 0 ? reopen() : doubt(); break;
      default: pick(20) == 0 ? forget() : check_match(); break;
    }
    CHECK(folder_.size() <= names_);
  }

 private:
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  Scope scope() { return pick(4) == 0 ? Scope({"b"}) : Scope({"a"}); }
  Tokens prompt() {
    Tokens tokens(1 + pick(12));
    for (Token& token : tokens) {
      token = static_cast<Token>(pick(2));
    }
    return tokens;
  }

  void open() {
    states_.reset();
    auto opened = NamedStates::open(
        {.dir = dir_.path() + "/named", .names = names_, .now_ms = [this] { return now_; }}, {});
    REQUIRE(opened);
    states_ = std::move(*opened);
  }
  void reopen() {
    readers_.clear();
    open();
    check_match();
  }

  static std::uint64_t served(const Lies& lies, const Scope& scope, const Tokens& prompt) {
    if (!(lies.scope == scope)) {
      return 0;
    }
    std::uint64_t common = 0;
    while (common < lies.tokens.size() && common < prompt.size() &&
           lies.tokens[common] == prompt[common]) {
      ++common;
    }
    const bool all = common == lies.tokens.size() && lies.unknown == 0;
    return lies.whole && !all ? 0 : common;
  }
  std::uint64_t most(const Scope& scope, const Tokens& prompt) const {
    std::uint64_t best = 0;
    for (const auto& [file, lies] : twin_) {
      best = std::max(best, served(lies, scope, prompt));
    }
    return best;
  }
  static bool begins(const Tokens& tokens, const Tokens& beginning) {
    return beginning.size() <= tokens.size() &&
           std::equal(beginning.begin(), beginning.end(), tokens.begin());
  }

  void check_match() {
    const Scope where = scope();
    const Tokens wanted = prompt();
    CHECK(states_->match(where, wanted).tokens == most(where, wanted));
  }

  bool blocked(const std::string& file, const Tokens& needed) const {
    const auto lies = twin_.find(file);
    const bool is_needed =
        lies != twin_.end() && !needed.empty() && begins(lies->second.tokens, needed);
    return readers_.count(file) > 0 || is_needed;
  }

  void save() {
    Step step{.kind = Step::Kind::save, .scope = scope(), .tokens = prompt()};
    step.whole = pick(3) == 0;
    if (pick(3) == 0) {
      step.needed = prompt();
    }
    const auto file = states_->begin_save(step);
    if (!file) {
      // Every name is in use: as many as there are hold something that has to stay.
      CHECK(file.error().code == Errc::busy);
      std::map<std::string, int> stay;
      for (const auto& [name, lies] : folder_) {
        stay[name] = blocked(name, step.needed) ? 1 : 0;
        CHECK(stay[name] == 1);
      }
      CHECK(stay.size() == names_);
      return;
    }
    CHECK_FALSE(blocked(*file, step.needed));
    const bool older = std::any_of(twin_.begin(), twin_.end(), [&](const auto& one) {
      return one.second.scope == step.scope && begins(step.tokens, one.second.tokens) &&
             !blocked(one.first, step.needed);
    });
    const auto before = twin_.find(*file);
    if (older && !step.whole) {
      REQUIRE(before != twin_.end());
      CHECK(begins(step.tokens, before->second.tokens));
    } else if (!older && twin_.size() < names_ && readers_.empty()) {
      CHECK(before == twin_.end());
    }
    twin_.erase(*file);
    folder_.erase(*file);
    const std::uint64_t unknown = step.whole ? 0 : pick(3);
    folder_[*file] = step.tokens.size() + unknown;
    if (pick(6) == 0) {  // the client left, or the program ended
      pick(2) == 0 ? void(states_->discard(*file)) : reopen();
      return;
    }
    if (pick(10) == 0) {  // the slot was not what it should be
      CHECK_FALSE(states_->end_save(step, *file, {.tokens = step.tokens.size() - 1}));
      return;
    }
    REQUIRE(states_->end_save(step, *file, {.tokens = step.tokens.size() + unknown}));
    std::erase_if(twin_, [&](const auto& one) {
      const Lies& lies = one.second;
      return lies.scope == step.scope && begins(step.tokens, lies.tokens) &&
             (!step.whole || lies.tokens.size() == step.tokens.size());
    });
    twin_[*file] = {step.scope, step.tokens, unknown, step.whole};
  }

  void restore() {
    const Scope where = scope();
    const Tokens wanted = prompt();
    const std::uint64_t expected = most(where, wanted);
    Step step{.kind = Step::Kind::restore, .scope = where, .tokens = wanted};
    const auto state = states_->begin_restore(step);
    REQUIRE(state.has_value() == (expected > 0));
    if (!state) {
      return;
    }
    const auto lies = twin_.find(state->file);
    REQUIRE(lies != twin_.end());
    CHECK(served(lies->second, where, wanted) == expected);
    CHECK(state->held == lies->second.tokens);
    CHECK(state->tokens == folder_.at(state->file));
    readers_.insert({state->file, state->tokens});
  }

  void end_one_restore() {
    if (readers_.empty()) {
      return;
    }
    const auto [file, tokens] = *readers_.begin();
    readers_.erase(readers_.begin());
    switch (pick(4)) {
      case 0:
        states_->end_restore(file, Error{Errc::backend, "400"});
        twin_.erase(file);
        break;
      case 1: states_->end_restore(file, Error{Errc::cancelled, ""}); break;
      default: states_->end_restore(file, Timed{.tokens = tokens}); break;
    }
  }

  void doubt() {
    Step step{.kind = Step::Kind::restore, .scope = scope(), .tokens = prompt()};
    const auto state = states_->begin_restore(step);  // tells which it is
    states_->doubt(step.scope, step.tokens);
    if (!state) {
      return;
    }
    states_->end_restore(state->file, Error{Errc::cancelled, ""});
    Lies& lies = twin_.at(state->file);
    if (lies.unknown > 0 || served(lies, step.scope, step.tokens) == lies.tokens.size()) {
      twin_.erase(state->file);
    } else {
      lies.whole = true;
    }
  }

  void forget() {
    CHECK(*states_->forget({}) == twin_.size());
    twin_.clear();
  }

  std::mt19937 random_;
  const std::size_t names_;
  std::int64_t now_ = 1000000;
  test::TemporaryDirectory dir_;
  std::unique_ptr<NamedStates> states_;
  std::map<std::string, Lies> twin_;
  std::map<std::string, std::uint64_t> folder_;  // every file that was ever written, and its size
  std::multimap<std::string, std::uint64_t> readers_;
};

}  // namespace

TEST_CASE("model: named states are what a list of them says, over failures and restarts") {
  for (unsigned seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    Model model(seed);
    for (int i = 0; i < 400; ++i) {
      model.step();
    }
  }
}
