#include <toki/kv_store.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <sys/stat.h>
#include <utility>

#include "core/readers_lock.hpp"
#include "store/catalogue_keeper.hpp"
#include "store/kv_store_setup.hpp"
#include "store/segment_file.hpp"
#include "store/segment_folder.hpp"
#include "store/segment_tree.hpp"
#include "store/slot_folder.hpp"
#include "store/state_file.hpp"

namespace toki {
namespace {

// A leaf shorter than this is written anew together with what follows it, so that a prompt that
// grows by a few tokens at a time does not become a chain of tiny files.
constexpr std::size_t kShortRun = kTileTokens;
constexpr std::size_t kMostOpenFiles = 128;
constexpr std::chrono::seconds kLeftoverAge{60};
constexpr std::uint64_t kCellBytes =
    32;  // at most, that a state file says of a token beside its rows
constexpr std::size_t kSnapshotPiece = std::size_t{1} << 20;

std::int64_t system_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A state file taken in, as far as it is understood.
struct State {
  std::optional<StateFile> rows;  // none: kept whole
  Tokens tokens;
};

Result<State> read_state(std::span<const std::byte> file, TokenSpan expected, bool whole,
                         bool only) {
  State state;
  auto record = StateFile::read_tokens(file);
  auto parsed = whole ? Result<StateFile>(Error{Errc::unsupported, ""}) : StateFile::parse(file);
  if (parsed) {
    state.rows.emplace(std::move(*parsed));
  } else if (parsed.error().code != Errc::unsupported) {
    return parsed.error();
  }
  if (!record && record.error().code != Errc::unsupported) {
    return record.error();
  }
  state.tokens = record ? std::move(*record) : Tokens(expected.begin(), expected.end());
  if (state.tokens.empty() || common_prefix(state.tokens, expected) != expected.size()) {
    return Error{Errc::corrupt, "a state file holds other tokens than its slot should"};
  }
  if (only) {
    if (!state.rows) {
      return Error{Errc::unsupported, "a state file cannot be cut"};
    }
    state.tokens.resize(expected.size());
  }
  return state;
}

}  // namespace

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

// ---- start

Result<std::unique_ptr<KvStore>> KvStore::open(const KvStoreOptions& options, LogSink log) {
  return KvStoreSetup{}.open(options, std::move(log));
}

Result<std::unique_ptr<KvStore>> KvStoreSetup::open(const KvStoreOptions& options,
                                                    LogSink log) const {
  KvStoreSetup setup = *this;
  setup.files = files != nullptr ? files : std::make_shared<Files>();
  setup.now_ms = now_ms ? now_ms : system_now_ms;
  std::error_code ignored;
  if (!std::filesystem::is_directory(options.slot_dir, ignored)) {
    return Error{Errc::not_found, "the folder for state files does not exist"};
  }
  auto folder = SegmentFolder::open(*setup.files, options.dir);
  if (!folder) {
    return folder.error();
  }
  std::unique_ptr<File> slots;
  if (options.owns_slot_dir) {
    auto locked = lock_slot_folder(*setup.files, options.slot_dir);
    if (!locked) {
      return locked.error();
    }
    slots = std::move(*locked);
    remove_leftovers(*setup.files, options.slot_dir, std::chrono::seconds(0));
  }
  auto impl = std::make_unique<KvStore::Impl>(options, std::move(log), setup, std::move(*folder));
  impl->slot_lock = std::move(slots);
  {
    const KvStore::Impl::Turn turn(*impl);
    impl->load();
  }
  return std::unique_ptr<KvStore>(new KvStore(std::move(impl)));
}

KvStore::KvStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

KvStore::~KvStore() {
  const Impl::Turn turn(*impl_);
  impl_->catalogue.flush(impl_->tree);
}

// What the catalogue has for a file, or else the file's own header.
Result<KvStore::Impl::Whole> KvStore::Impl::find_whole(std::uint64_t id, std::string known) {
  const auto decode = [&](const std::string& bytes) -> Result<Whole> {
    const auto encoded = std::as_bytes(std::span(bytes));
    auto header = decode_header(encoded);
    if (!header) {
      return header.error();
    }
    auto plan = plan_segment(*header);
    TOKI_CHECK(plan.has_value());  // decode_header() made it too
    if (header->id != id || plan->file_bytes != folder.found().at(id)) {
      return Error{Errc::corrupt, segment_name(id) + " is not what it says"};
    }
    return Whole{std::move(*header), std::move(*plan), header_checksum(encoded)};
  };
  if (auto whole = decode(known)) {
    return whole;
  }
  catalogue.changed(id);
  const auto own = read_header_bytes(files, folder.path_of(id));
  return own ? decode(*own) : own.error();
}

void KvStore::Impl::load() {
  std::map<std::uint64_t, std::string> known;
  std::vector<SegmentCatalogue::Use> uses;
  catalogue.load(
      [&](std::uint64_t id, std::string header) {
        next_id = std::max(next_id, id + 1);  // no id twice: a row may be older than its file
        if (folder.found().contains(id)) {
          known.emplace(id, std::move(header));
        } else {
          catalogue.changed(id);
        }
      },
      [&](const SegmentCatalogue::Use& use) { uses.push_back(use); });
  // Parents have lower ids than what hangs on them.
  for (const auto& [id, bytes] : folder.found()) {
    next_id = std::max(next_id, id + 1);
    const auto row = known.find(id);
    auto whole = find_whole(id, row != known.end() ? std::move(row->second) : std::string());
    if (whole) {
      link(std::move(*whole));
      continue;
    }
    if (counters.quarantined_total++ == 0) {
      say(segment_name(id) + " and maybe others cannot be used: " + whole.error().detail);
    }
    folder.quarantine(id, bytes, now_ms());
  }
  std::sort(uses.begin(), uses.end(),
            [](const auto& a, const auto& b) { return a.last_used_ms < b.last_used_ms; });
  for (const SegmentCatalogue::Use& use : uses) {
    Segment* segment = tree.by_id(use.id);
    if (segment == nullptr) {
      catalogue.changed(use.id);
      continue;
    }
    segment->use = std::isfinite(use.use) && use.use > 0 ? use.use : 0;
    segment->last_used_ms = use.last_used_ms;
    if (!segment->snapshot()) {
      tree.make_current(segment->scope, segment->trie->layout());
    }
  }
  if (auto room = make_room(0, {}); !room) {
    say(room.error().detail);
  }
  catalogue.flush(tree);
}

void KvStore::Impl::link(Whole whole) {
  // Both are there when the program ended between writing the longer one and removing the other.
  if (Segment* shorter = tree.replaceable(whole.header); shorter != nullptr) {
    (void)remove(*shorter);
  }
  const std::uint64_t id = whole.header.id;
  const std::string scope = whole.header.scope, layout = whole.header.layout;
  Segment* segment = tree.add(std::move(whole.header), whole.checksum, whole.plan.header_bytes,
                              whole.plan.file_bytes);
  if (segment == nullptr) {
    if (orphans++ == 0) {
      say(segment_name(id) + " and maybe others are removed: they hang on nothing that is there");
    }
    (void)folder.remove(id, whole.plan.file_bytes);
    catalogue.changed(id);
    return;
  }
  segment->use = 1;
  tree.make_current(scope, layout);
}

// ---- take

StoredPrefix KvStore::match(const Scope& scope, TokenSpan prompt) const {
  const ReadGuard lock(impl_->memory);
  StoredPrefix found;
  if (const SegmentTrie* trie = impl_->tree.current(scope.bytes()); trie != nullptr) {
    found.tokens = trie->match(prompt);
  }
  const Segment* snapshot = impl_->tree.snapshot(scope.bytes(), prompt);
  if (snapshot != nullptr && snapshot->end() > found.tokens) {
    found = {.tokens = snapshot->end(), .snapshot = true};
  }
  return found;
}

Result<Taken> KvStore::take(const Scope& scope, TokenSpan expected, std::string_view name,
                            bool whole, double prefill_ms, bool only) {
  const Impl::Turn turn(*impl_);
  const double cost = std::isfinite(prefill_ms) && prefill_ms > 0 ? prefill_ms : 0;
  auto taken = impl_->take(scope, expected, name, whole, only, cost);
  const WriteGuard lock(impl_->memory);
  ++(taken ? impl_->counters.taken_total : impl_->counters.failed_total);
  return taken;
}

Result<Taken> KvStore::Impl::take(const Scope& scope, TokenSpan expected, std::string_view name,
                                  bool whole, bool only, double prefill_ms) {
  const auto input = SlotInput::take(files, options.slot_dir, name);
  if (!input) {
    return input.error();
  }
  const auto state = read_state(input->bytes(), expected, whole, only);
  if (!state) {
    return state.error();
  }
  auto taken = state->rows ? take_rows(scope, *state, prefill_ms)
                           : take_whole(scope, *state, input->bytes(), prefill_ms);
  catalogue.flush(tree);
  return taken;
}

Result<Taken> KvStore::Impl::take_rows(const Scope& scope, const State& state, double prefill_ms) {
  const std::string layout = state.rows->layout().bytes();
  const SegmentTrie* trie = tree.find(scope.bytes(), layout);
  const SegmentPath path = trie != nullptr ? trie->path(state.tokens) : SegmentPath{};
  Taken taken{.tokens = state.tokens, .layout = layout};
  if (path.tokens == state.tokens.size()) {
    use(path.segments);
    const WriteGuard lock(memory);
    tree.make_current(scope.bytes(), layout);
    return taken;
  }
  SegmentHeader header;
  header.scope = scope.bytes();
  header.layout = layout;
  header.prefill_ms = prefill_ms;
  header.from = path.tokens;
  Segment* parent = path.segments.empty() ? nullptr : path.segments.back();
  Segment* replaced = nullptr;
  if (parent != nullptr && parent->children.empty() && parent->end() == path.tokens &&
      parent->tokens.size() < kShortRun) {
    replaced = parent;
    header.from = replaced->from;
    parent = replaced->parent;
  }
  header.parent = parent != nullptr ? parent->id : 0;
  header.parent_checksum = parent != nullptr ? parent->checksum : 0;
  header.tokens.assign(state.tokens.begin() + static_cast<std::ptrdiff_t>(header.from),
                       state.tokens.end());
  taken.new_tokens = state.tokens.size() - path.tokens;
  std::vector<std::byte> gathered;
  const auto source = [&](std::size_t part, std::uint64_t from, std::uint64_t to) {
    from += header.from;
    to += header.from;
    const StateLayout::Part& shape = state.rows->layout().parts[part];
    if (shape.element_bytes == 0 && state.rows->in_order()) {
      return state.rows->rows(part, from, to);
    }
    gathered.resize((to - from) * shape.row_bytes);
    state.rows->read_rows(part, from, to, gathered);
    return std::span<const std::byte>(gathered);
  };
  const Status written = write(header, path, replaced, source, taken);
  return written ? Result<Taken>(std::move(taken)) : written.error();
}

Result<Taken> KvStore::Impl::take_whole(const Scope& scope, const State& state,
                                        std::span<const std::byte> file, double prefill_ms) {
  Taken taken{.tokens = state.tokens, .snapshot = true};
  Segment* known = tree.snapshot(scope.bytes(), state.tokens);
  if (known != nullptr && known->end() == state.tokens.size()) {
    use({known});
    return taken;
  }
  SegmentHeader header;
  header.scope = scope.bytes();
  header.prefill_ms = prefill_ms;
  header.snapshot_bytes = file.size();
  header.tokens = state.tokens;
  taken.new_tokens = state.tokens.size();
  const auto source = [&](std::size_t, std::uint64_t from, std::uint64_t to) {
    return file.subspan(from, to - from);
  };
  const Status written = write(header, {}, nullptr, source, taken);
  return written ? Result<Taken>(std::move(taken)) : written.error();
}

// Makes room, writes the segment, and only then lets others see it.
Status KvStore::Impl::write(SegmentHeader& header, const SegmentPath& path, Segment* replaced,
                            const SegmentSource& source, Taken& taken) {
  header.id = next_id++;
  header.created_ms = now_ms();
  const auto plan = plan_segment(header);
  if (!plan) {
    return plan.error();
  }
  const std::set<const Segment*> keep(path.segments.begin(), path.segments.end());
  if (auto room = make_room(plan->file_bytes, keep); !room) {
    return room;
  }
  auto encoded = write_segment(files, folder.path(), header, *plan, source);
  if (!encoded && encoded.error().code == Errc::no_space && give_way(plan->file_bytes, keep)) {
    encoded = write_segment(files, folder.path(), header, *plan, source);
  }
  {
    const WriteGuard lock(memory);
    counters.writable = encoded.has_value();
  }
  if (!encoded) {
    return Error{Errc::unavailable, encoded.error().detail};
  }
  use(path.segments);
  const double before = replaced != nullptr ? replaced->use_at(header.created_ms) : 1;
  const auto replaced_id = replaced != nullptr ? replaced->id : 0;
  const auto replaced_bytes = replaced != nullptr ? replaced->file_bytes : 0;
  taken.new_bytes = plan->file_bytes;
  {
    const WriteGuard lock(memory);
    if (replaced != nullptr) {
      tree.remove(*replaced);
    }
    const std::string scope = header.scope, layout = header.layout;
    const std::uint64_t id = header.id;
    Segment* added =
        tree.add(std::move(header), header_checksum(std::as_bytes(std::span(*encoded))),
                 plan->header_bytes, plan->file_bytes);
    TOKI_CHECK(added != nullptr);
    added->use = before;
    tree.make_current(scope, layout);
    catalogue.changed(id);
  }
  if (replaced_id != 0) {
    catalogue.changed(replaced_id);
    catalogue.flush(tree);  // before the file goes
    (void)folder.remove(replaced_id, replaced_bytes);
  }
  return Done{};
}

// So that `bytes` more are within the limit. Nothing happens when that cannot be.
Status KvStore::Impl::make_room(std::uint64_t bytes, const std::set<const Segment*>& keep) {
  const auto over = [&] {
    const std::uint64_t now = tree.bytes() + folder.other_bytes() + bytes;
    return now > options.max_bytes ? now - options.max_bytes : 0;
  };
  if (over() == 0) {
    return Done{};
  }
  folder.empty_quarantine();
  (void)folder.remove_again();
  const std::vector<Segment*> victims =
      over() == 0 ? std::vector<Segment*>{} : tree.cheapest(over(), keep, now_ms());
  for (Segment* victim : victims) {
    if (!remove(*victim)) {
      break;
    }
    const WriteGuard lock(memory);
    ++counters.evicted_total;
  }
  if (over() != 0) {
    return Error{Errc::unavailable, "the KV store is full: " + std::to_string(bytes) +
                                        " bytes do not fit beside what they hang on"};
  }
  return Done{};
}

// The disk is full, whatever the limit says: the least worth goes. False: there is nothing to go.
bool KvStore::Impl::give_way(std::uint64_t bytes, const std::set<const Segment*>& keep) {
  const std::uint64_t others = folder.other_bytes();
  folder.empty_quarantine();
  (void)folder.remove_again();
  bool gave = folder.other_bytes() < others;
  for (Segment* victim : tree.cheapest(bytes, keep, now_ms())) {
    const Status removed = remove(*victim);
    {
      const WriteGuard lock(memory);
      ++counters.evicted_total;
    }
    if (!removed) {
      break;
    }
    gave = true;
  }
  return gave;
}

void KvStore::Impl::use(const std::vector<Segment*>& segments) {
  const WriteGuard lock(memory);
  const std::int64_t now = now_ms();
  for (Segment* segment : segments) {
    segment->use = segment->use_at(now) + 1;
    segment->last_used_ms = now;
    catalogue.used(segment->id);
  }
}

Status KvStore::Impl::remove(Segment& leaf) {
  const std::uint64_t id = leaf.id, bytes = leaf.file_bytes;
  {
    const WriteGuard lock(memory);
    tree.remove(leaf);
  }
  catalogue.changed(id);
  return folder.remove(id, bytes);
}

// ---- compose

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

namespace {

// Bytes that are not those that were written, as opposed to a disk that cannot be read just now.
bool is_damaged(const Error& error) {
  return error.code == Errc::corrupt || error.code == Errc::not_found;
}

}  // namespace

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

void KvStore::Impl::quarantine(Segment& segment, const std::string& reason) {
  const std::vector<Segment*> all = SegmentTree::below(segment);
  say("a stored KV cache is damaged, " + std::to_string(all.size()) +
      " segments go to quarantine: " + reason);
  for (Segment* leaf : all) {
    const std::uint64_t id = leaf->id, bytes = leaf->file_bytes;
    {
      const WriteGuard lock(memory);
      tree.remove(*leaf);
      ++counters.quarantined_total;
    }
    catalogue.changed(id);
    folder.quarantine(id, bytes, now_ms());
  }
}

// ---- the rest

Result<std::uint64_t> KvStore::forget(std::optional<std::uint64_t> id) {
  const Impl::Turn turn(*impl_);
  auto removed = id ? impl_->forget(id) : impl_->forget_all();
  impl_->catalogue.flush(impl_->tree);
  if (!id) {
    impl_->catalogue.maintain(impl_->tree);  // its log holds headers, too
  }
  return removed;
}

Result<std::uint64_t> KvStore::Impl::forget(std::optional<std::uint64_t> id) {
  Segment* segment = tree.by_id(*id);
  if (segment == nullptr) {
    return Error{Errc::not_found, "no stored prompt has this id"};
  }
  if (!segment->children.empty()) {
    return Error{Errc::busy, "other stored prompts branch off inside its last segment"};
  }
  std::uint64_t count = 0;
  Status done = Done{};
  while (segment != nullptr && segment->children.empty() && done) {
    Segment* parent = segment->parent;
    // A parent that goes on behind this place is a prompt of its own.
    const bool goes_on = parent != nullptr && segment->from != parent->end();
    done = remove(*segment);
    ++count;
    segment = goes_on ? nullptr : parent;
  }
  if (done) {
    done = sync_folder(files, folder.path());
  }
  return done ? Result<std::uint64_t>(count) : done.error();
}

Result<std::uint64_t> KvStore::forget(const Scope& scope, TokenSpan prompt, std::uint64_t shared) {
  const Impl::Turn turn(*impl_);
  auto removed = impl_->forget_prompt(scope.bytes(), prompt, shared);
  impl_->catalogue.maintain(impl_->tree);  // its log holds headers, too
  return removed;
}

namespace {

// Where the part of the path begins that is the prompt's own: behind the last place where something
// else that is stored parts from it. What goes on from the whole prompt is its own, too.
std::uint64_t own_from(const SegmentPath& path, std::uint64_t prompt, std::uint64_t shared) {
  std::uint64_t from = shared;
  const auto part_at = [&](std::uint64_t place) {
    from = place < prompt ? std::max(from, place) : from;
  };
  for (std::size_t i = 0; i < path.segments.size(); ++i) {
    const Segment& segment = *path.segments[i];
    const Segment* next = i + 1 < path.segments.size() ? path.segments[i + 1] : nullptr;
    const std::uint64_t end = next != nullptr ? next->from : path.tokens;
    if (end < segment.end()) {
      part_at(end);
    }
    for (const auto& [place, child] : segment.children) {
      if (child != next && child->from <= end) {
        part_at(child->from);
      }
    }
  }
  return from;
}

}  // namespace

Result<std::uint64_t> KvStore::Impl::forget_prompt(const std::string& scope, TokenSpan prompt,
                                                   std::uint64_t shared) {
  folder.empty_quarantine();
  std::uint64_t count = 0;
  Status done = Done{};
  std::vector<Segment*> snapshots;
  tree.each([&](Segment& segment) {
    if (segment.snapshot() && segment.scope == scope && segment.end() > shared &&
        common_prefix(segment.tokens, prompt) == std::min(segment.tokens.size(), prompt.size())) {
      snapshots.push_back(&segment);
    }
  });
  for (Segment* snapshot : snapshots) {
    done = remove(*snapshot) ? done : Status(Error{Errc::unavailable, "a file cannot be removed"});
    ++count;
  }
  for (const SegmentTrie* trie : tree.tries(scope)) {
    const SegmentPath path = trie->path(prompt);
    const std::uint64_t from = own_from(path, prompt.size(), shared);
    if (path.tokens <= from) {
      continue;
    }
    const auto behind = std::find_if(path.segments.begin(), path.segments.end(),
                                     [&](const Segment* segment) { return segment->from > from; });
    Segment* segment = *std::prev(behind);  // the one that holds the token at that place
    const Status gone =
        segment->from == from ? remove_below(*segment, count) : cut(*segment, from, count);
    done = gone ? done : gone;
  }
  if (done) {
    done = sync_folder(files, folder.path());
  }
  return done ? Result<std::uint64_t>(count) : done.error();
}

Status KvStore::Impl::remove_below(Segment& segment, std::uint64_t& count) {
  Status done = Done{};
  for (Segment* leaf : SegmentTree::below(segment)) {
    const Status removed = remove(*leaf);
    done = removed ? done : removed;
    ++count;
  }
  return done;
}

// The segment's tokens up to place `end`, and what hangs on them, become new segments. The old ones
// win at a start as long as the old segment's file is there, the new ones from then on.
Status KvStore::Impl::cut(Segment& segment, std::uint64_t end, std::uint64_t& count) {
  std::vector<Segment*> own;
  for (const auto& [place, child] : segment.children) {
    if (child->from > end) {
      own.push_back(child);
    }
  }
  for (Segment* child : own) {
    if (auto removed = remove_below(*child, count); !removed) {
      return removed;
    }
  }
  std::vector<Segment*> old = SegmentTree::below(segment);
  std::reverse(old.begin(), old.end());  // parents first
  std::uint64_t bytes = 0;
  std::set<const Segment*> keep(old.begin(), old.end());
  for (const Segment* each : old) {
    bytes += each->file_bytes;
  }
  for (const Segment* above = segment.parent; above != nullptr; above = above->parent) {
    keep.insert(above);
  }
  if (auto room = make_room(bytes, keep); !room) {
    return room;
  }
  std::map<const Segment*, std::size_t> places;
  std::vector<Rewritten> written;
  for (Segment* each : old) {
    SegmentHeader parent;
    std::uint64_t checksum = 0;
    if (each != &segment) {
      const Rewritten& above = written[places.at(each->parent)];
      parent = above.header;
      checksum = above.checksum;
    } else if (segment.parent != nullptr) {
      parent.id = segment.parent->id;
      checksum = segment.parent->checksum;
    }
    const std::uint64_t tokens = each == &segment ? end - each->from : each->tokens.size();
    auto done = rewrite(*each, parent, checksum, tokens);
    if (!done && is_damaged(done.error())) {
      drop(written);
      quarantine(segment, done.error().detail);
      folder.empty_quarantine();
      return Done{};
    }
    if (!done) {
      drop(written);
      return Error{Errc::unavailable, done.error().detail};
    }
    places.emplace(each, written.size());
    written.push_back(std::move(*done));
  }
  // This moment decides.
  if (auto removed = remove_file(files, folder.path_of(segment.id)); !removed) {
    drop(written);
    return removed;
  }
  const Status done = sync_folder(files, folder.path());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gone;
  for (const Segment* each : old) {
    if (each != &segment) {
      gone.emplace_back(each->id, each->file_bytes);
    }
  }
  replace(written);
  ++count;
  for (const auto& [id, size] : gone) {
    (void)folder.remove(id, size);  // one that stays hangs on nothing any more
  }
  return done;
}

void KvStore::Impl::drop(const std::vector<Rewritten>& written) {
  for (auto made = written.rbegin(); made != written.rend(); ++made) {
    (void)folder.remove(made->header.id, made->plan.file_bytes);
  }
}

Result<KvStore::Impl::Rewritten> KvStore::Impl::rewrite(Segment& old, const SegmentHeader& parent,
                                                        std::uint64_t parent_checksum,
                                                        std::uint64_t tokens) {
  auto reader =
      SegmentReader::open(files, folder.path_of(old.id), old.header_bytes, old.checksum, true);
  if (!reader) {
    return reader.error();
  }
  Rewritten made{.old = &old, .header = {}, .plan = {}, .checksum = 0};
  SegmentHeader& header = made.header;
  header.id = next_id++;
  header.parent = parent.id;
  header.parent_checksum = parent_checksum;
  header.from = old.from;
  header.created_ms = old.last_used_ms;
  header.prefill_ms = old.prefill_ms;
  header.scope = old.scope;
  header.layout = old.trie->layout();
  header.tokens.assign(old.tokens.begin(),
                       old.tokens.begin() + static_cast<std::ptrdiff_t>(tokens));
  auto plan = plan_segment(header);
  if (!plan) {
    return plan.error();
  }
  made.plan = std::move(*plan);
  Status read = Done{};
  std::vector<std::byte> rows;
  TileAside aside;
  const auto source = [&](std::size_t part, std::uint64_t from, std::uint64_t to) {
    rows.resize((to - from) * made.plan.parts[part].row_bytes);
    if (read) {
      read = reader->read(part, from, rows, aside);
    }
    return std::span<const std::byte>(rows);
  };
  const auto encoded = write_segment(files, folder.path(), header, made.plan, source);
  if (!encoded) {
    return encoded.error();
  }
  if (!read) {
    (void)folder.remove(header.id, made.plan.file_bytes);
    return read.error();
  }
  made.checksum = header_checksum(std::as_bytes(std::span(*encoded)));
  return made;
}

// In memory. REQUIRES: parents stand before what hangs on them.
void KvStore::Impl::replace(std::vector<Rewritten>& written) {
  const WriteGuard lock(memory);
  const std::string scope = written.front().header.scope, layout = written.front().header.layout;
  const SegmentTrie* current = tree.current(scope);
  const bool was_current = current != nullptr && current->layout() == layout;
  std::vector<double> uses;
  for (const Rewritten& each : written) {
    uses.push_back(each.old->use);
    catalogue.changed(each.old->id);
  }
  for (auto each = written.rbegin(); each != written.rend(); ++each) {
    tree.remove(*each->old);
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    Rewritten& each = written[i];
    const std::uint64_t id = each.header.id;
    Segment* added = tree.add(std::move(each.header), each.checksum, each.plan.header_bytes,
                              each.plan.file_bytes);
    TOKI_CHECK(added != nullptr);
    added->use = uses[i];
    catalogue.changed(id);
  }
  if (was_current) {
    tree.make_current(scope, layout);
  }
}

Result<std::uint64_t> KvStore::Impl::forget_all() {
  std::vector<std::uint64_t> ids;
  tree.each([&](const Segment& segment) { ids.push_back(segment.id); });
  std::sort(ids.begin(), ids.end(), std::greater<>());  // leaves first
  Status done = Done{};
  for (const std::uint64_t id : ids) {
    if (auto removed = remove(*tree.by_id(id)); !removed) {
      done = removed;
    }
  }
  folder.empty_quarantine();
  if (done) {
    done = sync_folder(files, folder.path());
  }
  return done ? Result<std::uint64_t>(ids.size()) : done.error();
}

void KvStore::maintain() {
  const Impl::Turn turn(*impl_);
  (void)impl_->folder.remove_again();
  if (auto room = impl_->make_room(0, {}); !room) {
    impl_->say(room.error().detail);
  }
  if (impl_->options.owns_slot_dir) {
    remove_leftovers(impl_->files, impl_->options.slot_dir, kLeftoverAge);
  }
  impl_->catalogue.maintain(impl_->tree);
}

namespace {

// A prompt ends where a segment ends, unless the only ways on lead from there.
bool ends_prompt(const Segment& segment) {
  return segment.children.empty() || segment.children.rbegin()->second->from < segment.end();
}

}  // namespace

bool KvStore::discard(std::string_view name) {
  return remove_state_file(impl_->files, impl_->options.slot_dir, name);
}

void KvStore::discard_other_runs(std::string_view own) {
  remove_other_runs(impl_->files, impl_->options.slot_dir, own);
}

HeldPrompt KvStore::held(const Scope& scope, TokenSpan prompt) const {
  const ReadGuard lock(impl_->memory);
  HeldPrompt held;
  const SegmentTrie* trie = impl_->tree.current(scope.bytes());
  const SegmentPath path = trie != nullptr ? trie->path(prompt) : SegmentPath{};
  held.tokens = path.tokens;
  for (std::size_t i = 0; i < path.segments.size(); ++i) {
    const Segment& segment = *path.segments[i];
    const std::uint64_t end =
        i + 1 < path.segments.size() ? path.segments[i + 1]->from : path.tokens;
    held.bytes += segment.file_bytes * (end - segment.from) / segment.tokens.size();
    held.last_used_ms = std::max(held.last_used_ms, segment.last_used_ms);
  }
  const Segment* snapshot = impl_->tree.snapshot(scope.bytes(), prompt);
  if (snapshot != nullptr && snapshot->end() > held.tokens) {
    held = {.tokens = snapshot->end(),
            .bytes = snapshot->file_bytes,
            .last_used_ms = snapshot->last_used_ms,
            .snapshot = true};
  }
  return held;
}

std::pair<Scope, Tokens> KvStore::prompt(std::uint64_t id) const {
  const ReadGuard lock(impl_->memory);
  const Segment* segment = impl_->tree.by_id(id);
  if (segment == nullptr) {
    return {};
  }
  Tokens tokens(segment->end());
  std::uint64_t end = segment->end();
  for (const Segment* at = segment; at != nullptr; end = at->from, at = at->parent) {
    std::copy_n(at->tokens.begin(), end - at->from,
                tokens.begin() + static_cast<std::ptrdiff_t>(at->from));
  }
  return {Scope::from_bytes(segment->scope), std::move(tokens)};
}

std::vector<StoredPrompt> KvStore::prompts(std::size_t count) const {
  const ReadGuard lock(impl_->memory);
  const std::int64_t now = impl_->now_ms();
  std::vector<StoredPrompt> prompts;
  impl_->tree.each([&](const Segment& segment) {
    if (ends_prompt(segment)) {
      prompts.push_back({.id = segment.id,
                         .tokens = segment.end(),
                         .bytes = segment.file_bytes,
                         .use = segment.use_at(now),
                         .last_used_ms = segment.last_used_ms,
                         .snapshot = segment.snapshot()});
    }
  });
  std::sort(prompts.begin(), prompts.end(), [](const StoredPrompt& a, const StoredPrompt& b) {
    return std::pair(a.last_used_ms, a.id) > std::pair(b.last_used_ms, b.id);
  });
  prompts.resize(std::min(count, prompts.size()));
  return prompts;
}

KvStoreStats KvStore::stats() const {
  const ReadGuard lock(impl_->memory);
  KvStoreStats stats = impl_->counters;
  stats.segments = impl_->tree.size();
  stats.tokens = impl_->tree.tokens();
  stats.bytes = impl_->tree.bytes();
  stats.snapshots = impl_->tree.snapshots();
  impl_->tree.each([&](const Segment& segment) {
    stats.prompt_tokens += ends_prompt(segment) ? segment.end() : 0;
  });
  return stats;
}

void KvStore::add_to(Stats& all) const {
  const KvStoreStats own = stats();
  all.kv_segments = own.segments;
  all.kv_bytes = own.bytes;
  all.kv_tokens = own.tokens;
  all.kv_prompt_tokens = own.prompt_tokens;
  all.kv_evicted_total = own.evicted_total;
  all.kv_quarantined_total = own.quarantined_total;
  all.kv_failed_total = own.failed_total;
  all.kv_writable = own.writable ? 1 : 0;
  all.kv_snapshots = own.snapshots;
  all.kv_limit_bytes = impl_->options.max_bytes;
  all.kv_sharing_ratio =
      own.tokens > 0 ? static_cast<double>(own.prompt_tokens) / static_cast<double>(own.tokens) : 1;
}

}  // namespace toki
