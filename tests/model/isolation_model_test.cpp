// With EngineOptions::isolated: whatever happens, a backend that does as it is told reuses nothing for a
// prompt that was computed for another scope. The twin is such a backend: every token in its slots knows
// for whom it was computed.
#include <toki/engine.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

using namespace toki;

namespace {

struct Cell {
  Token token;
  std::size_t owner;
};
using Cells = std::vector<Cell>;

const std::vector<Scope> kScopes{Scope({"m", "", "", "a"}), Scope({"m", "", "", "b"}),
                                 Scope({"m", "", "", "c"})};

class World {
 public:
  World(std::uint64_t seed, bool isolated)
      : random_(seed), engine_(options(isolated), [this] { return now_; }) {
    slots_.resize(1 + random_() % 4);
    can_erase_ = random_() % 4 != 0;
    cuts_ = random_() % 2 == 0;
    engine_.use_store([this](const Scope& scope, TokenSpan tokens) { return find(scope, tokens); });
    change_backend();
  }

  void step() {
    now_ += std::chrono::milliseconds(random_() % 2000);
    switch (random_() % 12) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: begin(); break;
      case 5:
      case 6:
      case 7:
      case 8: end(); break;
      case 9: chore(); break;
      case 10: rarely(); break;
      default: pin(); break;
    }
  }

  std::size_t foreign() const { return foreign_; }
  std::size_t reused() const { return reused_; }
  std::size_t erased_for() const { return alone_; }
  std::size_t sent_behind() const { return behind_; }

 private:
  struct Running {
    Ticket ticket;
    std::size_t owner;
    Tokens tokens;
    std::vector<std::size_t> slots;  // where the twin works for it
  };

  static EngineOptions options(bool isolated) {
    EngineOptions result;
    result.isolated = isolated;
    return result;
  }

  bool one_in(unsigned n) { return random_() % n == 0; }

  // Prompts that share beginnings, whoever asks.
  Tokens prompt() {
    Tokens tokens;
    const std::size_t families = 1 + random_() % 3;
    for (std::size_t i = 0; i < 20 + random_() % 400; ++i) {
      tokens.push_back(static_cast<Token>(i < 200 ? 1000 * families + i : random_() % 50));
    }
    return tokens;
  }

  StoredPrefix find(const Scope& scope, TokenSpan tokens) const {
    StoredPrefix best;
    for (const auto& [owner, kept] : stored_) {
      const std::uint64_t common = common_prefix(kept, tokens);
      if (kScopes[owner] == scope && (cuts_ || common == kept.size())) {
        best.tokens = std::max(best.tokens, common);
      }
    }
    return best;
  }

  static std::size_t index_of(const Scope& scope) {
    return static_cast<std::size_t>(std::find(kScopes.begin(), kScopes.end(), scope) -
                                    kScopes.begin());
  }

  static std::size_t common(const Cells& cells, TokenSpan tokens) {
    std::size_t count = 0;
    while (count < cells.size() && count < tokens.size() && cells[count].token == tokens[count]) {
      ++count;
    }
    return count;
  }

  // As the backend does it. `upto`: it is broken off there.
  std::size_t compute(std::size_t slot, std::size_t owner, TokenSpan tokens, bool reuse,
                      std::size_t upto) {
    Cells& cells = slots_[slot];
    const std::size_t had = reuse ? common(cells, tokens) : 0;
    for (std::size_t i = 0; i < had; ++i) {
      foreign_ += cells[i].owner != owner ? 1U : 0U;
    }
    reused_ += had;
    cells.resize(had);
    for (std::size_t i = had; i < std::max(upto, had) && i < tokens.size(); ++i) {
      cells.push_back({tokens[i], owner});
    }
    return had;
  }

