#include "store/catalogue_keeper.hpp"

#include <utility>

#include "store/database.hpp"
#include "store/segment_file.hpp"

namespace toki {
namespace {

// SQLite takes no larger values; such a header is read from its file at the start.
constexpr std::size_t kMostHeaderBytes = std::size_t{1} << 29;

}  // namespace

CatalogueKeeper::CatalogueKeeper(Files& files, const SegmentFolder& folder, std::string vfs,
                                 Say say)
    : files_(files),
      folder_(folder),
      path_(folder.path() + "/catalogue.sqlite"),
      vfs_(std::move(vfs)),
      say_(std::move(say)) {
  open();
}

void CatalogueKeeper::open() {
  try {
    catalogue_ = std::make_unique<SegmentCatalogue>(path_, vfs_);
  } catch (const SQLite::Exception& fault) {
    failed(fault);
  }
}

// Opens a new one in the place of one that cannot be used.
void CatalogueKeeper::start_over(const char* reason) {
  catalogue_.reset();
  complete_ = false;
  try {
    const std::string aside = set_aside(path_, SegmentCatalogue::kApplication);
    say_("the KV store's catalogue is set aside as " + aside.substr(aside.rfind('/') + 1) + ": " +
         reason);
    catalogue_ = std::make_unique<SegmentCatalogue>(path_, vfs_);
  } catch (const SQLite::Exception& fault) {
    say_(std::string("the KV store goes on without a catalogue: ") + fault.what());
    said_ = true;
  }
}

void CatalogueKeeper::failed(const SQLite::Exception& fault) {
  if (is_damage(fault)) {
    start_over(fault.what());
  } else if (!std::exchange(said_, true)) {
    say_(std::string("the KV store's catalogue cannot be used for now: ") + fault.what());
  }
}

void CatalogueKeeper::load(const std::function<void(std::uint64_t id, std::string header)>& segment,
                           const std::function<void(const SegmentCatalogue::Use&)>& use) {
  if (catalogue_ == nullptr) {
    return;
  }
  try {
    catalogue_->read(segment, use);
  } catch (const SQLite::Exception& fault) {
    failed(fault);
  }
}

SegmentCatalogue::Changes CatalogueKeeper::changes(const SegmentTree& tree) const {
  SegmentCatalogue::Changes changes;
  std::set<std::uint64_t> used = used_;
  for (const std::uint64_t id : changed_) {
    changes.removed.push_back(id);
    if (tree.by_id(id) == nullptr) {
      continue;
    }
    used.insert(id);
    auto header = read_header_bytes(files_, folder_.path_of(id));
    if (header && header->size() <= kMostHeaderBytes) {
      changes.put.push_back({id, std::move(*header)});
    }
  }
  for (const std::uint64_t id : used) {
    if (const Segment* segment = tree.by_id(id); segment != nullptr) {
      changes.used.push_back({id, segment->use, segment->last_used_ms});
    }
  }
  return changes;
}

void CatalogueKeeper::all_changed(const SegmentTree& tree) {
  tree.each([&](const Segment& segment) { changed_.insert(segment.id); });
  complete_ = true;
}

void CatalogueKeeper::flush(const SegmentTree& tree) {
  // The second time for one that turned out to be damaged and was begun anew.
  for (int attempt = 0; attempt < 2 && catalogue_ != nullptr; ++attempt) {
    if (!complete_) {
      all_changed(tree);
    }
    if (changed_.empty() && used_.empty()) {
      return;
    }
    try {
      catalogue_->write(changes(tree));
      changed_.clear();
      used_.clear();
      said_ = false;
      return;
    } catch (const SQLite::Exception& fault) {
      failed(fault);
    }
    if (complete_) {
      return;  // not damaged: later
    }
  }
}

void CatalogueKeeper::maintain(const SegmentTree& tree) {
  if (catalogue_ == nullptr) {
    complete_ = false;
    open();
  }
  flush(tree);
  if (catalogue_ == nullptr) {
    return;
  }
  try {
    if (!catalogue_->maintain()) {
      catalogue_.reset();  // the file was moved or removed, by hand
      complete_ = false;
      open();
      flush(tree);
      (void)(catalogue_ != nullptr && catalogue_->maintain());
    }
  } catch (const SQLite::Exception& fault) {
    failed(fault);
  }
}

}  // namespace toki
