// NamedStates: a StateStore for a backend whose folder we cannot reach. The backend saves whole
// slots under a fixed number of names, so that its disk never fills; which prompt lies under which
// name is remembered here. What is in the files cannot be looked at, so a state counts as what was
// saved only if the backend restores as many tokens as it saved, and then reuses them.
//
// Threads:   as StateStore's.
// Ownership: owns its folder while it is open; a second one on it is refused (Errc::busy). The
//            files are the backend's: a forgotten one lies there until its name is used again.
// Errors:    values. A name whose save failed or was not heard of again holds nothing; a state that
//            the backend will not restore is forgotten. A record that cannot be written is tried
//            again by maintain(); until then its state is lost when the program ends. The log sink
//            is called inside of calls and must not call back.
// Cost:      match(): one comparison with each state, no I/O. A save writes the prompt's token ids
//            (4 bytes each) to a small file and removes another before it.
//
// Names are toki_<tag>_<number>.bin. The tag is drawn once for a folder and kept there: so the
// names are the same after every restart, and no two programs use the same ones.
//
// A name is chosen for a save in this order: an older state of the same conversation, a free name,
// the state that is worth least (decayed uses times tokens). Never one that is being restored, or
// that the same ticket needs next.
#pragma once

#include <toki/export.hpp>
#include <toki/log.hpp>
#include <toki/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace toki {

/// Where the records lie, and how many states there may be.
struct NamedStatesOptions {
  std::string dir;         ///< its own folder, made when missing, readable by the owner only
  std::size_t names = 32;  ///< most files in the backend's folder
  std::function<std::int64_t()> now_ms{};  ///< Unix time; empty: the system's
};

/// States in a folder that only the backend reaches, under a fixed number of names; here lie the
/// records of what is under which.
class TOKI_EXPORT NamedStates final : public StateStore {
 public:
  /// Remembers what was saved before; what lies under numbers from `names` on is forgotten.
  /// REQUIRES: names above 0.
  static Result<std::unique_ptr<NamedStates>> open(const NamedStatesOptions& options, LogSink log);
  ~NamedStates() override;
  NamedStates(const NamedStates&) = delete;
  NamedStates& operator=(const NamedStates&) = delete;

  /// The longest beginning of `prompt` that one state serves. Memory only.
  StoredPrefix match(const Scope& scope, TokenSpan prompt) const override;

  /// A step with `whole` makes a state that only serves prompts that begin with all of it; the
  /// others serve any common beginning, because the backend rewinds what it restored.
  Result<std::string> begin_save(const Step& step) override;
  /// Errc::corrupt: the slot did not hold what was thought.
  Result<Taken> end_save(const Step& step, std::string_view file, const Timed& saved) override;
  /// Gives the name back; the backend's file stays there until it is saved over.
  bool discard(std::string_view file) override;
  /// Nothing: the names are the same in every run.
  void discard_other_runs(std::string_view own) override;

  /// The whole state that serves the longest beginning of the step's tokens.
  Result<Restorable> begin_restore(const Step& step) override;
  /// Forgets the state where another number of tokens was restored than was saved, or it was
  /// refused.
  void end_restore(std::string_view file, const Result<Timed>& restored) override;
  /// Forgets the state; one of which only a beginning was wanted is kept for prompts that want all.
  void doubt(const Scope& scope, TokenSpan prompt) override;

  /// Forgets that state, or all; how many. The backend's files stay.
  Result<std::uint64_t> forget(std::optional<std::uint64_t> id) override;
  /// States that hold more of the prompt than `shared` and go no other way than it.
  Result<std::uint64_t> forget(const Scope& scope, TokenSpan prompt, std::uint64_t shared) override;
  /// Writes the records that could not be written before.
  void maintain() override;
  /// Most recently used first.
  std::vector<StoredPrompt> prompts(std::size_t count) const override;
  /// What of the prompt can be restored; the backend's disk is not seen, so `bytes` is 0.
  HeldPrompt held(const Scope& scope, TokenSpan prompt) const override;
  /// The scope and known tokens of a state; no tokens: there is none of this id.
  std::pair<Scope, Tokens> prompt(std::uint64_t id) const override;
  void add_to(Stats& stats) const override;  ///< its figures, among all others

 private:
  struct Impl;
  explicit NamedStates(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
