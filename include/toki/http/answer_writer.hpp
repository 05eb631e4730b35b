// AnswerWriter: one answer on its way to one client: head, body in pieces as they come, comments
// that keep a waiting stream alive, and errors in the form that the state of the answer still allows.
//
// Threads:   one thread or strand; body() and comments() may be under way in two coroutines of it.
// Ownership: must not outlive the client's stream.
// Errors:    a client that is gone, or does not read for kWriteLimit, ends the coroutine with
//            boost::system::system_error; cancellation too.
// Cost:      one gather write per piece; nothing is copied or held back.
#pragma once

#include <toki/export.hpp>
#include <toki/http/upstream.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace toki::http {

/// What a client is sent while it waits for a stream's first byte.
struct KeepAlive {
  /// Of one comment.
  enum class Form : std::uint8_t {
    comment,  ///< ": toki" and a blank line
    line,     ///< ": toki" alone, for clients that stumble over the blank line
    off,      ///< none is sent
  };
  Millis grace{5000};         ///< silence before the first one; until then the status is open
  Millis interval{5000};      ///< between two
  Form form = Form::comment;  ///< of each
};

/// What an error says to the client; `offset` points into its body.
struct HttpError {
  unsigned status = 500;              ///< of the answer, where its head is not sent yet
  std::string_view type;              ///< OpenAI's `type`; Anthropic's is made of the status
  std::string message;                ///< for people; no prompt text, no key
  std::optional<std::size_t> offset;  ///< into the request's body
  unsigned retry_after = 0;           ///< seconds; 0: no such header
  std::string_view code{};  ///< a word that stands for the status in the body; empty: none does
};

/// Whose form of errors the clients of a call read.
enum class ErrorForm : std::uint8_t {
  openai,     ///< {"error":{"code":…,"message":…,"type":…}}
  anthropic,  ///< {"type":"error","error":{"type":…,"message":…}}, with Anthropic's own types
};
/// By raw target: Anthropic's for /v1/messages and what lies below it.
TOKI_EXPORT ErrorForm error_form_of(std::string_view target);

/// The JSON of an error.
TOKI_EXPORT std::string error_body(const HttpError& error, ErrorForm form = ErrorForm::openai);
/// The usual words for a status, for example "Not Found".
TOKI_EXPORT std::string_view reason_phrase(unsigned status) noexcept;

/// The way of one answer to one client. Its calls are made one after the other, but for comments(),
/// which runs beside them.
class TOKI_EXPORT AnswerWriter {
 public:
  /// for a client that does not read
  static constexpr std::chrono::seconds kWriteLimit{120};

  /// `http10`: the client cannot read chunks, so a body of unknown length ends with the connection.
  AnswerWriter(Stream& client, bool http10, bool keep_alive, bool head_only);

  /// Header lines ("name: value\r\n") for whichever head is sent; only before it is.
  std::string headers;
  /// Of what error() says; to be set when the target is known.
  ErrorForm error_form = ErrorForm::openai;
  /// The same, of whoever owns the connection: nobody who answers changes it.
  std::string standing_headers;

  /// The status is out.
  bool head_sent() const noexcept { return head_sent_; }
  /// So is a byte of the body.
  bool body_begun() const noexcept { return body_begun_; }
  /// When the first byte of the body went out; none yet: nothing.
  std::optional<std::chrono::steady_clock::time_point> first_body_byte() const noexcept {
    return first_byte_;
  }
  /// The connection may serve another request: the answer is whole and nobody asked to close.
  bool reusable() const noexcept { return ended_ && keep_alive_; }
  /// Its head went out, its end did not, and nothing in it says so.
  bool broken_off() const noexcept { return head_sent_ && !ended_ && !told_; }
  /// The connection ends with this answer.
  void close_after() noexcept { keep_alive_ = false; }

  /// `lines`: the end-to-end headers. Without a length the body is chunked. `body_follows`: without
  /// any wait; then the head goes out with the body's first bytes (or with end()).
  boost::asio::awaitable<void> head(unsigned status, std::string_view reason,
                                    std::string_view lines, std::optional<std::uint64_t> length,
                                    bool no_body, bool body_follows = false);
  /// `last`: the body is whole with these bytes; then end() has nothing left to send.
  boost::asio::awaitable<void> body(std::string_view bytes, bool last = false);
  /// The body is whole.
  boost::asio::awaitable<void> end();

  /// A whole answer with a body.
  boost::asio::awaitable<void> whole(unsigned status, std::string_view content_type,
                                     std::string_view bytes, unsigned retry_after = 0);
  /// Before the head: a JSON answer. In a stream that only had comments: one `data:` event, or
  /// Anthropic's `error` event. After body bytes: nothing can be said, but by the latter where
  /// between_events(); the connection has to be closed (reusable() stays false).
  boost::asio::awaitable<void> error(const HttpError& error);
  /// The same for an error that the server behind us wrote as JSON.
  boost::asio::awaitable<void> error_event(std::string_view json);

  /// The head that is about to be sent opens an event stream, so comments may go on until its first
  /// byte.
  void opens_event_stream() noexcept { event_stream_ = true; }
  /// Whether the body so far ends with a whole event, or has none.
  void between_events(bool now) noexcept { between_events_ = now; }
  /// Sends a stream's head and comments from the grace period on, until the first body byte. Never
  /// returns by itself.
  boost::asio::awaitable<void> comments(KeepAlive settings);

 private:
  class Turn;
  boost::asio::awaitable<void> write(std::string_view a, std::string_view b = {},
                                     std::string_view c = {});

  Stream& client_;
  std::string held_head_;                          // goes out with what is written next
  std::optional<boost::asio::steady_timer> turn_;  // whoever waits for its turn to write
  bool writing_ = false;
  bool http10_;
  bool keep_alive_;
  bool head_only_;
  bool head_sent_ = false;
  bool event_stream_ = false;  // comments and error events may be written
  bool between_events_ = false;
  bool told_ = false;  // an event says that the body is not whole, and it has no last chunk
  bool chunked_ = false;
  bool body_begun_ = false;
  std::optional<std::chrono::steady_clock::time_point> first_byte_;
  bool ended_ = false;
};

}  // namespace toki::http
