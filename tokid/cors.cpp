#include "cors.hpp"

#include <boost/beast/core/string.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace tokid {

namespace beast = boost::beast;
using beast::http::field;
using beast::http::verb;
using toki::http::HttpError;

namespace {

constexpr std::string_view kRequestMethod = "Access-Control-Request-Method";
constexpr std::string_view kRequestHeaders = "Access-Control-Request-Headers";
constexpr std::string_view kRequestNetwork = "Access-Control-Request-Private-Network";
constexpr std::string_view kSite = "Sec-Fetch-Site";

std::string_view value(const RequestHead& head, std::string_view name) {
  const auto found = head.find(beast::string_view(name.data(), name.size()));
  return found == head.end() ? std::string_view() : view(found->value());
}

bool is_origin(std::string_view text) {
  const std::size_t scheme = text.find("://");
  const std::string_view host = text.substr(std::min(scheme + 3, text.size()));
  return scheme != text.npos && scheme > 0 && !host.empty() &&
         host.find_first_of("/?#@ ,") == host.npos &&
         std::none_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

// Of the page that tokid itself (or the server behind it) has sent. Where the browser does not say
// so, the Host must be the origin's.
bool same_origin(const RequestHead& head, std::string_view origin) {
  if (const auto site = value(head, kSite); !site.empty()) {
    return site == "same-origin" || site == "none";
  }
  const std::size_t host = origin.find("://");
  const auto own = head[field::host];
  return host != origin.npos &&
         beast::iequals({origin.data() + host + 3, origin.size() - host - 3}, own);
}

// GET, HEAD and OPTIONS change nothing, and what they answer cannot be read by such a page.
bool only_reads(verb method) {
  return method == verb::get || method == verb::head || method == verb::options;
}

}  // namespace

toki::Result<Cors> Cors::allowing(std::vector<std::string> origins) {
  Cors cors;
  for (const std::string& origin : origins) {
    if (origin != "*" && origin != "null" && !is_origin(origin)) {
      return toki::Error{
          toki::Errc::invalid_argument,
          fmt::format("'{}' is no origin: SCHEME://HOST[:PORT] in small letters, without a path, "
                      "or null, or *",
                      origin)};
    }
    cors.any_ = cors.any_ || origin == "*";
  }
  cors.origins_ = std::move(origins);
  return cors;
}

bool Cors::allows(std::string_view origin) const {
  return any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

Cors::Verdict Cors::look(const RequestHead& head) const {
  Verdict verdict;
  const std::string_view origin = view(head[field::origin]);
  if (!origins_.empty() && !any_) {
    verdict.headers = "Vary: Origin\r\n";  // also of answers to those who sent none
  }
  if (origin.empty()) {
    return verdict;
  }
  const std::string_view asked = value(head, kRequestMethod);
  const bool preflight = head.method() == verb::options && !asked.empty();
  if (!allows(origin)) {
    if (preflight || (!only_reads(head.method()) && !same_origin(head, origin))) {
      verdict.refused = {.status = 403,
                         .type = "permission_error",
                         .message = "pages of this origin may not use tokid (--cors-origin)"};
    }
    return verdict;
  }
  verdict.headers += fmt::format("Access-Control-Allow-Origin: {}\r\n", any_ ? "*" : origin);
  if (!preflight) {
    verdict.headers +=
        "Access-Control-Expose-Headers: x-request-id, x-toki-cache, x-toki-known, x-toki-reason, "
        "x-toki-reused, x-toki-slot, x-toki-source, Retry-After\r\n";
    return verdict;
  }
  verdict.preflight = true;
  verdict.headers +=
      "Access-Control-Allow-Methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n"
      "Access-Control-Max-Age: 600\r\n";
  if (const auto names = value(head, kRequestHeaders); !names.empty()) {
    verdict.headers += fmt::format("Access-Control-Allow-Headers: {}\r\n", names);
  }
  if (value(head, kRequestNetwork) == "true") {
    verdict.headers += "Access-Control-Allow-Private-Network: true\r\n";
  }
  return verdict;
}

}  // namespace tokid
