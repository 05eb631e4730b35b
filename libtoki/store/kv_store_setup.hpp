// What tests put in the place of the system when they open a KvStore.
#pragma once

#include <toki/kv_store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "store/files.hpp"

namespace toki {

struct KvStoreSetup {
  std::shared_ptr<Files> files;          ///< null: the system's
  std::string vfs;                       ///< of SQLite; empty: its own
  std::function<std::int64_t()> now_ms;  ///< empty: the system's clock

  Result<std::unique_ptr<KvStore>> open(const KvStoreOptions& options, LogSink log) const;
};

}  // namespace toki
