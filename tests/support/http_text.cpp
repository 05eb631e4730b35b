#include "http_text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace toki::test {

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

std::string Headers::get(std::string_view name) const {
  for (const auto& [key, value] : fields_) {
    if (equal_without_case(key, name)) return value;
  }
  return {};
}

std::size_t Headers::count(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(fields_.begin(), fields_.end(), [&](const auto& f) {
    return equal_without_case(f.first, name);
  }));
}

std::string Headers::lines() const {
  std::string out;
  for (const auto& [key, value] : fields_) out += key + ": " + value + "\r\n";
  return out;
}

std::optional<Head> parse_head(std::string_view text) {
  Head head;
  bool first = true;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (first) {
      head.first_line = line;
      first = false;
      continue;
    }
    if (line.empty()) return head;
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    head.headers.add(std::string(line.substr(0, colon)),
                     std::string(trimmed(line.substr(colon + 1))));
  }
  return std::nullopt;
}

std::size_t ChunkDecoder::feed(std::string_view bytes, std::string& payload) {
  std::size_t used = 0;
  while (used < bytes.size() && state_ != State::done && state_ != State::failed) {
    if (state_ == State::data) {
      const std::size_t n = std::min(left_, bytes.size() - used);
      payload.append(bytes.substr(used, n));
      used += n;
      left_ -= n;
      if (left_ == 0) state_ = State::data_end;
      continue;
    }
    const char c = bytes[used++];
    if (c != '\n') {
      line_ += c;
      if (line_.size() > 4096) state_ = State::failed;
      continue;
    }
    if (line_.empty() || line_.back() != '\r') {
      state_ = State::failed;
      break;
    }
    line_.pop_back();
    if (state_ == State::data_end) {
      state_ = line_.empty() ? State::size : State::failed;
    } else if (state_ == State::trailer) {
      if (line_.empty()) state_ = State::done;
    } else {
      const std::string size = line_.substr(0, line_.find(';'));
      const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), left_, 16);
      if (size.empty() || error != std::errc() || end != size.data() + size.size()) {
        state_ = State::failed;
      } else {
        state_ = left_ == 0 ? State::trailer : State::data;
      }
    }
    line_.clear();
  }
  return used;
}

}  // namespace toki::test