  // True: the request `tokens` was sent, behind the last step.
  bool run_steps(Ticket& ticket, const Tokens& tokens = {}) {
    bool sent = false;
    while (const Step* next = ticket.next_step()) {
      const Step step = *next;
      Cells& cells = slots_[step.slot.index];
      StepReport report{.ms = 1};
      const std::size_t owner = index_of(step.scope);
      sent = !tokens.empty() && ticket.may_send_behind() && one_in(2);
      report.overtaken = sent && one_in(3);
      const bool reuse = !sent || ticket.may_reuse();
      if (sent) {
        ticket.sent();
      }
      if (report.overtaken) {
        compute(step.slot.index, owner, tokens, reuse, tokens.size());
      }
      if (step.kind == Step::Kind::erase) {
        can_erase_ && !one_in(8) ? cells.clear()
                                 : void(report.error = Error{Errc::unsupported, "no"});
      } else if (one_in(12)) {
        report.error = Error{Errc::backend, "no"};
        if (step.kind == Step::Kind::restore) cells.clear();
      } else if (step.kind == Step::Kind::save) {
        for (const Cell& cell : cells) report.tokens.push_back(cell.token);
        stored_.emplace_back(owner, report.tokens);
      } else if (step.kind == Step::Kind::restore) {
        cells.clear();
        for (const Token token : step.tokens) cells.push_back({token, owner});
        report.reused = step.tokens.size();
      } else {
        report.reused = compute(step.slot.index, owner, step.tokens, true, step.tokens.size());
        report.computed = step.tokens.size() - report.reused;
      }
      if (sent && !report.overtaken) {
        compute(step.slot.index, owner, tokens, reuse, tokens.size());
      }
      ticket.step_done(std::move(report));
    }
    return sent;
  }

  void begin() {
    const std::size_t owner = random_() % kScopes.size();
    Tokens tokens = prompt();
    Query query{.scope = kScopes[owner], .tokens = tokens};
    query.from_ids = one_in(2);
    query.followed = one_in(3);
    const bool messages = one_in(8);
    if (messages) {
      query.bypass = Reason::not_cacheable;
      query.alone = true;
    } else if (one_in(6)) {
      query.bypass = one_in(2) ? Reason::tokenize_failed : Reason::cache_prompt_false;
    } else if (one_in(8)) {
      query.sequences = 2;
      query.bypass = Reason::several_answers;
    } else if (one_in(8)) {
      query.slot = static_cast<std::uint32_t>(random_() % slots_.size());
    }
    if (query.bypass && query.bypass != Reason::cache_prompt_false) {
      query.tokens = {};
    }
    auto ticket = engine_.begin(query);
    if (!ticket) {
      return;
    }
    if (run_steps(*ticket, query.tokens.empty() ? Tokens() : tokens)) {
      ++behind_;
      const std::size_t slot = ticket->slot()->index;
      running_.push_back({std::move(*ticket), owner, std::move(tokens), {slot}});
      return;
    }
    const bool reuse = ticket->may_reuse();
    if (!ticket->current() || (query.alone && !reuse && isolated())) {
      std::move(*ticket).dismiss({}, SlotContent::unknown);
      return;
    }
    alone_ += query.alone ? 1U : 0U;
    ticket->sent();
    running_.push_back({std::move(*ticket), owner, std::move(tokens), {}});
    Running& now = running_.back();
    for (std::uint32_t i = 0; i < query.sequences; ++i) {
      if (const auto slot = where(now)) {
        now.slots.push_back(*slot);
        const std::size_t upto = one_in(4) ? random_() % now.tokens.size() : now.tokens.size();
        // What cannot be told anything reuses in any case.
        compute(*slot, owner, now.tokens, query.alone || (i == 0 && reuse), upto);
      }
    }
  }

  bool isolated() const { return engine_.isolated(); }

