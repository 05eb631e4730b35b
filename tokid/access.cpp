#include "access.hpp"

#include <toki/http/generation_request.hpp>

#include <boost/asio/ip/address.hpp>

#include <algorithm>
#include <array>
#include <charconv>

namespace tokid {
namespace {

struct Call {
  std::string_view method;
  std::string_view path;  // without /v1
  Need need;
};

// llama-server's, beside generations. None shows or changes what others have in a slot. A generation must
// not stand here: what toki does not know as one would run without its care for tenants.
constexpr std::array<Call, 13> kCalls{{
    {"GET", "/health", Need::nothing},
    {"GET", "/models", Need::key},
    {"GET", "/api/tags", Need::key},
    {"POST", "/tokenize", Need::key},
    {"POST", "/detokenize", Need::key},
    {"POST", "/apply-template", Need::key},
    {"POST", "/messages/count_tokens", Need::key},
    {"POST", "/chat/completions/input_tokens", Need::key},
    {"POST", "/responses/input_tokens", Need::key},
    {"POST", "/embedding", Need::work},
    {"POST", "/embeddings", Need::work},
    {"POST", "/rerank", Need::work},
    {"POST", "/reranking", Need::work},
}};

Need need_of_own(std::string_view method, std::string_view path) {
  const bool reads = method == "GET";
  if ((path == "/toki/health" || path == "/toki/live" || path == "/toki/ready") && reads) {
    return Need::nothing;
  }
  const bool asked = path == "/toki/lookup" && method == "POST";
  const bool pins = path == "/toki/pins" && (reads || method == "POST" || method == "DELETE");
  return asked || pins ? Need::key : Need::admin;
}

std::string_view lower_is(std::string_view text, std::string& storage) {
  storage.assign(text);
  std::transform(storage.begin(), storage.end(), storage.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return storage;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Need need_of(std::string_view method, std::string_view target) {
  if (!target.starts_with('/') || target.find('#') != std::string_view::npos) {
    return Need::admin;
  }
  method = method == "HEAD" ? "GET" : method;
  const std::string_view raw = target.substr(0, target.find('?'));
  if (raw == "/toki" || raw.starts_with("/toki/")) {
    return need_of_own(method, raw);
  }
  if (toki::http::endpoint_of(method, target) != toki::http::Endpoint::none) {
    return Need::work;
  }
  const std::string whole = toki::http::decoded_path(target);
  std::string_view path = whole;
  path.remove_suffix(path.size() > 1 && path.ends_with('/') ? 1 : 0);
  path.remove_prefix(path.starts_with("/v1/") ? 3 : 0);
  const auto found = std::find_if(kCalls.begin(), kCalls.end(), [&](const Call& call) {
    return call.method == method && call.path == path;
  });
  return found == kCalls.end() ? Need::admin : found->need;
}

Verdict judge(Need need, Caller caller, const AccessRules& rules) {
  const bool everybodys = rules.keys && !rules.admin && rules.shared;
  switch (need) {
    case Need::nothing: return Verdict::allowed;
    case Need::key:
    case Need::work:
      return !rules.keys || caller != Caller::nobody ? Verdict::allowed : Verdict::who;
    case Need::admin: break;
  }
  if ((!rules.keys && !rules.admin) || caller == Caller::admin ||
      (everybodys && caller == Caller::tenant)) {
    return Verdict::allowed;
  }
  return caller == Caller::nobody ? Verdict::who : Verdict::not_yours;
}

bool host_accepted(std::string_view host, std::span<const std::string> names) {
  std::string storage;
  host = lower_is(host, storage);
  std::string_view name = host;
  if (host.starts_with('[')) {
    const auto close = host.find(']');
    if (close == std::string_view::npos) {
      return false;
    }
    name = host.substr(0, close + 1);
  } else {
    name = host.substr(0, host.find(':'));
  }
  const std::string_view rest = host.substr(name.size());
  if (!rest.empty() && !(rest[0] == ':' && is_port(rest.substr(1)))) {
    return false;
  }
  if (name == "localhost" || name == "[::1]") {
    return true;
  }
  boost::system::error_code wrong;
  const auto address = boost::asio::ip::make_address_v4(std::string(name), wrong);
  if (!wrong && address.is_loopback()) {
    return true;
  }
  return std::any_of(names.begin(), names.end(), [&](const std::string& known) {
    std::string lowered;
    return !known.empty() && name == lower_is(known, lowered);
  });
}

bool is_loopback(const std::string& address) {
  boost::system::error_code wrong;
  const auto parsed = boost::asio::ip::make_address(address, wrong);
  if (wrong) {
    return false;
  }
  const bool mapped = parsed.is_v6() && parsed.to_v6().is_v4_mapped();
  return mapped ? boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, parsed.to_v6())
                      .is_loopback()
                : parsed.is_loopback();
}

}  // namespace tokid
