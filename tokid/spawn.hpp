// A program started as a child of tokid, in a process group of its own. It dies with tokid, even when
// that is killed.
#pragma once

#include <toki/result.hpp>

#include <string>
#include <sys/types.h>
#include <vector>

namespace tokid {

/// `output`: where its stdout and stderr go; -1: both to our stderr.
/// Errc::not_found: the program cannot be started.
toki::Result<pid_t> spawn(const std::vector<std::string>& words, int output = -1);

}  // namespace tokid
