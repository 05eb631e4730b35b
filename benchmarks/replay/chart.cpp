#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace replay {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 300;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 12;
constexpr double kBottom = 46;

// Values to positions; ticks at round values.
struct Axis {
  double low = 0;
  double high = 1;
  bool log = false;
  double begin = 0;
  double end = 1;

  double at(double value) const {
    const double share = log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low))
                             : (value - low) / (high - low);
    return begin + share * (end - begin);
  }

  std::vector<double> ticks() const {
    std::vector<double> values;
    if (log) {
      for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
        for (const double step : {1, 2, 5}) {
          if (step * power >= low * 0.999 && step * power <= high) values.push_back(step * power);
        }
      }
      return values;
    }
    const double rough = (high - low) / 6;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    const double step = rough / power > 5   ? 10 * power
                        : rough / power > 2 ? 5 * power
                        : rough / power > 1 ? 2 * power
                                            : power;
    for (double value = std::ceil(low / step) * step; value <= high * 1.0001; value += step) {
      values.push_back(value);
    }
    return values;
  }
};

std::string tick_text(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::string x_axis(const Axis& x, double bottom, const std::string& title) {
  std::string svg;
  for (const double value : x.ticks()) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x.at(value), kTop, bottom, bottom + 16, tick_text(value));
  }
  return svg + fmt::format("<text x=\"{:.0f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                           (x.begin + x.end) / 2, bottom + 36, escape_html(title));
}

std::string y_axis(const Axis& y, const std::string& title) {
  std::string svg;
  for (const double value : y.ticks()) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        y.at(value), kLeft, kWidth - kRight, kLeft - 6, y.at(value) + 4, tick_text(value));
  }
  return svg + fmt::format(
                   "<text transform=\"translate(14 {:.0f}) rotate(-90)\" "
                   "text-anchor=\"middle\">{}</text>\n",
                   (y.begin + y.end) / 2, escape_html(title));
}

std::string open_svg(double height, const std::string& label) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height,
                     escape_html(label));
}

std::string path_of(const Line& line, const Axis& x, const Axis& y, bool steps) {
  std::string path;
  double height = 0;
  for (const auto& [px, py] : line.points) {
    if (path.empty()) {
      path = fmt::format("M{:.1f} {:.1f}", x.at(px), y.at(py));
    } else if (steps && height != py) {
      path += fmt::format("H{:.1f}V{:.1f}", x.at(px), y.at(py));
    } else {
      path += fmt::format("L{:.1f} {:.1f}", x.at(px), y.at(py));
    }
    height = py;
  }
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"var(--c{})\" stroke-width=\"2\"{}>"
      "<title>{}</title></path>\n",
      path, line.colour, line.dashed ? " stroke-dasharray=\"5 4\"" : "", escape_html(line.name));
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string svg_of(const LineChart& chart) {
  double low = INFINITY;
  double high = -INFINITY;
  double top = 0;
  for (const Line& line : chart.lines) {
    for (const auto& [px, py] : line.points) {
      low = std::min(low, px);
      high = std::max(high, px);
      top = std::max(top, py);
    }
  }
  if (!(low <= high)) return "<p>nothing to show</p>\n";
  if (!chart.log_x) low = std::min(low, 0.0);
  if (chart.log_x) low = std::max(low, 1e-3);
  if (high <= low) high = chart.log_x ? low * 2 : low + 1;
  const Axis x{low, high, chart.log_x, kLeft, kWidth - kRight};
  const Axis y{0, top > 0 ? top * 1.02 : 1, false, kHeight - kBottom, kTop};
  std::string svg = open_svg(kHeight, chart.y_title + " over " + chart.x_title);
  svg += x_axis(x, kHeight - kBottom, chart.x_title) + y_axis(y, chart.y_title);
  for (const Line& line : chart.lines) {
    if (!line.points.empty()) svg += path_of(line, x, y, chart.steps);
  }
  return svg + "</svg>\n";
}

std::string svg_of(const BarChart& chart) {
  constexpr double kBar = 34;
  double longest = 0;
  for (const auto& [name, parts] : chart.bars) {
    longest = std::max(longest, std::accumulate(parts.begin(), parts.end(), 0.0));
  }
  if (longest <= 0) return "<p>nothing to show</p>\n";
  const double bottom = kTop + kBar * static_cast<double>(chart.bars.size());
  constexpr double kNames = 130;
  const Axis x{0, longest, false, kNames, kWidth - kRight};
  std::string svg = open_svg(bottom + kBottom, chart.x_title);
  svg += x_axis(x, bottom, chart.x_title);
  double y = kTop;
  for (const auto& [name, parts] : chart.bars) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kNames - 8,
                       y + kBar / 2 + 4, escape_html(name));
    double sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i] <= 0) continue;
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"var(--c{})\">"
          "<title>{}: {:.0f} {}</title></rect>\n",
          x.at(sum), y + 5, std::max(0.5, x.at(sum + parts[i]) - x.at(sum) - 1), kBar - 10,
          chart.colours[i], escape_html(name), parts[i], escape_html(chart.parts[i]));
      sum += parts[i];
    }
    y += kBar;
  }
  return svg + "</svg>\n";
}

std::string legend_of(const std::vector<std::pair<std::string, std::size_t>>& names) {
  std::string html = "<p class=\"legend\">";
  for (const auto& [name, colour] : names) {
    html += fmt::format("<span><i style=\"background:var(--c{})\"></i>{}</span>", colour,
                        escape_html(name));
  }
  return html + "</p>\n";
}

}  // namespace replay
