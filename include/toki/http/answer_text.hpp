// AnswerText: what a model said in an answer that passes by, taken out of its JSON or its events, so
// that two answers can be compared without ids, times and other things that always differ.
//
// Threads:   one object per answer, used by one thread at a time.
// Ownership: keeps the text, at most kMaxBytes of it.
// Errors:    none: of an answer that is too long, broken or of another shape there is no text.
// Cost:      a JSON parse of each event, or of the whole body at the end.
//
// Understands chat and text completions and llama-server's own form. Thoughts, text and tool calls
// (names and arguments) stand in this order, in lines of their own.
#pragma once

#include <toki/export.hpp>
#include <toki/http/answer_watch.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace toki::http {

/// What a model said: its answer, its thoughts and the tools it called, in the shapes that the head
/// of this file names.
class TOKI_EXPORT AnswerText {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;  ///< of the text
  static constexpr std::size_t kMaxJson = std::size_t{1} << 20;    ///< of a body, or of one event

  /// For an answer of this kind; what is not SSE is read as JSON.
  explicit AnswerText(AnswerKind kind);
  AnswerText(const AnswerText&) = delete;
  AnswerText& operator=(const AnswerText&) = delete;
  ~AnswerText();

  /// The next bytes of the answer's body.
  void feed(std::string_view bytes);
  /// No more bytes will come.
  void finish();
  /// After finish().
  /// None: too long, broken off, or of another shape.
  std::optional<std::string> text() const;

 private:
  struct Reader;
  void read(std::string_view json);
  void end_line();

  AnswerKind kind_;
  std::unique_ptr<Reader> reader_;
  std::string pending_;  // the unfinished line, or the body so far
  std::string thoughts_, said_, tools_;
  bool understood_ = false;
  bool broken_ = false;
};

}  // namespace toki::http
