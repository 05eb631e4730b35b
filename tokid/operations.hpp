// What an operator asks for: save now, forget, show what is kept.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: everything given must outlive it.
// Errors:    pages with a status.
// Cost:      flush: saves, as many as are worth it. forget: the tree is made again, and the store may
//            write again what hangs on what goes.
#pragma once

#include <toki/engine.hpp>
#include <toki/http/housekeeper.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/index_store.hpp>
#include <toki/state_store.hpp>

#include <boost/asio/awaitable.hpp>

#include <string_view>

#include "recent_requests.hpp"
#include "routes.hpp"

namespace tokid {

class Operations {
 public:
  Operations(toki::Engine& engine, toki::http::LlamaServerBackend& backend, toki::IndexStore& index,
             toki::StateStore* store, toki::http::StoreWorker* worker,
             toki::http::Housekeeper& housekeeper, const RecentRequests& recent)
      : engine_(engine),
        backend_(backend),
        index_(index),
        store_(store),
        worker_(worker),
        housekeeper_(housekeeper),
        recent_(recent) {}

  /// POST /toki/flush
  boost::asio::awaitable<Page> flush(std::string_view target);
  /// DELETE /toki/entries
  boost::asio::awaitable<Page> forget(std::string_view target);
  /// GET /toki/entries
  Page entries() const;
  /// GET /toki/tree
  Page tree() const;
  /// GET /toki/requests
  Page requests(std::string_view target) const;

 private:
  boost::asio::awaitable<Page> forget_all();
  boost::asio::awaitable<Page> forget_one(toki::ForgottenPrompt gone);
  boost::asio::awaitable<bool> index_written(toki::http::Millis limit);
  boost::asio::awaitable<void> saves_ended(std::vector<std::string> names);
  boost::asio::awaitable<void> erase_slots();

  toki::Engine& engine_;
  toki::http::LlamaServerBackend& backend_;
  toki::IndexStore& index_;
  toki::StateStore* store_;          // null: none
  toki::http::StoreWorker* worker_;  // null: none
  toki::http::Housekeeper& housekeeper_;
  const RecentRequests& recent_;
};

}  // namespace tokid
