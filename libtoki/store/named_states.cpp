#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/named_states.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <utility>

#include "store/files.hpp"
#include "store/named_records.hpp"

namespace toki {
namespace {

constexpr double kHalfLifeMs = 24.0 * 3600 * 1000;

std::int64_t system_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// One name of the backend's folder.
struct Place {
  std::optional<NamedState> state;
  bool saving = false;        // the backend writes it now
  std::uint32_t readers = 0;  // restores under way
  bool unwritten = false;     // its record is older than it
};

std::uint64_t size_of(const NamedState& state) {
  return state.tokens.size() + state.unknown;
}

// Leading tokens of the prompt that the state serves.
std::uint64_t served(const NamedState& state, const Scope& scope, TokenSpan prompt) {
  if (!(state.scope == scope)) {
    return 0;
  }
  const std::uint64_t common = common_prefix(state.tokens, prompt);
  return !state.whole || common == size_of(state) ? common : 0;
}

bool begins_with(const Tokens& tokens, TokenSpan beginning) {
  return common_prefix(tokens, beginning) == beginning.size();
}

double use_at(const NamedState& state, std::int64_t now_ms) {
  const auto age = static_cast<double>(std::max<std::int64_t>(now_ms - state.last_used_ms, 0));
  return state.use * std::exp2(-age / kHalfLifeMs);
}

double worth(const NamedState& state, std::int64_t now_ms) {
  return use_at(state, now_ms) * static_cast<double>(size_of(state));
}

}  // namespace

struct TOKI_HIDDEN NamedStates::Impl {
  Impl(LogSink sink, std::function<std::int64_t()> clock, std::unique_ptr<Files> calls,
       NamedRecords opened, std::size_t names)
      : log(std::move(sink)),
        now_ms(std::move(clock)),
        files(std::move(calls)),
        records(std::move(opened)),
        places(names) {}

  void load();
  std::optional<std::size_t> best(const Scope& scope, TokenSpan prompt) const;
  std::optional<std::size_t> choose(const Step& step) const;
  bool free_to_write(std::size_t name, const Step& step) const;
  std::optional<std::size_t> older(const Step& step) const;
  bool branches(std::size_t name, const Step& step) const;
  void write(std::size_t name);
  void drop(std::size_t name);
  void use(NamedState& state) const;

  const LogSink log;
  const std::function<std::int64_t()> now_ms;
  const std::unique_ptr<Files> files;

  // Taken first, by all that changes anything: file work is done in turn. The second one guards the
  // places, and is never held during file work, because match() waits for it.
  std::mutex turn;
  NamedRecords records;
  bool writable = true;
  std::uint64_t next_id = 1;

  mutable std::mutex memory;
  std::uint64_t dropped = 0;  // that the backend did not have
  std::vector<Place> places;
};

Result<std::unique_ptr<NamedStates>> NamedStates::open(const NamedStatesOptions& options,
                                                       LogSink log) {
  TOKI_CHECK(options.names > 0);
  auto files = std::make_unique<Files>();
  auto records = NamedRecords::open(*files, options.dir, options.names);
  if (!records) {
    return records.error();
  }
  auto clock = options.now_ms ? options.now_ms : system_now_ms;
  auto impl = std::make_unique<Impl>(std::move(log), std::move(clock), std::move(files),
                                     std::move(*records), options.names);
  impl->load();
  return std::unique_ptr<NamedStates>(new NamedStates(std::move(impl)));
}

NamedStates::NamedStates(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NamedStates::~NamedStates() {
  maintain();
}

void NamedStates::Impl::load() {
  auto found = records.read_all();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i]) {
      next_id = std::max(next_id, found[i]->id + 1);
      places[i].state = std::move(found[i]);
    }
  }
}

// ---- the book: REQUIRES `memory`, or the turn where nothing is changed

