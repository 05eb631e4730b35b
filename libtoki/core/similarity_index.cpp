#include <toki/similarity_index.hpp>

#include <algorithm>
#include <map>
#include <numeric>

namespace toki {
SimilarityIndex::~SimilarityIndex() = default;
namespace {
struct Naive : SimilarityIndex {
  explicit Naive(std::size_t d) : dim(d) {}
  std::size_t dim;
  std::map<std::uint64_t, std::pair<Scope, std::vector<float>>> all;
  void put(std::uint64_t id, const Scope& scope, std::span<const float> v) override {
    all[id] = {scope, {v.begin(), v.end()}};
  }
  bool remove(std::uint64_t id) override { return all.erase(id) > 0; }
  void clear() override { all.clear(); }
  std::vector<Neighbour> search(const Scope& scope, std::span<const float> q,
                                std::size_t count) const override {
    std::vector<Neighbour> r;
    for (const auto& [id, e] : all) {
      if (e.first == scope) {
        r.push_back({id, std::inner_product(q.begin(), q.end(), e.second.begin(), 0.0F)});
      }
    }
    std::sort(r.begin(), r.end(), [](auto& a, auto& b) { return a.cosine > b.cosine; });
    r.resize(std::min(count, r.size()));
    return r;
  }
  std::size_t dimension() const noexcept override { return dim; }
  std::size_t size() const noexcept override { return all.size(); }
  std::size_t bytes() const noexcept override { return 0; }
};
}  // namespace
std::unique_ptr<SimilarityIndex> make_scan_index(std::size_t d, Precision) {
  return std::make_unique<Naive>(d);
}
std::unique_ptr<SimilarityIndex> make_hnsw_index(std::size_t d, const HnswOptions&) {
  return std::make_unique<Naive>(d);
}
std::unique_ptr<SimilarityIndex> make_similarity_index(std::size_t d) {
  return std::make_unique<Naive>(d);
}
void keep_band(std::vector<Candidate>& c, float) {
  std::sort(c.begin(), c.end(), [](auto& a, auto& b) { return a.tokens > b.tokens; });
}
}  // namespace toki
