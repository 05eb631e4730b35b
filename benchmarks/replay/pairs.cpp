#include "pairs.hpp"

#include <algorithm>
#include <map>

namespace replay {

Verdict compare(std::string_view a, std::string_view b) {
  const auto parting = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  // A code point begins at every byte that goes on from none; one that parts inside is not shared.
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  Verdict verdict{a == b ? "identical" : "different", 0};
  verdict.common_chars = static_cast<std::size_t>(std::count_if(a.begin(), parting, begins));
  const bool inside = (parting != a.end() && !begins(*parting));
  if (inside && verdict.common_chars > 0) --verdict.common_chars;
  return verdict;
}

void compare_runs(const Run& a, const Run& b, Comparison& into) {
  std::map<std::size_t, const Outcome*> others;
  for (const Outcome& outcome : b.outcomes) {
    if (outcome.failure.empty()) others[outcome.index] = &outcome;
  }
  for (const Outcome& one : a.outcomes) {
    const auto other = others.find(one.index);
    if (!one.failure.empty() || other == others.end()) continue;
    if (one.body != other->second->body) {
      ++into.other_prompts;
      continue;
    }
    ++into.pairs;
    Verdict verdict = compare(one.text, other->second->text);
    if (verdict.name == "identical") {
      ++into.identical;
    } else {
      into.parted.push_back({a.repeat, one.index, std::move(verdict), one.cached_tokens,
                             other->second->cached_tokens});
    }
  }
}

}  // namespace replay
