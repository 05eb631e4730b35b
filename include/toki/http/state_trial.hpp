// The fidelity test: what can be done with a slot's state, found by doing it with a short fixed
// prompt on the server itself. Greedy continuations decide, and `cache_n`; never the model's name.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: the backend must outlive the call. Makes and removes its own folder.
// Errors:    none: what fails is an ability that is missing, and `why` says it for the log.
// Cost:      about 500 tokens of prefill and 50 generated, some saves and restores. REQUIRES that
//            nobody else uses the slots.
//
//   save                  the state can be saved, and read by us (where we reach the file)
//   whole, other slot     restored into another slot, the next tokens equal the live slot's
//   cut                   cut in the middle, or restored whole for a prompt that parts from it there:
//                         they equal those of a live slot rewound to that place
//   rewind                a live slot keeps what a prompt shares with it when they part
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/store_worker.hpp>

#include <boost/asio/awaitable.hpp>

#include <string>

namespace toki::http {

/// Where the trial may write.
struct StateTrialSetup {
  std::string dir;               ///< for the trial's own store; removed afterwards
  std::string slot_dir;          ///< the server's --slot-save-path
  StoreWorker* named = nullptr;  ///< over NamedStates, where the server's folder cannot be reached:
                                 ///< the trial is made with it, and uses one of its names
  std::uint32_t slots = 1;       ///< of the server; the trial uses the first two
};

/// What a trial found.
struct StateFindings {
  StateAbilities abilities{.saves = false, .cuts = false, .rewinds = true};  ///< what can be done
  Continued reference;  ///< the fixed prompt continued without any cache: tells models apart
  std::string layout;   ///< of the saved state's rows: types and sizes; empty: not understood
  bool actions = true;  ///< false: the server has no slot actions, so nothing was tried
  std::string why;      ///< what is missing, and the reason; empty: nothing is
};

/// Computes, saves, restores and continues a fixed prompt, and compares. Takes the server's slots 0
/// and 1: no request may run. What fails is told in the findings.
TOKI_EXPORT boost::asio::awaitable<StateFindings> try_states(LlamaServerBackend& backend,
                                                             const StateTrialSetup& setup);

}  // namespace toki::http
