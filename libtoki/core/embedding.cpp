#include <toki/embedding.hpp>

namespace toki {

std::string_view to_string(EmbeddingKind kind) noexcept {
  switch (kind) {
    case EmbeddingKind::none: return "none";
    case EmbeddingKind::model: return "model";
    case EmbeddingKind::hash: return "hash";
  }
  return "none";
}
Embedding hash_embedding(TokenSpan, std::size_t dimension) {
  return {EmbeddingKind::hash, std::vector<float>(dimension)};
}
std::vector<Segment> embedding_segments(std::size_t tokens, std::size_t, std::size_t) {
  return {{0, tokens}};
}
std::vector<float> average(std::span<const std::vector<float>> parts,
                           std::span<const std::size_t>) {
  return parts.empty() ? std::vector<float>{} : parts[0];
}
void normalise(std::span<float>) noexcept {}

}  // namespace toki
