// A blocking HTTP/1.1 client on plain sockets, with a deadline on everything. It shows what an HTTP
// library hides: the time each piece arrived, exactly how the answer ended, and it can send
// anything.
//
// Threads:   one object, one thread at a time.
// Ownership: owns its connection; the destructor closes it.
// Errors:    connecting throws; everything else is a value (End, false, status 0).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http_text.hpp"
#include "json.hpp"
#include "wait.hpp"

namespace toki::test {

/// How an answer's body ended, as far as it was read.
enum class End {
  open,       ///< not at its end yet
  clean,      ///< complete: last chunk, whole length, or closed by FIN where the close is the end
  truncated,  ///< the connection ended by FIN before the body was complete
  reset,      ///< the connection ended by RST
  nonsense,   ///< not HTTP, or not the framing it promised
  timeout,    ///< the deadline passed first
};
std::string to_string(End end);

/// Body bytes that one read brought, without the chunk framing.
struct Piece {
  Clock::time_point at;
  std::string bytes;
};

struct HttpResponse {
  int status = 0;  ///< 0: no head was read
  std::string first_line;
  Headers headers;
  std::string body;
  std::vector<Piece> pieces;
  Clock::time_point head_at;
  End end = End::open;

  bool whole() const { return end == End::clean; }
  std::string header(std::string_view name) const { return headers.get(name); }
  Json json() const { return Json::parse(body).value_or(Json()); }
};

class RawClient {
 public:
  /// Connects to 127.0.0.1. Throws std::runtime_error when that fails.
  explicit RawClient(int port, milliseconds limit = milliseconds(20000));

  /// Deadline of each following call.
  void set_limit(milliseconds limit) { limit_ = limit; }

  /// True when all bytes were taken by the kernel.
  bool send(std::string_view bytes);
  /// Sends `piece` bytes at a time with a pause after each.
  bool send_slowly(std::string_view bytes, std::size_t piece, milliseconds pause);
  /// Sends a whole request with Host, Content-Length (when there is a body) and `headers`.
  bool send_request(std::string_view method, std::string_view target, std::string_view body = {},
                    const Headers& headers = {});
  bool send_json(std::string_view target, std::string_view body, const Headers& headers = {});

  /// Head and whole body of the next answer; informational ones (1xx) are skipped. `head_only`: the
  /// answer to a HEAD request.
  HttpResponse read_response(bool head_only = false);
  /// Only the head of the next answer, 1xx included.
  HttpResponse read_head();
  /// Reads on until `enough(response)` or the end of the body. True when `enough` was reached.
  bool read_body_until(HttpResponse& response,
                       const std::function<bool(const HttpResponse&)>& enough);
  /// Reads the rest of the body.
  void read_rest(HttpResponse& response);
  /// True when the peer closes (FIN or RST) within the limit; bytes that come before are dropped.
  bool wait_closed(milliseconds limit);
  /// True when a byte (or the end) can be read within the limit.
  bool readable(milliseconds limit);

  void close();           ///< FIN (RST when unread bytes are left)
  void reset();           ///< RST
  void finish_sending();  ///< FIN after the last byte, still reading
  int fd() const { return fd_.get(); }

 private:
  enum class Framing { none, length, chunked, until_close };
  enum class Read { some, fin, rst, timeout };

  Read read_more(Clock::time_point deadline);
  void begin_body(const HttpResponse& response, bool head_only);
  void take_body(HttpResponse& response);  // from in_ into the response
  bool read_head_into(HttpResponse& response);

  Fd fd_;
  milliseconds limit_;
  std::string in_;
  Framing framing_ = Framing::none;
  std::size_t left_ = 0;
  ChunkDecoder chunks_;
};

/// One request on a connection of its own.
HttpResponse request(int port, std::string_view method, std::string_view target,
                     std::string_view body = {}, const Headers& headers = {},
                     milliseconds limit = milliseconds(20000));
HttpResponse get(int port, std::string_view target, const Headers& headers = {});
HttpResponse post_json(int port, std::string_view target, std::string_view body,
                       const Headers& headers = {}, milliseconds limit = milliseconds(20000));

/// The values of the `data:` lines of an event stream, in order (one line an event).
std::vector<std::string> sse_data(std::string_view body);
/// How often `part` is in `text`.
std::size_t occurrences(std::string_view text, std::string_view part);

}  // namespace toki::test
