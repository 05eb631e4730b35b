#include "request_check.hpp"

#include <toki/http/generation_request.hpp>

#include <boost/beast/core/string.hpp>

#include <algorithm>
#include <array>

namespace tokid {

namespace beast = boost::beast;
using beast::http::field;
using beast::http::verb;
using std::chrono::milliseconds;
using toki::http::HttpError;

namespace {

constexpr milliseconds kPieceLimit{30000};
constexpr std::size_t kBytesPerSecond = 1024;  // at least, behind the first kPieceLimit

// Calls that are no generations and are asked for by everybody's client.
constexpr std::array<std::string_view, 4> kOthers{"/v1/models", "/models", "/v1/embeddings",
                                                  "/v1/messages/count_tokens"};

HttpError bad(unsigned status, std::string message) {
  return {.status = status, .type = "invalid_request_error", .message = std::move(message)};
}

// Two ways to tell the length, or one that two readers may understand differently.
bool ambiguous_length(const RequestHead& head) {
  const auto coded = head.count(field::transfer_encoding);
  const auto length = head.find(field::content_length);
  const bool listed = length != head.end() && length->value().find(',') != beast::string_view::npos;
  const bool plain = coded == 0 || (coded == 1 && head.version() == 11 &&
                                    beast::iequals(head[field::transfer_encoding], "chunked"));
  return !plain || listed || (coded > 0 && length != head.end()) ||
         head.count(field::content_length) > 1;
}

}  // namespace

std::optional<HttpError> refuse_head(const RequestHead& head) {
  if (ambiguous_length(head)) {
    return bad(400, "the length of the body is ambiguous");
  }
  if (head.method() == verb::trace) {  // it would send a client's key back
    return bad(405, "TRACE is not answered");
  }
  if (head.method() == verb::connect || !view(head.target()).starts_with('/')) {
    return bad(400, "the target must be a path: tokid is no forward proxy");
  }
  const auto hosts = head.count(field::host);
  if (hosts > 1 || (hosts == 0 && head.version() == 11)) {
    return bad(400, "a request has one Host");
  }
  const auto expect = head.find(field::expect);
  if (expect != head.end() && head.version() == 11 &&
      !beast::iequals(expect->value(), "100-continue")) {
    return bad(417, "only 100-continue can be expected");
  }
  return std::nullopt;
}

std::optional<HttpError> refuse_coding(const RequestHead& head) {
  const auto [begin, end] = head.equal_range(field::content_encoding);
  if (std::all_of(begin, end,
                  [](const auto& coding) { return beast::iequals(coding.value(), "identity"); })) {
    return std::nullopt;
  }
  const std::string_view method = view(head.method_string());
  const std::string_view given = view(head.target());
  const std::string target = usual_target(method, given).value_or(std::string(given));
  const std::string_view path = std::string_view(target).substr(0, target.find('?'));
  const bool read = path == "/toki/lookup" || path == "/toki/pins" ||
                    toki::http::endpoint_of(method, target) != toki::http::Endpoint::none;
  return read ? std::optional(bad(415,
                                  "compressed bodies are not read: send it without "
                                  "Content-Encoding"))
              : std::nullopt;
}

std::optional<std::string> usual_target(std::string_view method, std::string_view target) {
  const std::size_t end = std::min(target.find_first_of("?#"), target.size());
  const std::string_view given = target.substr(0, end);
  if (given.find("//") == given.npos && !given.ends_with('/') && !given.starts_with("/v1/v1/")) {
    return std::nullopt;
  }
  std::string path;
  for (const char c : given) {
    if (c != '/' || !path.ends_with('/')) {
      path += c;
    }
  }
  if (path.size() > 1 && path.ends_with('/')) {
    path.pop_back();
  }
  if (path.starts_with("/v1/v1/")) {
    path.erase(0, 3);
  }
  const bool known = toki::http::endpoint_of(method, path) != toki::http::Endpoint::none ||
                     std::find(kOthers.begin(), kOthers.end(), path) != kOthers.end();
  return known ? std::optional(path.append(target.substr(end))) : std::nullopt;
}

std::optional<milliseconds> patience(milliseconds elapsed, std::size_t received) {
  const milliseconds earned{received * 1000 / kBytesPerSecond};
  const milliseconds left = kPieceLimit + earned - elapsed;
  return left.count() > 0 ? std::optional(std::min(left, kPieceLimit)) : std::nullopt;
}

}  // namespace tokid
