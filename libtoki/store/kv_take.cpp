// A state file becomes a segment: what of it is new is written, and only then others see it.
#include <cmath>
#include <set>
#include <utility>

#include "store/kv_store_impl.hpp"
#include "store/slot_folder.hpp"
#include "store/state_file.hpp"

namespace toki {
namespace {

// A leaf shorter than this is written anew together with what follows it, so that a prompt that
// grows by a few tokens at a time does not become a chain of tiny files.
constexpr std::size_t kShortRun = kTileTokens;

}  // namespace

struct KvStore::Impl::State {
  std::optional<StateFile> rows;  // none: kept whole
  Tokens tokens;
};

Result<KvStore::Impl::State> KvStore::Impl::read_state(std::span<const std::byte> file,
                                                       TokenSpan expected, bool whole, bool only) {
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

}  // namespace toki
