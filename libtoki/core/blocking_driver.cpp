#include <toki/blocking_driver.hpp>

namespace toki {

void run_steps(Ticket& ticket, Backend& backend) {
  for (std::size_t i = 0; i < ticket.steps().size(); ++i) {
    const Step step = ticket.steps()[i];
    ticket.step_done(i,
                     wait_for<Done>([&](auto done) { backend.erase(step.slot, std::move(done)); }));
  }
}

}  // namespace toki
