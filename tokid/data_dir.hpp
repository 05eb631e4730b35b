// The folder in which tokid keeps its state, and how what lies below it is called.
#pragma once

#include <toki/result.hpp>

#include <string>
#include <string_view>

namespace tokid {

/// Where state is kept, as an absolute path: `given`, or where it is empty the user's usual place.
/// Errc::invalid_argument: nothing says where.
toki::Result<std::string> data_dir_of(const std::string& given);
/// That folder, made if it is not there; then only its owner can read it.
toki::Status make_data_dir(const std::string& path);
/// Held until the process ends, however it ends. Errc::busy: another tokid has it.
toki::Status lock_data_dir(const std::string& path);

/// A folder below one that is there already.
toki::Status make_folder(const std::string& path);
std::string below(const std::string& folder, std::string_view file);
/// A model's name as the name of a folder: what is no letter, digit, `-`, `_` or `.` becomes %XX.
std::string folder_name(std::string_view model);

}  // namespace tokid
