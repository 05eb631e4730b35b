#include <toki/index_store.hpp>

namespace toki {
struct IndexStore::Impl {};
IndexStore::IndexStore(IndexStoreOptions, LogSink, std::function<void(std::vector<PromptRecord>)>) {
}
IndexStore::~IndexStore() = default;
bool IndexStore::put(PromptRecord) {
  return false;
}
bool IndexStore::use(std::uint64_t, double, std::int64_t) {
  return false;
}
bool IndexStore::remove(std::uint64_t) {
  return false;
}
bool IndexStore::flush(std::chrono::milliseconds) {
  return false;
}
IndexStoreStats IndexStore::stats() const {
  return {};
}
}  // namespace toki
