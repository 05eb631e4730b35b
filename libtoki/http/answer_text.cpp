#include <toki/http/answer_text.hpp>

#include <simdjson.h>

#include <algorithm>
#include <utility>

namespace toki::http {

namespace dom = simdjson::dom;

namespace {

bool append(std::string& out, const dom::object& object, std::string_view key) {
  std::string_view text;
  if (object[key].get(text) != simdjson::SUCCESS) {
    return false;
  }
  out += text;
  return true;
}

void append_tools(std::string& out, const dom::object& message) {
  dom::array calls;
  if (message["tool_calls"].get(calls) != simdjson::SUCCESS) {
    return;
  }
  for (const dom::element element : calls) {
    dom::object call;
    dom::object function;
    if (element.get(call) == simdjson::SUCCESS &&
        call["function"].get(function) == simdjson::SUCCESS) {
      out += append(out, function, "name") ? "\n" : "";
      append(out, function, "arguments");
    }
  }
}

}  // namespace

struct AnswerText::Reader {
  dom::parser parser;
};

AnswerText::AnswerText(AnswerKind kind) : kind_(kind) {}
AnswerText::~AnswerText() = default;

void AnswerText::feed(std::string_view bytes) {
  while (!broken_ && !bytes.empty()) {
    const std::size_t end = kind_ == AnswerKind::sse ? bytes.find('\n') : std::string_view::npos;
    const std::string_view part = bytes.substr(0, end);
    broken_ = part.size() > kMaxJson - pending_.size();
    if (broken_) {
      break;
    }
    pending_.append(part);
    bytes.remove_prefix(std::min(part.size() + 1, bytes.size()));
    if (end != std::string_view::npos) {
      end_line();
    }
  }
  if (broken_) {
    pending_ = thoughts_ = said_ = tools_ = std::string();
  }
}

void AnswerText::end_line() {
  std::string_view line = pending_;
  line.remove_suffix(line.ends_with('\r') ? 1 : 0);
  constexpr std::string_view kData = "data:";
  if (line.starts_with(kData)) {
    line.remove_prefix(kData.size());
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (line != "[DONE]") {
      read(line);
    }
  }
  pending_.clear();
}

void AnswerText::read(std::string_view json) {
  if (!reader_) {
    reader_ = std::make_unique<Reader>();
  }
  dom::object root;
  if (reader_->parser.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS) {
    broken_ = true;
    return;
  }
  bool understood = append(said_, root, "content");
  dom::array choices;
  if (root["choices"].get(choices) == simdjson::SUCCESS) {
    understood = true;
    dom::object first;
    if (choices.size() > 0 && choices.at(0).get(first) == simdjson::SUCCESS) {
      append(said_, first, "text");
      for (const std::string_view key : {"delta", "message"}) {
        dom::object message;
        if (first[key].get(message) == simdjson::SUCCESS) {
          append(thoughts_, message, "reasoning_content");
          append(said_, message, "content");
          append_tools(tools_, message);
        }
      }
    }
  }
  understood_ = understood_ || understood;
  broken_ = thoughts_.size() + said_.size() + tools_.size() > kMaxBytes;
}

void AnswerText::finish() {
  if (broken_ || pending_.empty()) {
    return;
  }
  if (kind_ == AnswerKind::sse) {
    end_line();
  } else {
    read(pending_);
    pending_ = std::string();
  }
}

std::optional<std::string> AnswerText::text() const {
  if (broken_ || !understood_) {
    return std::nullopt;
  }
  std::string all = thoughts_;
  for (const std::string* part : {&said_, &tools_}) {
    all += !all.empty() && !part->empty() ? "\n" : "";
    all += *part;
  }
  return all;
}

}  // namespace toki::http
