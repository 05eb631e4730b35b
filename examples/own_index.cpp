// An engine with a similarity index of the program's own: any nearest-neighbour library fits behind
// this interface. Here it is the simplest there is, a scan.
#include <toki/engine.hpp>
#include <toki/similarity_index.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>

// [index]
class OwnIndex final : public toki::SimilarityIndex {
 public:
  explicit OwnIndex(std::size_t dimension) : dimension_(dimension) {}

  void put(std::uint64_t id, const toki::Scope& scope, std::span<const float> vector) override {
    Entry entry{scope, {vector.begin(), vector.end()}};
    toki::normalise(entry.vector);
    entries_.insert_or_assign(id, std::move(entry));
  }
  bool remove(std::uint64_t id) override { return entries_.erase(id) != 0; }
  void clear() override { entries_.clear(); }

  std::vector<toki::Neighbour> search(const toki::Scope& scope, std::span<const float> query,
                                      std::size_t count) const override {
    std::vector<float> wanted(query.begin(), query.end());
    toki::normalise(wanted);
    std::vector<toki::Neighbour> found;
    for (const auto& [id, entry] : entries_) {
      if (!(entry.scope == scope)) continue;  // never compared
      const float cosine =
          std::inner_product(wanted.begin(), wanted.end(), entry.vector.begin(), 0.0F);
      found.push_back({id, cosine});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.cosine > b.cosine; });
    found.resize(std::min(count, found.size()));
    std::printf("%zu of %zu vectors nominated\n", found.size(), size());
    return found;
  }

  std::size_t dimension() const noexcept override { return dimension_; }
  std::size_t size() const noexcept override { return entries_.size(); }
  std::size_t bytes() const noexcept override { return size() * dimension_ * sizeof(float); }

 private:
  struct Entry {
    toki::Scope scope;
    std::vector<float> vector;
  };
  std::size_t dimension_;
  std::map<std::uint64_t, Entry> entries_;  // by id, so that ties are in its order
};
// [/index]

int main() {
  // A tree with room for one prompt: what it forgets is only found by similarity.
  // [engine]
  const toki::EngineOptions options{
      .tree = {.max_blocks = 8},
      .make_index = [](std::size_t dimension) { return std::make_unique<OwnIndex>(dimension); }};
  toki::Engine engine(options, &std::chrono::steady_clock::now);
  // [/engine]
  const toki::Scope scope({"my model"});
  std::vector<toki::PromptRecord> known;  // as from an earlier run: see IndexStore
  for (const toki::Token first : {1000, 2000, 3000}) {
    toki::Tokens tokens(300);
    std::iota(tokens.begin(), tokens.end(), first);
    known.push_back({.id = known.size() + 1, .scope = scope, .tokens = std::move(tokens)});
  }
  engine.adopt(known);
  engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = false});

  toki::Tokens prompt = known.back().tokens;
  prompt.resize(280);
  prompt.push_back(-1);  // parts here
  const toki::Embedding embedding = toki::hash_embedding(prompt);
  const toki::Lookup found =
      engine.lookup({.scope = scope, .tokens = prompt, .embedding = &embedding});
  std::printf("%llu of %zu tokens are known: %s\n",
              static_cast<unsigned long long>(found.available), prompt.size(),
              std::string(to_string(found.source)).c_str());
}
