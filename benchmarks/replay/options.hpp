// The command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arm.hpp"
#include "meaning.hpp"
#include "workload.hpp"

namespace replay {

struct Options {
  std::vector<ArmSettings> arms;
  SpawnSettings spawn;
  WorkloadSettings workload;
  std::string workload_name = "agents";  ///< or a path
  std::size_t at_once = 1;
  std::string arrival = "closed";  ///< "closed", "recorded", "poisson"
  double rate = 1;                 ///< poisson: requests a second
  double speed = 1;                ///< recorded: times faster
  std::size_t interleave = 0;      ///< requests an arm plays before the next one's turn; 0: all
  bool restart = false;
  std::size_t repeat = 1;
  MeaningSettings meaning;
  std::string json_file;
  std::string html_file;
  std::vector<std::string> words;  ///< the command line, for the report
};

enum class OptionsResult { go_on, done, wrong };

/// Prints help, version, or one line that says what is wrong.
OptionsResult read_options(int argc, char** argv, Options& options);

}  // namespace replay
