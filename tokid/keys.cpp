#include "keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <optional>
#include <sys/stat.h>
#include <utility>

namespace tokid {
namespace {

constexpr std::string_view kHashed = "sha256:";
constexpr std::size_t kLongestKey = 4096;
constexpr std::size_t kLongestName = 64;

toki::Error bad(const std::string& place, std::string_view why) {
  return {toki::Errc::invalid_argument, fmt::format("{}: {}", place, why)};
}

Digest sha256(std::string_view text) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

bool equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<Digest> from_hex(std::string_view hex) {
  Digest digest{};
  if (hex.size() != 2 * digest.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const char* at = hex.data() + 2 * i;
    const auto [end, fault] = std::from_chars(at, at + 2, digest[i], 16);
    if (fault != std::errc() || end != at + 2) {
      return std::nullopt;
    }
  }
  return digest;
}

// Of a key that has no name. Not its hash: this stands in files of toki's that say whose a prompt is.
std::string nameless_id(const Digest& digest) {
  std::string text = "toki tenant ";
  text.append(digest.begin(), digest.end());
  std::string id = "key:";
  const Digest again = sha256(text);
  for (std::size_t i = 0; i < 16; ++i) {
    id += fmt::format("{:02x}", again[i]);
  }
  return id;
}

bool is_key(std::string_view key) {
  return !key.empty() && key.size() <= kLongestKey &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Names stand in log lines.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.' || c == '@';
         });
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kSpace = " \t\r";
  for (;;) {
    const auto begin = line.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) {
      return words;
    }
    const auto end = std::min(line.find_first_of(kSpace, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

toki::Result<Digest> digest_of(std::string_view key, const std::string& place) {
  if (key.starts_with(kHashed)) {
    const auto digest = from_hex(key.substr(kHashed.size()));
    return digest ? toki::Result<Digest>(*digest)
                  : bad(place, "behind sha256: 64 hexadecimal digits are wanted");
  }
  if (!is_key(key)) {
    return bad(place, "a key has 1 to 4096 visible ASCII characters");
  }
  return sha256(key);
}

}  // namespace

toki::Status Keys::add(std::string_view name, std::string_view key, const std::string& place) {
  const auto digest = digest_of(key, place);
  if (!digest) {
    return digest.error();
  }
  if (!name.empty() && !is_name(name)) {
    return bad(place, "a name has 1 to 64 letters, digits, '-', '_', '.' or '@'");
  }
  const bool twice = std::any_of(entries_.begin(), entries_.end(),
                                 [&](const Entry& entry) { return equal(entry.digest, *digest); });
  if (twice) {
    return bad(place, "this key was given before");
  }
  const std::string id = name.empty() ? nameless_id(*digest) : "name:" + std::string(name);
  const auto same = std::find_if(tenants_.begin(), tenants_.end(),
                                 [&](const auto& tenant) { return tenant->id == id; });
  std::shared_ptr<const Tenant> tenant = same != tenants_.end() ? *same : nullptr;
  if (tenant == nullptr) {
    const std::string called =
        name.empty() ? fmt::format("key{}", entries_.size() + 1) : std::string(name);
    tenant = std::make_shared<const Tenant>(Tenant{.id = id, .name = called});
    tenants_.push_back(tenant);
  }
  entries_.push_back({.digest = *digest, .tenant = std::move(tenant)});
  return toki::Done{};
}

toki::Status Keys::add_lines(std::string_view text, const std::string& place) {
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto words = words_of(line);
    if (words.empty() || words[0].starts_with('#')) {
      continue;
    }
    const std::string here = fmt::format("{}:{}", place, number);
    if (words.size() > 2) {
      return bad(here, "a line holds KEY, or NAME KEY");
    }
    const std::string_view name = words.size() == 2 ? words[0] : std::string_view();
    if (auto status = add(name, words.back(), here); !status) {
      return status;
    }
  }
  return toki::Done{};
}

toki::Status Keys::add_list(std::string_view keys, const std::string& place) {
  while (!keys.empty()) {
    const std::string_view entry = keys.substr(0, keys.find(','));
    keys.remove_prefix(std::min(entry.size() + 1, keys.size()));
    const auto words = words_of(entry);
    if (words.size() != 1) {
      return bad(place, "keys with commas between them are wanted");
    }
    if (auto status = add({}, words[0], place); !status) {
      return status;
    }
  }
  return toki::Done{};
}

toki::Status Keys::set_admin(std::string_view key, const std::string& place) {
  const auto words = words_of(key);
  if (words.size() != 1) {
    return bad(place, "one key is wanted");
  }
  const auto digest = digest_of(words[0], place);
  if (!digest) {
    return digest.error();
  }
  if (std::any_of(entries_.begin(), entries_.end(),
                  [&](const Entry& entry) { return equal(entry.digest, *digest); })) {
    return bad(place, "this key is a client's already");
  }
  admin_digest_ = *digest;
  admin_ = std::make_shared<const Tenant>(Tenant{.id = "admin", .name = "admin"});
  return toki::Done{};
}

Keys::Found Keys::find(std::string_view presented) const {
  const Digest digest = sha256(presented);
  const Entry* hit = nullptr;
  for (const Entry& entry : entries_) {  // all of them, so that the time tells nothing
    hit = equal(entry.digest, digest) ? &entry : hit;
  }
  const bool admin = admin_ != nullptr && equal(admin_digest_, digest);
  if (presented.empty()) {
    return {};
  }
  return admin            ? Found{.tenant = admin_, .admin = true}
         : hit != nullptr ? Found{.tenant = hit->tenant}
                          : Found{};
}

std::shared_ptr<const Tenant> Keys::named(std::string_view name) const {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(),
                                  [&](const auto& tenant) { return tenant->name == name; });
  return found == tenants_.end() ? nullptr : *found;
}

