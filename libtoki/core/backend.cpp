#include <toki/backend.hpp>

namespace toki {

Backend::~Backend() = default;

}  // namespace toki
