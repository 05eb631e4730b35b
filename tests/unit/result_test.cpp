#include <toki/result.hpp>
#include <toki/version.hpp>

#include <catch2/catch.hpp>

#include <memory>
#include <string>

using namespace toki;

TEST_CASE("result: a value is a value and an error keeps its reason") {
  Result<int> good = 7;
  REQUIRE(good);
  CHECK(*good == 7);
  const Result<int> bad = Error{Errc::corrupt, "file x: short"};
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == Errc::corrupt);
  CHECK(bad.error().detail == "file x: short");
  CHECK(Result<int>(Error{}).value_or(3) == 3);
}

TEST_CASE("result: move-only values move out") {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(*result);
  CHECK(*taken == 5);
}

TEST_CASE("result: every code has a name of its own") {
  for (int i = 1; i <= static_cast<int>(Errc::unsupported); ++i) {
    CHECK(to_string(static_cast<Errc>(i)) != "unknown");
    for (int j = 1; j < i; ++j) {
      CHECK(to_string(static_cast<Errc>(i)) != to_string(static_cast<Errc>(j)));
    }
  }
}

TEST_CASE("version: header and library agree") {
  CHECK(std::string(version()) == std::to_string(TOKI_VERSION_MAJOR) + "." +
                                      std::to_string(TOKI_VERSION_MINOR) + "." +
                                      std::to_string(TOKI_VERSION_PATCH));
}
