// Stored prompts are forgotten, so that nothing of them is left on the disk, and what others share with
// them stays.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "store/kv_store_impl.hpp"

namespace toki {

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

}  // namespace toki
