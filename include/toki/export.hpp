// TOKI_EXPORT marks what the shared library offers; everything else is hidden. TOKI_HIDDEN takes a part
// of it out again: what a class keeps to itself.
//
// Threads, Ownership, Errors, Cost: not applicable, macros only.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define TOKI_EXPORT __attribute__((visibility("default")))
#define TOKI_HIDDEN __attribute__((visibility("hidden")))
#else
#define TOKI_EXPORT
#define TOKI_HIDDEN
#endif
