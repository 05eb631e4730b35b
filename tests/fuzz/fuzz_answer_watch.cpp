// Any bytes as an answer: however they are cut into pieces the facts are the same, and a comment
// put in at an event boundary changes none of them. The first byte chooses the kind and seeds the
// cuts.
#include <toki/http/answer_watch.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.hpp"

namespace {

using namespace toki::http;

void require_same(const AnswerFacts& a, const AnswerFacts& b) {
  require(a.prompt_tokens == b.prompt_tokens && a.cached_tokens == b.cached_tokens);
  require(a.computed_tokens == b.computed_tokens && a.generated_tokens == b.generated_tokens);
  require(a.prompt_ms == b.prompt_ms && a.slot == b.slot && a.generated == b.generated);
  require(a.error == b.error && a.done == b.done);
  require(a.several == b.several && a.truncated == b.truncated);
  require(a.generated.empty() || a.generated.size() == a.generated_tokens);
}

AnswerFacts whole(AnswerKind kind, std::string_view bytes) {
  AnswerWatch watch(kind);
  watch.feed(bytes);
  watch.finish();
  return watch.facts();
}

/// Feeds pieces of 0 to 7 bytes; `with_comments` is the answer with a comment at each boundary.
AnswerFacts pieces(AnswerKind kind, std::string_view bytes, std::uint32_t seed,
                   std::string& with_comments) {
  AnswerWatch watch(kind);
  while (!bytes.empty()) {
    if (watch.at_event_boundary()) {
      with_comments += (seed & 0x100) != 0 ? ": toki\n\n" : ": toki\n";
    }
    seed = seed * 1664525 + 1013904223;
    const std::string_view piece = bytes.substr(0, (seed >> 16) % 8);
    watch.feed(piece);
    with_comments += piece;
    bytes.remove_prefix(piece.size());
  }
  watch.finish();
  return watch.facts();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const AnswerKind kind = data[0] % 4 == 0 ? AnswerKind::json : AnswerKind::sse;
  const std::string bytes(data + 1, data + size);
  const AnswerFacts facts = whole(kind, bytes);
  std::string with_comments;
  require_same(facts, pieces(kind, bytes, data[0], with_comments));
  if (bytes.find("\xEF\xBB\xBF") != 0) {  // a comment before a byte order mark displaces it
    require_same(facts, whole(kind, with_comments));
  }
  return 0;
}
