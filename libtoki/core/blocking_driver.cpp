#include <toki/blocking_driver.hpp>
#include <toki/step_report.hpp>

namespace toki {
namespace {

StepReport save(const Step& step, Backend& backend, StateStore* store) {
  if (store == nullptr) {
    return step_without_store();
  }
  const auto file = store->begin_save(step);
  if (!file) {
    return failed_step(file.error());
  }
  const auto saved =
      wait_for<Timed>([&](auto done) { backend.save(step.slot, *file, std::move(done)); });
  if (!saved) {
    store->discard(*file);
    return failed_step(saved.error());
  }
  return save_report(*saved, store->end_save(step, *file, *saved));
}

StepReport restore(const Step& step, Backend& backend, StateStore* store) {
  if (store == nullptr) {
    return step_without_store();
  }
  auto state = store->begin_restore(step);
  if (!state) {
    return failed_step(state.error());
  }
  const auto restored =
      wait_for<Timed>([&](auto done) { backend.restore(step.slot, state->file, std::move(done)); });
  store->end_restore(state->file, restored);
  return restore_report(step, std::move(*state), restored);
}

StepReport run(const Step& step, Backend& backend, StateStore* store) {
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

void run_steps(Ticket& ticket, Backend& backend, StateStore* store) {
  while (const Step* step = ticket.next_step()) {
    ticket.step_done(run(*step, backend, store));
  }
}

}  // namespace toki
