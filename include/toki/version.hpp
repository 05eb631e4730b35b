// The version of toki. This header is the only place where the number lives; CMake reads it from
// here.
//
// Threads:   all calls are safe.
// Ownership: the string is static.
// Errors:    none.
// Cost:      none.
#pragma once

#include <toki/export.hpp>

#define TOKI_VERSION_MAJOR 0
#define TOKI_VERSION_MINOR 1
#define TOKI_VERSION_PATCH 0

namespace toki {

/// The version of the library that is linked, for example "0.1.0"; compare it with the macros above
/// to find a header and a library that do not belong together.
TOKI_EXPORT const char* version() noexcept;

}  // namespace toki