// The state that serves most of the prompt; of equal ones the smallest.
std::optional<std::size_t> NamedStates::Impl::best(const Scope& scope, TokenSpan prompt) const {
  std::optional<std::size_t> found;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i].state) {
      continue;
    }
    const NamedState& state = *places[i].state;
    const std::uint64_t common = served(state, scope, prompt);
    if (common > most ||
        (common > 0 && common == most && size_of(state) < size_of(*places[*found].state))) {
      found = i;
      most = common;
    }
  }
  return found;
}

bool NamedStates::Impl::free_to_write(std::size_t name, const Step& step) const {
  const Place& place = places[name];
  if (place.saving || place.readers > 0) {
    return false;
  }
  return !place.state || step.needed.empty() || !begins_with(place.state->tokens, step.needed);
}

// Whether another state goes on from this one otherwise than the step's slot does.
bool NamedStates::Impl::branches(std::size_t name, const Step& step) const {
  const NamedState& state = *places[name].state;
  return std::any_of(places.begin(), places.end(), [&](const Place& other) {
    return other.state && other.state->tokens.size() > state.tokens.size() &&
           other.state->scope == state.scope && begins_with(other.state->tokens, state.tokens) &&
           !begins_with(step.tokens, other.state->tokens);
  });
}

// An older state of the conversation in the slot. One that only serves whole is kept for others
// that begin alike, when it is the shortest of them or another one branches off from it.
std::optional<std::size_t> NamedStates::Impl::older(const Step& step) const {
  std::optional<std::size_t> longest;
  std::size_t count = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!places[i].state || !(places[i].state->scope == step.scope) ||
        !begins_with(step.tokens, places[i].state->tokens)) {
      continue;
    }
    ++count;
    const bool same = places[i].state->tokens.size() == step.tokens.size();
    if (free_to_write(i, step) && (!step.whole || same || !branches(i, step)) &&
        (!longest || places[i].state->tokens.size() > places[*longest].state->tokens.size())) {
      longest = i;
    }
  }
  const bool only = step.whole && count == 1 && longest &&
                    places[*longest].state->tokens.size() < step.tokens.size();
  return only ? std::nullopt : longest;
}

std::optional<std::size_t> NamedStates::Impl::choose(const Step& step) const {
  if (const auto found = older(step)) {
    return found;
  }
  const std::int64_t now = now_ms();
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!free_to_write(i, step)) {
      continue;
    }
    if (!places[i].state) {
      return i;
    }
    if (!least || worth(*places[i].state, now) < worth(*places[*least].state, now)) {
      least = i;
    }
  }
  return least;
}

void NamedStates::Impl::use(NamedState& state) const {
  const std::int64_t now = now_ms();
  state.use = use_at(state, now) + 1;
  state.last_used_ms = now;
}

// ---- what changes it: REQUIRES the turn

void NamedStates::Impl::write(std::size_t name) {
  const Status written = records.write(name, *places[name].state);
  const bool said = !std::exchange(writable, written.has_value());
  {
    const std::lock_guard lock(memory);
    places[name].unwritten = !written;
  }
  if (!written && !said && log) {
    log(LogLevel::warn,
        "what lies in the backend's folder cannot be written down: " + written.error().detail);
  }
}

void NamedStates::Impl::drop(std::size_t name) {
  {
    const std::lock_guard lock(memory);
    places[name].state.reset();
  }
  (void)records.remove(name);
}

StoredPrefix NamedStates::match(const Scope& scope, TokenSpan prompt) const {
  const std::lock_guard lock(impl_->memory);
  StoredPrefix found;
  const auto name = impl_->best(scope, prompt);
  if (!name) {
    return found;
  }
  const NamedState& state = *impl_->places[*name].state;
  found.tokens = served(state, scope, prompt);
  found.read = size_of(state);
  found.snapshot = state.whole;
  for (const Place& place : impl_->places) {
    if (place.state && served(*place.state, scope, prompt) == prompt.size()) {
      found.beyond = std::max<std::uint64_t>(found.beyond, size_of(*place.state) - prompt.size());
    }
  }
  return found;
}

