// What one run of one arm comes down to.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "arm.hpp"
#include "player.hpp"

namespace replay {

/// One look at an arm while it ran.
struct Sample {
  std::size_t requests = 0;  ///< ended until then
  double wall_ms = 0;
  double data_mib = 0;
  double slots_mib = 0;
};

/// One repeat of one arm.
struct Run {
  std::size_t repeat = 0;
  std::vector<Outcome> outcomes;  ///< in the order in which they ended
  double wall_ms = 0;
  std::optional<double> counter;  ///< the server's own count of computed prompt tokens
  std::string no_oracle;          ///< why the oracle is missing
  std::optional<Usage> server;
  std::optional<Usage> tokid;
  std::vector<Sample> samples;
  std::string failed;  ///< why it ended early
};

// Not a number: not known.
struct Figures {
  double requests = 0, failures = 0;
  double prompt_tokens = 0, computed = 0, computed_usage = 0, oracle = 0, ratio = 0;
  double hits = 0, soft = 0, misses = 0;
  double first_p50 = 0, first_p95 = 0, first_p99 = 0, total_p50 = 0, total_p95 = 0, late_p95 = 0;
  double output_tokens = 0, output_rate = 0, wall_s = 0;
  double server_cpu = 0, server_mib = 0, tokid_cpu = 0, tokid_mib = 0, data_mib = 0, slots_mib = 0;
};

struct FigureName {
  double Figures::*value;
  const char* key;    ///< in JSON
  const char* title;  ///< above a column
  const char* long_title;
  int decimals;
};

constexpr std::array<FigureName, 25> kFigures = {{
    {&Figures::requests, "requests", "requests", "requests", 0},
    {&Figures::failures, "failures", "failed", "failed", 0},
    {&Figures::prompt_tokens, "prompt_tokens", "prompt tok", "prompt tokens", 0},
    {&Figures::computed, "computed_tokens", "computed", "prompt tokens computed", 0},
    {&Figures::computed_usage, "computed_tokens_by_usage", "by usage",
     "the same, summed over the answers", 0},
    {&Figures::oracle, "oracle_tokens", "oracle", "oracle: distinct prefixes", 0},
    {&Figures::ratio, "computed_to_oracle", "ratio", "computed / oracle", 3},
    {&Figures::hits, "hits", "hit", "hits (10 reused tokens or more)", 0},
    {&Figures::soft, "soft_hits", "soft", "soft hits (fewer)", 0},
    {&Figures::misses, "misses", "miss", "misses", 0},
    {&Figures::first_p50, "first_token_ms_p50", "TTFT p50", "time to first token p50, ms", 0},
    {&Figures::first_p95, "first_token_ms_p95", "p95", "p95", 0},
    {&Figures::first_p99, "first_token_ms_p99", "p99", "p99", 0},
    {&Figures::total_p50, "latency_ms_p50", "latency p50", "latency p50, ms", 0},
    {&Figures::total_p95, "latency_ms_p95", "p95", "p95", 0},
    {&Figures::late_p95, "late_ms_p95", "late p95", "sent late p95, ms", 0},
    {&Figures::output_tokens, "output_tokens", "output tok", "output tokens", 0},
    {&Figures::output_rate, "output_tokens_per_s", "tok/s", "output tokens / s", 1},
    {&Figures::wall_s, "wall_s", "wall s", "wall time, s", 1},
    {&Figures::server_cpu, "server_cpu_s", "server CPU s", "llama-server CPU, s", 1},
    {&Figures::server_mib, "server_peak_mib", "peak MiB", "llama-server peak memory, MiB", 0},
    {&Figures::tokid_cpu, "tokid_cpu_s", "tokid CPU s", "tokid CPU, s", 2},
    {&Figures::tokid_mib, "tokid_peak_mib", "peak MiB", "tokid peak memory, MiB", 0},
    {&Figures::data_mib, "data_folder_mib", "data MiB", "data folder, MiB", 1},
    {&Figures::slots_mib, "slot_folder_mib", "slots MiB", "slot folder, MiB", 1},
}};

constexpr std::int64_t kHitTokens = 10;  ///< cached tokens from which on a request is a hit

Figures figures_of(const Run& run);

struct Spread {
  double min = 0, median = 0, max = 0;
};
/// Of the values that are known; all not a number when none is.
Spread spread_of(std::vector<double> values);

/// The value that a share `q` of the sorted values does not exceed (nearest rank).
double quantile(const std::vector<double>& sorted, double q);

/// Sorted times to the first token of the requests that did not fail.
std::vector<double> first_token_times(const Run& run);

/// "computed", or where the reused tokens of a request came from: x-toki-source, else "server".
std::string source_of(const Outcome& outcome);

}  // namespace replay
