// toki-replay: plays a workload on one or more endpoints and reports what each of them computed, how
// long it took, and whether their answers are the same (docs/benchmarks.md).
//
// Exit codes: 0 all requests answered; 1 some failed, or it cannot run; 2 bad options; 128 + N
// stopped by signal N, with what was measured until then.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "options.hpp"
#include "report.hpp"
#include "run.hpp"
#include "stop.hpp"

namespace {

using namespace replay;

toki::Result<Workload> make_workload(const Options& options) {
  Workload workload;
  if (options.workload_name == "agents") {
    workload = make_agents(options.workload);
  } else {
    auto read = read_workload(options.workload_name, options.workload);
    if (!read) return read;
    workload = std::move(*read);
  }
  put_in_order(workload, options.workload);
  if (options.arrival == "recorded") {
    for (Request& request : workload.requests) request.at_ms /= options.speed;
  } else if (options.arrival == "poisson") {
    set_poisson_times(workload, options.rate, options.workload.seed);
  }
  return workload;
}

bool write_file(const std::string& name, const std::string& text) {
  if (name.empty()) return true;
  std::ofstream file(name, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) fmt::print(stderr, "toki-replay: {}: {}\n", name, std::strerror(errno));
  return static_cast<bool>(file);
}

// Before hours of work, not after.
bool can_write(const std::string& name) {
  if (name.empty()) return true;
  const std::ofstream file(name, std::ios::app);
  if (!file) fmt::print(stderr, "toki-replay: {}: {}\n", name, std::strerror(errno));
  return static_cast<bool>(file);
}

bool anything_measured(const Report& report) {
  for (const ArmReport& arm : report.arms) {
    for (const Run& run : arm.runs) {
      if (std::any_of(run.outcomes.begin(), run.outcomes.end(),
                      [](const Outcome& o) { return o.failure.empty(); })) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const OptionsResult result = read_options(argc, argv, options);
  if (result != OptionsResult::go_on) return result == OptionsResult::done ? 0 : 2;
  if (!can_write(options.json_file) || !can_write(options.html_file)) return 1;
  const auto workload = make_workload(options);
  if (!workload) {
    fmt::print(stderr, "toki-replay: {}\n", workload.error().detail);
    return 1;
  }
  if (const std::string line = random_answers(options, *workload); !line.empty()) {
    fmt::print(stderr, "toki-replay: {}\n", line);
  }
  stop::install();
  Meaning meaning(options.meaning);
  if (const auto status = meaning.probe(); !status) {
    fmt::print(stderr, "toki-replay: {}\n", status.error().detail);
    return 1;
  }
  const Report report = run_all(options, *workload, meaning);
  bool well = true;
  if (anything_measured(report)) {
    fmt::print("{}", as_text(report));
    std::fflush(stdout);
  }
  well = write_file(options.json_file, as_json(report)) && well;
  if (!options.html_file.empty()) well = write_file(options.html_file, as_html(report)) && well;
  for (const std::string& line : fault_lines(report)) {
    fmt::print(stderr, "toki-replay: {}\n", line);
    well = false;
  }
  if (report.interrupted) {
    fmt::print(stderr, "toki-replay: stopped by signal {}\n", stop::signal_number());
    return 128 + stop::signal_number();
  }
  return well ? 0 : 1;
}
