#include "pairs.hpp"

#include <algorithm>
#include <map>

namespace replay {
namespace {

PairGroup& group_of(ArmPairs& pairs, const Outcome& a, const Outcome& b) {
  const PairGroup wanted{start_of(a), start_of(b), a.cached_tokens == b.cached_tokens, {}};
  const auto found =
      std::find_if(pairs.groups.begin(), pairs.groups.end(), [&](const PairGroup& group) {
        return group.a == wanted.a && group.b == wanted.b &&
               group.equal_reuse == wanted.equal_reuse;
      });
  return found != pairs.groups.end() ? *found : pairs.groups.emplace_back(wanted);
}

void compare_pair(const Outcome& a, const Outcome& b, std::size_t repeat, Meaning& meaning,
                  ArmPairs& into) {
  toki::Comparison found = toki::compare(a.text, b.text);
  if (found.undecided) meaning.decide(found, a.text, b.text);
  into.counts.add(found);
  group_of(into, a, b).counts.add(found);
  if (found.kind == toki::Divergence::identical) return;
  into.parted.push_back({repeat, a.index, found, equal_tokens(a, b), start_of(a), start_of(b),
                         a.cached_tokens, b.cached_tokens});
}

}  // namespace

std::string_view to_string(Start start) {
  switch (start) {
    case Start::computed: return "computed";
    case Start::live: return "live";
    case Start::restored: return "restored";
    case Start::unknown: break;
  }
  return "unknown";
}

Start start_of(const Outcome& outcome) {
  if (outcome.cached_tokens < 0) return Start::unknown;
  if (outcome.cached_tokens == 0) return Start::computed;
  return outcome.source == "disk" || outcome.source == "copy" ? Start::restored : Start::live;
}

std::int64_t equal_tokens(const Outcome& a, const Outcome& b) {
  const auto streamed = [](const Outcome& o) { return o.text.empty() || !o.token_ends.empty(); };
  if (!streamed(a) || !streamed(b)) return -1;
  const std::string_view text_a = a.text;
  const std::string_view text_b = b.text;
  const std::size_t limit = std::min(a.token_ends.size(), b.token_ends.size());
  std::size_t begin = 0;
  std::size_t count = 0;
  for (; count < limit && a.token_ends[count] == b.token_ends[count]; ++count) {
    const std::size_t end = a.token_ends[count];
    if (text_a.substr(begin, end - begin) != text_b.substr(begin, end - begin)) break;
    begin = end;
  }
  return static_cast<std::int64_t>(count);
}

void compare_runs(const Run& a, const Run& b, Meaning& meaning, ArmPairs& into) {
  std::map<std::size_t, const Outcome*> others;
  for (const Outcome& outcome : b.outcomes) {
    if (outcome.failure.empty()) others[outcome.index] = &outcome;
  }
  for (const Outcome& one : a.outcomes) {
    const auto other = others.find(one.index);
    if (!one.failure.empty() || other == others.end()) continue;
    if (one.body != other->second->body) {
      ++into.other_prompts;
    } else {
      compare_pair(one, *other->second, a.repeat, meaning, into);
    }
  }
}

}  // namespace replay
