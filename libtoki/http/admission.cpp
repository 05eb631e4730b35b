#include <toki/http/admission.hpp>
#include <toki/http/generation_request.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;
using Time = asio::steady_timer::time_point;
constexpr Millis kWeighAgain{50};
constexpr std::size_t kFollows = 64;  // common tokens from which one prompt follows another
// How long a long cold prompt is held back, to see whether others come that share its beginning: a
// hundredth of what it takes to compute, within these bounds.
constexpr Millis kShortestHold{5};
constexpr Millis kLongestHold{250};

struct Admission::Waiter {
  Waiter(const asio::any_io_executor& executor, const Query& q, Time now,
         const AdmissionLimits& limits)
      : query(q),
        timer(executor),
        deadline(now + limits.wait),
        patient_until(now + limits.slot_wait),
        lead_until(now + limits.lead_wait) {}

  Query query;
  std::string tenant;
  std::uint64_t round = 0;
  asio::steady_timer timer;
  Time deadline;
  Time patient_until;
  Time lead_until;
  std::optional<Ticket> ticket;
  bool held = false;           // on purpose; see hold()
  bool chose_to_wait = false;  // a slot was idle, but a busy one fits better
};

// A place in the queue, given up whenever and however its coroutine ends. The queue is served in
// rounds, in each of which a tenant has one request: so a hundred of one do not keep another's only
// one waiting. Without tenants that is the order of arrival.
struct Admission::Place {
  Place(Admission& queue, Waiter& waiter) : owner(queue) {
    auto& all = owner.waiters_;
    waiter.tenant = tenant_of(waiter.query.scope);
    const auto last = owner.served_.find(waiter.tenant);
    waiter.round = std::max(owner.round_, last == owner.served_.end() ? 0 : last->second + 1);
    for (const Waiter* other : all) {
      if (other->round >= waiter.round && other->tenant == waiter.tenant) {
        waiter.round = other->round + 1;
      }
    }
    const auto later = std::find_if(
        all.begin(), all.end(), [&](const Waiter* other) { return other->round > waiter.round; });
    it = all.insert(later, &waiter);
    ++*owner.queued_;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    owner.waiters_.erase(it);
    --*owner.queued_;
    owner.left_ += served ? 0U : 1U;
  }
  Admission& owner;
  std::list<Waiter*>::iterator it;
  bool served = false;
};

Admission::Admission(asio::any_io_executor executor, Engine& engine, AdmissionLimits limits)
    : executor_(std::move(executor)), engine_(engine), limits_(limits) {
  // Called by any thread, perhaps even once more when this has ended.
  engine_.on_slot_free([this, queued = std::weak_ptr(queued_), executor = executor_] {
    const auto waiting = queued.lock();
    if (!waiting || *waiting == 0) {
      return;
    }
    asio::post(executor, [this, queued] {
      if (queued.lock()) {
        serve_waiters();
      }
    });
  });
}

Admission::~Admission() {
  engine_.on_slot_free({});
}

bool Admission::try_admit(Waiter& waiter) {
  const Time now = std::chrono::steady_clock::now();
  const auto left = [&](Time until) {
    return std::max(std::chrono::duration_cast<Millis>(until - now), Millis(0));
  };
  waiter.query.patience = left(waiter.patient_until);
  waiter.query.lead_patience = left(waiter.lead_until);
  waiter.query.waited = std::max(limits_.slot_wait - waiter.query.patience, Millis(0));
  waiter.query.followed = waiter.query.from_ids && followed(waiter);
  auto ticket = engine_.begin(waiter.query);
  if (!ticket) {
    waiter.chose_to_wait = waiter.chose_to_wait || engine_.idle_slots() >= waiter.query.sequences;
    return false;
  }
  const bool copied = ticket->reason() == Reason::restored || ticket->reason() == Reason::copied;
  slot_waits_ += waiter.chose_to_wait ? 1U : 0U;
  coalesced_ += waiter.chose_to_wait && copied ? 1U : 0U;
  waiter.ticket.emplace(std::move(*ticket));
  return true;
}

