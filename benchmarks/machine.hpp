// What a benchmark prints about where it ran.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace bench {

/// "2 cores, Intel(R) Xeon(R) Processor".
inline std::string machine() {
  std::string model = "unknown CPU";
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
      break;
    }
  }
  return std::to_string(std::thread::hardware_concurrency()) + " cores, " + model;
}

/// "always [madvise] never".
inline std::string huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) ? line : "unknown";
}

}  // namespace bench
