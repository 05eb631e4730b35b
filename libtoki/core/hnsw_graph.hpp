// HnswGraph: the vectors of one scope in one graph of hnswlib, which no other file includes. Its
// exceptions (there is no memory, or a fault of its own) end here: then the graph forgets all. Its
// random numbers have a fixed seed: the same writes give the same graph.
#pragma once

#include <toki/similarity_index.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/row_store.hpp"

namespace toki {

class HnswGraph {
 public:
  HnswGraph(std::size_t lines, const HnswOptions& options);
  HnswGraph(HnswGraph&&) noexcept;
  HnswGraph& operator=(HnswGraph&&) noexcept;
  ~HnswGraph();

  std::size_t size() const noexcept;
  /// How many removed vectors are still in the graph, only never returned.
  std::size_t removed() const noexcept;
  std::size_t bytes() const noexcept;
  bool contains(std::uint64_t id) const;

  /// `vector`: normalised, padded to the lines. Replaces what it has of that id. False when the
  /// graph has forgotten all.
  bool put(std::uint64_t id, const float* vector);
  bool remove(std::uint64_t id);
  /// Builds the graph anew without the removed vectors. False when it has forgotten all.
  bool rebuild();

  /// About the `count` nearest, best first; ties by id.
  std::vector<Neighbour> search(const PaddedVector& query, std::size_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