toki::Result<std::string> Keys::read_file(const std::string& path, std::string_view option) {
  struct stat about {};
  const std::string place = fmt::format("{} {}", option, path);
  if (::stat(path.c_str(), &about) != 0) {
    return bad(place, std::strerror(errno));
  }
  if (!S_ISREG(about.st_mode)) {  // a pipe would hold up everything when it is read again
    return bad(place, "is no regular file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return bad(place, std::strerror(errno));
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) {
    return bad(place, "cannot be read");
  }
  if ((about.st_mode & S_IROTH) != 0) {
    warnings_.push_back(place + " can be read by everybody on this machine: chmod o= it");
  }
  return text;
}

toki::Result<Keys> Keys::read(const std::string& file, const std::string& admin_file) {
  Keys keys;
  if (!file.empty()) {
    const auto text = keys.read_file(file, "--api-keys");
    if (!text) {
      return text.error();
    }
    if (auto status = keys.add_lines(*text, file); !status) {
      return status.error();
    }
    if (!keys.any()) {
      return bad("--api-keys " + file, "it holds no key");
    }
  }
  if (const char* list = std::getenv("TOKID_API_KEYS"); list != nullptr && *list != 0) {
    if (auto status = keys.add_list(list, "TOKID_API_KEYS"); !status) {
      return status.error();
    }
  }
  toki::Status admin = toki::Done{};
  if (!admin_file.empty()) {
    const auto text = keys.read_file(admin_file, "--admin-key-file");
    if (!text) {
      return text.error();
    }
    admin = keys.set_admin(std::string_view(*text).substr(0, text->find('\n')),
                           "--admin-key-file " + admin_file);
  } else if (const char* key = std::getenv("TOKID_ADMIN_KEY"); key != nullptr && *key != 0) {
    admin = keys.set_admin(key, "TOKID_ADMIN_KEY");
  }
  if (!admin) {
    return admin.error();
  }
  return keys;
}

}  // namespace tokid
