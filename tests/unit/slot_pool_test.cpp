#include <toki/slot_pool.hpp>

#include <catch2/catch.hpp>

using namespace toki;

namespace {
const Scope kScope({"model"});
const Scope kOther({"other"});
}  // namespace

TEST_CASE("pool: a slot shares what it is known to hold, in its scope only") {
  SlotPool pool(2, SlotContent::empty);
  pool.hold(0, kScope, {1, 2, 3, 4}, 5, 0);
  const Tokens prompt{1, 2, 3, 9};
  CHECK(pool.common(0, kScope, prompt) == 3);
  CHECK(pool.common(0, kOther, prompt) == 0);
  CHECK(pool.common(1, kScope, prompt) == 0);
}

TEST_CASE("pool: leased and fenced slots are not idle") {
  SlotPool pool(3, SlotContent::empty);
  pool.lease(0, {});
  pool.fence(1, true);
  CHECK(pool.idle() == 1);
  CHECK(pool.leased() == 1);
  CHECK(pool.fenced() == 1);
  CHECK(pool[0].last_used == 1);
  pool.release(0);
  pool.fence(1, false);
  CHECK(pool.idle() == 3);
}

TEST_CASE("pool: content that must be erased is shared with nobody until it is") {
  SlotPool pool(1, SlotContent::empty);
  pool.hold(0, kScope, {1, 2}, 0, 0);
  pool.erase_before_use(0);
  CHECK(pool.common(0, kScope, Tokens{1, 2}) == 0);
  CHECK(pool[0].erase_first);
  pool.set_empty(0);
  CHECK_FALSE(pool[0].erase_first);
  CHECK(pool[0].content == SlotContent::empty);
}

TEST_CASE("pool: what a slot can hold at most is known tokens and what followed them") {
  SlotPool pool(1, SlotContent::empty);
  const Tokens prompt(100, 1);
  CHECK(pool.common_limit(0, kScope, prompt) == 0);
  pool.hold(0, kScope, Tokens(40, 1), 5, 0);
  CHECK(pool.common_limit(0, kScope, prompt) == 45);
  pool.hold(0, kScope, Tokens(40, 1), 5, 0, true);
  CHECK(pool.common_limit(0, kScope, prompt) == 100);
  pool.hold(0, kScope, Tokens(40, 2), 5, 0, true);
  CHECK(pool.common_limit(0, kScope, prompt) == 0);
  pool.set_unknown(0);
  CHECK(pool.common_limit(0, kScope, prompt) == 100);
}

TEST_CASE(
    "pool: a newer form of a prompt supersedes it, another conversation with its beginning does "
    "not") {  // B08
  SlotPool pool(1, SlotContent::empty);
  const auto prompt = [](Token time, Token question) {
    Tokens tokens(200, 7);
    tokens[100] = time;
    for (Token i = 0; i < 60; ++i) {
      tokens.push_back(question + i);
    }
    return tokens;
  };
  pool.hold(0, kScope, prompt(1, 1000), 4, 0);
  CHECK(pool.superseded_by(0, kScope, prompt(2, 1000)));
  CHECK_FALSE(pool.superseded_by(0, kScope, prompt(2, 5000)));
  CHECK_FALSE(pool.superseded_by(0, kScope, prompt(1, 5000)));
  CHECK_FALSE(pool.superseded_by(0, kOther, prompt(2, 1000)));
}

TEST_CASE("pool: whether all in a slot is of one scope") {
  SlotPool pool(1);
  const Scope a({"m", "a"});
  const Scope b({"m", "b"});
  CHECK_FALSE(pool.only_of(0, a));  // unknown
  pool.set_empty(0);
  CHECK(pool.only_of(0, a));
  pool.hold(0, a, {1, 2, 3}, 2, 0);
  CHECK(pool.only_of(0, a));
  CHECK_FALSE(pool.only_of(0, b));
  pool.set_unknown(0);
  CHECK_FALSE(pool.only_of(0, a));
  pool.set_owned(0, b);
  CHECK(pool.only_of(0, b));
  CHECK_FALSE(pool.only_of(0, a));
  pool.erase_before_use(0);
  CHECK_FALSE(pool.only_of(0, b));
  pool.set_empty(0);
  CHECK(pool.only_of(0, a));
}
