#include "core/hnsw_graph.hpp"

#include <toki/result.hpp>

#include <algorithm>
#include <unordered_map>

#include "core/scope_map.hpp"

// Under another name its templates, whose layout differs between versions, cannot meet those of a
// program that links toki and uses hnswlib itself. Without its own SIMD it also defines no function
// that is not inline, and prefetches nothing from beyond its memory (which gains some 5 %).
#define NO_MANUAL_VECTORIZATION
#define hnswlib toki_hnswlib
#include <hnswlib/hnswlib.h>
#undef hnswlib

namespace toki {

namespace hnsw = toki_hnswlib;

namespace {

// hnswlib would choose its SIMD when it is compiled; the scan's kernels are chosen by what the CPU
// has.
class CosineSpace final : public hnsw::SpaceInterface<float> {
 public:
  explicit CosineSpace(std::size_t lines)
      : lines_(lines), dots_(usable_scan_kernels().front().dots_float32) {}

  std::size_t get_data_size() override { return lines_ * kLineBytes; }
  hnsw::DISTFUNC<float> get_dist_func() override { return distance; }
  void* get_dist_func_param() override { return this; }

  std::size_t lines() const noexcept { return lines_; }
  float cosine(const float* a, const float* b) const noexcept {
    float dot = 0;
    dots_(a, lines_, 1, b, &dot);
    return dot;
  }

 private:
  static float distance(const void* a, const void* b, const void* self) {
    return 1.0F - static_cast<const CosineSpace*>(self)->cosine(static_cast<const float*>(a),
                                                                static_cast<const float*>(b));
  }

  std::size_t lines_;
  decltype(ScanKernels::dots_float32) dots_;
};

constexpr std::size_t kFirstRoom = 1024;

}  // namespace

struct HnswGraph::Impl {
  using Graph = hnsw::HierarchicalNSW<float>;

  Impl(std::size_t lines, const HnswOptions& o) : space(lines), options(o) {}

  const float* vector(std::size_t label) const {
    return reinterpret_cast<const float*>(
        graph->getDataByInternalId(static_cast<hnsw::tableint>(label)));
  }
  bool add(std::uint64_t id, const float* vector);
  void add_to_graph(const float* vector, std::size_t label);
  void make_room();
  void abandon() noexcept;

  CosineSpace space;
  HnswOptions options;
  std::unique_ptr<Graph> graph;
  // A label is also the place in the graph. They count up, also when an id is replaced: hnswlib 0.6
  // cannot take an element out, and giving it another vector leaves its old neighbours badly
  // linked.
  std::vector<std::uint64_t> ids;                         // by label
  std::unordered_map<std::uint64_t, std::size_t> labels;  // by id
};

void HnswGraph::Impl::make_room() {
  if (!graph) {
    graph = std::make_unique<Graph>(&space, kFirstRoom, options.links, options.build_effort);
    graph->setEf(options.search_effort);
  } else if (ids.size() == graph->max_elements_) {
    graph->resizeIndex(graph->max_elements_ * 2);
  }
}

// When all that is reached from the entry point is marked deleted, hnswlib 0.6 takes the last of no
// neighbours. It links to the entry point as well when that one is marked, so it is for that time.
void HnswGraph::Impl::add_to_graph(const float* vector, std::size_t label) {
  const hnsw::tableint entry = graph->enterpoint_node_;
  const bool mark = graph->num_deleted_ > 0 && !graph->isMarkedDeleted(entry);
  if (mark) {
    graph->markDeletedInternal(entry);
  }
  graph->addPoint(vector, label);
  if (mark) {
    graph->unmarkDeletedInternal(entry);
  }
}

bool HnswGraph::Impl::add(std::uint64_t id, const float* vector) {
  try {
    make_room();
    add_to_graph(vector, ids.size());
    labels[id] = ids.size();
    ids.push_back(id);
    return true;
  } catch (...) {
    abandon();
    return false;
  }
}

// hnswlib promises nothing about what a failed call leaves behind, so not even its destructor is
// called: this memory is lost.
void HnswGraph::Impl::abandon() noexcept {
  static_cast<void>(graph.release());
  ids.clear();
  labels.clear();
}

HnswGraph::HnswGraph(std::size_t lines, const HnswOptions& options)
    : impl_(std::make_unique<Impl>(lines, options)) {}
HnswGraph::HnswGraph(HnswGraph&&) noexcept = default;
HnswGraph& HnswGraph::operator=(HnswGraph&&) noexcept = default;
HnswGraph::~HnswGraph() = default;

std::size_t HnswGraph::size() const noexcept {
  return impl_->labels.size();
}

std::size_t HnswGraph::removed() const noexcept {
  return impl_->ids.size() - impl_->labels.size();
}

bool HnswGraph::contains(std::uint64_t id) const {
  return impl_->labels.count(id) != 0;
}

std::size_t HnswGraph::bytes() const noexcept {
  const std::size_t own = impl_->ids.capacity() * sizeof(std::uint64_t) + map_bytes(impl_->labels);
  if (!impl_->graph) {
    return own;
  }
  const Impl::Graph& graph = *impl_->graph;
  const std::size_t each = graph.size_data_per_element_ + sizeof(char*) + sizeof(std::mutex) +
                           sizeof(int) + sizeof(hnsw::vl_type);
  std::size_t levels = 0;  // above the lowest
  for (std::size_t i = 0; i < graph.cur_element_count; ++i) {
    levels += static_cast<std::size_t>(graph.element_levels_[i]);
  }
  return own + graph.max_elements_ * each + levels * graph.size_links_per_element_ +
         Impl::Graph::max_update_element_locks * sizeof(std::mutex) +
         map_bytes(graph.label_lookup_);
}

bool HnswGraph::put(std::uint64_t id, const float* vector) {
  remove(id);
  return impl_->add(id, vector);
}

bool HnswGraph::remove(std::uint64_t id) {
  const auto known = impl_->labels.find(id);
  if (known == impl_->labels.end()) {
    return false;
  }
  // Throws only for a label that is not there or marked already.
  impl_->graph->markDeletedInternal(static_cast<hnsw::tableint>(known->second));
  impl_->labels.erase(known);
  return true;
}

bool HnswGraph::rebuild() {
  auto fresh = std::make_unique<Impl>(impl_->space.lines(), impl_->options);
  bool all = true;
  for (std::size_t label = 0; label < impl_->ids.size() && all; ++label) {
    if (!impl_->graph->isMarkedDeleted(static_cast<hnsw::tableint>(label))) {
      all = fresh->add(impl_->ids[label], impl_->vector(label));
    }
  }
  impl_ = std::move(fresh);
  return all;
}

std::vector<Neighbour> HnswGraph::search(const PaddedVector& query, std::size_t count) const {
  std::vector<Neighbour> nearest;
  count = std::min(count, size());
  if (count == 0) {
    return nearest;
  }
  try {
    auto found = impl_->graph->searchKnn(query.data(), count);
    for (; !found.empty(); found.pop()) {
      const std::size_t label = found.top().second;
      nearest.push_back(
          {impl_->ids[label], impl_->space.cosine(query.data(), impl_->vector(label))});
    }
  } catch (...) {
    nearest.clear();
  }
  std::sort(nearest.begin(), nearest.end(), [](const Neighbour& a, const Neighbour& b) {
    return a.cosine != b.cosine ? a.cosine > b.cosine : a.id < b.id;
  });
  return nearest;
}

}  // namespace toki
