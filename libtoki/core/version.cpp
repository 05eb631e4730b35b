#include <toki/version.hpp>

#define TOKI_TEXT_(x) #x
#define TOKI_TEXT(x) TOKI_TEXT_(x)

namespace toki {

const char* version() noexcept {
  return TOKI_TEXT(TOKI_VERSION_MAJOR) "." TOKI_TEXT(TOKI_VERSION_MINOR) "." TOKI_TEXT(
      TOKI_VERSION_PATCH);
}

}  // namespace toki
