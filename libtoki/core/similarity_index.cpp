#include <toki/similarity_index.hpp>

namespace toki {
SimilarityIndex::~SimilarityIndex() = default;
std::unique_ptr<SimilarityIndex> make_scan_index(std::size_t, Precision) {
  return nullptr;
}
std::unique_ptr<SimilarityIndex> make_hnsw_index(std::size_t, const HnswOptions&) {
  return nullptr;
}
void keep_band(std::vector<Candidate>&, float) {}
}  // namespace toki