Result<std::string> NamedStates::begin_save(const Step& step) {
  const std::lock_guard turn(impl_->turn);
  const auto name = impl_->choose(step);
  if (!name) {
    return Error{Errc::busy, "every name is in use"};
  }
  // From here on nobody knows what lies there, so first of all it must not be believed any more.
  if (auto removed = impl_->records.remove(*name); !removed) {
    return removed.error();
  }
  const std::lock_guard lock(impl_->memory);
  impl_->places[*name].state.reset();
  impl_->places[*name].saving = true;
  return impl_->records.file_of(*name);
}

Result<Taken> NamedStates::end_save(const Step& step, std::string_view file, const Timed& saved) {
  const std::lock_guard turn(impl_->turn);
  const auto name = impl_->records.name_of(file);
  if (!name || !impl_->places[*name].saving) {
    return Error{Errc::not_found, "no save was begun under this name"};
  }
  const bool fits = !step.tokens.empty() && saved.tokens >= step.tokens.size() &&
                    (!step.whole || saved.tokens == step.tokens.size());
  {
    const std::lock_guard lock(impl_->memory);
    Place& place = impl_->places[*name];
    place.saving = false;
    if (fits) {
      place.state = NamedState{.id = impl_->next_id++,
                               .scope = step.scope,
                               .tokens = step.tokens,
                               .unknown = saved.tokens - step.tokens.size(),
                               .whole = step.whole};
      impl_->use(*place.state);
    }
  }
  if (!fits) {
    return Error{Errc::corrupt, "the backend saved another number of tokens than the slot holds"};
  }
  impl_->write(*name);
  for (std::size_t i = 0; i < impl_->places.size(); ++i) {  // what it serves as well
    const Place& other = impl_->places[i];
    if (i != *name && other.state && other.state->scope == step.scope &&
        begins_with(step.tokens, other.state->tokens) &&
        (!step.whole || other.state->tokens.size() == step.tokens.size())) {
      impl_->drop(i);
    }
  }
  return Taken{.tokens = step.tokens,
               .new_tokens = step.tokens.size(),
               .snapshot = step.whole,
               .unknown = saved.tokens - step.tokens.size(),
               .id = impl_->places[*name].state->id};
}

bool NamedStates::discard(std::string_view file) {
  const std::lock_guard turn(impl_->turn);
  if (const auto name = impl_->records.name_of(file)) {
    const std::lock_guard lock(impl_->memory);
    impl_->places[*name].saving = false;
  }
  return true;  // whatever is written there is not believed
}

void NamedStates::discard_other_runs(std::string_view) {}

Result<Restorable> NamedStates::begin_restore(const Step& step) {
  const std::lock_guard turn(impl_->turn);
  const std::lock_guard lock(impl_->memory);
  const auto name = impl_->best(step.scope, step.tokens);
  if (!name) {
    return Error{Errc::not_found, "the state is not there any more"};
  }
  Place& place = impl_->places[*name];
  ++place.readers;
  place.unwritten = true;
  impl_->use(*place.state);
  return Restorable{.file = impl_->records.file_of(*name),
                    .tokens = size_of(*place.state),
                    .held = place.state->tokens};
}

void NamedStates::end_restore(std::string_view file, const Result<Timed>& restored) {
  const std::lock_guard turn(impl_->turn);
  const auto name = impl_->records.name_of(file);
  if (!name) {
    return;
  }
  bool wrong = false;
  {
    const std::lock_guard lock(impl_->memory);
    Place& place = impl_->places[*name];
    place.readers -= place.readers > 0 ? 1 : 0;
    wrong = place.state && (restored ? restored->tokens != size_of(*place.state)
                                     : restored.error().code == Errc::backend);
    impl_->dropped += wrong ? 1 : 0;
  }
  if (wrong) {  // the file is gone, or somebody else's
    impl_->drop(*name);
  }
}

