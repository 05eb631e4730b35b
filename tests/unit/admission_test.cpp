#include <toki/http/admission.hpp>
#include <toki/http/task_group.hpp>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace toki;
using namespace toki::http;
namespace asio = boost::asio;

namespace {

const Tokens kTokens(50, 1);

struct Bench {
  asio::io_context io{1};
  Engine engine{{}, &std::chrono::steady_clock::now};
  Admission admission;
  std::vector<int> order;
  std::vector<Result<Ticket>> results;
  TaskGroup tasks{io.get_executor()};

  explicit Bench(std::uint32_t slots, AdmissionLimits limits = {})
      : admission(io.get_executor(), engine, limits) {
    if (slots > 0) {
      engine.backend_changed(
          {.slots = slots, .slots_used = std::vector<bool>(slots, false), .own_cache = false});
    }
  }

  asio::awaitable<void> ask(int id, Query query) {
    auto result = co_await admission.acquire(query);
    order.push_back(id);
    results.push_back(std::move(result));
  }
  void start(int id, Query query = {.scope = {}, .tokens = kTokens}) {
    tasks.spawn(ask(id, std::move(query)));
  }
  ~Bench() {
    tasks.cancel();
    turn();
  }
  void turn() {
    io.restart();
    io.poll();
  }
};

}  // namespace

TEST_CASE("admission: slots are given in order of arrival") {
  Bench b(1);
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  for (int i = 0; i < 3; ++i) {
    b.start(i);
  }
  b.turn();
  CHECK(b.admission.length() == 3);
  CHECK(b.order.empty());
  { auto released = std::move(*held); }
  b.turn();
  CHECK(b.order == std::vector{0});
  b.results.clear();
  b.turn();
  b.results.clear();
  b.turn();
  CHECK(b.order == std::vector{0, 1, 2});
}

TEST_CASE("admission: a newcomer does not overtake those who wait") {
  Bench b(1);
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  b.start(0);
  b.turn();
  { auto released = std::move(*held); }
  b.start(1);
  b.turn();
  CHECK(b.order == std::vector{0});
}

TEST_CASE("admission: a full queue refuses, a long wait ends") {
  Bench b(1, {.length = 1, .wait = Millis(20), .slot_wait = Millis(0)});
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  b.start(0);
  b.start(1);
  b.io.run();
  REQUIRE(b.order == std::vector{1, 0});
  CHECK(b.results[0].error().code == Errc::busy);
  CHECK(b.results[1].error().code == Errc::timed_out);
  Stats stats;
  b.admission.add_to(stats);
  CHECK(stats.queue_full_total == 1);
  CHECK(stats.queue_timeouts_total == 1);
  CHECK(stats.requests_refused == 2);
  CHECK(b.admission.length() == 0);
}

TEST_CASE("admission: without slots nothing waits") {
  Bench b(0);
  b.start(0);
  b.turn();
  REQUIRE(b.results.size() == 1);
  CHECK(b.results[0].error().code == Errc::unavailable);
}

TEST_CASE(
    "admission: a request that waits for a certain slot lets others pass, and takes another in the "
    "end") {  // B18
  Bench b(2, {.length = 9, .wait = Millis(10000), .slot_wait = Millis(300)});
  const Tokens prefix(1000, 5);
  auto holder = b.engine.begin({.scope = {}, .tokens = prefix});
  REQUIRE(holder->slot()->index == 0);
  b.start(0, {.scope = {}, .tokens = prefix});
  b.turn();
  CHECK(b.admission.length() == 1);
  b.start(1);
  b.turn();
  CHECK(b.order == std::vector{1});
  b.results.clear();
  b.turn();
  b.io.restart();
  b.io.run_for(std::chrono::seconds(5));
  REQUIRE(b.order == std::vector{1, 0});
  REQUIRE(b.results[0]);
  CHECK(b.results[0]->slot()->index == 1);
  Stats stats;
  b.admission.add_to(stats);
  CHECK(stats.slot_waits_total == 1);
}

TEST_CASE("admission: a request for several slots is not starved by single ones") {
  Bench b(2);
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  b.start(0, {.scope = {}, .tokens = {}, .bypass = Reason::several_answers, .sequences = 2});
  b.turn();
  b.start(1);
  b.turn();
  CHECK(b.order.empty());
  { auto released = std::move(*held); }
  b.turn();
  CHECK(b.order == std::vector{0});
  b.results.clear();
  b.turn();
  CHECK(b.order == std::vector{0, 1});
}

