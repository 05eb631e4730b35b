#include "store/named_records.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <random>
#include <span>
#include <sys/file.h>
#include <sys/stat.h>
#include <utility>

#include "core/hash.hpp"

namespace toki {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "TOKINAM1";
constexpr std::string_view kEnding = ".state";
constexpr std::size_t kNumbers = 9;  // behind the magic, the checksum first
constexpr std::size_t kFixedBytes = 8 + 8 * kNumbers;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
constexpr std::size_t kTagDigits = 16;

void put(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

std::uint64_t get(std::string_view from, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(from[i]);
  }
  return value;
}

std::string encode(const std::string& file, const NamedState& state) {
  std::string rest;
  rest.reserve(kFixedBytes + file.size() + state.scope.bytes().size() + 4 * state.tokens.size());
  for (const std::uint64_t number :
       {state.id, std::uint64_t{state.whole ? 1U : 0U}, state.unknown,
        std::bit_cast<std::uint64_t>(state.use), static_cast<std::uint64_t>(state.last_used_ms),
        std::uint64_t{file.size()}, std::uint64_t{state.scope.bytes().size()},
        std::uint64_t{state.tokens.size()}}) {
    put(rest, number, 8);
  }
  rest += file;
  rest += state.scope.bytes();
  for (const Token token : state.tokens) {
    put(rest, static_cast<std::uint32_t>(token), 4);
  }
  std::string all(kMagic);
  put(all, hash_bytes(rest.data(), rest.size()), 8);
  return all += rest;
}

// The number in `<number>.state`.
std::optional<std::size_t> number_in(std::string_view file) {
  if (!file.ends_with(kEnding)) {
    return std::nullopt;
  }
  file.remove_suffix(kEnding.size());
  std::size_t number = 0;
  const auto [end, wrong] = std::from_chars(file.data(), file.data() + file.size(), number);
  const bool all = !file.empty() && wrong == std::errc() && end == file.data() + file.size();
  return all ? std::optional(number) : std::nullopt;
}

bool is_tag(std::string_view text) {
  return text.size() == kTagDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string new_tag() {
  std::random_device random;
  std::array<char, kTagDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x%08x", random(), random());
  return digits.data();
}

}  // namespace

Result<NamedRecords> NamedRecords::open(Files& files, const std::string& folder,
                                        std::size_t names) {
  if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
      ::chmod(folder.c_str(), 0700) != 0) {
    return file_error("make", folder);
  }
  auto lock = File::open(files, folder + "/lock", O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!lock) {
    return lock.error();
  }
  if (::flock(lock->handle(), LOCK_EX | LOCK_NB) != 0) {
    const bool taken = errno == EWOULDBLOCK;
    return taken ? Error{Errc::busy, "another process uses the folder of the named states"}
                 : file_error("lock", lock->path());
  }
  NamedRecords records(files, folder, names, std::move(*lock));
  if (auto found = records.find_tag(); !found) {
    return found.error();
  }
  return records;
}

Status NamedRecords::find_tag() {
  const std::string path = folder_ + "/tag";
  if (const auto known = read_file(path); known && is_tag(*known)) {
    tag_ = *known;
    return Done{};
  }
  tag_ = new_tag();
  return write_file(path, tag_);
}

std::vector<std::optional<NamedState>> NamedRecords::read_all() {
  std::vector<std::optional<NamedState>> all(names_);
  std::error_code ignored;
  for (fs::directory_iterator it(folder_, ignored), end; it != end; it.increment(ignored)) {
    const auto number = number_in(it->path().filename().string());
    if (!number) {
      continue;
    }
    const auto bytes = read_file(it->path().string());
    if (*number < names_ && bytes) {
      all[*number] = decode(*number, *bytes);
    }
    if (*number >= names_ || !all[*number]) {
      (void)remove_file(files_, it->path().string());
    }
  }
  return all;
}

std::optional<NamedState> NamedRecords::decode(std::size_t name, std::string_view bytes) const {
  if (bytes.size() < kFixedBytes || !bytes.starts_with(kMagic)) {
    return std::nullopt;
  }
  const std::string_view rest = bytes.substr(kMagic.size() + 8);
  if (get(bytes.substr(kMagic.size()), 8) != hash_bytes(rest.data(), rest.size())) {
    return std::nullopt;
  }
  const auto number = [&](std::size_t i) { return get(rest.substr(8 * i), 8); };
  const std::uint64_t file_bytes = number(5), scope_bytes = number(6), tokens = number(7);
  const std::string_view body = rest.substr(8 * (kNumbers - 1));
  if (std::max({file_bytes, scope_bytes, tokens}) > kMaxBytes || tokens == 0 ||
      body.size() != file_bytes + scope_bytes + 4 * tokens ||
      body.substr(0, file_bytes) != file_of(name)) {
    return std::nullopt;
  }
  NamedState state{.id = number(0), .unknown = number(2), .whole = number(1) != 0};
  const auto use = std::bit_cast<double>(number(3));
  state.use = std::isfinite(use) && use > 0 ? use : 0;
  state.last_used_ms = static_cast<std::int64_t>(number(4));
  state.scope = Scope::from_bytes(std::string(body.substr(file_bytes, scope_bytes)));
  state.tokens.reserve(tokens);
  for (std::uint64_t at = file_bytes + scope_bytes; at < body.size(); at += 4) {
    state.tokens.push_back(static_cast<Token>(static_cast<std::uint32_t>(get(body.substr(at), 4))));
  }
  return state;
}

Status NamedRecords::write(std::size_t name, const NamedState& state) {
  return write_file(path_of(name), encode(file_of(name), state));
}

Status NamedRecords::remove(std::size_t name) {
  return remove_file(files_, path_of(name));
}

// Whole or not at all, however the program ends.
Status NamedRecords::write_file(const std::string& path, std::string_view bytes) {
  const std::string fresh = path + ".new";
  {
    auto file = File::open(files_, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    if (!file) {
      return file.error();
    }
    if (auto written = file->write(0, std::as_bytes(std::span(bytes))); !written) {
      (void)remove_file(files_, fresh);
      return written;
    }
  }
  return rename_file(files_, fresh, path);
}

Result<std::string> NamedRecords::read_file(const std::string& path) const {
  auto file = File::open(files_, path, O_RDONLY | O_NOFOLLOW);
  if (!file) {
    return file.error();
  }
  const auto size = file->size();
  if (!size) {
    return size.error();
  }
  if (*size > kMaxBytes) {
    return Error{Errc::corrupt, "a record is too large"};
  }
  std::string bytes(*size, '\0');
  if (auto read = file->read(0, std::as_writable_bytes(std::span(bytes))); !read) {
    return read.error();
  }
  return bytes;
}

std::string NamedRecords::path_of(std::size_t name) const {
  return folder_ + "/" + std::to_string(name) + std::string(kEnding);
}

std::string NamedRecords::file_of(std::size_t name) const {
  return "toki_" + tag_ + "_" + std::to_string(name) + ".bin";
}

std::optional<std::size_t> NamedRecords::name_of(std::string_view file) const {
  for (std::size_t name = 0; name < names_; ++name) {
    if (file == file_of(name)) {
      return name;
    }
  }
  return std::nullopt;
}

}  // namespace toki
