// What the KV store holds, for the files that say what is done with it: kv_store.cpp (its start, room,
// and what is told of it), kv_take.cpp, kv_compose.cpp and kv_forget.cpp.
#pragma once

#include <toki/kv_store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/readers_lock.hpp"
#include "store/catalogue_keeper.hpp"
#include "store/kv_store_setup.hpp"
#include "store/segment_file.hpp"
#include "store/segment_folder.hpp"
#include "store/segment_tree.hpp"

namespace toki {

// Bytes that are not those that were written, as opposed to a disk that cannot be read just now.
inline bool is_damaged(const Error& error) {
  return error.code == Errc::corrupt || error.code == Errc::not_found;
}

struct TOKI_HIDDEN KvStore::Impl {
  Impl(KvStoreOptions given, LogSink sink, const KvStoreSetup& setup, SegmentFolder opened)
      : options(std::move(given)),
        log(std::move(sink)),
        owned_files(setup.files),
        files(*setup.files),
        now_ms(setup.now_ms),
        folder(std::move(opened)),
        catalogue(files, folder, setup.vfs, [this](std::string line) { say(std::move(line)); }) {}

  // One caller at a time does file work. Log lines wait until nothing is locked.
  class Turn {
   public:
    explicit Turn(Impl& impl) : impl_(impl), lock_(impl.turn) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      const auto waiting = std::exchange(impl_.lines, {});
      lock_.unlock();
      for (const std::string& line : waiting) {
        if (impl_.log) {
          impl_.log(LogLevel::warn, line);
        }
      }
    }

   private:
    Impl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  void say(std::string line) { lines.push_back(std::move(line)); }

  void load();
  struct Whole {
    SegmentHeader header;
    SegmentPlan plan;
    std::uint64_t checksum;
  };
  Result<Whole> find_whole(std::uint64_t id, std::string known);
  void link(Whole whole);

  Result<Taken> take(const Scope& scope, TokenSpan expected, std::string_view name, bool whole,
                     bool only, double prefill_ms);
  struct State;  // a state file taken in, as far as it is understood
  static Result<State> read_state(std::span<const std::byte> file, TokenSpan expected, bool whole,
                                  bool only);
  Result<Taken> take_rows(const Scope& scope, const State& state, double prefill_ms);
  Result<Taken> take_whole(const Scope& scope, const State& state, std::span<const std::byte> file,
                           double prefill_ms);
  Status write(SegmentHeader& header, const SegmentPath& path, Segment* replaced,
               const SegmentSource& source, Taken& taken);
  Status make_room(std::uint64_t bytes, const std::set<const Segment*>& keep);
  bool give_way(std::uint64_t bytes, const std::set<const Segment*>& keep);
  void use(const std::vector<Segment*>& segments);
  Status remove(Segment& leaf);

  Result<std::uint64_t> compose(const Scope& scope, TokenSpan prompt, std::uint64_t limit,
                                std::uint32_t slot, std::string_view name);
  Status compose_rows(const SegmentPath& path, TokenSpan prompt, std::uint32_t slot,
                      std::string_view name, Segment*& damaged);
  bool one_disk() const;
  Status compose_whole(Segment& snapshot, std::string_view name, Segment*& damaged);
  void quarantine(Segment& segment, const std::string& reason);

  Result<std::uint64_t> forget(std::optional<std::uint64_t> id);
  Result<std::uint64_t> forget_all();
  Result<std::uint64_t> forget_prompt(const std::string& scope, TokenSpan prompt,
                                      std::uint64_t shared);
  Status remove_below(Segment& segment, std::uint64_t& count);
  Status cut(Segment& segment, std::uint64_t end, std::uint64_t& count);
  struct Rewritten {
    Segment* old;
    SegmentHeader header;
    SegmentPlan plan;
    std::uint64_t checksum;
  };
  Result<Rewritten> rewrite(Segment& old, const SegmentHeader& parent,
                            std::uint64_t parent_checksum, std::uint64_t tokens);
  void replace(std::vector<Rewritten>& written);
  void drop(const std::vector<Rewritten>& written);

  const KvStoreOptions options;
  const LogSink log;
  const std::shared_ptr<Files> owned_files;
  Files& files;
  const std::function<std::int64_t()> now_ms;

  std::mutex turn;  // guards all that memory does not; taken first
  std::vector<std::string> lines;
  SegmentFolder folder;
  std::unique_ptr<File> slot_lock;  // null: not ours to lock
  CatalogueKeeper catalogue;
  std::uint64_t next_id = 1;
  std::uint64_t orphans = 0;  // files found at the start that hang on nothing

  mutable ReadersLock memory;  // tree and counters; changed only by who has the turn, too
  SegmentTree tree;
  KvStoreStats counters;
};

}  // namespace toki