void NamedStates::doubt(const Scope& scope, TokenSpan prompt) {
  const std::lock_guard turn(impl_->turn);
  const auto name = impl_->best(scope, prompt);
  if (!name) {
    return;
  }
  const NamedState& state = *impl_->places[*name].state;
  if (state.unknown > 0 || served(state, scope, prompt) == state.tokens.size()) {
    impl_->drop(*name);
  }
  const std::lock_guard lock(impl_->memory);
  if (!impl_->places[*name].state) {
    ++impl_->dropped;
    return;
  }
  impl_->places[*name].state->whole = true;
  impl_->places[*name].unwritten = true;
}

Result<std::uint64_t> NamedStates::forget(std::optional<std::uint64_t> id) {
  const std::lock_guard turn(impl_->turn);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < impl_->places.size(); ++i) {
    if (impl_->places[i].state && (!id || impl_->places[i].state->id == *id)) {
      impl_->drop(i);
      ++count;
    }
  }
  if (id && count == 0) {
    return Error{Errc::not_found, "no state has this id"};
  }
  return count;
}

Result<std::uint64_t> NamedStates::forget(const Scope& scope, TokenSpan prompt,
                                          std::uint64_t shared) {
  const std::lock_guard turn(impl_->turn);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < impl_->places.size(); ++i) {
    const auto& state = impl_->places[i].state;
    if (!state || !(state->scope == scope)) {
      continue;
    }
    const std::uint64_t common = common_prefix(state->tokens, prompt);
    if (common > shared && common == std::min(state->tokens.size(), prompt.size())) {
      impl_->drop(i);
      ++count;
    }
  }
  return count;
}

void NamedStates::maintain() {
  const std::lock_guard turn(impl_->turn);
  for (std::size_t i = 0; i < impl_->places.size(); ++i) {
    if (impl_->places[i].state && impl_->places[i].unwritten) {
      impl_->write(i);
    }
  }
}

std::vector<StoredPrompt> NamedStates::prompts(std::size_t count) const {
  std::vector<StoredPrompt> all;
  {
    const std::lock_guard lock(impl_->memory);
    const std::int64_t now = impl_->now_ms();
    for (const Place& place : impl_->places) {
      if (place.state) {
        all.push_back({.id = place.state->id,
                       .tokens = size_of(*place.state),
                       .use = use_at(*place.state, now),
                       .last_used_ms = place.state->last_used_ms,
                       .snapshot = place.state->whole});
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const StoredPrompt& a, const StoredPrompt& b) {
    return std::pair(a.last_used_ms, a.id) > std::pair(b.last_used_ms, b.id);
  });
  all.resize(std::min(count, all.size()));
  return all;
}

HeldPrompt NamedStates::held(const Scope& scope, TokenSpan prompt) const {
  const std::lock_guard lock(impl_->memory);
  const auto name = impl_->best(scope, prompt);
  if (!name) {
    return {};
  }
  const NamedState& state = *impl_->places[*name].state;
  return {.tokens = served(state, scope, prompt),
          .last_used_ms = state.last_used_ms,
          .snapshot = state.whole};
}

std::pair<Scope, Tokens> NamedStates::prompt(std::uint64_t id) const {
  const std::lock_guard lock(impl_->memory);
  for (const Place& place : impl_->places) {
    if (place.state && place.state->id == id) {
      return {place.state->scope, place.state->tokens};
    }
  }
  return {};
}

void NamedStates::add_to(Stats& stats) const {
  const std::lock_guard lock(impl_->memory);
  stats.named_limit = impl_->places.size();
  stats.named_dropped_total = impl_->dropped;
  for (const Place& place : impl_->places) {
    stats.named_states += place.state ? 1U : 0U;
    stats.named_tokens += place.state ? size_of(*place.state) : 0;
  }
}

}  // namespace toki
