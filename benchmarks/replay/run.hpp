// Runs every arm, repeat by repeat, and collects the report.
#pragma once

#include "options.hpp"
#include "report.hpp"

namespace replay {

Report run_all(const Options& options, const Workload& workload);

}  // namespace replay
