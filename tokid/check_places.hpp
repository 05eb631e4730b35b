// Whether the files and folders that the options name are such as the start needs. Looks only: makes
// and opens nothing, and leaves rights alone, which another user may have.
#pragma once

#include <toki/result.hpp>

#include "options.hpp"

namespace tokid {

/// Errc::invalid_argument: one of them is missing or of another kind, and the start would be refused.
toki::Status check_places(const Options& options);

}  // namespace tokid
