// Which texts of a chat template may be special tokens. Only candidates: a trial decides.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

inline constexpr std::size_t kMaxSpecialTexts = 64;

/// `<...>` of at most 64 bytes without white space, quotes or another `<`, and words of capitals in
/// brackets such as [INST], in the order of `sources`, each once, at most kMaxSpecialTexts. None
/// holds a quote, a backslash or a control character, and none begins with a character that may be
/// part of a JSON escape: so they stand in the inside of a JSON string as they are, and a text may
/// be cut in front of them.
std::vector<std::string> special_texts(std::span<const std::string> sources);

}  // namespace toki::http
