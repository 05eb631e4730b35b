// TenantUse: how much each tenant asks for: requests at once, and requests a minute (a bucket that holds
// a minute's worth and is filled all the time).
//
// Threads:   one at a time.
// Ownership: a Place may outlive it.
// Errors:    a refusal is a value: when to come again.
// Cost:      one entry a tenant that ever came.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tokid {

struct TenantLimits {
  std::size_t requests = 0;    ///< at once; 0: no limit
  std::size_t per_minute = 0;  ///< 0: no limit
};

class TenantUse {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct State {
    std::size_t running = 0;
    double left = -1;  // in the bucket; negative: never filled
    Time at{};         // when that was so
  };
  /// A request that runs, until it is destroyed. Of nobody when it was made by itself.
  class Place {
   public:
    Place() = default;
    explicit Place(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->running; }
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&& other) noexcept {
      if (this != &other) {
        leave();
        state_ = std::move(other.state_);
      }
      return *this;
    }
    ~Place() { leave(); }

   private:
    void leave() {
      if (state_ != nullptr) {
        --state_->running;
        state_ = nullptr;
      }
    }
    std::shared_ptr<State> state_;
  };
  struct Refused {
    unsigned retry_after = 1;  ///< seconds
    bool rate = false;         ///< too many a minute; else too many at once
  };

  std::variant<Place, Refused> take(const std::string& tenant, const TenantLimits& limits,
                                    Time now);

 private:
  std::map<std::string, std::shared_ptr<State>> states_;
};

}  // namespace tokid
