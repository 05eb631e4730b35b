// Runs every arm, repeat by repeat, and collects the report.
#pragma once

#include "meaning.hpp"
#include "options.hpp"
#include "report.hpp"

namespace replay {

/// One line where answers are compared that were drawn at random; else empty.
std::string random_answers(const Options& options, const Workload& workload);

/// `meaning` judges the pairs of answers that no rule decides.
Report run_all(const Options& options, const Workload& workload, Meaning& meaning);

}  // namespace replay
