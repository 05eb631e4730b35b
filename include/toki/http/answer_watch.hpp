// Watches an answer of the backend on its way to the client, byte by byte, and reads from it what
// the accounting needs: usage, timings, generated token ids, errors. It never changes, delays or
// keeps the bytes.
//
// Threads:   one object per answer, used by one thread at a time.
// Ownership: keeps its own small state; the bytes are only looked at during feed().
// Errors:    none: what it cannot read is simply not known. Arbitrary bytes in arbitrary pieces are
// safe. Cost:      SSE: one memchr-like pass, and a JSON parse only of `data:` lines that mention
// "usage", "timings", "tokens" or
//            "error" (the finishing ones, and each native /completion chunk). JSON: the body is
//            kept up to kMaxWatchedBytes.
//
// Understands: llama-server's native and OpenAI shapes, /v1/responses (nested in "response"),
// Anthropic's
// (`usage` in "message" too). SSE as in the WHATWG standard: comments, unknown fields, CR, LF and
// CRLF line ends, a `data:` event over several lines, no final blank line.
#pragma once

#include <toki/export.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

/// What the answer said. Absent means: it did not say.
struct AnswerFacts {
  std::optional<std::uint64_t>
      prompt_tokens;  ///< whole prompt, reused ones included: usage, or cache_n + prompt_n
  std::optional<std::uint64_t> cached_tokens;    ///< timings.cache_n, or the cached figure of usage
  std::optional<std::uint64_t> computed_tokens;  ///< timings.prompt_n
  std::optional<std::uint64_t> generated_tokens;
  std::optional<double> prompt_ms;    ///< timings.prompt_ms
  std::optional<std::uint32_t> slot;  ///< `id_slot` of native answers
  std::vector<Token> generated;  ///< ids, in order, where the answer carries them (native `tokens`)
  bool error = false;            ///< a top-level "error" member was seen
  bool done =
      false;  ///< SSE: `data: [DONE]`, or native `"stop":true`; JSON: the body was one whole value
};

enum class AnswerKind : std::uint8_t { json, sse, other };

/// text/event-stream -> sse, application/json (with parameters) -> json, else other.
TOKI_EXPORT AnswerKind answer_kind(std::string_view content_type) noexcept;

class TOKI_EXPORT AnswerWatch {
 public:
  static constexpr std::size_t kMaxWatchedBytes =
      std::size_t{16} << 20;  ///< longest JSON body or SSE event that is read

  explicit AnswerWatch(AnswerKind kind = AnswerKind::other);

  /// Looks at the next bytes of the answer's body.
  void feed(std::string_view bytes);
  /// No more bytes will come; reads what is pending. Facts are final afterwards.
  void finish();

  const AnswerFacts& facts() const noexcept { return facts_; }
  /// True between whole SSE events: here a comment may be put in without cutting an event in two.
  bool at_event_boundary() const noexcept { return line_.empty() && data_.empty() && !in_event_; }

 private:
  void line(std::string_view text);
  void event();
  void read_json(std::string_view text);

  AnswerKind kind_;
  AnswerFacts facts_;
  std::string line_;       // unfinished SSE line, or the JSON body so far
  std::string data_;       // data of the SSE event so far
  bool in_event_ = false;  // a field of the present event was seen
  bool last_cr_ = false;   // the last byte was CR: a following LF belongs to it
  bool overflow_ = false;  // too long to be read
};

}  // namespace toki::http
