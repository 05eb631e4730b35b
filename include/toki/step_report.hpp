// What a driver tells a ticket of a step, from what the backend and the store said. Every driver makes
// the same calls (save, then take; compose, then restore) and differs only in how it waits.
//
// Threads:   pure functions.
// Ownership: results own what they hold.
// Errors:    in the report: Errc::unsupported without a store, Errc::backend when another number of
//            tokens was restored than composed.
// Cost:      moves.
#pragma once

#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/kv_store.hpp>
#include <toki/result.hpp>

#include <cstdint>
#include <utility>

namespace toki {

inline StepReport failed_step(Error error) {
  StepReport report;
  report.error = std::move(error);
  return report;
}

/// A step that needs a store, where there is none.
inline StepReport step_without_store() {
  return failed_step({Errc::unsupported, "there is no store"});
}

inline StepReport save_report(const Timed& saved, Result<Taken> taken) {
  if (!taken) {
    return failed_step(std::move(taken).error());
  }
  return {.tokens = std::move(taken->tokens), .ms = saved.ms};
}

/// The backend has written the state, the store has yet to take it (Step::later).
inline StepReport pending_report(const Timed& saved) {
  return {.ms = saved.ms, .pending = true};
}

inline StepReport restore_report(std::uint64_t composed, const Result<Timed>& restored) {
  if (!restored) {
    return failed_step(restored.error());
  }
  if (restored->tokens != composed) {
    return failed_step({Errc::backend, "the backend restored another number of tokens"});
  }
  return {.reused = composed, .ms = restored->ms};
}

inline StepReport prefill_report(const Result<Prefilled>& done) {
  return done ? StepReport{.reused = done->cached, .computed = done->computed, .ms = done->ms}
              : failed_step(done.error());
}

inline StepReport erase_report(const Status& done) {
  return done ? StepReport{} : failed_step(done.error());
}

}  // namespace toki
