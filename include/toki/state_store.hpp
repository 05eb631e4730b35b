// StateStore: what an engine and its drivers need of a store for slots' states. KvStore is one, for
// a folder that both we and the backend reach; NamedStates another, for files that only the backend
// sees.
//
// Threads:   match() and the other const calls: any thread, at any time. The rest: any thread, they
//            take turns.
// Ownership: as each store says.
// Errors:    values; a save or restore that fails leaves the rest of the store usable.
// Cost:      match(): memory only, microseconds. The rest may do file work.
//
// What a driver does of a step, with every store:
//
//     save       begin_save(), the backend writes that file, end_save(); discard() instead when it
//                did not, or nobody knows
//     restore    begin_restore(), the backend reads that file, end_restore() in any case
#pragma once

#include <toki/export.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/stats.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace toki {

struct Step;   // of <toki/engine.hpp>
struct Timed;  // of <toki/backend.hpp>

/// What a store could restore of a prompt.
struct StoredPrefix {
  std::uint64_t tokens = 0;  ///< leading tokens
  std::uint64_t read = 0;    ///< tokens that are restored to have them; 0: no more than they
  bool snapshot = false;     ///< a state that can only be taken whole (see KvStore::take())
  std::uint64_t beyond = 0;  ///< tokens of unknown ids that the state holds behind the whole prompt
};

/// What became of one saved state.
struct Taken {
  Tokens tokens;                 ///< that it holds, as far as their ids are known
  std::uint64_t new_tokens = 0;  ///< of those, written now
  std::uint64_t new_bytes = 0;   ///< that these take on our disk
  bool snapshot = false;         ///< can only be restored whole
  std::uint64_t unknown = 0;     ///< tokens behind them, of unknown ids
  std::uint64_t id = 0;          ///< for forget(); 0: not told
  std::string layout{};  ///< of its rows (types, sizes, streams), to be compared; empty: not known
};

/// A state that the backend can restore now.
struct Restorable {
  std::string file;          ///< its name, for Backend::restore()
  std::uint64_t tokens = 0;  ///< that the backend will restore
  Tokens held{};  ///< of those, the known ones; empty: the first `tokens` of what was asked for
};

/// One stored prompt, for people.
struct StoredPrompt {
  std::uint64_t id = 0;           ///< for forget() and prompt()
  std::uint64_t tokens = 0;       ///< of known ids
  std::uint64_t bytes = 0;        ///< on our disk
  double use = 0;                 ///< decayed number of uses
  std::int64_t last_used_ms = 0;  ///< Unix time
  bool snapshot = false;          ///< can only be restored whole
};

/// What a store holds of one prompt.
struct HeldPrompt {
  std::uint64_t tokens = 0;       ///< leading tokens that can be restored
  std::uint64_t bytes = 0;        ///< that they take on our disk, whoever else shares them
  std::int64_t last_used_ms = 0;  ///< Unix time
  bool snapshot = false;          ///< can only be restored whole
};

/// Where saved states go. The calls of one step come in order (begin_save, the backend's save,
/// end_save); those of different steps may cross. Const calls come from any thread.
class TOKI_EXPORT StateStore {
 public:
  virtual ~StateStore() = default;

  /// What could be restored of `prompt`. Asked under the engine's lock: memory only.
  virtual StoredPrefix match(const Scope& scope, TokenSpan prompt) const = 0;

  /// The file to save to. Quick, for any thread: at most one file is removed. Errc::busy: none can be
  /// had now.
  virtual Result<std::string> begin_save(const Step& step) = 0;
  /// The backend has written `file`. What it holds is kept, or the reason why not: Errc::corrupt:
  /// it does not begin with the step's tokens.
  virtual Result<Taken> end_save(const Step& step, std::string_view file, const Timed& saved) = 0;
  /// Nobody wants this file any more. False: it is not there, but a save that was given up may yet
  /// write it.
  virtual bool discard(std::string_view file) = 0;
  /// Deletes files of runs before this one, which a backend may have written after their end: those
  /// whose names do not begin with `own` (Engine::file_prefix()), where names tell the run.
  virtual void discard_other_runs(std::string_view own) = 0;

  /// Errc::not_found: nothing of the step's tokens is there any more.
  virtual Result<Restorable> begin_restore(const Step& step) = 0;
  /// The backend has read `file`, or not: it may be deleted.
  virtual void end_restore(std::string_view file, const Result<Timed>& restored) = 0;
  /// What was restored last of this prompt was not there for it, by the backend's own word.
  virtual void doubt(const Scope& scope, TokenSpan prompt) = 0;

  /// Forgets one prompt, or everything; how many went.
  virtual Result<std::uint64_t> forget(std::optional<std::uint64_t> id) = 0;
  /// Forgets what is stored of this prompt behind its first `shared` tokens, and what goes on from
  /// it; what other stored prompts share with it stays. How many pieces went.
  virtual Result<std::uint64_t> forget(const Scope& scope, TokenSpan prompt,
                                       std::uint64_t shared) = 0;
  /// Call it now and then when nothing waits.
  virtual void maintain() = 0;

  /// Most recently used first.
  virtual std::vector<StoredPrompt> prompts(std::size_t count) const = 0;
  /// What of the prompt can be restored, and what that takes.
  virtual HeldPrompt held(const Scope& scope, TokenSpan prompt) const = 0;
  /// The scope and known tokens of a stored prompt; no tokens: there is none of this id.
  virtual std::pair<Scope, Tokens> prompt(std::uint64_t id) const = 0;
  virtual void add_to(Stats& stats) const = 0;  ///< its figures, among all others
};

}  // namespace toki