  bool works(std::size_t slot) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Running& other) {
      return std::count(other.slots.begin(), other.slots.end(), slot) > 0;
    });
  }

  // The named slot, or the one that fits best, as llama-server chooses.
  std::optional<std::size_t> where(const Running& running) const {
    if (running.ticket.slot()) {
      return running.ticket.slot()->index;
    }
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (!works(i) &&
          (!best || common(slots_[i], running.tokens) > common(slots_[*best], running.tokens))) {
        best = i;
      }
    }
    return best;
  }

  void end() {
    if (running_.empty()) {
      return;
    }
    const auto at = static_cast<std::ptrdiff_t>(random_() % running_.size());
    Running run = std::move(running_[static_cast<std::size_t>(at)]);
    running_.erase(running_.begin() + at);
    if (!run.ticket.settled() && one_in(2) && !run.slots.empty()) {
      std::vector<std::uint32_t> seen;
      for (const std::size_t slot : run.slots) seen.push_back(static_cast<std::uint32_t>(slot));
      run.ticket.settle(seen);
    }
    Outcome outcome{.ending = Ending::completed, .computed = true};
    bool whole = true;
    for (const std::size_t slot : run.slots) {
      whole = whole && common(slots_[slot], run.tokens) == run.tokens.size();
    }
    if (!whole) {
      outcome.ending = one_in(2) ? Ending::cancelled : Ending::failed;
      outcome.computed = false;
    } else {
      outcome.prompt_tokens = run.tokens.size();
      outcome.generated_tokens = 1 + random_() % 9;
      for (const std::size_t slot : run.slots) {
        for (std::uint64_t i = 1; i < outcome.generated_tokens; ++i) {
          slots_[slot].push_back({static_cast<Token>(random_() % 50), run.owner});
        }
      }
      if (one_in(5)) outcome.ending = Ending::cancelled;
    }
    std::move(run.ticket).finish(outcome);
  }

  void chore() {
    auto ticket = engine_.begin_chore(one_in(2));
    if (ticket) {
      run_steps(*ticket);
      std::move(*ticket).dismiss({}, SlotContent::unknown);
    }
  }

  void pin() {
    if (one_in(3)) {
      Tokens tokens = prompt();
      tokens.resize(20);
      (void)engine_.pin(kScopes[random_() % kScopes.size()], tokens);
    } else if (const auto pins = engine_.pins(); !pins.empty()) {
      engine_.unpin(pins[random_() % pins.size()].id);
    }
  }

  void change_backend() {
    BackendFacts facts;
    facts.slots = static_cast<std::uint32_t>(slots_.size());
    facts.own_cache = false;
    engine_.backend_changed(facts);
    engine_.set_abilities({.saves = can_erase_, .cuts = cuts_, .rewinds = true});
    engine_.serve_pins(kScopes);
  }

  void rarely() {
    switch (random_() % 6) {
      case 0: engine_.forget_residency(one_in(2)); break;
      case 1:  // somebody else comes to a slot that we do not see
        if (running_.empty()) {
          const Engine::Distrust distrust(engine_);
          compute(random_() % slots_.size(), random_() % kScopes.size(), prompt(), false, 1000);
        }
        break;
      case 2:
        if (running_.empty()) {
          for (Cells& cells : slots_) cells.clear();
          engine_.backend_restarted();
          engine_.set_abilities({.saves = can_erase_, .cuts = cuts_});
          engine_.serve_pins(kScopes);
        }
        break;
      case 3:
        if (running_.empty()) change_backend();  // tokid was started again
        break;
      case 4:
        for (const std::uint32_t slot : engine_.fenced()) engine_.unfence(slot);
        break;
      default: engine_.forget_all(); break;
    }
  }

  std::mt19937_64 random_;
  std::chrono::steady_clock::time_point now_{};
  bool can_erase_ = true;
  bool cuts_ = true;
  std::vector<Cells> slots_;
  std::vector<std::pair<std::size_t, Tokens>> stored_;
  std::size_t foreign_ = 0, reused_ = 0, alone_ = 0, behind_ = 0;
  Engine engine_;
  std::vector<Running> running_;
};

}  // namespace

TEST_CASE("isolated scopes: nothing is reused that was computed for another") {
  std::size_t reused = 0;
  std::size_t alone = 0;
  std::size_t behind = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    World world(seed, true);
    for (int i = 0; i < 200; ++i) {
      world.step();
      INFO("seed " << seed << ", step " << i);
      REQUIRE(world.foreign() == 0);
    }
    reused += world.reused();
    alone += world.erased_for();
    behind += world.sent_behind();
  }
  CHECK(reused > 10000);  // it does reuse
  CHECK(alone > 20);
  CHECK(behind > 20);
}

TEST_CASE("scopes that are not isolated do reuse what was computed for another, so this can fail") {
  std::size_t foreign = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, false);
    for (int i = 0; i < 200; ++i) {
      world.step();
    }
    foreign += world.foreign();
  }
  CHECK(foreign > 0);
}
