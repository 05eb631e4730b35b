#include <toki/embedding.hpp>
#include <toki/result.hpp>
#include <toki/similarity_index.hpp>

#include <algorithm>
#include <unordered_map>

#include "core/hnsw_graph.hpp"
#include "core/scope_map.hpp"

namespace toki {

namespace {

class HnswIndex final : public SimilarityIndex {
 public:
  HnswIndex(std::size_t dimension, const HnswOptions& options)
      : dimension_(dimension), options_(options) {
    TOKI_CHECK(dimension > 0 && dimension <= kMaxDimension);
    TOKI_CHECK(options.links >= 2 && options.links <= 1000);
  }

  void put(std::uint64_t id, const Scope& scope, std::span<const float> vector) override {
    TOKI_CHECK(vector.size() == dimension_);
    const PaddedVector padded(vector);
    const auto known = places_.find(id);
    if (known != places_.end() && !(known->second->first == scope)) {
      remove(id);
    }
    Entry& entry = *graphs_.try_emplace(scope, padded.lines(), options_).first;
    places_[id] = &entry;
    if (!entry.second.put(id, padded.data()) || !tidy(entry.second)) {
      drop(entry);
    }
  }

  bool remove(std::uint64_t id) override {
    const auto known = places_.find(id);
    if (known == places_.end()) {
      return false;
    }
    Entry& entry = *known->second;
    places_.erase(known);
    entry.second.remove(id);
    if (entry.second.size() == 0) {
      graphs_.erase(graphs_.find(entry.first));
    } else if (!tidy(entry.second)) {
      drop(entry);
    }
    return true;
  }

  void clear() override {
    graphs_.clear();
    places_.clear();
  }

  std::vector<Neighbour> search(const Scope& scope, std::span<const float> query,
                                std::size_t count) const override {
    TOKI_CHECK(query.size() == dimension_);
    const auto found = graphs_.find(scope);
    return found == graphs_.end() ? std::vector<Neighbour>{}
                                  : found->second.search(PaddedVector(query), count);
  }

  std::size_t dimension() const noexcept override { return dimension_; }
  std::size_t size() const noexcept override { return places_.size(); }
  std::size_t bytes() const noexcept override {
    std::size_t sum = map_bytes(places_) + map_bytes(graphs_);
    for (const auto& [scope, graph] : graphs_) {
      sum += scope.bytes().size() + graph.bytes();
    }
    return sum;
  }

 private:
  using Entry = ScopeMap<HnswGraph>::value_type;  // maps never move theirs

  // Removed vectors stay in the graph until they are more than half of it.
  static bool tidy(HnswGraph& graph) {
    constexpr std::size_t kWorthIt = 64;
    return graph.removed() <= std::max(graph.size(), kWorthIt) || graph.rebuild();
  }

  // Forgets a scope whose graph has forgotten all.
  void drop(Entry& entry) {
    std::erase_if(places_, [&](const auto& place) { return place.second == &entry; });
    graphs_.erase(graphs_.find(entry.first));
  }

  std::size_t dimension_;
  HnswOptions options_;
  ScopeMap<HnswGraph> graphs_;
  std::unordered_map<std::uint64_t, Entry*> places_;
};

}  // namespace

std::unique_ptr<SimilarityIndex> make_hnsw_index(std::size_t dimension,
                                                 const HnswOptions& options) {
  return std::make_unique<HnswIndex>(dimension, options);
}

}  // namespace toki
