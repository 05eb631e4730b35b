// ScanIndex: SimilarityIndex by looking at every vector of the scope.
#pragma once

#include <toki/similarity_index.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/row_store.hpp"
#include "core/scope_map.hpp"

namespace toki {

class ScanIndex final : public SimilarityIndex {
 public:
  ScanIndex(std::size_t dimension, Precision precision);

  void put(std::uint64_t id, const Scope& scope, std::span<const float> vector) override;
  bool remove(std::uint64_t id) override;
  void clear() override;
  std::vector<Neighbour> search(const Scope& scope, std::span<const float> query,
                                std::size_t count) const override;
  std::size_t dimension() const noexcept override { return dimension_; }
  std::size_t size() const noexcept override { return places_.size(); }
  std::size_t bytes() const noexcept override;

  /// The scope of that id, null when the id is not known.
  const Scope* scope_of(std::uint64_t id) const;
  /// The vector of that id, padded. REQUIRES: it is known.
  const float* values(std::uint64_t id) const;
  /// The vectors of a scope, null when there is none.
  const RowStore* rows(const Scope& scope) const;

 private:
  struct Place {
    ScopeMap<RowStore>::value_type* scope = nullptr;  // maps never move their entries
    std::size_t row = 0;
  };

  std::size_t dimension_;
  Precision precision_;
  ScopeMap<RowStore> scopes_;
  std::unordered_map<std::uint64_t, Place> places_;
};

}  // namespace toki
