#include "check_places.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data_dir.hpp"
#include "server_command.hpp"

namespace tokid {
namespace {

namespace fs = std::filesystem;
using toki::Errc;
using toki::Error;
using toki::Status;

// What cannot be looked at (another user's folder) is taken for right.
fs::file_type kind_of(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  return status.type() == fs::file_type::none ? fs::file_type::unknown : status.type();
}

bool is_no_folder(const fs::path& path) {
  const fs::file_type kind = kind_of(path);
  return kind != fs::file_type::directory && kind != fs::file_type::unknown;
}

Error bad(std::string_view option, const fs::path& path, std::string_view why) {
  return {Errc::invalid_argument, fmt::format("{} {}: {}", option, path.string(), why)};
}

// A file there, or a place for one.
Status check_file(std::string_view option, const std::string& path) {
  const fs::path file = fs::absolute(path);
  if (kind_of(file) == fs::file_type::directory) {
    return bad(option, path, "is a folder");
  }
  return is_no_folder(file.parent_path()) ? Status(bad(option, path, "its folder is not there"))
                                          : toki::Done{};
}

Status check_data_dir(const fs::path& path) {
  fs::path there = path;
  while (kind_of(there) == fs::file_type::not_found && there.has_relative_path()) {
    there = there.parent_path();
  }
  return is_no_folder(there) ? Status(bad("--data-dir", path, there.string() + " is no folder"))
                             : toki::Done{};
}

Status check_slot_dirs(const Options& options) {
  if (options.slot_dir.empty() || !options.server.empty() || options.kv_gib == 0) {
    return toki::Done{};
  }
  std::vector<std::string> folders;
  for (const NamedBackend& one : options.backends) {
    folders.push_back(one.names.empty() ? options.slot_dir
                                        : below(options.slot_dir, folder_name(one.names[0])));
  }
  if (folders.empty()) {
    folders.push_back(options.slot_dir);
  }
  for (const std::string& folder : folders) {
    if (is_no_folder(folder)) {
      return bad("--slot-dir", folder, "the folder for state files is not there");
    }
  }
  return toki::Done{};
}

Status check_sockets(const Options& options) {
  for (const ListenAddress& address : options.listen_at) {
    if (address.path.empty()) {
      continue;
    }
    const fs::file_type kind = kind_of(address.path);
    if (kind != fs::file_type::socket && kind != fs::file_type::not_found &&
        kind != fs::file_type::unknown) {
      return bad("--listen", address.name(), "is there and is no socket");
    }
    if (is_no_folder(fs::path(address.path).parent_path())) {
      return bad("--listen", address.name(), "its folder is not there");
    }
  }
  return toki::Done{};
}

}  // namespace

Status check_places(const Options& options) {
  if (auto status = check_data_dir(options.data_dir); !status) {
    return status;
  }
  if (auto status = check_slot_dirs(options); !status) {
    return status;
  }
  if (auto status = check_sockets(options); !status) {
    return status;
  }
  if (!options.record.empty()) {
    if (auto status = check_file("--record", options.record); !status) {
      return status;
    }
  }
  return options.server.empty() ? Status(toki::Done{}) : check_command(options);
}

}  // namespace tokid
