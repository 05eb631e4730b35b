// Plots as inline SVG: lines over a linear or logarithmic x axis, and stacked bars. Colours are CSS
// variables, so that the page chooses them for light and dark.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace replay {

using Point = std::pair<double, double>;

struct Line {
  std::string name;
  std::size_t colour = 0;  ///< var(--c0), var(--c1), ...
  bool dashed = false;
  std::vector<Point> points;  ///< x rises
};

struct LineChart {
  std::string x_title;
  std::string y_title;
  bool log_x = false;
  bool steps = false;  ///< a value holds until the next point
  std::vector<Line> lines;
};

std::string svg_of(const LineChart& chart);

/// One bar a name; its parts stand beside each other, in the order of `parts`.
struct BarChart {
  std::string x_title;
  std::vector<std::string> parts;
  std::vector<std::size_t> colours;  ///< of the parts
  std::vector<std::pair<std::string, std::vector<double>>> bars;
};

std::string svg_of(const BarChart& chart);

/// A line of coloured marks with names.
std::string legend_of(const std::vector<std::pair<std::string, std::size_t>>& names);

std::string escape_html(const std::string& text);

}  // namespace replay
