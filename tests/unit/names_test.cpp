// The names that go to logs, pages and metrics: each value has one of its own.
#include <toki/divergence.hpp>
#include <toki/embedding.hpp>
#include <toki/engine.hpp>
#include <toki/pin_record.hpp>
#include <toki/result.hpp>
#include <toki/stats.hpp>

#include <catch2/catch.hpp>

#include <set>
#include <string>

using namespace toki;

namespace {

// Of the values from `first` to `last`.
template <class Enum>
std::set<std::string> names(Enum first, Enum last) {
  std::set<std::string> all;
  for (auto value = static_cast<int>(first); value <= static_cast<int>(last); ++value) {
    const std::string name(to_string(static_cast<Enum>(value)));
    INFO(name << " of " << value);
    CHECK(all.insert(name).second);
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_-") == std::string::npos);
    CHECK_FALSE(name.empty());
  }
  return all;
}

}  // namespace

TEST_CASE("names: no two values share one, and each can stand in a metric or a log line") {
  CHECK(names(Errc::not_found, Errc::no_space).count("unknown") == 0);
  CHECK(names(Reason::slot_prefix, Reason::not_cacheable).count("unknown") == 0);
  CHECK(names(Source::none, Source::copy).count("copy") == 1);
  CHECK(names(Ending::completed, Ending::stalled).count("refused_by_backend") == 1);
  CHECK(names(EmbeddingKind::none, EmbeddingKind::hash).count("model") == 1);
  CHECK(names(PinState::held, PinState::other_model).count("other_model") == 1);
  CHECK(names(Divergence::identical, Divergence::substantive).count("whitespace-only") == 1);
  CHECK(names(DivergenceReason::none, DivergenceReason::similarity).count("negation") == 1);
}
