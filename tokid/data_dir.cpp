#include "data_dir.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <system_error>

namespace tokid {

namespace fs = std::filesystem;
using toki::Errc;
using toki::Error;

toki::Result<std::string> data_dir_of(const std::string& given) {
  std::error_code ignored;
  if (!given.empty()) {
    return fs::absolute(given, ignored).string();
  }
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  const bool named = state != nullptr && *state == '/';  // a relative one counts for nothing (XDG)
  if (!named && (home == nullptr || *home == 0)) {
    return Error{Errc::invalid_argument,
                 "neither --data-dir nor XDG_STATE_HOME nor HOME says where to keep state"};
  }
  const fs::path base = named ? fs::path(state) : fs::path(home) / ".local" / "state";
  return fs::absolute(base / "toki", ignored).string();
}

toki::Status make_data_dir(const std::string& path) {
  std::error_code ec;
  const bool fresh = fs::create_directories(path, ec);
  if (ec || !fs::is_directory(path, ec)) {
    return Error{
        Errc::invalid_argument,
        fmt::format("--data-dir {}: {}", path, ec ? ec.message() : std::string("is no folder"))};
  }
  if (fresh) {
    fs::permissions(path, fs::perms::owner_all, ec);
  }
  return toki::Done{};
}

// A file system that locks no folders refuses nobody.
toki::Status lock_data_dir(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0 && ::flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{Errc::busy, fmt::format("--data-dir {}: another tokid uses this folder", path)};
  }
  return toki::Done{};
}

toki::Status make_folder(const std::string& path) {
  std::error_code ec;
  fs::create_directories(path, ec);
  return ec ? toki::Status(Error{Errc::unavailable, fmt::format("{}: {}", path, ec.message())})
            : toki::Done{};
}

std::string below(const std::string& folder, std::string_view file) {
  return (fs::path(folder) / file).string();
}

std::string folder_name(std::string_view model) {
  std::string name;
  for (const char c : model) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || (c == '.' && !name.empty());
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return name;
}

}  // namespace tokid
