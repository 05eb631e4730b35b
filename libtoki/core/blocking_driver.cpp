#include <toki/blocking_driver.hpp>

#include <chrono>

namespace toki {
namespace {

const Error kNoStore{Errc::unsupported, "there is no store"};

StepReport failed(const Error& error) {
  return {.error = error};
}

StepReport save(const Step& step, Backend& backend, KvStore* store) {
  if (store == nullptr) {
    return failed(kNoStore);
  }
  const auto saved =
      wait_for<Timed>([&](auto done) { backend.save(step.slot, step.file, std::move(done)); });
  if (!saved) {
    return failed(saved.error());
  }
  auto taken = store->take(step.scope, step.tokens, step.file, step.whole, step.token_ms);
  if (!taken) {
    return failed(taken.error());
  }
  return {.tokens = std::move(taken->tokens), .ms = saved->ms};
}

StepReport restore(const Step& step, Backend& backend, KvStore* store) {
  if (store == nullptr) {
    return failed(kNoStore);
  }
  const auto composed =
      store->compose(step.scope, step.tokens, step.tokens.size(), step.slot.index, step.file);
  if (!composed) {
    return failed(composed.error());
  }
  const auto restored =
      wait_for<Timed>([&](auto done) { backend.restore(step.slot, step.file, std::move(done)); });
  store->discard(step.file);
  if (!restored) {
    return failed(restored.error());
  }
  if (restored->tokens != *composed) {
    return failed({Errc::backend, "the backend restored another number of tokens"});
  }
  return {.reused = *composed, .ms = restored->ms};
}

StepReport run(const Step& step, Backend& backend, KvStore* store) {
  switch (step.kind) {
    case Step::Kind::save: return save(step, backend, store);
    case Step::Kind::restore: return restore(step, backend, store);
    case Step::Kind::prefill: {
      const auto done = wait_for<Prefilled>(
          [&](auto end) { backend.prefill(step.slot, step.tokens, std::move(end)); });
      return done ? StepReport{.reused = done->cached, .computed = done->computed, .ms = done->ms}
                  : failed(done.error());
    }
    case Step::Kind::erase: break;
  }
  const auto done = wait_for<Done>([&](auto end) { backend.erase(step.slot, std::move(end)); });
  return done ? StepReport{} : failed(done.error());
}

}  // namespace

void run_steps(Ticket& ticket, Backend& backend, KvStore* store) {
  while (const Step* step = ticket.next_step()) {
    ticket.step_done(run(*step, backend, store));
  }
}

}  // namespace toki
