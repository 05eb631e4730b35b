// Backend: the control plane of an inference server, as toki sees it. It does not carry the
// generation: whoever holds a ticket talks to the model itself, so streamed bytes never cross this
// interface.
//
// Threads:   called without locks, by several drivers at once where several tickets run, but never
//            by two for one slot; a completion may come on any thread.
// Ownership: arguments are only valid during the call; implementers copy what they need.
// Errors:    implementers must not throw; each call ends in exactly one completion, a value or an
//            Error.
// Cost:      virtual calls around network or device work; nothing here is on the token path.
#pragma once

#include <toki/embedding.hpp>
#include <toki/export.hpp>
#include <toki/result.hpp>
#include <toki/slot_pool.hpp>
#include <toki/token.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// The end of one asynchronous call: move-only, used once. Dropping it unused reports
/// Errc::cancelled, so a caller that waits always wakes up.
template <class T>
class Completion {
 public:
  /// Holds no call: it reports nothing when it is dropped, and must not be used.
  Completion() = default;
  /// `done` is called exactly once, by whichever thread ends the call.
  explicit Completion(std::function<void(Result<T>)> done)
      : done_(std::make_unique<std::function<void(Result<T>)>>(std::move(done))) {}
  /// The source holds no call afterwards.
  Completion(Completion&&) noexcept = default;
  /// Drops the call it held (reported as Errc::cancelled), and takes the other's.
  Completion& operator=(Completion&& other) noexcept {
    if (this != &other) {
      drop();
      done_ = std::move(other.done_);
    }
    return *this;
  }
  ~Completion() { drop(); }

  /// REQUIRES: not called before.
  void operator()(Result<T> result) {
    TOKI_CHECK(done_ != nullptr);
    const auto done = std::move(done_);
    (*done)(std::move(result));
  }

 private:
  void drop() {
    if (done_ != nullptr) {
      (*this)(Error{Errc::cancelled, "the operation was dropped"});
    }
  }

  std::unique_ptr<std::function<void(Result<T>)>> done_;
};

/// What a backend says about itself. Everything but `slots` and `identity` is optional knowledge.
struct BackendDescription {
  std::uint32_t slots = 0;    ///< number of slots; 0 means it cannot serve now
  std::uint64_t context = 0;  ///< tokens one slot can hold; 0: not said
  std::string identity;  ///< model and build: equal only if KV cache may be shared; the first part
                         ///< of every Scope
  std::string start_marker;      ///< changes when the process is started again; empty: not said
  std::string model;             ///< for people
  bool several_models = false;   ///< a router: each model has slots of its own behind it
  bool sleeping = false;         ///< the model is unloaded until the next request
  std::vector<bool> slots_used;  ///< per slot: has worked before we came, so its content is
                                 ///< unknown. Empty: not said
};

/// A request as the client sent it, to be turned into the exact tokens that the backend will
/// compute.
struct PromptSource {
  std::string_view path;           ///< HTTP path of the call, for example "/v1/chat/completions"
  std::string_view body;           ///< its whole JSON body
  std::string_view authorization;  ///< value of the client's Authorization header, may be empty
  std::string_view tenant{};  ///< whose request it is; what is remembered of it is not known to
                              ///< others. Empty: nobody is told apart
};

/// What the backend computed for a prompt.
struct Prefilled {
  std::uint64_t cached = 0;    ///< tokens reused
  std::uint64_t computed = 0;  ///< tokens computed
  double ms = 0;               ///< the time that took
};

/// A state that was saved or restored.
struct Timed {
  std::uint64_t tokens = 0;  ///< that the state holds, as the backend says
  double ms = 0;             ///< that the backend was held up; 0: not said
};

/// What a driver needs of an inference server or an engine in the same process. Slots are numbered
/// from 0 to BackendDescription::slots - 1. A driver's steps need prefill() and erase() and, with a
/// StateStore, save() and restore(); what is not overridden ends with Errc::unsupported.
class TOKI_EXPORT Backend {
 public:
  virtual ~Backend();

  /// Asked at the start and whenever the backend may have changed.
  virtual void describe(Completion<BackendDescription> done);
  /// Render and tokenize. Errc::unsupported: this request's tokens cannot be known; forward it
  /// uncached.
  virtual void render(const PromptSource& source, Completion<Tokens> done);
  /// Computes `prompt` in the slot, keeping the common prefix that it holds.
  virtual void prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) = 0;
  /// Writes the slot's state to the file `name` in the backend's own folder.
  virtual void save(SlotId slot, std::string_view name, Completion<Timed> done);
  /// Reads such a file into the slot, whatever that held; a failed restore may leave it empty.
  /// Errc::not_found: there is no such file.
  virtual void restore(SlotId slot, std::string_view name, Completion<Timed> done);
  /// The slot holds nothing afterwards.
  virtual void erase(SlotId slot, Completion<Done> done) = 0;
  /// What `text` (a prompt as it was rendered) is about.
  virtual void embed(std::string_view text, Completion<Embedding> done);
};

}  // namespace toki
