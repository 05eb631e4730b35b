#include <toki/similarity_index.hpp>

#include <algorithm>

namespace toki {

SimilarityIndex::~SimilarityIndex() = default;

void keep_band(std::vector<Candidate>& candidates, float band) {
  float best = 0;
  for (const Candidate& one : candidates) {
    best = std::max(best, one.cosine);
  }
  const float least = best * (1 - band);
  // Written so that a cosine that is no number goes as well.
  std::erase_if(candidates, [&](const Candidate& one) { return !(one.cosine >= least); });
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.tokens != b.tokens) {
      return a.tokens > b.tokens;
    }
    return a.cosine != b.cosine ? a.cosine > b.cosine : a.id < b.id;
  });
}

}  // namespace toki
