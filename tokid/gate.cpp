#include "gate.hpp"

#include <boost/beast/core/string.hpp>
#include <fmt/format.h>

#include <chrono>
#include <openssl/evp.h>
#include <utility>

#include "query.hpp"
#include "request_check.hpp"

namespace tokid {

namespace beast = boost::beast;
using beast::http::field;
using toki::http::HttpError;

namespace {

constexpr std::string_view kApiKey = "x-api-key";

// What follows the scheme's name; empty when it is another one.
std::string_view of_scheme(std::string_view value, std::string_view scheme) {
  if (value.size() <= scheme.size() || value[scheme.size()] != ' ' ||
      !beast::iequals({value.data(), scheme.size()}, {scheme.data(), scheme.size()})) {
    return {};
  }
  const auto begin = value.find_first_not_of(' ', scheme.size());
  return begin == std::string_view::npos ? std::string_view() : value.substr(begin);
}

// The password of Basic credentials: what a browser asks for, of which the name does not matter.
std::string password_of(std::string_view encoded) {
  if (encoded.empty() || encoded.size() % 4 != 0 || encoded.size() > 8192) {
    return {};
  }
  std::string text(encoded.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(encoded.data()),
                                   static_cast<int>(encoded.size()));
  const std::size_t padding = encoded.ends_with("==") ? 2 : encoded.ends_with('=') ? 1 : 0;
  if (size < static_cast<int>(padding)) {
    return {};
  }
  text.resize(static_cast<std::size_t>(size) - padding);
  const auto colon = text.find(':');
  return colon == std::string::npos ? std::string() : text.substr(colon + 1);
}

// A browser shows what it was once told to every page's requests, so those of other sites do not count.
bool same_site(const beast::http::fields& fields) {
  const std::string_view origin = view(fields[field::origin]);
  const std::string_view site = view(fields["Sec-Fetch-Site"]);
  const auto slashes = origin.find("://");
  const bool own = origin.empty() || (slashes != std::string_view::npos &&
                                      origin.substr(slashes + 3) == view(fields[field::host]));
  return own && (site.empty() || site == "same-origin" || site == "none");
}

}  // namespace

// Either header may hold the key; one that is ours counts.
Keys::Found Gate::caller(const Request& request) const {
  const auto& fields = *request.fields;
  const auto [begin, end] = fields.equal_range(field::authorization);
  for (auto it = begin; it != end; ++it) {
    const std::string_view value = view(it->value());
    auto found = keys_.find(of_scheme(value, "Bearer"));
    if (found.tenant != nullptr) {
      return found;
    }
    const std::string_view basic = of_scheme(value, "Basic");
    found = basic.empty() || !same_site(fields) ? Keys::Found{} : keys_.find(password_of(basic));
    if (found.tenant != nullptr) {
      return found;
    }
  }
  const auto given = fields.find(beast::string_view(kApiKey.data(), kApiKey.size()));
  return given == fields.end() ? Keys::Found{} : keys_.find(view(given->value()));
}

std::optional<HttpError> Gate::check_host(const Request& request) const {
  const auto count = request.fields->count(field::host);
  if (!options_.check_host || request.local || (count == 0 && request.http10)) {
    return std::nullopt;
  }
  if (count == 1 && host_accepted(view((*request.fields)[field::host]), options_.host_names)) {
    return std::nullopt;
  }
  return HttpError{.status = 403,
                   .type = "permission_error",
                   .message =
                       "without API keys only loopback's names are accepted in Host "
                       "(localhost, 127.0.0.1, [::1]); --host-name NAME adds one"};
}

void Gate::refuse(Visit& visit, Verdict verdict, Need need) const {
  const bool unknown = verdict == Verdict::who;
  HttpError error{.status = unknown ? 401U : 403U,
                  .type = unknown ? "invalid_request_error" : "permission_error",
                  .message = {}};
  if (unknown) {
    error.code = "invalid_api_key";
    error.message =
        need == Need::admin
            ? "the admin key is wanted here: Authorization: Bearer KEY, or as a password"
            : "an API key is wanted: Authorization: Bearer KEY, or x-api-key: KEY";
    visit.headers = "WWW-Authenticate: Bearer\r\n";
    visit.headers += need == Need::admin ? "WWW-Authenticate: Basic realm=\"toki\"\r\n" : "";
  } else {
    error.message = keys_.has_admin()
                        ? "this shows or changes what is everybody's: it needs the admin key"
                        : "this shows or changes what is everybody's: it needs an admin key, and "
                          "none is set (--admin-key-file)";
  }
  visit.refused = std::move(error);
}

Gate::Visit Gate::enter(const Request& request) {
  Visit visit;
  if (auto wrong = check_host(request)) {
    ++forbidden_;
    visit.refused = std::move(*wrong);
    return visit;
  }
  const AccessRules rules{
      .keys = keys_.any(), .admin = keys_.has_admin(), .shared = options_.shared};
  if (!rules.keys && !rules.admin) {
    return visit;
  }
  const Need need = need_of(request.method, request.target);
  const auto found = caller(request);
  const Caller who = found.tenant == nullptr ? Caller::nobody
                     : found.admin           ? Caller::admin
                                             : Caller::tenant;
  Verdict verdict = judge(need, who, rules);
  // A browser that was told a tenant's key asks again for another.
  if (verdict == Verdict::not_yours && rules.admin &&
      !of_scheme(view((*request.fields)[field::authorization]), "Basic").empty()) {
    verdict = Verdict::who;
  }
  if (verdict != Verdict::allowed) {
    ++(verdict == Verdict::who ? unauthorized_ : forbidden_);
    refuse(visit, verdict, need);
    return visit;
  }
  visit.tenant = found.tenant;
  visit.ours = rules.keys || found.tenant != nullptr;
  visit.trusted = judge(Need::admin, who, rules) == Verdict::allowed;
  if (found.tenant == nullptr) {
    return visit;
  }
  visit.client = found.tenant->name;
  // The admin looks at all pins; what it asks or pins may be for a tenant.
  const bool of_all = found.admin && request.target.starts_with("/toki/");
  const auto meant =
      of_all ? keys_.named(query_field(request.target, "tenant").value_or("")) : found.tenant;
  visit.scope = isolates() && meant != nullptr ? meant->id : std::string();
  if (need == Need::work && !found.admin) {
    auto taken = use_.take(found.tenant->id, options_.limits, std::chrono::steady_clock::now());
    if (const auto* full = std::get_if<TenantUse::Refused>(&taken)) {
      ++limited_;
      visit.refused = HttpError{.status = 429,
                                .type = "rate_limit_error",
                                .message = full->rate ? "too many requests a minute for this key"
                                                      : "too many requests at once for this key",
                                .offset = {},
                                .retry_after = full->retry_after};
      return visit;
    }
    visit.place = std::get<TenantUse::Place>(std::move(taken));
  }
  return visit;
}

std::vector<std::string> Gate::apart() const {
  std::vector<std::string> ids;
  if (isolates()) {
    for (const auto& tenant : keys_.tenants()) {
      ids.push_back(tenant->id);
    }
    if (keys_.has_admin()) {
      ids.emplace_back("admin");
    }
  }
  return ids;
}

void Gate::change(Keys keys, GateOptions options) {
  options.shared = options_.shared;
  options.check_host = options_.check_host;
  options_ = std::move(options);
  if (keys.any() == keys_.any()) {
    keys_ = std::move(keys);
  }
}

void Gate::add_to(toki::Stats& stats) const noexcept {
  stats.unauthorized_total = unauthorized_;
  stats.forbidden_total = forbidden_;
  stats.tenant_limited_total = limited_;
}

}  // namespace tokid
