// Proxy: what happens to one client request, from its bytes to its answer. Generations get a slot
// and are counted; everything else passes through.
//
// Threads:   the executor's; one thread or strand at a time; many requests at once.
// Ownership: everything given must outlive it; it must outlive its requests.
// Errors:    told to the client through the AnswerWriter; a client that is gone ends serve().
// Cost:      besides the backend's work: two exchanges to render and tokenize, microseconds to plan,
//            and the relay.
#pragma once

#include <toki/engine.hpp>
#include <toki/export.hpp>
#include <toki/http/admission.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/client_watch.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/prompt_embeddings.hpp>
#include <toki/http/relay.hpp>
#include <toki/http/store_worker.hpp>
#include <toki/http/upstream.hpp>
#include <toki/stats.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/beast/http/fields.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

/// One request of a client, as it was read. All of it must be valid until it is answered.
struct ClientRequest {
  std::string_view method;                             ///< as in its head
  std::string_view target;                             ///< raw
  const boost::beast::http::fields* fields = nullptr;  ///< of its head; not null
  std::string_view body;                               ///< all of it
  bool has_body = false;                               ///< it has one, be it empty
  std::string_view id{};      ///< goes to the backend as x-request-id, and into the report
  std::string_view tenant{};  ///< nothing is shared with others; empty: nobody is told apart
  std::string_view client{};  ///< what the report calls whoever asks; may be empty
};

class Audit;

/// What every request is served by.
struct ProxyOptions {
  Millis progress_limit{
      3600 * 1000};  ///< no byte from the backend for this long: 504, and its slot is fenced
  std::size_t max_rendered_bytes = std::size_t{8} << 20;  ///< larger bodies are not tokenized
  std::vector<std::string> volatile_lines;                ///< beginnings; see volatile_line.hpp
  KeepAlive keep_alive;                                   ///< comments of streams that wait
  Audit* audit = nullptr;                                 ///< of hits; null: none
  StoreWorker* store = nullptr;  ///< over what the engine was told to use; null: none
  /// Gets the body of each generation that is not refused as unreadable, as the client sent it,
  /// before anything is done with it. May be empty.
  std::function<void(Endpoint, std::string_view body)> record;
};

/// What became of one request: everything the log says about it.
struct RequestReport {
  std::string_view id;                ///< as ClientRequest has it
  std::string_view method;            ///< as ClientRequest has it
  std::string_view path;              ///< without the query
  std::string_view client;            ///< as ClientRequest has it
  unsigned status = 0;                ///< of the answer; 0: there was none
  std::string_view ending;            ///< completed, refused (by us), refused_by_backend, failed,
                                      ///< cancelled, stalled, passed
  std::optional<std::uint32_t> slot;  ///< it ran in; none: the backend chose, or it never ran
  std::string_view reason;            ///< name of the Reason. Static text
  std::string_view source;            ///< name of the Source. Static text
  std::string_view cache_class;  ///< name of the CacheClass, by the backend's own word. Static text
  std::uint64_t prompt = 0;      ///< tokens of the prompt, as counted before; 0: not known
  std::uint64_t available = 0;   ///< leading tokens that were known, wherever
  std::uint64_t predicted = 0;   ///< of them, expected to be reused
  std::uint64_t reused = 0;      ///< by the backend's own word
  std::uint64_t generated = 0;   ///< tokens of the answer
  double render_ms = 0;          ///< for rendering and tokenizing
  double queue_ms = 0;           ///< waited for a slot
  double first_byte_ms = 0;      ///< since it came; 0: no byte of an answer was sent
  double total_ms = 0;           ///< since it came
  bool mismatch = false;         ///< as Account::tokenization_mismatch
  bool fault = false;            ///< as Account::integrity_fault
  std::string error;             ///< why it failed or ran uncached; empty: it did not
};

/// All that happens to a client's request, from its body to its report: read, render, queue, steps,
/// relay, account. One for each backend.
class TOKI_EXPORT Proxy {
 public:
  /// All that is passed by reference must outlive it. `report` is called once for each request, at
  /// its end, also when its client left.
  Proxy(Upstream& upstream, LlamaServerBackend& backend, BackendMonitor& monitor, Engine& engine,
        Admission& admission, PromptEmbeddings& embeddings, ProxyOptions options,
        std::function<void(const RequestReport&)> report);

  /// Answers one request. When the client closes its connection, all work for it ends at once (a
  /// client that only closes its sending half counts as gone).
  boost::asio::awaitable<void> serve(const ClientRequest& request, AnswerWriter& answer,
                                     ClientWatch& client);

  /// POST /toki/lookup: what would happen to the request in its body. `?path=` in the target names
  /// the call it is meant for.
  boost::asio::awaitable<void> lookup(const ClientRequest& request, AnswerWriter& answer,
                                      ClientWatch& client);

  /// GET, POST or DELETE /toki/pins: lists the pinned prefixes, pins what the body names, or removes
  /// the pin that `?id=` names, or all.
  boost::asio::awaitable<void> pins(const ClientRequest& request, AnswerWriter& answer,
                                    ClientWatch& client);

  /// For requests that come from now on; see ProxyOptions.
  void set_volatile_lines(std::vector<std::string> lines) {
    options_.volatile_lines = std::move(lines);
  }

  /// Its own figures and those of what it was made with.
  Stats stats() const;

 private:
  struct Flow;
  boost::asio::awaitable<void> own_work(boost::asio::awaitable<void> work, AnswerWriter& answer,
                                        ClientWatch& client);
  boost::asio::awaitable<void> change_pins(const ClientRequest& request, AnswerWriter& answer);
  boost::asio::awaitable<void> look_up(const ClientRequest& request, AnswerWriter& answer);
  boost::asio::awaitable<void> pass(const ClientRequest& request, AnswerWriter& answer,
                                    ClientWatch& client, RequestReport& report);
  boost::asio::awaitable<void> generate(const ClientRequest& request, AnswerWriter& answer,
                                        ClientWatch& client, RequestReport& report);

  Upstream& upstream_;
  LlamaServerBackend& backend_;
  BackendMonitor& monitor_;
  Engine& engine_;
  Admission& admission_;
  PromptEmbeddings& embeddings_;
  ProxyOptions options_;
  std::function<void(const RequestReport&)> report_;
  std::uint64_t passed_ = 0, refused_ = 0, dropped_lines_ = 0;
  std::size_t lookups_ = 0;
};

}  // namespace toki::http
