// Keys: who may call. A key belongs to a tenant: keys of one name are one tenant, a key without a name is
// a tenant of its own. What is kept of a key is its SHA-256.
//
// Threads:   concurrent const calls are safe while nobody writes.
// Ownership: values; tenants live as long as somebody holds them.
// Errors:    Errc::invalid_argument with file and line. Never a key, or a part of one.
// Cost:      find(): one SHA-256 and a comparison with every key, whatever they are.
#pragma once

#include <toki/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tokid {

using Digest = std::array<std::uint8_t, 32>;

struct Tenant {
  std::string id;    ///< the same across restarts for one name, or for one key without a name
  std::string name;  ///< for people: the name, or key1, key2, ... in the order they are given
};

class Keys {
 public:
  struct Found {
    std::shared_ptr<const Tenant> tenant;  ///< null: nobody
    bool admin = false;
  };

  /// From the files (empty: none), and from TOKID_API_KEYS and TOKID_ADMIN_KEY in the environment.
  static toki::Result<Keys> read(const std::string& file, const std::string& admin_file);

  /// One key a line, `KEY` or `NAME KEY`; a key is plain or `sha256:HEX`. Empty lines and what follows a
  /// `#` at the beginning of a line do not count. `place` names the text in errors.
  toki::Status add_lines(std::string_view text, const std::string& place);
  /// Keys with commas between them.
  toki::Status add_list(std::string_view keys, const std::string& place);
  toki::Status set_admin(std::string_view key, const std::string& place);

  bool any() const noexcept { return !entries_.empty(); }
  bool has_admin() const noexcept { return admin_ != nullptr; }
  std::size_t size() const noexcept { return entries_.size(); }
  Found find(std::string_view presented) const;
  const std::vector<std::shared_ptr<const Tenant>>& tenants() const noexcept { return tenants_; }
  /// Null: there is none.
  std::shared_ptr<const Tenant> named(std::string_view name) const;
  /// What is wrong with the files without being an error.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  struct Entry {
    Digest digest{};
    std::shared_ptr<const Tenant> tenant;
  };
  toki::Status add(std::string_view name, std::string_view key, const std::string& place);
  toki::Result<std::string> read_file(const std::string& path, std::string_view option);

  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<const Tenant>> tenants_;
  std::shared_ptr<const Tenant> admin_;
  Digest admin_digest_{};
  std::vector<std::string> warnings_;
};

}  // namespace tokid
