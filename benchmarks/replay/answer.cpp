#include "answer.hpp"

#include <algorithm>

namespace replay {
namespace {

std::string one_line(std::string text) {
  constexpr std::size_t kLongest = 200;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return text;
}

std::string message_of(const json::value& error) {
  const std::string_view message = text_of(member(error, "message"));
  return one_line(std::string(!message.empty() ? message : text_of(error)));
}

}  // namespace

std::string error_message(std::string_view body) {
  boost::system::error_code ec;
  const json::value value = json::parse(body, ec);
  const std::string message = ec ? std::string() : message_of(member(value, "error"));
  return message.empty() ? one_line(std::string(body)) : message;
}

void AnswerReader::take(std::string_view piece, Clock::time_point now) {
  rest_ += piece;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = rest_.find('\n', begin);
    if (end == std::string::npos) break;
    std::string_view line(rest_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view kData = "data:";
    if (line.starts_with(kData)) {
      events_ = true;
      line.remove_prefix(kData.size());
      event(line, now);
    } else if (!events_ && line.starts_with('{')) {
      break;  // a plain JSON answer that holds line feeds
    }
    begin = end + 1;
  }
  rest_.erase(0, begin);
}

void AnswerReader::end(Clock::time_point now) {
  if (!events_ && !rest_.empty()) event(rest_, now);
  rest_.clear();
}

void AnswerReader::event(std::string_view data, Clock::time_point now) {
  boost::system::error_code ec;
  const json::value value = json::parse(data, ec);
  if (ec || !value.is_object()) return;  // "[DONE]"
  if (const json::value& wrong = member(value, "error"); !wrong.is_null()) {
    error = message_of(wrong);
  }
  const std::size_t before = text.size();
  take_text(value, now);
  if (events_ && text.size() > before) token_ends.push_back(text.size());
  take_counts(value);
  for (const char* holder : {"response", "message"}) {  // of /v1/responses and /v1/messages
    take_counts(member(value, holder));
  }
}

void AnswerReader::take_text(const json::value& value, Clock::time_point now) {
  const auto add = [&](const json::value& piece) {
    const std::string_view more = text_of(piece);
    if (more.empty()) return;
    if (!first) first = now;
    text += more;
  };
  if (const json::array* choices = member(value, "choices").if_array()) {
    for (const json::value& choice : *choices) {
      for (const char* holder : {"delta", "message"}) {
        const json::value& said = member(choice, holder);
        add(member(said, "reasoning_content"));
        add(member(said, "content"));
        if (const json::array* calls = member(said, "tool_calls").if_array()) {
          for (const json::value& one : *calls) {
            add(member(member(one, "function"), "name"));
            add(member(member(one, "function"), "arguments"));
          }
        }
      }
      add(member(choice, "text"));
    }
    return;
  }
  const std::string_view type = text_of(member(value, "type"));
  if (type.empty()) add(member(value, "content"));
  if (type == "response.output_text.delta") add(member(value, "delta"));
  if (type == "content_block_delta") add(member(member(value, "delta"), "text"));
}

void AnswerReader::take_counts(const json::value& value) {
  const auto set = [](std::int64_t& into, const json::value& from) {
    into = integer_of(from, into);
  };
  const json::value& usage = member(value, "usage");
  set(prompt_tokens, member(usage, "prompt_tokens"));
  set(prompt_tokens, member(usage, "input_tokens"));
  set(output_tokens, member(usage, "completion_tokens"));
  set(output_tokens, member(usage, "output_tokens"));
  set(cached_tokens, member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  set(cached_tokens, member(member(usage, "input_tokens_details"), "cached_tokens"));
  set(cached_tokens, member(usage, "cache_read_input_tokens"));
  const json::value& timings = member(value, "timings");  // llama-server's own, and exact
  const std::int64_t reused = integer_of(member(timings, "cache_n"), -1);
  const std::int64_t computed = integer_of(member(timings, "prompt_n"), -1);
  if (reused >= 0 && computed >= 0) {
    cached_tokens = reused;
    prompt_tokens = reused + computed;
  }
  set(output_tokens, member(timings, "predicted_n"));
}

}  // namespace replay