void Admission::took_turn(const Waiter& waiter) {
  round_ = std::max(round_, waiter.round);
  served_[waiter.tenant] = waiter.round;
  std::erase_if(served_, [this](const auto& tenant) { return tenant.second < round_; });
}

void Admission::serve_waiters() {
  for (Waiter* waiter : waiters_) {
    if (waiter->ticket || waiter->held) {
      continue;
    }
    if (engine_.idle_slots() == 0) {
      return;
    }
    if (try_admit(*waiter)) {
      took_turn(*waiter);
      waiter->timer.cancel();
    } else if (waiter->query.sequences > 1 || waiter->query.alone) {
      return;  // it needs several slots: nobody may take them one by one before it
    }
  }
}

// Whether somebody else waits whose prompt begins like this one.
bool Admission::followed(const Waiter& waiter) const {
  return std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter* other) {
    return other != &waiter && !other->ticket && other->query.scope == waiter.query.scope &&
           common_prefix(other->query.tokens, waiter.query.tokens) >= kFollows;
  });
}

asio::awaitable<void> Admission::hold(Waiter& waiter) {
  const double expected = engine_.lead_ms(waiter.query);
  if (expected <= 0) {
    co_return;
  }
  waiter.held = true;
  waiter.timer.expires_after(
      std::clamp(Millis(static_cast<std::int64_t>(expected / 100)), kShortestHold, kLongestHold));
  (void)co_await waiter.timer.async_wait(asio::as_tuple(asio::use_awaitable));
  waiter.held = false;
}

asio::awaitable<Result<Ticket>> Admission::acquire(const Query& query) {
  if (engine_.slots() == 0) {
    ++unready_;
    co_return Error{Errc::unavailable, "the backend is not ready"};
  }
  Waiter waiter(executor_, query, std::chrono::steady_clock::now(), limits_);
  const bool may_lead = engine_.slots() > 1 && query.from_ids;
  if (waiters_.empty() && !may_lead && try_admit(waiter)) {
    co_return std::move(*waiter.ticket);
  }
  Place place(*this, waiter);
  if (may_lead) {
    co_await hold(waiter);
  }
  serve_waiters();  // in their order, so those who only wait for a certain slot let this one pass
  if (!waiter.ticket && waiters_.size() > limits_.length) {
    ++full_;
    place.served = true;
    co_return Error{Errc::busy, "the queue is full"};
  }
  while (!waiter.ticket) {
    const Time now = std::chrono::steady_clock::now();
    if (now >= waiter.deadline) {
      ++timeouts_;
      place.served = true;
      co_return Error{Errc::timed_out, "no slot became free in time"};
    }
    const Time patient_until = std::max(waiter.patient_until, waiter.lead_until);
    const bool patient = now < patient_until;
    // Waiting for a better slot is weighed again and again; for any slot it ends when one becomes
    // free.
    const Time next = patient ? std::min(patient_until, now + kWeighAgain) : waiter.deadline;
    waiter.timer.expires_at(std::min(next, waiter.deadline));
    (void)co_await waiter.timer.async_wait(asio::as_tuple(asio::use_awaitable));
    if (patient && !waiter.ticket) {
      serve_waiters();
    }
  }
  place.served = true;
  co_return std::move(*waiter.ticket);
}

std::size_t Admission::length() const noexcept {
  return waiters_.size();
}

void Admission::add_to(Stats& stats) const noexcept {
  stats.queue_length = waiters_.size();
  stats.queue_full_total = full_;
  stats.queue_timeouts_total = timeouts_;
  stats.slot_waits_total = slot_waits_;
  stats.coalesced_total = coalesced_;
  stats.requests_refused += full_ + timeouts_ + unready_;
  stats.requests_total += left_;
  stats.requests_cancelled += left_;
}

}  // namespace toki::http
