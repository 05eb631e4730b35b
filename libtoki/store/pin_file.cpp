// The form of the file is described in docs/store-format.md.
#include <toki/pin_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/hash.hpp"
#include "store/files.hpp"

namespace toki {
namespace {

constexpr std::string_view kMagic = "TOKIPINS";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

void append(std::string& bytes, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
}

// Reads little-endian numbers from the front; past the end it reads 0 and is not whole any more.
struct Reader {
  std::string_view rest;
  bool whole = true;

  std::string_view bytes(std::uint64_t size) {
    if (size > rest.size()) {
      whole = false;
      rest = {};
      return {};
    }
    const std::string_view taken = rest.substr(0, static_cast<std::size_t>(size));
    rest.remove_prefix(taken.size());
    return taken;
  }
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view taken = bytes(size);
    for (std::size_t i = taken.size(); i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(taken[i]);
    }
    return value;
  }
};

std::string to_bytes(std::span<const PinRecord> pins) {
  std::string bytes(kMagic);
  append(bytes, kVersion, 4);
  append(bytes, pins.size(), 4);
  for (const PinRecord& pin : pins) {
    append(bytes, pin.id, 8);
    append(bytes, pin.by_hand ? 1 : 0, 4);
    append(bytes, pin.scope.bytes().size(), 4);
    append(bytes, pin.tokens.size(), 8);
    bytes += pin.scope.bytes();
    for (const Token token : pin.tokens) {
      append(bytes, static_cast<std::uint32_t>(token), 4);
    }
  }
  append(bytes, hash_bytes(bytes.data(), bytes.size()), 8);
  return bytes;
}

std::optional<std::vector<PinRecord>> from_bytes(std::string_view bytes) {
  constexpr std::size_t kSum = 8;
  if (bytes.size() < kSum) {
    return std::nullopt;
  }
  const std::string_view content = bytes.substr(0, bytes.size() - kSum);
  Reader sum{bytes.substr(content.size())};
  Reader in{content};
  if (sum.number(kSum) != hash_bytes(content.data(), content.size()) ||
      in.bytes(kMagic.size()) != kMagic || in.number(4) != kVersion) {
    return std::nullopt;
  }
  std::vector<PinRecord> pins;
  for (std::uint64_t left = in.number(4); left > 0 && in.whole; --left) {
    PinRecord pin{.id = in.number(8)};
    pin.by_hand = in.number(4) == 1;
    const std::uint64_t scope = in.number(4);
    const std::uint64_t tokens = in.number(8);
    pin.scope = Scope::from_bytes(std::string(in.bytes(scope)));
    if (tokens > in.rest.size() / 4) {
      return std::nullopt;
    }
    for (std::uint64_t i = 0; i < tokens; ++i) {
      pin.tokens.push_back(static_cast<Token>(static_cast<std::uint32_t>(in.number(4))));
    }
    pins.push_back(std::move(pin));
  }
  return in.whole && in.rest.empty() ? std::optional(std::move(pins)) : std::nullopt;
}

}  // namespace

Result<std::vector<PinRecord>> PinFile::read() {
  Files files;
  const auto file = File::open(files, path_, O_RDONLY);
  if (!file) {
    return file.error().code == Errc::not_found
               ? Result<std::vector<PinRecord>>(std::vector<PinRecord>())
               : file.error();
  }
  const auto size = file->size();
  std::optional<std::vector<PinRecord>> pins;
  if (size && *size <= kMostBytes) {
    std::string bytes(static_cast<std::size_t>(*size), '\0');
    if (auto status = file->read(0, std::as_writable_bytes(std::span(bytes))); !status) {
      return status.error();
    }
    pins = from_bytes(bytes);
  }
  if (!pins) {
    const Status moved = rename_file(files, path_, path_ + ".bad");
    return Error{Errc::corrupt, "the file of pins is not whole" +
                                    std::string(moved ? ", and was moved to pins.bad" : "")};
  }
  return std::move(*pins);
}

Status PinFile::write(std::span<const PinRecord> pins) {
  Files files;
  const std::string fresh = path_ + ".new";
  const std::string bytes = to_bytes(pins);
  const auto file = File::open(files, fresh, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file) {
    return file.error();
  }
  if (auto status = file->write(0, std::as_bytes(std::span(bytes))); !status) {
    return status;
  }
  if (auto status = file->sync(); !status) {
    return status;
  }
  if (auto status = rename_file(files, fresh, path_); !status) {
    return status;
  }
  return sync_folder(files, std::filesystem::path(path_).parent_path().string());
}

}  // namespace toki