TEST_CASE(
    "admission: a client that leaves is out of the queue at once and is counted") {  // B05 B19
  Bench b(1);
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  TaskGroup leaving(b.io.get_executor());
  leaving.spawn(b.ask(0, {.scope = {}, .tokens = kTokens}));
  b.start(1);
  b.turn();
  REQUIRE(b.admission.length() == 2);
  leaving.cancel();
  b.turn();
  CHECK(b.admission.length() == 1);
  { auto released = std::move(*held); }
  b.turn();
  CHECK(b.order == std::vector{1});
  Stats stats;
  b.admission.add_to(stats);
  CHECK(stats.requests_cancelled == 1);
}

namespace {

Query of_tenant(const std::string& name) {
  return {.scope = Scope({"model", "", "", name}), .tokens = kTokens};
}

// The same order by other means: a queue for each tenant, whose first request has the tenant's next
// turn. The lowest turn is served, of equal ones the request that came to it first.
class Turns {
 public:
  void ask(const std::string& tenant, int id) {
    Tenant& its = tenants_[tenant];
    if (its.waiting.empty()) {
      its.turn = std::max(its.turn, now_);
    }
    its.waiting.push_back({id, its.turn + its.waiting.size(), arrivals_++});
  }
  int serve() {
    Tenant* next = nullptr;
    for (auto& [name, its] : tenants_) {
      if (!its.waiting.empty() && (next == nullptr || place(its) < place(*next))) {
        next = &its;
      }
    }
    const Request served = next->waiting.front();
    next->waiting.pop_front();
    now_ = std::max(now_, served.turn);
    next->turn = served.turn + 1;
    return served.id;
  }
  bool empty() const {
    return std::all_of(tenants_.begin(), tenants_.end(),
                       [](const auto& entry) { return entry.second.waiting.empty(); });
  }

 private:
  struct Request {
    int id;
    std::uint64_t turn;
    std::uint64_t arrival;
  };
  struct Tenant {
    std::deque<Request> waiting;
    std::uint64_t turn = 0;
  };
  static std::pair<std::uint64_t, std::uint64_t> place(const Tenant& its) {
    return {its.waiting.front().turn, its.waiting.front().arrival};
  }

  std::map<std::string, Tenant> tenants_;
  std::uint64_t now_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace

TEST_CASE("admission: the only request of a tenant does not wait behind all of another's") {
  Bench b(1, {.length = 200});
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  for (int i = 0; i < 100; ++i) {
    b.start(i, of_tenant("alice"));
  }
  b.start(100, of_tenant("bob"));
  b.turn();
  { auto released = std::move(*held); }
  b.turn();
  b.results.clear();
  b.turn();
  CHECK(b.order == std::vector{0, 100});
}

TEST_CASE("admission: one request after the other does not starve a tenant that has many") {
  Bench b(1, {.length = 200});
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  for (int i = 0; i < 10; ++i) {
    b.start(i, of_tenant("alice"));
  }
  b.turn();
  { auto released = std::move(*held); }
  for (int i = 10; i < 18; ++i) {  // there is always one of bob, and never more
    b.start(i, of_tenant("bob"));
    b.turn();
    b.results.clear();
    b.turn();
    b.results.clear();
  }
  const auto alices = std::count_if(b.order.begin(), b.order.end(), [](int id) { return id < 10; });
  CHECK(alices >= 7);
}

TEST_CASE("admission model: tenants take turns, and each one's requests keep their order") {
  const std::uint32_t seed = GENERATE(1U, 2U, 3U, 4U);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> names{"alice", "bob", "carol", "dave"};
  Bench b(1, {.length = 1000});
  Turns twin;
  std::vector<int> expected;
  auto held = b.engine.begin({.scope = {}, .tokens = kTokens});
  for (int id = 0; id < 400; ++id) {
    const std::string& name = names[random() % (1 + random() % names.size())];
    b.start(id, of_tenant(name));
    twin.ask(name, id);
    b.turn();
    for (auto count = random() % 3; count > 0 && !twin.empty(); --count) {
      if (held) {
        auto released = std::move(*held);
        held = Error{Errc::busy, "given back"};
      }
      b.results.clear();
      b.turn();
      expected.push_back(twin.serve());
      REQUIRE(b.order == expected);
    }
    if (twin.empty()) {  // so that the next one waits
      b.results.clear();
      b.turn();
      held = b.engine.begin({.scope = {}, .tokens = kTokens});
      REQUIRE(held);
    }
  }
  CHECK(expected.size() > 300);
}
