// Watches an answer of the backend on its way to the client, byte by byte, and reads from it what
// the accounting needs: usage, timings, generated token ids, errors. It never changes, delays or
// keeps the bytes.
//
// Threads:   one object per answer, used by one thread at a time.
// Ownership: keeps its own small state; the bytes are only looked at during feed().
// Errors:    none: what it cannot read is simply not known. Arbitrary bytes in arbitrary pieces are
//            safe, and how they are cut into pieces makes no difference.
// Cost:      SSE: about 0.5 ns a byte, and a JSON parse only of events that mention "usage",
//            "timings", "tokens", "error" or "message_stop" (the finishing ones, and each native
//            /completion chunk). JSON: the body is kept up to kMaxWatchedBytes and parsed once by
//            finish().
//
// Understands: llama-server's native and OpenAI shapes, /v1/responses (nested in "response"),
// Anthropic's (`usage` in "message" too). SSE as in the WHATWG standard: comments, unknown fields,
// CR, LF and CRLF line ends, a `data:` event over several lines; also without a final blank line.
#pragma once

#include <toki/export.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

/// What the answer said. Absent means: it did not say. Where several events say something, the last
/// one counts.
struct AnswerFacts {
  /// Whole prompt, reused tokens included: usage, native `tokens_evaluated`, or cache_n + prompt_n.
  std::optional<std::uint64_t> prompt_tokens;
  std::optional<std::uint64_t> cached_tokens;    ///< timings.cache_n, or the cached figure of usage
  std::optional<std::uint64_t> computed_tokens;  ///< timings.prompt_n
  /// usage, native tokens_predicted, or timings.predicted_n
  std::optional<std::uint64_t> generated_tokens;
  std::optional<double> prompt_ms;    ///< timings.prompt_ms
  std::optional<std::uint32_t> slot;  ///< `id_slot` of native answers
  /// Ids, in order, where the answer carries them (native `tokens`). Either as many as the backend
  /// says it generated or none: it leaves out ids when it holds back parts of a character, and
  /// answers without `return_tokens` have an empty list. Set by finish(), or at `"stop":true`.
  std::vector<Token> generated;
  /// A top-level "error" member that is not null, also within "response", or an SSE field "error".
  bool error = false;
  /// SSE: `data: [DONE]`, native `"stop":true`, or the last event of /v1/responses or Anthropic;
  /// JSON: the body was one whole value.
  bool done = false;
  /// Several prompts or choices were answered: the figures are those of the last one seen, `slot`
  /// and `generated` are not known, and `done` says that at least one of them ended.
  bool several = false;
  /// Native `truncated`: the context was full, so the slot may not hold prompt + generated.
  bool truncated = false;
  std::uint64_t events = 0;  ///< SSE: whole events with data so far; comments do not count
};

/// What an answer's body is written in; `other` is not read.
enum class AnswerKind : std::uint8_t { json, sse, other };

/// text/event-stream -> sse, application/json -> json (any case, with parameters), else other.
TOKI_EXPORT AnswerKind answer_kind(std::string_view content_type) noexcept;

/// Reads an answer as it passes, in pieces of any size; changes nothing.
class TOKI_EXPORT AnswerWatch {
 public:
  /// Longest JSON body or SSE event that is read; of longer ones nothing is known.
  static constexpr std::size_t kMaxWatchedBytes = std::size_t{16} << 20;

  /// Of this kind.
  explicit AnswerWatch(AnswerKind kind = AnswerKind::other);
  AnswerWatch(const AnswerWatch&) = delete;
  AnswerWatch& operator=(const AnswerWatch&) = delete;
  /// The source may only be destroyed or assigned to.
  AnswerWatch(AnswerWatch&&) noexcept;
  /// The source may only be destroyed or assigned to.
  AnswerWatch& operator=(AnswerWatch&&) noexcept;
  ~AnswerWatch();

  /// Looks at the next bytes of the answer's body.
  void feed(std::string_view bytes);
  /// No more bytes will come; reads what is pending. Facts are final afterwards.
  void finish();

  /// What was read so far.
  const AnswerFacts& facts() const noexcept { return facts_; }
  /// True between whole SSE events (also before the first and after a comment line): here comment
  /// lines may be put in without cutting an event in two or ending one early. False within the line
  /// end CR LF. Always false when the answer is not SSE.
  bool at_event_boundary() const noexcept;

 private:
  struct Reader;  // the JSON parser, kept from event to event

  void feed_sse(std::string_view bytes);
  void end_line(std::string_view rest);
  void read_line(std::string_view line);
  void end_event();
  void read_data();
  void settle_ids();
  Reader& reader();

  AnswerKind kind_;
  AnswerFacts facts_;
  std::unique_ptr<Reader> reader_;
  std::string line_;        // the unfinished SSE line
  std::string data_;        // data of the SSE event, or the JSON body, so far
  bool first_line_ = true;  // a byte order mark may stand here
  bool after_cr_ = false;   // the last byte was CR: a following LF belongs to it
  bool crlf_ = true;        // no CR without LF was seen yet
  bool in_event_ = false;   // a field of the present event was seen
  bool has_data_ = false;   // one of them was `data`
  bool too_long_ = false;   // data_ was given up
};

}  // namespace toki::http
