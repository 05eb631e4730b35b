// What a driver tells a ticket of a step, from what the backend and the store said. Every driver makes
// the same calls (StateStore's) and differs only in how it waits.
//
// Threads:   pure functions.
// Ownership: results own what they hold.
// Errors:    in the report: Errc::unsupported without a store, Errc::backend when another number of
//            tokens was restored than there were.
// Cost:      moves.
#pragma once

#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/result.hpp>
#include <toki/state_store.hpp>

#include <cstdint>
#include <utility>

namespace toki {

/// A step that failed for this reason.
inline StepReport failed_step(Error error) {
  StepReport report;
  report.error = std::move(error);
  return report;
}

/// A step that needs a store, where there is none.
inline StepReport step_without_store() {
  return failed_step({Errc::unsupported, "there is no store"});
}

/// A save that the store has taken, or refused.
inline StepReport save_report(const Timed& saved, Result<Taken> taken) {
  if (!taken) {
    return failed_step(std::move(taken).error());
  }
  return {.tokens = std::move(taken->tokens), .unknown = taken->unknown, .ms = saved.ms};
}

/// The backend has written the state, the store has yet to take it (Step::later).
inline StepReport pending_report(const Timed& saved) {
  return {.ms = saved.ms, .pending = true};
}

/// A restore of `state`; another number of tokens than it has is a failure (Errc::backend).
inline StepReport restore_report(const Step& step, Restorable state,
                                 const Result<Timed>& restored) {
  if (!restored) {
    return failed_step(restored.error());
  }
  if (restored->tokens != state.tokens) {
    return failed_step({Errc::backend, "the backend restored another number of tokens"});
  }
  if (state.held.empty()) {
    return {.reused = state.tokens, .ms = restored->ms};
  }
  const std::uint64_t common = common_prefix(state.held, step.tokens);
  const std::uint64_t unknown = state.tokens - state.held.size();
  return {
      .tokens = std::move(state.held), .unknown = unknown, .reused = common, .ms = restored->ms};
}

/// A prefill.
inline StepReport prefill_report(const Result<Prefilled>& done) {
  return done ? StepReport{.reused = done->cached, .computed = done->computed, .ms = done->ms}
              : failed_step(done.error());
}

/// An erase.
inline StepReport erase_report(const Status& done) {
  return done ? StepReport{} : failed_step(done.error());
}

}  // namespace toki
