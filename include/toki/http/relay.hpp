// relay: one request to the server behind us, its answer to the client, each piece at once and
// unchanged.
//
// Threads:   one thread (or strand).
// Ownership: the request's views must live until it returns.
// Errors:    the server's failures are values and already told to the client; a client that is gone
// throws (see AnswerWriter), and
//            leaving this coroutine closes the server's connection at once.
// Cost:      one read and one gather write per piece that the server wrote; memory for one piece of
// up to 64 KiB.
//
// Hop-by-hop headers (RFC 9110 7.6.1, and those named in Connection) are dropped both ways,
// messages are framed anew.
#pragma once

#include <toki/export.hpp>
#include <toki/http/answer_watch.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/upstream.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/beast/http/fields.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace toki::http {

class AnswerText;

/// A request for the server, and how its answer is watched.
struct RelayRequest {
  std::string_view method;  ///< as the client sent it
  std::string_view target;  ///< raw, as the client sent it
  /// of the client's head; null: none are passed on
  const boost::beast::http::fields* fields = nullptr;
  std::span<const std::string_view> body;  ///< pieces, sent one after the other
  bool has_body = false;                   ///< it has one, be it empty
  bool identity = false;               ///< ask for an uncompressed answer, because it is watched
  Millis progress_limit{3600 * 1000};  ///< without a byte from the server
  std::string_view id;         ///< sent as x-request-id, instead of the client's; empty: none is
  AnswerText* text = nullptr;  ///< gets the body of a 200 as well
};

/// How far it came, and what was learnt.
struct RelayResult {
  /// How it ended.
  enum class End : std::uint8_t {
    completed,                ///< the whole answer reached the client
    unreachable,              ///< no connection; nothing was sent
    broken,                   ///< the server closed, or broke HTTP, before the end of its answer
    stalled,                  ///< no byte within the progress limit
  } end = End::completed;     ///< how it ended
  unsigned status = 0;        ///< of the answer, or of the error told instead of one; 0: neither
  AnswerFacts facts;          ///< what the watched answer said
  bool answer_begun = false;  ///< body bytes came
  std::uint64_t events = 0;   ///< whole events with data that came
};

/// The request's head for the server: re-framed, without hop-by-hop headers.
TOKI_EXPORT std::string request_head(const RelayRequest& request, const Upstream& upstream);

/// `result` is kept up to date while the answer passes, so that it is there when the client leaves
/// in between.
TOKI_EXPORT boost::asio::awaitable<void> relay(Upstream& upstream, const RelayRequest& request,
                                               AnswerWriter& answer, RelayResult& result);

}  // namespace toki::http
