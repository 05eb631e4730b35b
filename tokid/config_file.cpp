#include "config_file.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string_view>
#include <unistd.h>

#include <toml++/toml.h>

namespace tokid {
namespace {

using toki::Errc;
using toki::Error;
using toki::Status;

constexpr std::string_view kPrefix = "TOKID_";
constexpr std::string_view kBackendKey = "TOKID_BACKEND_KEY";  // the key itself, no option's
constexpr std::string_view kApiKeys = "TOKID_API_KEYS";        // keys, not the file's name
constexpr std::string_view kAdminKey = "TOKID_ADMIN_KEY";
constexpr std::string_view kServer = "server";
constexpr std::size_t kNear = 3;  // letters: a key that differs by more is no slip

Error bad(std::string message) {
  return {Errc::invalid_argument, std::move(message)};
}

// The options that are settings: not --help, and not where the settings are.
std::vector<CLI::Option*> settings(const CLI::App& app) {
  auto all = const_cast<CLI::App&>(app).get_options();
  std::erase_if(all, [](const CLI::Option* option) {
    const auto& names = option->get_lnames();
    return names.empty() || names[0] == "help" || names[0] == "version" || names[0] == "config" ||
           names[0] == "check-config";
  });
  return all;
}

std::string variable(const CLI::Option& option) {
  std::string name(kPrefix);
  for (const char c : option.get_lnames()[0]) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name == kApiKeys ? name + "_FILE" : name;
}

// How many letters have to be changed, put in or left out.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = corner + (a[i - 1] == b[j - 1] ? 0 : 1);
      corner = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// What stays of a name of an option, a variable or a key when it is compared with others.
std::string bare(std::string_view name) {
  std::string text(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return c == '_' ? '-' : static_cast<char>(std::tolower(c));
  });
  return text.starts_with("tokid-") ? text.substr(6) : text;
}

// Letters between them; what begins a name stands for it. A short word has few that may differ.
std::size_t apart(std::string_view wrong, std::string_view right) {
  const std::string a = bare(wrong);
  const std::string b = bare(right);
  const std::size_t letters = distance(a, b);
  const bool begins = a.size() > kNear && b.starts_with(a);
  return begins ? std::min<std::size_t>(letters, 1)
                : letters + (2 * letters > a.size() ? kNear + 1 : 0);
}

std::string suggestion(std::string_view wrong, const std::vector<std::string>& right) {
  const auto near = [&](const std::string& a, const std::string& b) {
    return apart(wrong, a) < apart(wrong, b);
  };
  const auto best = std::min_element(right.begin(), right.end(), near);
  return best != right.end() && apart(wrong, *best) <= kNear
             ? fmt::format("; did you mean {}?", *best)
             : "";
}

std::optional<std::string> scalar(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  if (const auto* number = node.as_integer()) {
    return std::to_string(number->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return fmt::format("{}", number->get());
  }
  if (const auto* flag = node.as_boolean()) {
    return std::string(flag->get() ? "true" : "false");
  }
  return std::nullopt;
}

// One value, or those of a list.
std::optional<std::vector<std::string>> values(const toml::node& node) {
  std::vector<std::string> all;
  const auto* list = node.as_array();
  if (list == nullptr) {
    const auto one = scalar(node);
    return one ? std::optional(std::vector{*one}) : std::nullopt;
  }
  for (const toml::node& entry : *list) {
    const auto one = scalar(entry);
    if (!one) {
      return std::nullopt;
    }
    all.push_back(*one);
  }
  return all;
}

Status set(CLI::Option& option, const std::vector<std::string>& values, const std::string& place) {
  if (option.count() > 0) {
    return toki::Done{};
  }
  if (values.size() > 1 && option.get_items_expected_max() <= 1) {
    return bad(fmt::format("{}: {} takes one value", place, option.get_lnames()[0]));
  }
  try {
    for (const std::string& value : values) {
      option.add_result(value);
    }
    if (!values.empty()) {
      option.run_callback();
    }
  } catch (const CLI::Error& error) {
    return bad(fmt::format("{}: {}", place, error.what()));
  }
  return toki::Done{};
}

std::string quoted_text(const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    quoted += control ? fmt::format("\\u{:04x}", c) : std::string(1, c);
  }
  return quoted + '"';
}

// As TOML writes one: no zeros before it, digits on both sides of the point.
bool is_number(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part = point == text.npos ? "0" : text.substr(point + 1);
  const auto digits = [](std::string_view all) {
    return !all.empty() && all.find_first_not_of("0123456789") == all.npos;
  };
  return digits(whole) && digits(part) && (whole.size() == 1 || whole[0] != '0');
}

// That of a list has one value or none.
std::string default_of(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  const bool list = option.get_items_expected_max() > 1 && text.size() >= 2;
  return list ? text.substr(1, text.size() - 2) : text;
}

// A number that is written otherwise is read from a string as well.
std::string toml_value(const CLI::Option& option, const std::string& value) {
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  const bool number = name == "N" || name == "X";
  const bool flag = option.get_expected_max() == 0 && (value == "true" || value == "false");
  return flag || (number && is_number(value)) ? value : quoted_text(value);
}

// Those that stand before `--` most often.
constexpr std::array<std::string_view, 6> kServersFlags{
    "--n-gpu-layers", "--ctx-size", "--parallel", "--hf-repo", "--threads", "--flash-attn"};

}  // namespace

