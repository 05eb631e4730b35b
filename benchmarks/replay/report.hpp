// What a run of toki-replay found, and its three forms: table, JSON, HTML.
#pragma once

#include <string>
#include <vector>

#include "figures.hpp"
#include "options.hpp"
#include "pairs.hpp"

namespace replay {

struct ArmReport {
  ArmSettings settings;
  ServerFacts facts;
  std::vector<Run> runs;  ///< one a repeat
  /// Of one figure over the repeats.
  Spread spread(const FigureName& name) const;
};

struct Report {
  std::string machine;
  std::string system;
  std::string tokid_version;  ///< empty when no tokid was started
  std::string begun;          ///< UTC
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ArmReport> arms;
  std::vector<Comparison> comparisons;
  double own_cpu_s = 0;  ///< of this program, which shares the cores with what it measures
  bool interrupted = false;
};

/// What went wrong, one line each; requests that failed with the same words share one.
std::vector<std::string> fault_lines(const Report& report);

std::string as_text(const Report& report);
std::string as_json(const Report& report);
std::string as_html(const Report& report);

/// A figure as it stands in a table; "-" when it is not known.
std::string figure_text(double value, int decimals);

}  // namespace replay
