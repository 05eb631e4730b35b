#include <toki/http/answer_writer.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace toki::http {

namespace asio = boost::asio;
constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

namespace {

// Anthropic's clients choose by status and by these; they know no others.
std::string_view anthropic_type(unsigned status) noexcept {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ErrorForm error_form_of(std::string_view target) {
  constexpr std::string_view kMessages = "/v1/messages";
  const std::string path = decoded_path(target);
  const bool below = path.starts_with(kMessages) &&
                     (path.size() == kMessages.size() || path[kMessages.size()] == '/');
  return below ? ErrorForm::anthropic : ErrorForm::openai;
}

std::string error_body(const HttpError& error, ErrorForm form) {
  std::string offset = error.offset ? fmt::format(",\"offset\":{}", *error.offset) : std::string();
  if (form == ErrorForm::anthropic) {
    return fmt::format(R"({{"type":"error","error":{{"type":"{}","message":{}{}}}}})",
                       anthropic_type(error.status), quote(error.message), offset);
  }
  const std::string code = error.code.empty() ? std::to_string(error.status) : quote(error.code);
  return fmt::format(R"({{"error":{{"code":{},"message":{},"type":"{}"{}}}}})", code,
                     quote(error.message), error.type, offset);
}

std::string_view reason_phrase(unsigned status) noexcept {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}

// The turn to write: body() and comments() are two coroutines of one thread on one socket.
class AnswerWriter::Turn {
 public:
  explicit Turn(AnswerWriter& writer)
      : writer_(writer), mine_(!std::exchange(writer.writing_, true)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (mine_) {
      writer_.writing_ = false;
      if (writer_.turn_) {
        writer_.turn_->cancel_one();
      }
    }
  }
  bool taken() const noexcept { return mine_; }
  asio::awaitable<void> take() {
    if (!writer_.turn_) {
      writer_.turn_.emplace(writer_.client_.executor());
    }
    while (writer_.writing_) {
      writer_.turn_->expires_at(asio::steady_timer::time_point::max());
      co_await writer_.turn_->async_wait(kAsTuple);
    }
    writer_.writing_ = mine_ = true;
  }

 private:
  AnswerWriter& writer_;
  bool mine_;
};

AnswerWriter::AnswerWriter(Stream& client, bool http10, bool keep_alive, bool head_only)
    : client_(client), http10_(http10), keep_alive_(keep_alive), head_only_(head_only) {}

asio::awaitable<void> AnswerWriter::write(std::string_view a, std::string_view b,
                                          std::string_view c) {
  client_.expires_after(kWriteLimit);
  const std::array<asio::const_buffer, 4> pieces{asio::buffer(held_head_), asio::buffer(a),
                                                 asio::buffer(b), asio::buffer(c)};
  Moved sent = client_.try_write(pieces);
  if (sent.ec == asio::error::would_block) {
    sent = co_await client_.write_rest(pieces, sent.bytes);
  }
  client_.expires_never();
  held_head_.clear();
  if (sent.ec) {
    throw boost::system::system_error(sent.ec);
  }
}

asio::awaitable<void> AnswerWriter::head(unsigned status, std::string_view reason,
                                         std::string_view lines,
                                         std::optional<std::uint64_t> length, bool no_body,
                                         bool body_follows) {
  TOKI_CHECK(!head_sent_);
  Turn turn(*this);
  if (!turn.taken()) {
    co_await turn.take();
  }
  std::string text = fmt::format(FMT_COMPILE("HTTP/1.1 {} {}\r\n"), status, reason);
  text.append(lines).append(headers).append(standing_headers);
  if (length) {
    text += fmt::format(FMT_COMPILE("Content-Length: {}\r\n"), *length);
  } else if (!no_body && http10_) {
    keep_alive_ = false;
  } else if (!no_body) {
    text += "Transfer-Encoding: chunked\r\n";
    chunked_ = !head_only_;
  }
  text += keep_alive_ ? (http10_ ? "Connection: keep-alive\r\n\r\n" : "\r\n")
                      : "Connection: close\r\n\r\n";
  head_sent_ = true;
  held_head_ = std::move(text);
  if (!body_follows) {
    co_await write({});
  }
}

asio::awaitable<void> AnswerWriter::body(std::string_view bytes, bool last) {
  if (bytes.empty() || head_only_) {
    co_return;
  }
  body_begun_ = true;
  if (!first_byte_) {
    first_byte_ = std::chrono::steady_clock::now();
  }
  Turn turn(*this);
  if (!turn.taken()) {
    co_await turn.take();
  }
  if (!chunked_) {
    co_await write(bytes);
  } else {
    const std::string size = fmt::format(FMT_COMPILE("{:x}\r\n"), bytes.size());
    co_await write(size, bytes, last ? "\r\n0\r\n\r\n" : "\r\n");
  }
  ended_ = last;
}

asio::awaitable<void> AnswerWriter::end() {
  body_begun_ = true;
  Turn turn(*this);
  if (!turn.taken()) {
    co_await turn.take();
  }
  if (!ended_) {
    co_await write(chunked_ ? "0\r\n\r\n" : "");
  }
  ended_ = true;
}

asio::awaitable<void> AnswerWriter::whole(unsigned status, std::string_view content_type,
                                          std::string_view bytes, unsigned retry_after) {
  std::string lines = fmt::format("Content-Type: {}\r\n", content_type);
  if (retry_after > 0) {
    lines += fmt::format("Retry-After: {}\r\n", retry_after);
  }
  co_await head(status, reason_phrase(status), lines, bytes.size(), false, true);
  co_await body(bytes, true);
  co_await end();
}

asio::awaitable<void> AnswerWriter::error(const HttpError& error) {
  const std::string json = error_body(error, error_form);
  if (!head_sent_) {
    co_await whole(error.status, "application/json; charset=utf-8", json, error.retry_after);
  } else {
    co_await error_event(json);
  }
}

asio::awaitable<void> AnswerWriter::error_event(std::string_view json) {
  const bool anthropic = error_form == ErrorForm::anthropic;
  const bool broken = body_begun_;
  if (!event_stream_ || (broken && !(anthropic && between_events_ && chunked_))) {
    keep_alive_ = false;
    Turn turn(*this);
    if (!turn.taken()) {
      co_await turn.take();
    }
    co_await write({});
    co_return;
  }
  std::string event = anthropic ? "event: error\ndata: " : "data: ";
  // A line break inside JSON is white space; inside an event it would end the line.
  std::transform(json.begin(), json.end(), std::back_inserter(event),
                 [](char c) { return c == '\n' || c == '\r' ? ' ' : c; });
  event += "\n\n";
  if (broken) {  // its last chunk stays away, so that it is not taken as whole
    keep_alive_ = false;
    co_await body(event);
    told_ = true;
    co_return;
  }
  co_await body(event, true);
  co_await end();
}

asio::awaitable<void> AnswerWriter::comments(KeepAlive settings) {
  asio::steady_timer timer(client_.executor());
  const std::string_view comment =
      settings.form == KeepAlive::Form::line ? ": toki\n" : ": toki\n\n";
  const std::string size = fmt::format("{:x}\r\n", comment.size());
  Millis wait = settings.grace;
  while (settings.form != KeepAlive::Form::off && !body_begun_) {
    timer.expires_after(wait);
    auto [ec] = co_await timer.async_wait(kAsTuple);
    if (ec) {
      co_return;
    }
    wait = settings.interval;
    if (body_begun_ || ended_) {
      break;
    }
    if (!head_sent_) {
      event_stream_ = true;
      co_await head(200, "OK", "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n",
                    std::nullopt, false);
    }
    Turn turn(*this);
    if (!turn.taken()) {
      co_await turn.take();
    }
    if (body_begun_ || (head_sent_ && !event_stream_)) {
      break;
    }
    if (chunked_) {
      co_await write(size, comment, "\r\n");
    } else {
      co_await write(comment);
    }
  }
  timer.expires_at(asio::steady_timer::time_point::max());
  (void)co_await timer.async_wait(kAsTuple);
}

}  // namespace toki::http
