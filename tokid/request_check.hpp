// What is refused of a request before anything is done with it, and how slowly it may come.
#pragma once

#include <toki/http/answer_writer.hpp>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/message.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tokid {

/// Boost's text as the standard's.
inline std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

using RequestHead = boost::beast::http::request_header<>;

/// Heads that two readers may understand differently (attempts at smuggling), that are meant for a
/// proxy, or that ask for what is not done here.
std::optional<toki::http::HttpError> refuse_head(const RequestHead& head);

/// Bodies that are read must not be compressed.
std::optional<toki::http::HttpError> refuse_coding(const RequestHead& head);

/// What was meant by a target with the usual slips of a base URL: a slash too many, /v1 twice.
/// Nothing: it is right, or no call that is known.
std::optional<std::string> usual_target(std::string_view method, std::string_view target);

/// How long to wait for the next piece of a body of which `received` bytes came in `elapsed`; none:
/// it comes too slowly.
std::optional<std::chrono::milliseconds> patience(std::chrono::milliseconds elapsed,
                                                  std::size_t received);

}  // namespace tokid
