// A scan that gets a graph beside it for each scope that has grown large. The scan keeps all
// vectors: it answers while the graph is being built, a few vectors with each write, so that no
// single write pays for it all.
#include <toki/result.hpp>

#include <algorithm>
#include <vector>

#include "core/hnsw_graph.hpp"
#include "core/scan_index.hpp"

namespace toki {

namespace {

class GrowingIndex final : public SimilarityIndex {
 public:
  GrowingIndex(std::size_t dimension, std::size_t scan_up_to)
      : scan_(dimension, Precision::int8), scan_up_to_(scan_up_to) {}

  void put(std::uint64_t id, const Scope& scope, std::span<const float> vector) override {
    forget(id);
    scan_.put(id, scope, vector);
    const auto large = large_.find(scope);
    if (large != large_.end()) {
      large->second.waiting.push_back(id);
      advance(scope, large->second);
    } else if (scan_.rows(scope)->size() > scan_up_to_) {
      Large& fresh = large_.try_emplace(scope, lines()).first->second;
      start(scope, fresh);
      advance(scope, fresh);
    }
  }

  bool remove(std::uint64_t id) override {
    forget(id);
    return scan_.remove(id);
  }

  void clear() override {
    large_.clear();
    scan_.clear();
  }

  std::vector<Neighbour> search(const Scope& scope, std::span<const float> query,
                                std::size_t count) const override {
    TOKI_CHECK(query.size() == dimension());
    const auto large = large_.find(scope);
    if (large != large_.end() && large->second.ready(scan_.rows(scope))) {
      return large->second.graph.search(PaddedVector(query), count);
    }
    return scan_.search(scope, query, count);
  }

  std::size_t dimension() const noexcept override { return scan_.dimension(); }
  std::size_t size() const noexcept override { return scan_.size(); }
  std::size_t bytes() const noexcept override {
    std::size_t sum = scan_.bytes();
    for (const auto& [scope, large] : large_) {
      sum += large.graph.bytes() + large.waiting.capacity() * sizeof(std::uint64_t);
    }
    return sum;
  }

 private:
  struct Large {
    explicit Large(std::size_t lines) : graph(lines, HnswOptions{}) {}
    bool ready(const RowStore* all) const { return all != nullptr && graph.size() == all->size(); }

    HnswGraph graph;
    std::vector<std::uint64_t> waiting;  // not in the graph yet; some may be gone meanwhile
  };

  static constexpr std::size_t kMoves = 2;  // with each put: its own vector, and one more

  std::size_t lines() const { return (dimension() + kLineFloats - 1) / kLineFloats; }

  void start(const Scope& scope, Large& large) {
    const RowStore& rows = *scan_.rows(scope);
    large.graph = HnswGraph(lines(), HnswOptions{});
    large.waiting.resize(rows.size());
    for (std::size_t row = 0; row < rows.size(); ++row) {
      large.waiting[row] = rows.id(row);
    }
  }

  void advance(const Scope& scope, Large& large) {
    for (std::size_t moved = 0; moved < kMoves && !large.waiting.empty();) {
      const std::uint64_t id = large.waiting.back();
      large.waiting.pop_back();
      const Scope* const now = scan_.scope_of(id);
      if (now != nullptr && *now == scope && !large.graph.contains(id)) {
        if (!large.graph.put(id, scan_.values(id))) {
          start(scope, large);
        }
        ++moved;
      }
    }
  }

  // Takes the id out of the graph that has it. A graph of which more than half is removed is
  // started anew; a scope that is small again goes without.
  void forget(std::uint64_t id) {
    const Scope* const scope = scan_.scope_of(id);
    const auto large = scope == nullptr ? large_.end() : large_.find(*scope);
    if (large == large_.end()) {
      return;
    }
    large->second.graph.remove(id);
    const std::size_t left = scan_.rows(*scope)->size() - 1;
    if (left <= scan_up_to_ / 2) {
      large_.erase(large);
    } else if (large->second.graph.removed() > left) {
      start(*scope, large->second);
    }
  }

  ScanIndex scan_;
  std::size_t scan_up_to_;
  ScopeMap<Large> large_;
};

}  // namespace

std::unique_ptr<SimilarityIndex> make_similarity_index(std::size_t dimension,
                                                       std::size_t scan_up_to) {
  return std::make_unique<GrowingIndex>(dimension, scan_up_to);
}

}  // namespace toki
