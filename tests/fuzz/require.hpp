// What a fuzz target holds to be true, in every build.
#pragma once

#include <cstdlib>

inline void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}
