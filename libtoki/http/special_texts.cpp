#include "http/special_texts.hpp"

#include <algorithm>

namespace toki::http {
namespace {

constexpr std::size_t kLongest = 64;

bool in_tag(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte > ' ' && byte != 0x7f && c != '"' && c != '\'' && c != '\\' && c != '<';
}

bool is_capital(char c) {
  return c >= 'A' && c <= 'Z';
}
bool in_word(char c) {
  return is_capital(c) || (c >= 'a' && c <= 'z') || c == '_' || c == '/';
}

// The candidate that `rest` begins with, or nothing.
std::string_view candidate(std::string_view rest) {
  const bool tag = rest[0] == '<';
  const std::size_t end = rest.substr(0, kLongest).find(tag ? '>' : ']');
  if (end == std::string_view::npos) {
    return {};
  }
  const std::string_view inside = rest.substr(1, end - 1);
  const bool fits = tag ? !inside.empty() && std::all_of(inside.begin(), inside.end(), in_tag)
                        : std::all_of(inside.begin(), inside.end(), in_word) &&
                              std::count_if(inside.begin(), inside.end(), is_capital) >= 2;
  return fits ? rest.substr(0, end + 1) : std::string_view();
}

}  // namespace

std::vector<std::string> special_texts(std::span<const std::string> sources) {
  std::vector<std::string> found;
  for (const std::string_view source : sources) {
    for (std::size_t at = source.find_first_of("<["); at != std::string_view::npos;
         at = source.find_first_of("<[", at + 1)) {
      const std::string_view text = candidate(source.substr(at));
      if (text.empty() || std::find(found.begin(), found.end(), text) != found.end()) {
        continue;
      }
      found.emplace_back(text);
      if (found.size() == kMaxSpecialTexts) {
        return found;
      }
    }
  }
  return found;
}

}  // namespace toki::http
