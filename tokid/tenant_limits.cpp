#include "tenant_limits.hpp"

#include <algorithm>
#include <cmath>

namespace tokid {

std::variant<TenantUse::Place, TenantUse::Refused> TenantUse::take(const std::string& tenant,
                                                                   const TenantLimits& limits,
                                                                   Time now) {
  auto& state = states_[tenant];
  if (state == nullptr) {
    state = std::make_shared<State>();
  }
  if (limits.requests > 0 && state->running >= limits.requests) {
    return Refused{};
  }
  if (limits.per_minute > 0) {
    const auto most = static_cast<double>(limits.per_minute);
    const double per_second = most / 60;
    const double since = std::chrono::duration<double>(now - state->at).count();
    state->left = state->left < 0 ? most : std::min(state->left + since * per_second, most);
    state->at = now;
    if (state->left < 1) {
      const double wait = std::ceil((1 - state->left) / per_second);
      return Refused{.retry_after = std::max(1U, static_cast<unsigned>(wait)), .rate = true};
    }
    state->left -= 1;
  }
  return Place(state);
}

}  // namespace tokid
