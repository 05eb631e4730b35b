// What an answer says: its text, when the first of it came, and the server's token counts. Reads
// the streams and the plain answers of chat, completions, responses, messages and llama-server's
// own /completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http.hpp"
#include "json.hpp"

namespace replay {

class AnswerReader {
 public:
  /// A piece of an event stream, as it came.
  void take(std::string_view piece, Clock::time_point now);
  /// The rest of what take() was given, which is a plain JSON answer when no event was among it.
  void end(Clock::time_point now);

  std::string text;
  std::vector<std::size_t> token_ends;     ///< where the text of each event ends; empty: no stream
  std::optional<Clock::time_point> first;  ///< when the first text came
  std::int64_t prompt_tokens = -1;         ///< -1: not said
  std::int64_t cached_tokens = -1;
  std::int64_t output_tokens = -1;
  std::string error;  ///< the message of an error that the server sent in place of more text

 private:
  void event(std::string_view data, Clock::time_point now);
  void take_text(const json::value& value, Clock::time_point now);
  void take_counts(const json::value& value);

  std::string rest_;
  bool events_ = false;
};

/// The message in a body like {"error":{"message":"..."}}, cut to one short line.
std::string error_message(std::string_view body);

}  // namespace replay
