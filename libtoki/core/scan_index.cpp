#include "core/scan_index.hpp"

#include <toki/embedding.hpp>
#include <toki/result.hpp>

namespace toki {

ScanIndex::ScanIndex(std::size_t dimension, Precision precision)
    : dimension_(dimension), precision_(precision) {
  TOKI_CHECK(dimension > 0 && dimension <= kMaxDimension);
}

void ScanIndex::put(std::uint64_t id, const Scope& scope, std::span<const float> vector) {
  TOKI_CHECK(vector.size() == dimension_);
  const PaddedVector padded(vector);
  const auto known = places_.find(id);
  if (known != places_.end()) {
    if (known->second.scope->first == scope) {
      known->second.scope->second.replace(known->second.row, padded);
      return;
    }
    remove(id);
  }
  auto& entry = *scopes_.try_emplace(scope, dimension_, precision_).first;
  places_[id] = {&entry, entry.second.size()};
  entry.second.push(id, padded);
}

bool ScanIndex::remove(std::uint64_t id) {
  const auto known = places_.find(id);
  if (known == places_.end()) {
    return false;
  }
  const auto [scope, row] = known->second;
  RowStore& rows = scope->second;
  places_[rows.id(rows.size() - 1)].row = row;
  places_.erase(id);
  rows.remove(row);
  if (rows.size() == 0) {
    scopes_.erase(scopes_.find(scope->first));
  }
  return true;
}

void ScanIndex::clear() {
  scopes_.clear();
  places_.clear();
}

std::vector<Neighbour> ScanIndex::search(const Scope& scope, std::span<const float> query,
                                         std::size_t count) const {
  TOKI_CHECK(query.size() == dimension_);
  const RowStore* const known = rows(scope);
  return known == nullptr ? std::vector<Neighbour>{} : known->search(PaddedVector(query), count);
}

std::size_t ScanIndex::bytes() const noexcept {
  std::size_t sum = map_bytes(places_) + map_bytes(scopes_);
  for (const auto& [scope, rows] : scopes_) {
    sum += scope.bytes().size() + rows.bytes();
  }
  return sum;
}

const Scope* ScanIndex::scope_of(std::uint64_t id) const {
  const auto known = places_.find(id);
  return known == places_.end() ? nullptr : &known->second.scope->first;
}

const float* ScanIndex::values(std::uint64_t id) const {
  const Place& place = places_.at(id);
  return place.scope->second.values(place.row);
}

const RowStore* ScanIndex::rows(const Scope& scope) const {
  const auto found = scopes_.find(scope);
  return found == scopes_.end() ? nullptr : &found->second;
}

std::unique_ptr<SimilarityIndex> make_scan_index(std::size_t dimension, Precision precision) {
  return std::make_unique<ScanIndex>(dimension, precision);
}

}  // namespace toki
