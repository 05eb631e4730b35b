// Access: what a call needs, and whether whoever makes it may. Pure: a table that tests walk through.
//
// Threads:   pure functions.
// Ownership: views are only used during the call.
// Errors:    none.
// Cost:      one decoded path a request.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tokid {

/// What a call needs. What is not known is the admin's, so that nothing new or disguised is open.
enum class Need : std::uint8_t {
  nothing,  ///< tells only whether we live
  key,      ///< shows nothing of others and changes nothing of theirs
  work,     ///< the same, and the model works for it: counted by the limits of a tenant
  admin,    ///< shows or changes what is everybody's
};

/// `target`: raw, as the client sent it.
Need need_of(std::string_view method, std::string_view target);

enum class Caller : std::uint8_t { nobody, tenant, admin };

struct AccessRules {
  bool keys = false;    ///< callers need one
  bool admin = false;   ///< there is an admin's key
  bool shared = false;  ///< the holders of keys trust each other (--share-tenants)
};

enum class Verdict : std::uint8_t {
  allowed,
  who,       ///< 401: a key is wanted
  not_yours  ///< 403: the key is good, but not for this
};
Verdict judge(Need need, Caller caller, const AccessRules& rules);

/// Whether a Host header names this machine's loopback, or one of `names`; any port will do. A page of
/// another site whose name was made to point to 127.0.0.1 sends that name.
bool host_accepted(std::string_view host, std::span<const std::string> names);

/// An address to listen on that no other machine reaches.
bool is_loopback(const std::string& address);

}  // namespace tokid