std::string what_is_unknown(const CLI::App& app) {
  const auto left = app.remaining();
  const std::string first = left.empty() ? "" : left[0].substr(0, left[0].find('='));
  const bool ours = first.starts_with("--") && std::find(kServersFlags.begin(), kServersFlags.end(),
                                                         first) == kServersFlags.end();
  if (!ours) {
    return fmt::format(
        "there is no option {} (a server to start stands behind --: tokid [OPTIONS] -- "
        "llama-server -m ...)",
        first);
  }
  std::vector<std::string> known{"--help", "--version", "--config", "--check-config"};
  for (const CLI::Option* option : settings(app)) {
    known.push_back("--" + option->get_lnames()[0]);
  }
  return fmt::format("there is no option {}{}", first, suggestion(first, known));
}

void name_in_environment(CLI::App& app) {
  for (CLI::Option* option : settings(app)) {
    option->envname(variable(*option));
  }
  app.get_option("--config")->envname("TOKID_CONFIG");
}

Status check_environment(const CLI::App& app) {
  std::vector<std::string> known{std::string(kBackendKey), std::string(kApiKeys),
                                 std::string(kAdminKey), "TOKID_CONFIG"};
  for (const CLI::Option* option : settings(app)) {
    known.push_back(variable(*option));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with(kPrefix) && std::find(known.begin(), known.end(), name) == known.end()) {
      return bad(fmt::format("the environment variable {} means nothing{}", name,
                             suggestion(name, known)));
    }
  }
  return toki::Done{};
}

Status read_config(CLI::App& app, const std::string& path, std::vector<std::string>& server) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) {
    return bad(fmt::format("--config {}: is a folder", path));
  }
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    return bad(line > 0 ? fmt::format("{}:{}: {}", path, line, error.description())
                        : fmt::format("--config {}: {}", path, error.description()));
  }
  const auto options = settings(app);
  std::vector<std::string> known{std::string(kServer)};
  for (const CLI::Option* option : options) {
    known.push_back(option->get_lnames()[0]);
  }
  for (const auto& [key, node] : table) {
    const std::string place = fmt::format("{}:{}", path, key.source().begin.line);
    const auto found = std::find(known.begin(), known.end(), key.str());
    if (found == known.end()) {
      return bad(node.is_table()
                     ? fmt::format("{}: there are no tables such as [{}]: settings stand "
                                   "above all of them",
                                   place, key.str())
                     : fmt::format("{}: there is no setting {}{}", place, key.str(),
                                   suggestion(key.str(), known)));
    }
    const auto given = values(node);
    if (!given) {
      return bad(fmt::format("{}: {} is no value or list of values", place, key.str()));
    }
    if (found == known.begin()) {
      server = server.empty() ? *given : server;
      continue;
    }
    CLI::Option& option = *options[static_cast<std::size_t>(found - known.begin() - 1)];
    if (auto status = set(option, *given, place); !status) {
      return status;
    }
  }
  return toki::Done{};
}

std::string write_config(const CLI::App& app, const std::vector<std::string>& server) {
  const auto list = [](const std::vector<std::string>& values) {
    std::vector<std::string> quoted;
    std::transform(values.begin(), values.end(), std::back_inserter(quoted), quoted_text);
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  };
  std::string text;
  for (const CLI::Option* option : settings(app)) {
    const auto given = option->results();
    const std::string otherwise = default_of(*option);
    const bool several = option->get_items_expected_max() > 1;
    const std::string value =
        given.empty() && otherwise.empty() ? ""
        : several ? list(given.empty() ? std::vector<std::string>{otherwise} : given)
                  : toml_value(*option, given.empty() ? otherwise : given.back());
    text += value.empty() ? fmt::format("# {} =\n", option->get_lnames()[0])
                          : fmt::format("{} = {}\n", option->get_lnames()[0], value);
  }
  return text + (server.empty() ? "" : fmt::format("{} = {}\n", kServer, list(server)));
}

}  // namespace tokid
