// Where the library's few log lines go: a function that the program passes in. Silent by default.
//
// Threads:   the sink may be called from any thread that calls the library, never under a lock.
// Ownership: the library keeps a copy of the function.
// Errors:    the sink must not throw.
// Cost:      one call a line; lines are written on state changes, not per request.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace toki {

/// How much a line matters; the first matters most.
enum class LogLevel : std::uint8_t { error, warn, info, debug };

/// Gets each line, without a line feed. Called from any thread, without locks; it must not throw.
/// May be empty where a header says so.
using LogSink = std::function<void(LogLevel, std::string_view)>;

}  // namespace toki
