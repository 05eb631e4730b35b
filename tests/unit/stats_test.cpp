#include <toki/stats.hpp>

#include <catch2/catch.hpp>

#include <array>
#include <set>
#include <string>

using namespace toki;

TEST_CASE("stats: every row has a name, a help text and its own value") {
  Stats stats;
  stats.requests_total = 3;
  stats.backend_cache_mib = 100;
  stats.pins_held = 1;
  stats.named_dropped_total = 1;
  stats.kv_sharing_ratio = 1;
  stats.tenant_limited_total = 1;
  std::array<StatRow, kStatRows> rows{};
  REQUIRE(stat_rows(stats, rows) == kStatRows);
  std::set<std::string> names;
  for (const StatRow& row : rows) {
    CHECK(names.insert(std::string(row.name)).second);
    CHECK_FALSE(row.help.empty());
  }
  CHECK(rows.front().name == "requests_total");
  CHECK(rows.front().value == 3);
  CHECK(rows.back().name == "tenant_limited_total");
  CHECK(rows.back().value == 1);
  CHECK(rows.back().counter);
}

TEST_CASE("stats: every class has a name") {
  CHECK(to_string(CacheClass::hit) == "hit");
  CHECK(to_string(CacheClass::soft_hit) == "soft_hit");
  CHECK(to_string(CacheClass::miss) == "miss");
  CHECK(to_string(CacheClass::bypass) == "bypass");
  CHECK(to_string(CacheClass::unreported) == "unreported");
}
