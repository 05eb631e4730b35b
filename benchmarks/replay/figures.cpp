#include "figures.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace replay {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

template <class Value>
std::vector<double> sorted(const Run& run, const Value& value) {
  std::vector<double> values;
  for (const Outcome& outcome : run.outcomes) {
    if (outcome.failure.empty()) values.push_back(value(outcome));
  }
  std::sort(values.begin(), values.end());
  return values;
}

// Sums what every request that did not fail must have said.
template <class Value>
double sum(const Run& run, const Value& value) {
  double total = 0;
  bool known = true;
  for (const Outcome& outcome : run.outcomes) {
    if (!outcome.failure.empty()) continue;
    known = known && value(outcome) >= 0;
    total += static_cast<double>(value(outcome));
  }
  return known ? total : kUnknown;
}

void count_classes(const Run& run, Figures& figures) {
  for (const Outcome& outcome : run.outcomes) {
    if (!outcome.failure.empty()) {
      ++figures.failures;
    } else if (outcome.cached_tokens >= kHitTokens) {
      ++figures.hits;
    } else if (outcome.cached_tokens > 0) {
      ++figures.soft;
    } else {
      ++figures.misses;
    }
  }
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return kUnknown;
  const double rank = std::ceil(q * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

std::vector<double> first_token_times(const Run& run) {
  return sorted(run, [](const Outcome& o) { return o.first_ms; });
}

std::string source_of(const Outcome& outcome) {
  if (outcome.cached_tokens <= 0) return "computed";
  return outcome.source.empty() || outcome.source == "none" ? "server" : outcome.source;
}

Figures figures_of(const Run& run) {
  Figures f;
  f.requests = static_cast<double>(run.outcomes.size());
  count_classes(run, f);
  f.prompt_tokens = sum(run, [](const Outcome& o) { return o.prompt_tokens; });
  f.computed_usage = sum(run, [](const Outcome& o) {
    return o.cached_tokens < 0 ? -1 : o.prompt_tokens - o.cached_tokens;
  });
  f.computed = run.counter.value_or(f.computed_usage);
  f.oracle = sum(run, [](const Outcome& o) { return o.oracle_tokens; });
  f.ratio = f.oracle > 0 ? f.computed / f.oracle : kUnknown;
  const std::vector<double> first = first_token_times(run);
  const std::vector<double> total = sorted(run, [](const Outcome& o) { return o.total_ms; });
  f.first_p50 = quantile(first, 0.5);
  f.first_p95 = quantile(first, 0.95);
  f.first_p99 = quantile(first, 0.99);
  f.total_p50 = quantile(total, 0.5);
  f.total_p95 = quantile(total, 0.95);
  f.late_p95 = quantile(sorted(run, [](const Outcome& o) { return o.late_ms; }), 0.95);
  f.output_tokens = sum(run, [](const Outcome& o) { return o.output_tokens; });
  f.wall_s = run.wall_ms / 1000;
  f.output_rate = f.wall_s > 0 ? f.output_tokens / f.wall_s : kUnknown;
  f.server_cpu = run.server ? run.server->cpu_s : kUnknown;
  f.server_mib = run.server ? run.server->peak_mib : kUnknown;
  f.tokid_cpu = run.tokid ? run.tokid->cpu_s : kUnknown;
  f.tokid_mib = run.tokid ? run.tokid->peak_mib : kUnknown;
  const bool folders = run.server.has_value() && !run.samples.empty();
  f.data_mib = folders ? run.samples.back().data_mib : kUnknown;
  f.slots_mib = folders ? run.samples.back().slots_mib : kUnknown;
  return f;
}

Spread spread_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return {kUnknown, kUnknown, kUnknown};
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), median, values.back()};
}

}  // namespace replay
