// CatalogueKeeper: keeps the catalogue of segments as the tree is, whatever happens to its file.
//
// Threads:   one at a time.
// Ownership: owns the catalogue; Files and the folder must outlive it.
// Errors:    none reach the caller. What could not be written is written with the next changes. One
//            that is damaged, foreign or gone is set aside and made again from the segments.
// Cost:      one transaction a flush; the headers of new segments are read back from their files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "store/files.hpp"
#include "store/segment_catalogue.hpp"
#include "store/segment_folder.hpp"
#include "store/segment_tree.hpp"

namespace toki {

class CatalogueKeeper {
 public:
  using Say = std::function<void(std::string)>;

  CatalogueKeeper(Files& files, const SegmentFolder& folder, std::string vfs, Say say);

  /// What it has; nothing when it is new or cannot be read. May end early.
  void load(const std::function<void(std::uint64_t id, std::string header)>& segment,
            const std::function<void(const SegmentCatalogue::Use&)>& use);

  /// The segment was added or removed.
  void changed(std::uint64_t id) { changed_.insert(id); }
  void used(std::uint64_t id) { used_.insert(id); }
  void flush(const SegmentTree& tree);
  /// Also cuts its log, and opens it again after a fault.
  void maintain(const SegmentTree& tree);

 private:
  void open();
  void start_over(const char* reason);
  void failed(const SQLite::Exception& fault);
  void all_changed(const SegmentTree& tree);
  SegmentCatalogue::Changes changes(const SegmentTree& tree) const;

  Files& files_;
  const SegmentFolder& folder_;
  std::string path_, vfs_;
  Say say_;
  std::unique_ptr<SegmentCatalogue> catalogue_;  // null: cannot be used now
  bool complete_ = true;                         // false: to be made again from the tree
  bool said_ = false;
  std::set<std::uint64_t> changed_, used_;
};

}  // namespace toki
