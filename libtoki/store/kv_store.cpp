#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "store/kv_store_impl.hpp"
#include "store/slot_folder.hpp"

namespace toki {
namespace {

constexpr std::chrono::seconds kLeftoverAge{60};

std::int64_t system_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A prompt ends where a segment ends, unless the only ways on lead from there.
bool ends_prompt(const Segment& segment) {
  return segment.children.empty() || segment.children.rbegin()->second->from < segment.end();
}

}  // namespace

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
