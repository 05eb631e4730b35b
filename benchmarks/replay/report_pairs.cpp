// The answers of two arms beside each other, as rows for the terminal and the page.
#include <fmt/format.h>

#include <algorithm>

#include "report.hpp"

namespace replay {
namespace {

using Row = std::vector<std::string>;
using toki::Divergence;

std::string percent(double share) {
  const double value = share * 100;
  return fmt::format("{:.{}f}", value, value >= 0.05 && value < 99.95 ? 1 : 0);
}

// "1.5 % (0.5 to 4.3)", or "-" of nothing.
std::string share_text(std::uint64_t part, std::uint64_t all) {
  if (all == 0) return "-";
  const toki::Interval range = toki::wilson(part, all);
  return fmt::format("{} % ({} to {})",
                     percent(static_cast<double>(part) / static_cast<double>(all)),
                     percent(range.low), percent(range.high));
}

Row counts_row(std::string name, const toki::DivergenceCounts& counts) {
  Row row{std::move(name), std::to_string(counts.pairs())};
  for (const Divergence kind : {Divergence::identical, Divergence::whitespace_only,
                                Divergence::restore_noise, Divergence::substantive}) {
    row.push_back(std::to_string(counts.count(kind)));
  }
  row.push_back(share_text(counts.divergent(), counts.pairs()));
  row.push_back(share_text(counts.count(Divergence::substantive), counts.divergent()));
  return row;
}

std::string group_name(const PairGroup& group) {
  const bool computed = group.a == Start::computed && group.b == Start::computed;
  return fmt::format("  {}, {}{}", to_string(group.a), to_string(group.b),
                     computed            ? ""
                     : group.equal_reuse ? ", equal reuse"
                                         : ", unequal reuse");
}

std::string reuse_text(Start start, std::int64_t cached) {
  if (start == Start::unknown) return "not said";
  return start == Start::computed ? "0" : fmt::format("{} {}", cached, to_string(start));
}

}  // namespace

std::vector<Row> pair_rows(const Report& report) {
  std::vector<Row> rows{{"answers of", "pairs", "identical", "white space", "noise", "substantive",
                         "divergent (95 %)", "of them substantive"}};
  for (const ArmPairs& pairs : report.comparisons) {
    rows.push_back(counts_row(pairs.a + ", " + pairs.b, pairs.counts));
    std::vector<PairGroup> groups = pairs.groups;
    std::stable_sort(groups.begin(), groups.end(), [](const PairGroup& a, const PairGroup& b) {
      return a.counts.pairs() > b.counts.pairs();
    });
    for (const PairGroup& group : groups)
      rows.push_back(counts_row(group_name(group), group.counts));
  }
  return rows;
}

std::vector<std::string> pair_notes(const Report& report) {
  std::vector<std::string> notes;
  bool parted = false;
  for (const ArmPairs& pairs : report.comparisons) {
    parted = parted || !pairs.parted.empty();
    if (pairs.other_prompts == 0) continue;
    notes.push_back(
        fmt::format("{}, {}: {} more had other prompts, after an earlier answer differed", pairs.a,
                    pairs.b, pairs.other_prompts));
  }
  if (!report.random_answers.empty()) notes.push_back(report.random_answers);
  if (parted) notes.push_back("pairs that no rule decides count as " + report.meaning);
  if (report.undecided > 0) {
    notes.push_back(fmt::format("{} of them as substantive, because there was no embedding: {}",
                                report.undecided, report.undecided_why));
  }
  return notes;
}

std::vector<Row> parted_rows(const ArmPairs& pairs, std::size_t most) {
  std::vector<Row> rows{{"request", "class", "reason", "equal characters", "tokens", "words",
                         "reused by " + pairs.a, "reused by " + pairs.b}};
  for (std::size_t i = 0; i < std::min(most, pairs.parted.size()); ++i) {
    const PartedPair& pair = pairs.parted[i];
    const toki::Parting& parting = pair.found.parting;
    rows.push_back({std::to_string(pair.index), std::string(to_string(pair.found.kind)),
                    std::string(to_string(pair.found.reason)), std::to_string(parting.characters),
                    pair.tokens < 0 ? "-" : std::to_string(pair.tokens),
                    std::to_string(parting.words), reuse_text(pair.start_a, pair.cached_a),
                    reuse_text(pair.start_b, pair.cached_b)});
  }
  return rows;
}

}  // namespace replay
