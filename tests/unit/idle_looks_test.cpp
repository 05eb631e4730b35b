// How long no request has run.
#include "http/idle_looks.hpp"

#include <catch2/catch.hpp>

#include <utility>
#include <vector>

#include "unit/token_ranges.hpp"

using namespace toki;

namespace {

struct Bench {
  Engine engine{{}, [] { return std::chrono::steady_clock::time_point{}; }};
  http::IdleLooks looks;

  Bench() { engine.backend_changed({.slots = 2, .slots_used = {false, false}}); }

  bool look() { return looks.idle(engine); }
  Ticket begin() {
    auto ticket = engine.begin({.scope = Scope({"model"}), .tokens = prompt});
    REQUIRE(ticket);
    ticket->sent();
    return std::move(*ticket);
  }
  static void finish(Ticket ticket) {
    std::move(ticket).finish({.ending = Ending::completed, .computed = true});
  }

  const Tokens prompt = range(1, 100);
};

}  // namespace

TEST_CASE("idle looks: nothing ran at two looks in a row, so it is idle, until something runs") {
  Bench b;
  CHECK_FALSE(b.look());
  CHECK(b.look());
  CHECK(b.look());
  Ticket ticket = b.begin();
  CHECK_FALSE(b.look());
  Bench::finish(std::move(ticket));
  CHECK_FALSE(b.look());  // it ended since
  CHECK_FALSE(b.look());
  CHECK(b.look());
}

TEST_CASE("idle looks: a request that came and ended between two looks is seen") {
  Bench b;
  for (int i = 0; i < 5; ++i) {
    Bench::finish(b.begin());
    CHECK_FALSE(b.look());
  }
  CHECK_FALSE(b.look());
  Bench::finish(b.begin());
  CHECK_FALSE(b.look());
  CHECK_FALSE(b.look());
  CHECK(b.look());
}
