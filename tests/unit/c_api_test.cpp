// What of the C API only C++ can see: that its numbers are those of the C++ API, and that no exception
// crosses the border. All else is tested in C (tests/c).
#include "c_api.hpp"

#include <toki/toki.h>
#include <toki/toki.hpp>

#include <catch2/catch.hpp>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

using namespace toki;

namespace {

template <class Enum>
constexpr std::int32_t number(Enum value) {
  return static_cast<std::int32_t>(value);
}

}  // namespace

TEST_CASE("c api: a status is the number of its Errc") {
  STATIC_REQUIRE(TOKI_ERROR_NOT_FOUND == number(Errc::not_found));
  STATIC_REQUIRE(TOKI_ERROR_INVALID_ARGUMENT == number(Errc::invalid_argument));
  STATIC_REQUIRE(TOKI_ERROR_BUSY == number(Errc::busy));
  STATIC_REQUIRE(TOKI_ERROR_TIMED_OUT == number(Errc::timed_out));
  STATIC_REQUIRE(TOKI_ERROR_CANCELLED == number(Errc::cancelled));
  STATIC_REQUIRE(TOKI_ERROR_BACKEND == number(Errc::backend));
  STATIC_REQUIRE(TOKI_ERROR_UNAVAILABLE == number(Errc::unavailable));
  STATIC_REQUIRE(TOKI_ERROR_CORRUPT == number(Errc::corrupt));
  STATIC_REQUIRE(TOKI_ERROR_UNSUPPORTED == number(Errc::unsupported));
  STATIC_REQUIRE(TOKI_ERROR_NO_SPACE == number(Errc::no_space));
  CHECK(to_string(static_cast<Errc>(TOKI_ERROR_NO_SPACE + 1)) == "unknown");  // it is the last one
  for (int i = TOKI_ERROR_NOT_FOUND; i <= TOKI_ERROR_NO_SPACE; ++i) {
    CHECK(toki_status_name(i) == to_string(static_cast<Errc>(i)));
  }
}

TEST_CASE("c api: enumerations are those of the C++ API") {
  STATIC_REQUIRE(TOKI_CLASS_HIT == number(CacheClass::hit));
  STATIC_REQUIRE(TOKI_CLASS_UNREPORTED == number(CacheClass::unreported));
  STATIC_REQUIRE(TOKI_REASON_SLOT_PREFIX == number(Reason::slot_prefix));
  STATIC_REQUIRE(TOKI_REASON_RESTORED == number(Reason::restored));
  STATIC_REQUIRE(TOKI_REASON_CACHE_PROMPT_FALSE == number(Reason::cache_prompt_false));
  STATIC_REQUIRE(TOKI_REASON_NOT_CACHEABLE == number(Reason::not_cacheable));
  STATIC_REQUIRE(TOKI_SOURCE_NONE == number(Source::none));
  STATIC_REQUIRE(TOKI_SOURCE_COPY == number(Source::copy));
  STATIC_REQUIRE(TOKI_CONTENT_EMPTY == number(SlotContent::empty));
  STATIC_REQUIRE(TOKI_CONTENT_KNOWN == number(SlotContent::known));
  STATIC_REQUIRE(TOKI_CONTENT_UNKNOWN == number(SlotContent::unknown));
  STATIC_REQUIRE(TOKI_PIN_HELD == number(PinState::held));
  STATIC_REQUIRE(TOKI_PIN_OTHER_MODEL == number(PinState::other_model));
  STATIC_REQUIRE(TOKI_LOG_ERROR == number(LogLevel::error));
  STATIC_REQUIRE(TOKI_LOG_DEBUG == number(LogLevel::debug));
  // One more, so that an outcome that says nothing is not a completed one.
  STATIC_REQUIRE(TOKI_ENDING_COMPLETED == number(Ending::completed) + 1);
  STATIC_REQUIRE(TOKI_ENDING_STALLED == number(Ending::stalled) + 1);
  CHECK(std::string(toki_reason_name(TOKI_REASON_MEDIA)) == to_string(Reason::media));
}

TEST_CASE("c api: no exception crosses the border") {
  toki_error error{};
  const auto throwing = [&](auto what) {
    return c::guarded(&error, [&]() -> toki_status { throw what; });
  };
  CHECK(throwing(std::bad_alloc()) == TOKI_ERROR_NO_MEMORY);
  CHECK(throwing(std::length_error("long")) == TOKI_ERROR_NO_MEMORY);
  CHECK(throwing(std::runtime_error("a reason")) == TOKI_ERROR_INTERNAL);
  CHECK(std::string(error.message) == "a reason");
  CHECK(throwing(5) == TOKI_ERROR_INTERNAL);
  CHECK(error.status == TOKI_ERROR_INTERNAL);
  toki_scope* scope = nullptr;
  CHECK(c::made(&scope, &error, []() -> Scope { throw std::bad_alloc(); }) == TOKI_ERROR_NO_MEMORY);
  CHECK(scope == nullptr);
}

TEST_CASE("c api: what does not fit an error's text is cut between characters") {
  toki_error error{};
  for (const std::size_t before : {504U, 505U, 506U, 507U, 508U, 509U}) {
    const std::string text = std::string(before, 'x') + "\u20ac" + "more";  // three bytes
    c::fail(&error, TOKI_ERROR_CORRUPT, text);
    const std::size_t kept = before + 3 <= 507 ? 507 : std::min<std::size_t>(before, 507);
    CHECK(std::strlen(error.message) == kept);
    CHECK(text.starts_with(error.message));
  }
  c::fail(&error, TOKI_ERROR_CORRUPT, "");
  CHECK(std::string(error.message).empty());
  CHECK(c::fail(nullptr, TOKI_ERROR_CORRUPT, "nobody listens") == TOKI_ERROR_CORRUPT);
}
