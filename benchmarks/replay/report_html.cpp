#include <toki/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "chart.hpp"
#include "report.hpp"

namespace replay {
namespace {

constexpr std::size_t kColours = 8;  // and --c8 for what is no arm and no source

constexpr const char* kStyle = R"(
:root { --c0: #2a78d6; --c1: #d9682b; --c2: #2c9a5c; --c3: #a8478a; --c4: #7466d1; --c5: #8b8a2c;
  --c6: #1f9aa8; --c7: #c2455b; --c8: #9aa0a8; --line: #d8dade; color: #1d2129; background: #fff; }
@media (prefers-color-scheme: dark) { :root { --c0: #5aa0f2; --c1: #f08a52; --c2: #52bd80;
  --c3: #d07ab4; --c4: #9d92ea; --c5: #b9b755; --c6: #4fc0cc; --c7: #e8758a; --c8: #7d838c; --line: #3a3e46;
  color: #e6e8ec; background: #16181c; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
small { opacity: .75; display: block; } .plots { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .grid { stroke: var(--line); stroke-width: 1; } .legend span { margin-right: 1.2rem; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
td.inner { padding-left: 2rem; } details { margin-top: .7rem; }
.bad { font-weight: 600; color: var(--c7); } pre { white-space: pre-wrap; }
)";

std::string cell(const Spread& spread, int decimals, bool many) {
  std::string text = figure_text(spread.median, decimals);
  if (many && spread.min < spread.max) {
    text += fmt::format("<small>{} to {}</small>", figure_text(spread.min, decimals),
                        figure_text(spread.max, decimals));
  }
  return text;
}

// Figures are rows and arms columns: a page has more height than width.
std::string figure_table(const Report& report) {
  std::string html = "<div class=\"scroll\"><table>\n<tr><th></th>";
  for (const ArmReport& arm : report.arms) {
    html += fmt::format("<th>{}</th>", escape_html(arm.settings.name));
  }
  html += "</tr>\n";
  for (const FigureName& name : kFigures) {
    html += fmt::format("<tr><td>{}</td>", name.long_title);
    for (const ArmReport& arm : report.arms) {
      html +=
          fmt::format("<td>{}</td>", cell(arm.spread(name), name.decimals, arm.runs.size() > 1));
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class=\"scroll\"><table>\n";
  for (const auto& row : rows) {
    const char* tag = &row == &rows.front() ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : row) {
      const bool inner = text.starts_with("  ");
      html += fmt::format("<{}{}>{}</{}>", tag, inner ? " class=\"inner\"" : "", escape_html(text),
                          tag);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string answers(const Report& report) {
  if (report.comparisons.empty()) return {};
  std::string html = "<h2>Answers to the same prompts</h2>\n" + table(pair_rows(report));
  for (const std::string& note : pair_notes(report)) {
    html += "<small>" + escape_html(note) + "</small>\n";
  }
  for (const ArmPairs& pairs : report.comparisons) {
    if (pairs.parted.empty()) continue;
    constexpr std::size_t kShown = 200;
    html += fmt::format("<details><summary>Where {} and {} part{}</summary>\n{}</details>\n",
                        escape_html(pairs.a), escape_html(pairs.b),
                        pairs.parted.size() > kShown
                            ? fmt::format(": the first {} of {}", kShown, pairs.parted.size())
                            : std::string(),
                        table(parted_rows(pairs, kShown)));
  }
  return html;
}

std::string arm_legend(const Report& report) {
  std::vector<std::pair<std::string, std::size_t>> names;
  for (std::size_t i = 0; i < report.arms.size(); ++i) {
    names.emplace_back(report.arms[i].settings.name, i % kColours);
  }
  return legend_of(names);
}

// Of all repeats together.
std::string first_token_plot(const Report& report) {
  LineChart chart{"time to first token, ms", "share of requests", true, true, {}};
  for (std::size_t i = 0; i < report.arms.size(); ++i) {
    std::vector<double> times;
    for (const Run& run : report.arms[i].runs) {
      const std::vector<double> more = first_token_times(run);
      times.insert(times.end(), more.begin(), more.end());
    }
    std::sort(times.begin(), times.end());
    Line line{report.arms[i].settings.name, i % kColours, false, {}};
    for (std::size_t k = 0; k < times.size(); ++k) {
      const double share = static_cast<double>(k + 1) / static_cast<double>(times.size());
      if (k == 0) line.points.emplace_back(std::max(times[0], 1e-3), 0.0);
      line.points.emplace_back(std::max(times[k], 1e-3), share);
    }
    chart.lines.push_back(std::move(line));
  }
  return svg_of(chart);
}

// Requests of the first repeat in the order in which they were sent.
std::vector<const Outcome*> sent_order(const ArmReport& arm) {
  std::vector<const Outcome*> sent;
  if (arm.runs.empty()) return sent;
  for (const Outcome& outcome : arm.runs.front().outcomes) {
    if (outcome.failure.empty()) sent.push_back(&outcome);
  }
  std::sort(sent.begin(), sent.end(),
            [](const Outcome* a, const Outcome* b) { return a->sent_ms < b->sent_ms; });
  return sent;
}

std::string computed_plot(const Report& report) {
  LineChart chart{"requests sent", "prompt tokens", false, false, {}};
  for (std::size_t i = 0; i < report.arms.size(); ++i) {
    const std::string& name = report.arms[i].settings.name;
    Line computed{name + ": computed", i % kColours, false, {{0, 0}}};
    Line oracle{name + ": oracle", i % kColours, true, {{0, 0}}};
    for (const Outcome* o : sent_order(report.arms[i])) {
      const double at = static_cast<double>(computed.points.size());
      const auto add = [&](Line& line, std::int64_t more) {
        line.points.emplace_back(at, line.points.back().second + static_cast<double>(more));
      };
      if (o->cached_tokens >= 0) add(computed, o->prompt_tokens - o->cached_tokens);
      if (o->oracle_tokens >= 0) add(oracle, o->oracle_tokens);
    }
    chart.lines.push_back(std::move(computed));
    chart.lines.push_back(std::move(oracle));
  }
  return svg_of(chart);
}

// Prompt tokens of the first repeat by where they came from.
std::string source_plot(const Report& report) {
  BarChart chart{"prompt tokens", {"computed"}, {}, {}};
  std::map<std::string, std::size_t> places{{"computed", 0}};
  for (const ArmReport& arm : report.arms) {
    std::vector<double> parts(1);
    for (const Outcome* o : sent_order(arm)) {
      if (o->cached_tokens < 0) continue;
      parts[0] += static_cast<double>(o->prompt_tokens - o->cached_tokens);
      const auto [place, fresh] = places.try_emplace(source_of(*o), chart.parts.size());
      if (fresh) chart.parts.push_back(place->first);
      if (parts.size() <= place->second) parts.resize(place->second + 1);
      parts[place->second] += static_cast<double>(o->cached_tokens);
    }
    chart.bars.emplace_back(arm.settings.name, std::move(parts));
  }
  std::vector<std::pair<std::string, std::size_t>> names;
  for (std::size_t i = 0; i < chart.parts.size(); ++i) {
    const std::string& part = chart.parts[i];
    chart.colours.push_back(i == 0 ? kColours : (i - 1) % kColours);
    names.emplace_back(i == 0 ? part : "reused: " + part, chart.colours.back());
  }
  return legend_of(names) + svg_of(chart);
}

std::string disk_plot(const Report& report) {
  LineChart chart{"requests ended", "MiB on disk", false, false, {}};
  for (std::size_t i = 0; i < report.arms.size(); ++i) {
    if (report.arms[i].runs.empty()) continue;
    Line line{report.arms[i].settings.name, i % kColours, false, {}};
    for (const Sample& sample : report.arms[i].runs.front().samples) {
      line.points.emplace_back(static_cast<double>(sample.requests),
                               sample.data_mib + sample.slots_mib);
    }
    chart.lines.push_back(std::move(line));
  }
  return svg_of(chart);
}

std::string plot(const char* title, const char* about, const std::string& content) {
  return fmt::format("<div><h2>{}</h2><small>{}</small>{}</div>\n", title, about, content);
}

}  // namespace

std::string as_html(const Report& report) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>toki-replay</title>\n<style>";
  html += kStyle;
  html += "</style></head><body>\n<h1>toki-replay</h1>\n";
  if (report.interrupted) {
    html += "<p class=\"bad\">Interrupted: this is what was measured until then.</p>\n";
  }
  html += figure_table(report) + answers(report) + "<div class=\"plots\">\n";
  const std::string legend = arm_legend(report);
  html += plot("Time to first token", "Share of requests that had their first text by then.",
               legend + first_token_plot(report));
  html += plot("Computed tokens and the oracle",
               "Dashed: each distinct prefix once. As each answer counts them; first repeat.",
               legend + computed_plot(report));
  html += plot("Where prompt tokens came from",
               "By x-toki-source; server: reused without that header. First repeat.",
               source_plot(report));
  html += plot("Disk", "Data and slot folders of the arms that were started here; first repeat.",
               legend + disk_plot(report));
  html += "</div>\n<h2>All of it</h2>\n<pre>" + escape_html(as_text(report)) + "</pre>\n";
  return html + "</body></html>\n";
}

}  // namespace replay
