// Segments become a state file again. One that is damaged goes to quarantine with all that hangs on it,
// and what is left serves.
#include <algorithm>
#include <sys/stat.h>
#include <utility>

#include "store/kv_store_impl.hpp"
#include "store/slot_folder.hpp"
#include "store/state_file.hpp"

namespace toki {
namespace {

constexpr std::size_t kMostOpenFiles = 128;
constexpr std::uint64_t kCellBytes =
    32;  // at most, that a state file says of a token beside its rows
constexpr std::size_t kSnapshotPiece = std::size_t{1} << 20;

}  // namespace

Result<std::uint64_t> KvStore::compose(const Scope& scope, TokenSpan prompt, std::uint64_t limit,
                                       std::uint32_t slot, std::string_view name) {
  const Impl::Turn turn(*impl_);
  auto tokens = impl_->compose(scope, prompt, limit, slot, name);
  const WriteGuard lock(impl_->memory);
  if (tokens) {
    ++impl_->counters.composed_total;
  } else if (tokens.error().code != Errc::not_found) {
    ++impl_->counters.failed_total;
  }
  return tokens;
}

Result<std::uint64_t> KvStore::Impl::compose(const Scope& scope, TokenSpan prompt,
                                             std::uint64_t limit, std::uint32_t slot,
                                             std::string_view name) {
  prompt = prompt.first(std::min<std::uint64_t>(limit, prompt.size()));
  for (bool gave_way = false;;) {
    const SegmentTrie* trie = tree.current(scope.bytes());
    SegmentPath path = trie != nullptr ? trie->path(prompt) : SegmentPath{};
    Segment* snapshot = tree.snapshot(scope.bytes(), prompt);
    const bool whole = snapshot != nullptr && snapshot->end() > path.tokens;
    if (whole) {
      path = {.segments = {snapshot}, .tokens = snapshot->end()};
    }
    if (path.tokens == 0) {
      return Error{Errc::not_found, "no prefix of the prompt is stored"};
    }
    Segment* damaged = nullptr;
    const Status done = whole ? compose_whole(*snapshot, name, damaged)
                              : compose_rows(path, prompt.first(path.tokens), slot, name, damaged);
    if (done) {
      use(path.segments);
      return path.tokens;
    }
    if (done.error().code == Errc::no_space && !std::exchange(gave_way, true) && one_disk()) {
      std::uint64_t bytes = path.tokens * kCellBytes;
      for (const Segment* segment : path.segments) {
        bytes += segment->file_bytes;
      }
      if (give_way(bytes, {path.segments.begin(), path.segments.end()})) {
        continue;
      }
    }
    if (damaged == nullptr) {
      const bool caller = done.error().code == Errc::invalid_argument;
      return Error{caller ? Errc::invalid_argument : Errc::unavailable, done.error().detail};
    }
    quarantine(*damaged, done.error().detail);
    catalogue.flush(tree);
  }
}

Status KvStore::Impl::compose_rows(const SegmentPath& path, TokenSpan prompt, std::uint32_t slot,
                                   std::string_view name, Segment*& damaged) {
  std::vector<SegmentReader> readers;
  readers.reserve(path.segments.size());
  for (Segment* segment : path.segments) {
    auto reader = SegmentReader::open(files, folder.path_of(segment->id), segment->header_bytes,
                                      segment->checksum, path.segments.size() <= kMostOpenFiles);
    if (!reader) {
      damaged = is_damaged(reader.error()) ? segment : nullptr;
      return reader.error();
    }
    readers.push_back(std::move(*reader));
  }
  const auto layout = StateLayout::from_bytes(path.segments.front()->trie->layout());
  auto output = SlotOutput::make(files, options.slot_dir, name);
  if (!layout || !output) {
    return !layout ? layout.error() : output.error();
  }
  // Where each segment's rows end in this prompt: where the next one begins.
  const auto end_of = [&](std::size_t i) {
    return i + 1 < path.segments.size() ? path.segments[i + 1]->from : path.tokens;
  };
  TileAside aside;
  std::size_t at = 0;
  const auto rows = [&](std::size_t part, std::size_t from, std::span<std::byte> out) -> Status {
    const std::uint64_t row_bytes = layout->parts[part].row_bytes;
    at = from < path.segments[at]->from ? 0 : at;  // a part begins
    while (!out.empty()) {
      for (; from >= end_of(at); ++at) {
      }
      const std::uint64_t count = std::min(out.size() / row_bytes, end_of(at) - from);
      const Status read = readers[at].read(part, from - path.segments[at]->from,
                                           out.first(count * row_bytes), aside);
      if (!read) {
        damaged = is_damaged(read.error()) ? path.segments[at] : nullptr;
        return read;
      }
      out = out.subspan(count * row_bytes);
      from += count;
    }
    return Done{};
  };
  const auto sink = [&](std::span<const std::byte> piece) { return output->write(piece); };
  const Status written = write_state_file(*layout, prompt, slot, rows, sink);
  return written ? output->finish() : written;
}

Status KvStore::Impl::compose_whole(Segment& snapshot, std::string_view name, Segment*& damaged) {
  auto reader = SegmentReader::open(files, folder.path_of(snapshot.id), snapshot.header_bytes,
                                    snapshot.checksum, true);
  if (!reader) {
    damaged = is_damaged(reader.error()) ? &snapshot : nullptr;
    return reader.error();
  }
  auto output = SlotOutput::make(files, options.slot_dir, name);
  if (!output) {
    return output.error();
  }
  std::vector<std::byte> piece(kSnapshotPiece);
  TileAside aside;
  for (std::uint64_t at = 0; at < reader->plan().rows; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), reader->plan().rows - at));
    if (auto read = reader->read(0, at, piece, aside); !read) {
      damaged = is_damaged(read.error()) ? &snapshot : nullptr;
      return read;
    }
    if (auto written = output->write(piece); !written) {
      return written;
    }
  }
  return output->finish();
}

// Whether room made in the store's folder is room in the backend's.
bool KvStore::Impl::one_disk() const {
  struct stat own {
  }, other{};
  return ::stat(folder.path().c_str(), &own) == 0 &&
         ::stat(options.slot_dir.c_str(), &other) == 0 && own.st_dev == other.st_dev;
}

}  // namespace toki
