// Service: everything that serves one backend: its client, engine, store, monitor, proxy, and what
// tokid's own pages tell of it.
//
// Threads:   the executor's; one thread or strand at a time. The store and the index have threads of
//            their own.
// Ownership: options and recorder must outlive it; it must outlive the tasks that it spawned.
// Errors:    open() tells what cannot be used.
// Cost:      memory and disk up to the limits that the options name, for each service.
#pragma once

#include <toki/fingerprints.hpp>
#include <toki/http/audit.hpp>
#include <toki/http/housekeeper.hpp>
#include <toki/http/proxy.hpp>
#include <toki/http/task_group.hpp>
#include <toki/index_store.hpp>
#include <toki/pin_file.hpp>
#include <toki/state_store.hpp>

#include <boost/asio/io_context.hpp>

#include <memory>
#include <string>

#include "operations.hpp"
#include "options.hpp"
#include "recent_requests.hpp"
#include "recorder.hpp"

namespace tokid {

/// Milliseconds since 1970.
std::int64_t unix_ms();

struct ServiceSetup {
  std::string name;  ///< in the log and on the pages; empty: the only one
  toki::http::Address address;
  std::string data_dir;  ///< its own; it is there
  std::string slot_dir;  ///< empty: the backend's folder cannot be reached
  bool own_cache = true;
  double cache_mib = -1;  ///< of the server's own prompt cache
};

class Service {
 public:
  /// `recorder`: null: nothing is recorded.
  static toki::Result<std::unique_ptr<Service>> open(boost::asio::io_context& io,
                                                     const Options& options, ServiceSetup setup,
                                                     Recorder* recorder);

  void run(toki::http::TaskGroup& tasks);
  /// Only what kReloadable names (options.cpp).
  void reload(const Options& options);
  /// At the end: saves what is worth it, writes the index, closes what is kept open.
  boost::asio::awaitable<void> save(toki::http::Millis limit);
  void close();

  toki::Stats stats() const;
  const std::string& name() const noexcept { return setup_.name; }
  const toki::http::Address& address() const noexcept { return setup_.address; }

 private:
  Service(boost::asio::io_context& io, const Options& options, ServiceSetup setup,
          std::unique_ptr<toki::StateStore> kept, Recorder* recorder);

  std::string in_data_dir(const char* file) const;
  std::function<void(toki::http::Endpoint, std::string_view)> record();
  std::optional<toki::http::StateSetup> states();
  void adopt_pins();
  void keep(toki::PromptChange change);

  const Options& options_;
  const ServiceSetup setup_;
  const toki::LogSink log_;
  Recorder* const recorder_;
  bool forgot_all_ = false;  // before the index was read: it is not wanted any more

 public:
  toki::http::Upstream upstream;
  std::unique_ptr<toki::StateStore> store;
  std::unique_ptr<toki::http::StoreWorker> worker;
  toki::Fingerprints fingerprints;
  toki::PinFile pin_file;
  toki::http::Upstream embed_upstream;
  toki::http::Embedder embedder;
  toki::http::LlamaServerBackend backend;
  toki::IndexStore index;
  toki::Engine engine;
  toki::http::Admission admission;
  toki::http::BackendMonitor monitor;
  toki::http::PromptEmbeddings embeddings;
  toki::http::Housekeeper housekeeper;
  toki::http::Audit audit;
  RecentRequests recent;
  toki::http::Proxy proxy;
  Operations operations;
};

}  // namespace tokid
