// SimilarityIndex: which known prompts are nearest by cosine. It only nominates; whoever asks
// compares token ids afterwards.
//
// Threads:   concurrent const calls are safe while nobody writes.
// Ownership: copies the vectors it is given.
// Errors:    none; a vector of another dimension is a broken precondition, and so is a dimension of
//            0 or above 65,536. A graph for which there is no memory forgets its scope.
// Cost:      scan: one pass over the vectors of the scope, at the memory's speed (int8: a quarter
//            of the bytes, then float32 for the best); a put is some microseconds. HNSW: some
//            hundred to thousand vectors a search, now and then a neighbour missed, more memory
//            (some 5 MB a scope at its first vector), a put some hundred times as long as a
//            scan's. docs/benchmarks.md.
#pragma once

#include <toki/export.hpp>
#include <toki/scope.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace toki {

/// A vector that search() found.
struct Neighbour {
  std::uint64_t id = 0;  ///< as put() was given it
  float cosine = 0;      ///< with the query, -1 to 1
};

/// Finds vectors that point the same way, within one scope. One thread at a time; const calls of
/// several at once. Derive from it to plug in another index.
class TOKI_EXPORT SimilarityIndex {
 public:
  virtual ~SimilarityIndex();

  /// Adds a vector, or replaces the one of that id, whatever scope it was in. It is normalised on
  /// the way in; one of zeros, or with a value that is no finite number, has the cosine 0 with all.
  /// Vectors of different scopes are never compared.
  virtual void put(std::uint64_t id, const Scope& scope, std::span<const float> vector) = 0;
  /// False: there is none of that id.
  virtual bool remove(std::uint64_t id) = 0;
  /// Forgets all vectors of all scopes.
  virtual void clear() = 0;

  /// The `count` nearest of the scope, best first; ties by id. `query` need not be normalised.
  virtual std::vector<Neighbour> search(const Scope& scope, std::span<const float> query,
                                        std::size_t count) const = 0;

  /// Values a vector; put() and search() REQUIRE as many.
  virtual std::size_t dimension() const noexcept = 0;
  /// Vectors that search() can return, of all scopes.
  virtual std::size_t size() const noexcept = 0;
  virtual std::size_t bytes() const noexcept = 0;  ///< memory held for vectors and links
};

/// Makes an empty index for vectors of that dimension.
using IndexMaker = std::function<std::unique_ptr<SimilarityIndex>(std::size_t dimension)>;

/// How a scan reads its vectors.
enum class Precision : std::uint8_t {
  float32,  ///< scanned as they are: slower, and exact to the last bit
  int8,     ///< scanned as int8 (one scale a vector), the best are ranked again in float32
};

/// Exact scan. Uses the widest SIMD instructions that this CPU has (AVX-512, AVX2, NEON, or none).
TOKI_EXPORT std::unique_ptr<SimilarityIndex> make_scan_index(std::size_t dimension,
                                                             Precision precision = Precision::int8);

/// More of each finds more and takes longer (docs/benchmarks.md has figures).
struct HnswOptions {
  std::size_t links = 16;           ///< neighbours a vector keeps in each layer (M); 2 to 1000
  std::size_t build_effort = 200;   ///< candidates weighed when one is added (ef_construction)
  std::size_t search_effort = 128;  ///< candidates weighed in a search (ef), at least the count
};

/// Approximate search in a navigable small-world graph, by hnswlib (Malkov and Yashunin,
/// https://arxiv.org/abs/1603.09320), one graph a scope. A removed or replaced vector stays in the
/// graph, never to be returned; when more than half of it is such, that write builds it anew.
/// REQUIRES: 2 to 1000 links.
TOKI_EXPORT std::unique_ptr<SimilarityIndex> make_hnsw_index(std::size_t dimension,
                                                             const HnswOptions& options = {});

/// Up to so many vectors in a scope a scan is fast enough (docs/decisions/0004-scan-first.md).
inline constexpr std::size_t kScanUpTo = 100'000;

/// An int8 scan, and beside it a graph for each scope that has more than `scan_up_to` vectors. The
/// graph grows by two vectors with each put, until it holds all the scan answers; so too when more
/// than half of it is removed and it is built anew. Takes the memory of both.
TOKI_EXPORT std::unique_ptr<SimilarityIndex> make_similarity_index(
    std::size_t dimension, std::size_t scan_up_to = kScanUpTo);

/// A nominated prompt with what the ranking needs.
struct Candidate {
  std::uint64_t id = 0;    ///< of the prompt
  float cosine = 0;        ///< of its embedding and the wanted one's
  std::size_t tokens = 0;  ///< length of its token list
};

/// Keeps the candidates whose cosine is within `band` (0.05: 5 %) of the best one's, the longest
/// token list first; ties by cosine, then id. Nothing below a cosine of 0 is kept.
TOKI_EXPORT void keep_band(std::vector<Candidate>& candidates, float band = 0.05F);

}  // namespace toki
