// KvStore: computed KV cache on disk. Takes the state files that a backend saved, keeps each
// token's rows once however many prompts share them, and puts a state file together for any prefix
// of what it holds. Exact: a prefix counts only after its token ids were compared, and rows only
// after their checksums were.
//
// Threads:   match() and the other const calls: any thread, at any time. take(), compose(),
//            forget() and maintain() do file work: any thread, one at a time (they take turns).
// Ownership: owns its folder while it is open; a second store on it is refused.
// Errors:    values. After any failure the store holds what it held before, less what was evicted
//            to make room; on a full disk the least worth gives way once, and it is tried again.
//            What fails its checksum is moved to quarantine and never used again. A full or read-only
//            disk fails take() only. A catalogue that cannot be written fails nothing: it is made
//            again from the segments.
// Cost:      match(): one comparison pass, microseconds, no I/O. take(): reads the rows that are
//            new, writes them once, and at most 255 tokens' rows before them again. compose():
//            reads and writes the prefix's rows, at the disk's or page cache's speed.
//
// On disk (docs/store-format.md): prompts that share a beginning form a tree of *segments*, each
// the rows of a run of tokens behind a point of its parent. Written whole before anything refers to
// them; a file that is not complete is removed at the next start.
#pragma once

#include <toki/export.hpp>
#include <toki/log.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/state_store.hpp>
#include <toki/stats.hpp>
#include <toki/token.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace toki {

/// Where states lie, and how much room they may take.
struct KvStoreOptions {
  std::string dir;       ///< its own folder, made when missing, readable by the owner only
  std::string slot_dir;  ///< where the backend reads and writes state files
  std::uint64_t max_bytes = std::uint64_t{32} << 30;  ///< of segments, as they are on disk,
                                                      ///< with those in quarantine
  bool owns_slot_dir = true;  ///< lock it, and remove what earlier runs left there; false: another
                              ///< store of this process does
};

/// What it has done and holds, now.
struct KvStoreStats {
  std::uint64_t segments = 0;           ///< files
  std::uint64_t tokens = 0;             ///< that they hold, each once
  std::uint64_t bytes = 0;              ///< that they take
  std::uint64_t snapshots = 0;          ///< of the segments, whole states
  std::uint64_t prompt_tokens = 0;      ///< sum of the stored prompts' lengths: over `tokens`, the
                                        ///< sharing ratio
  std::uint64_t taken_total = 0;        ///< states
  std::uint64_t composed_total = 0;     ///< states
  std::uint64_t evicted_total = 0;      ///< segments that gave way to others
  std::uint64_t quarantined_total = 0;  ///< segments that failed their checksum
  std::uint64_t failed_total = 0;       ///< takes and composes that failed
  bool writable = true;                 ///< the last write worked
};

/// Computed KV cache as segments on disk, each token's rows once for all prompts that begin alike.
class TOKI_EXPORT KvStore final : public StateStore {
 public:
  /// Adopts what is whole, removes what is not. Errc::busy: another process has it, or slot_dir.
  static Result<std::unique_ptr<KvStore>> open(const KvStoreOptions& options, LogSink log);
  ~KvStore() override;
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  /// Of the KV layout that the scope's last take() had; states of an older one stay unused.
  StoredPrefix match(const Scope& scope, TokenSpan prompt) const override;

  /// Takes the state file `name` of slot_dir in, and deletes it there in any case. `expected`: what
  /// the slot is known to begin with; a state that begins otherwise is refused (Errc::corrupt).
  /// `whole`: keep it as a snapshot, usable only for prompts that begin with all of its tokens.
  /// `prefill_ms`: what computing one of its tokens costs, for its worth. `only`: keep nothing behind
  /// the expected tokens. Errc::unavailable: it cannot be written, or does not fit into max_bytes beside
  /// what it hangs on.
  Result<Taken> take(const Scope& scope, TokenSpan expected, std::string_view name, bool whole,
                     double prefill_ms, bool only = false);

  /// Writes the state of the longest stored prefix of `prompt`, at most `limit` tokens, as the file
  /// `name` of slot_dir, to be restored into `slot`. Returns its tokens; Errc::not_found: nothing.
  Result<std::uint64_t> compose(const Scope& scope, TokenSpan prompt, std::uint64_t limit,
                                std::uint32_t slot, std::string_view name);

  /// Deletes a state file that compose() wrote, when the backend has read it, or one that nobody
  /// wants any more.
  bool discard(std::string_view name) override;
  /// REQUIRES: owns_slot_dir.
  void discard_other_runs(std::string_view own) override;

  // The same for a driver's steps.
  /// Names the state file of the step; nothing is written yet.
  Result<std::string> begin_save(const Step& step) override;
  /// take() of that file, as the step asks. Errors as there.
  Result<Taken> end_save(const Step& step, std::string_view file, const Timed& saved) override;
  /// compose() of the step's tokens. Errors as there.
  Result<Restorable> begin_restore(const Step& step) override;
  /// Deletes the composed file, whether or not it was restored.
  void end_restore(std::string_view file, const Result<Timed>& restored) override;
  /// Nothing: what is composed was compared with its checksums.
  void doubt(const Scope& scope, TokenSpan prompt) override;

  /// Forgets the prompt of that id (what others share with it stays), or everything. Returns how
  /// many segments went. Errc::busy: other prompts branch off inside its last segment; they first.
  Result<std::uint64_t> forget(std::optional<std::uint64_t> id) override;
  /// In every layout. A segment in which others part from the prompt is cut, and what hangs on it is
  /// written again, which reads and writes all of that and needs room for it. Quarantine is emptied.
  Result<std::uint64_t> forget(const Scope& scope, TokenSpan prompt, std::uint64_t shared) override;
  /// Quota, catalogue, leftovers of crashed restores; call it now and then when nothing waits.
  void maintain() override;

  /// Most recently used first.
  std::vector<StoredPrompt> prompts(std::size_t count) const override;
  /// What of the prompt can be restored, and what that takes on disk.
  HeldPrompt held(const Scope& scope, TokenSpan prompt) const override;
  /// The scope and known tokens of a stored prompt; no tokens: there is none of this id.
  std::pair<Scope, Tokens> prompt(std::uint64_t id) const override;
  /// From any thread; waits for nothing but memory.
  KvStoreStats stats() const;
  void add_to(Stats& stats) const override;  ///< the same figures, among all others

 private:
  friend struct KvStoreSetup;  // tests open it on other file system calls
  struct Impl;
  explicit KvStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
