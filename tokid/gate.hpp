// Gate: whether a request comes in, whose it is, and what it may. Looked at when its header is there,
// before its body is read.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: a Visit may outlive the gate's keys.
// Errors:    a refusal is a value, for the client: 401, 403, 429.
// Cost:      with keys one SHA-256 and a comparison with each key; else some string comparisons.
#pragma once

#include <toki/http/answer_writer.hpp>
#include <toki/stats.hpp>

#include <boost/beast/http/fields.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "access.hpp"
#include "keys.hpp"
#include "tenant_limits.hpp"

namespace tokid {

struct GateOptions {
  bool shared = false;                  ///< the holders of keys share what is known and computed
  bool check_host = false;              ///< only loopback's names, and `host_names`
  std::vector<std::string> host_names;  ///< more names for it
  TenantLimits limits;                  ///< of each tenant
};

class Gate {
 public:
  struct Request {
    std::string_view method;
    std::string_view target;  ///< raw
    const boost::beast::http::fields* fields = nullptr;
    bool http10 = false;
    bool local = false;  ///< over a Unix socket: no Host to check
  };
  /// A request that came in, until it is destroyed.
  struct Visit {
    std::optional<toki::http::HttpError> refused;
    std::string headers;  ///< of the refusal, with their lines' ends
    std::shared_ptr<const Tenant> tenant;
    std::string scope;    ///< ClientRequest::tenant
    std::string client;   ///< ClientRequest::client
    bool trusted = true;  ///< may see what is everybody's
    bool ours = false;    ///< its key is for us, and not passed on to the backend
    TenantUse::Place place;
  };

  Gate(Keys keys, GateOptions options) : keys_(std::move(keys)), options_(std::move(options)) {}

  Visit enter(const Request& request);

  /// Keys are wanted, and their tenants share nothing.
  bool isolates() const noexcept { return keys_.any() && !options_.shared; }
  /// Of those who share nothing; empty when all share.
  std::vector<std::string> apart() const;

  const Keys& keys() const noexcept { return keys_; }
  /// For requests that come from now on. Whether there are keys, and whether they share, stays as it is.
  void change(Keys keys, GateOptions options);

  void add_to(toki::Stats& stats) const noexcept;

 private:
  Keys::Found caller(const Request& request) const;
  std::optional<toki::http::HttpError> check_host(const Request& request) const;
  void refuse(Visit& visit, Verdict verdict, Need need) const;

  Keys keys_;
  GateOptions options_;
  TenantUse use_;
  std::uint64_t unauthorized_ = 0, forbidden_ = 0, limited_ = 0;
};

}  // namespace tokid
