#include <toki/blocking_driver.hpp>
#include <toki/step_report.hpp>

namespace toki {
namespace {

StepReport save(const Step& step, Backend& backend, KvStore* store) {
  if (store == nullptr) {
    return step_without_store();
  }
  const auto saved =
      wait_for<Timed>([&](auto done) { backend.save(step.slot, step.file, std::move(done)); });
  if (!saved) {
    store->discard(step.file);
    return failed_step(saved.error());
  }
  return save_report(*saved,
                     store->take(step.scope, step.tokens, step.file, step.whole, step.token_ms));
}

StepReport restore(const Step& step, Backend& backend, KvStore* store) {
  if (store == nullptr) {
    return step_without_store();
  }
  const auto composed =
      store->compose(step.scope, step.tokens, step.tokens.size(), step.slot.index, step.file);
  if (!composed) {
    return failed_step(composed.error());
  }
  const auto restored =
      wait_for<Timed>([&](auto done) { backend.restore(step.slot, step.file, std::move(done)); });
  store->discard(step.file);
  return restore_report(*composed, restored);
}

StepReport run(const Step& step, Backend& backend, KvStore* store) {
  switch (step.kind) {
    case Step::Kind::save: return save(step, backend, store);
    case Step::Kind::restore: return restore(step, backend, store);
    case Step::Kind::prefill:
      return prefill_report(wait_for<Prefilled>(
          [&](auto done) { backend.prefill(step.slot, step.tokens, std::move(done)); }));
    case Step::Kind::erase: break;
  }
  return erase_report(
      wait_for<Done>([&](auto done) { backend.erase(step.slot, std::move(done)); }));
}

}  // namespace

void run_steps(Ticket& ticket, Backend& backend, KvStore* store) {
  while (const Step* step = ticket.next_step()) {
    ticket.step_done(run(*step, backend, store));
  }
}

}  // namespace toki
