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
  std::vector<ArmPairs> comparisons;
  std::string meaning;         ///< how pairs are judged that no rule decides
  std::string random_answers;  ///< a line where answers were drawn at random
  std::size_t undecided = 0;   ///< of them, those that the embeddings' server failed
  std::string undecided_why;
  double own_cpu_s = 0;  ///< of this program, which shares the cores with what it measures
  bool interrupted = false;
};

/// What went wrong, one line each; requests that failed with the same words share one.
std::vector<std::string> fault_lines(const Report& report);

std::string as_text(const Report& report);
std::string as_json(const Report& report);
std::string as_html(const Report& report);

/// How the answers of each two arms compare: a row of titles, one a comparison, and below it
/// one for each way in which its requests began (with two blanks before its name).
std::vector<std::vector<std::string>> pair_rows(const Report& report);
/// Under that table, one line each.
std::vector<std::string> pair_notes(const Report& report);
/// The divergent pairs of one comparison, a row of titles first; at most `most` of them.
std::vector<std::vector<std::string>> parted_rows(const ArmPairs& pairs, std::size_t most);

/// A figure as it stands in a table; "-" when it is not known.
std::string figure_text(double value, int decimals);

}  // namespace replay
