// What a program says of itself: `PROGRAM --help`.
#pragma once

#include <toki/result.hpp>

#include <chrono>
#include <string>

namespace tokid {

/// Long enough for a llama-server that first looks for its devices.
inline constexpr std::chrono::milliseconds kHelpLimit{30000};

/// Its stdout and stderr. Whatever it has started is killed afterwards, as it is itself where it goes
/// on without its output. Errc::not_found: it cannot be started; Errc::timed_out: it does not end, as
/// a wrapper does that starts its server whatever it is told.
toki::Result<std::string> program_help(const std::string& program, std::chrono::milliseconds limit);

}  // namespace tokid
