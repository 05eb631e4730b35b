// TOKI_EXPORT marks what the shared library offers; everything else is hidden.
//
// Threads, Ownership, Errors, Cost: not applicable, macros only.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define TOKI_EXPORT __attribute__((visibility("default")))
#else
#define TOKI_EXPORT
#endif
