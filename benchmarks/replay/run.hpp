// Runs every arm, repeat by repeat, and collects the report.
#pragma once

#include "meaning.hpp"
#include "options.hpp"
#include "report.hpp"

namespace replay {

/// `meaning` judges the pairs of answers that no rule decides.
Report run_all(const Options& options, const Workload& workload, Meaning& meaning);

}  // namespace replay
