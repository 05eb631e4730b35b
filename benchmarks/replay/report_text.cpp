#include <toki/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report.hpp"

namespace replay {
namespace {

using Row = std::vector<std::string>;

// The first column to the left, the others to the right.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    text += line + "\n";
  }
  return text;
}

const FigureName& named(double Figures::*value) {
  return *std::find_if(kFigures.begin(), kFigures.end(),
                       [&](const FigureName& name) { return name.value == value; });
}

std::string figure_table(const Report& report, const std::vector<double Figures::*>& columns) {
  std::vector<Row> rows{{"arm"}};
  for (const auto column : columns) rows[0].emplace_back(named(column).title);
  for (const ArmReport& arm : report.arms) {
    Row row{arm.settings.name};
    for (const auto column : columns) {
      row.push_back(figure_text(arm.spread(named(column)).median, named(column).decimals));
    }
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string spread_table(const Report& report) {
  std::vector<Row> rows{{"arm", "ratio", "TTFT p50", "TTFT p95", "tok/s", "wall s"}};
  for (const ArmReport& arm : report.arms) {
    Row row{arm.settings.name};
    for (const auto column : {&Figures::ratio, &Figures::first_p50, &Figures::first_p95,
                              &Figures::output_rate, &Figures::wall_s}) {
      const FigureName& name = named(column);
      const Spread spread = arm.spread(name);
      row.push_back(fmt::format("{} .. {}", figure_text(spread.min, name.decimals),
                                figure_text(spread.max, name.decimals)));
    }
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string oracle_lines(const Report& report) {
  std::string text;
  for (const ArmReport& arm : report.arms) {
    for (const Run& run : arm.runs) {
      if (run.no_oracle.empty()) continue;
      text += fmt::format("{}: no oracle: {}\n", arm.settings.name, run.no_oracle);
      break;
    }
  }
  return text;
}

std::string pair_text(const Report& report) {
  if (report.comparisons.empty()) return {};
  std::string text = table(pair_rows(report));
  for (const std::string& note : pair_notes(report)) text += note + "\n";
  for (const ArmPairs& pairs : report.comparisons) {
    if (pairs.parted.empty()) continue;
    constexpr std::size_t kShown = 5;
    text +=
        fmt::format("\n{} and {} part:\n{}", pairs.a, pairs.b, table(parted_rows(pairs, kShown)));
    if (pairs.parted.size() > kShown) {
      text += fmt::format("and {} more (--json has all)\n", pairs.parted.size() - kShown);
    }
  }
  return text + "\n";
}

std::string heading(const Report& report) {
  std::string text = fmt::format("machine: {}, {}\n", report.machine, report.system);
  text += fmt::format("versions: toki-replay {}", toki::version());
  if (!report.tokid_version.empty()) text += ", " + report.tokid_version;
  for (const ArmReport& arm : report.arms) {
    if (arm.facts.build.empty()) continue;
    text += fmt::format("; {}: llama-server {}, {}, {} slots of {}", arm.settings.name,
                        arm.facts.build, arm.facts.model, arm.facts.slots, arm.facts.context);
  }
  text += "\nsettings:";
  for (const auto& [name, value] : report.settings) text += fmt::format(" {}={}", name, value);
  return text + "\n\n";
}

}  // namespace

std::string figure_text(double value, int decimals) {
  if (std::isnan(value)) return "-";
  const bool short_time = decimals == 0 && value < 100 && value != std::floor(value);
  return fmt::format("{:.{}f}", value, short_time ? 1 : decimals);
}

Spread ArmReport::spread(const FigureName& name) const {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(figures_of(run).*name.value);
  return spread_of(std::move(values));
}

std::vector<std::string> fault_lines(const Report& report) {
  std::vector<std::string> lines;
  for (const ArmReport& arm : report.arms) {
    std::map<std::string, std::size_t> seen;
    for (const Run& run : arm.runs) {
      if (!run.failed.empty()) {
        lines.push_back(fmt::format("{}: {}", arm.settings.name, run.failed));
      }
      for (const Outcome& outcome : run.outcomes) {
        const bool said = run.failed.find(outcome.failure) != std::string::npos;
        if (!outcome.failure.empty() && !said) ++seen[outcome.failure];
      }
    }
    for (const auto& [words, count] : seen) {
      lines.push_back(fmt::format("{}: {} failed: {}", arm.settings.name, count, words));
    }
  }
  return lines;
}

std::string as_text(const Report& report) {
  using F = Figures;
  std::string text = heading(report);
  if (report.interrupted) text += "INTERRUPTED: what follows is what was measured until then\n\n";
  if (!report.arms.empty()) {
    const bool many = report.arms.front().runs.size() > 1;
    text += figure_table(report, {&F::requests, &F::failures, &F::prompt_tokens, &F::computed,
                                  &F::oracle, &F::ratio, &F::hits, &F::soft, &F::misses});
    text += "\n" + figure_table(report, {&F::first_p50, &F::first_p95, &F::first_p99, &F::total_p50,
                                         &F::total_p95, &F::late_p95, &F::output_rate, &F::wall_s});
    text += "\n" + figure_table(report, {&F::server_cpu, &F::server_mib, &F::tokid_cpu,
                                         &F::tokid_mib, &F::data_mib, &F::slots_mib});
    if (many) {
      text += fmt::format("\nmedians of {} repeats above; smallest and largest:\n{}",
                          report.arms.front().runs.size(), spread_table(report));
    }
    text += "\n";
  }
  text += pair_text(report) + oracle_lines(report);
  return text + fmt::format("toki-replay itself: {:.2f} s of CPU\n", report.own_cpu_s);
}

}  // namespace replay
