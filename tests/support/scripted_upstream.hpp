// A scripted llama-server for tests: real sockets, real slots of token lists, and every behaviour
// can be overridden. It logs what it receives and when its peers go away, and reports reuse
// (`timings.cache_n`, `usage`) from what its slots really hold.
//
// The tokenizer makes one token of each word (text between spaces, tabs and line ends), and one
// start token. A message costs three template tokens: `<|im_start|>ROLE`, `<|im_end|>`, `<|nl|>`;
// a prompt that asks for an answer ends with one more, `<|im_start|>assistant`. Words of the form
// <|…|> are single tokens only when specials are parsed, else three. With `cuts_specials` they are
// taken out wherever they stand, as real tokenizers do.
//
// As in llama-server: the last generated token is not in the slot; at least one prompt token is
// always computed; a request for a busy slot waits; a closed connection cancels its generation, and
// the slot keeps what was computed; state files hold rows that follow from their tokens, and one
// that is not what the server itself would write is refused; `id_slot` out of range means any; a
// choice without id_slot takes the longest common prefix over the idle slots (if it is more than a
// tenth of the prompt), else the least recently used idle slot.
//
// Threads:   all public functions may be called from any thread. One thread a connection; hooks run
//            on it.
// Ownership: owns its threads and sockets; the destructor and stop() end them all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http_text.hpp"
#include "json.hpp"
#include "wait.hpp"

namespace toki::test {

enum class PeerEnd { open, fin, rst };

/// One received request. `path` is the target up to `?`, `query` what follows it.
struct LoggedRequest {
  std::uint64_t number = 0;      ///< counts from 1, never reset
  std::uint64_t connection = 0;  ///< counts from 1
  std::string method, target, path, query;
  std::string raw_head;  ///< as received, with the empty line
  Headers headers;
  bool chunked = false;
  std::shared_ptr<const std::string> raw_body = std::make_shared<const std::string>();
  Clock::time_point at;       ///< head complete
  Clock::time_point body_at;  ///< body complete

  // For generations that the upstream itself served:
  int slot = -1;
  std::vector<int> prompt;  ///< tokens evaluated
  int cache_n = -1;         ///< true reuse, whatever was reported
  int prompt_n = -1;
  bool answered = false;   ///< the answer was sent to its end
  bool cancelled = false;  ///< the peer left during the generation
  bool deferred = false;   ///< had to wait for a busy slot

  // When the peer ended the connection while this was its latest request:
  PeerEnd peer = PeerEnd::open;
  Clock::time_point peer_at;

  const std::string& body() const { return *raw_body; }
  Json json() const { return Json::parse(*raw_body).value_or(Json()); }
};

/// What the upstream does unless a hook takes over. Change it at any time with configure().
struct Behaviour {
  int slots = 2;
  int n_ctx = 65536;  ///< context of one slot
  std::string alias = "m";
  std::string model_path = "/models/m.gguf";
  std::int64_t model_size = 96576768;
  std::vector<std::string> more_models;  ///< listed beside it
  std::string draft = "none";            ///< `speculative.types` of /props
  std::string build_info = "b1-scripted";
  std::string chat_template = "{{ scripted }}";

  std::string answer = "ok";                   ///< one generated token a word
  milliseconds answer_delay{0};                ///< silence before the first byte of a generation
  milliseconds event_delay{0};                 ///< pause before each later event of a stream
  std::chrono::microseconds per_new_token{0};  ///< prefill time of each token not reused

  int health_status = 200;
  bool is_sleeping = false;  ///< work wakes it, with empty slots
  int tokenize_status = 200;
  int template_status = 200;
  int slot_action_status = 200;
  bool slot_action_needs_model = false;  ///< refused unless the body names `alias`
  std::uint32_t state_row_bytes = 6;     ///< as another type of KV cache would have it
  std::string slot_dir;  ///< folder of the state files; empty: they are kept in memory

  bool own_cache = false;  ///< displaced prompts are kept, and found by requests without id_slot
  bool keeps_idle_slots = true;  ///< false: work on one slot empties the idle ones
  bool honours_id_slot = true;
  bool compares_slots = true;  ///< false: without id_slot always the least recently used idle slot
  std::optional<int> cache_n;  ///< reported instead of the truth
  int usage_offset = 0;        ///< added to the reported prompt length

  bool template_has_start = false;  ///< the template writes the start token, completions add none
  bool think_template = false;      ///< an assistant entry of the history gets two words in front
  std::string messages_suffix;  ///< put behind the system text of /v1/messages, as no one expects
  bool generation_prompt = true;
  bool cuts_specials = false;      ///< `<|im_start|>user` is two tokens
  std::optional<int> embed_batch;  ///< makes embeddings of at most so many tokens; none: 501
  int embed_dimension = 8;

  std::optional<milliseconds> idle_close;  ///< closes a connection idle for so long
};

class ScriptedUpstream;

/// One accepted connection, as a hook sees it. Used on its own thread only, except peer_gone().
class Connection {
 public:
  Connection(ScriptedUpstream& upstream, Fd fd, std::uint64_t number);

  std::uint64_t number() const { return number_; }

  // Sending. False when the peer is gone.
  bool send(std::string_view raw);
  bool send_each(std::string_view raw, std::size_t piece, milliseconds pause);
  bool respond(int status, std::string_view body, const Headers& headers = {},
               std::string_view content_type = "application/json; charset=utf-8");
  bool begin_stream(int status = 200, const Headers& headers = {},
                    std::string_view content_type = "text/event-stream");  ///< chunked
  bool send_chunk(std::string_view payload);
  bool end_stream();

  // Waiting. False when the peer left or the upstream stops; then peer_gone() tells why.
  bool sleep(milliseconds time);
  bool wait_woken(milliseconds limit);      ///< until ScriptedUpstream::wake()
  bool wait_peer_gone(milliseconds limit);  ///< true when it left
  bool peer_gone();

  void close();  ///< FIN
  void reset();  ///< RST
  bool closed() const { return closed_; }

 private:
  friend class ScriptedUpstream;
  enum class Got { request, end };

  Got read_request(std::shared_ptr<LoggedRequest>& out);
  bool fill(milliseconds limit);  // one recv; false at the end, error or time limit
  void note_peer(PeerEnd end);
  int poll_peer(int timeout_ms);  // 1 gone, 0 not within the time
  void shut_down();               // from another thread

  ScriptedUpstream& upstream_;
  const std::uint64_t number_;
  std::mutex fd_mutex_;  // close() against shut_down()
  Fd fd_;
  bool closed_ = false;
  std::string in_;
  std::shared_ptr<LoggedRequest> current_;
  std::thread thread_;
  std::atomic<bool> finished_{false};
};

class ScriptedUpstream {
 public:
  /// Gets the first say on every request; true: handled (the connection is then used for the next
  /// request unless the hook closed it), false: the upstream answers as usual.
  using Hook = std::function<bool(const LoggedRequest&, Connection&)>;

  explicit ScriptedUpstream(Behaviour behaviour = {}, int port = 0);
  ~ScriptedUpstream();
  ScriptedUpstream(const ScriptedUpstream&) = delete;
  ScriptedUpstream& operator=(const ScriptedUpstream&) = delete;

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  void stop();   ///< closes the listener and every connection, as when the process ends
  void start();  ///< same port, empty slots, new media marker

  void configure(const std::function<void(Behaviour&)>& change);
  Behaviour behaviour() const;
  void on_request(Hook hook);  ///< replaces the present one; {} removes it
  void wake();                 ///< lets every Connection::wait_woken() return

  // What was received.
  std::vector<LoggedRequest> requests() const;
  std::vector<LoggedRequest> generations() const;  ///< POST on a path that generates
  std::vector<LoggedRequest> requests_to(std::string_view method, std::string_view path) const;
  void clear_log();
  /// Waits until generations() has at least `count` entries.
  bool wait_generations(std::size_t count, milliseconds limit = milliseconds(10000)) const;
  std::size_t open_connections() const;

  // Slots.
  std::vector<int> slot(int id) const;
  bool slot_busy(int id) const;
  void set_slot(int id, std::vector<int> tokens);
  void hold_slot(int id);  ///< busy until release_slot, as a generation that never ends
  void release_slot(int id);
  std::string media_marker() const;

  std::vector<int> tokenize(std::string_view text, bool add_start = true,
                            bool parse_special = true);

 private:
  friend class Connection;
  struct Slot {
    std::vector<int> tokens;
    bool busy = false;
    bool held = false;
    std::uint64_t last_used = 0;
    std::uint64_t task = 0;
  };
  void accept_loop(int listener);
  void serve(const std::shared_ptr<Connection>& connection);
  void answer(const std::shared_ptr<LoggedRequest>& request, Connection& connection);
  void generate(const std::shared_ptr<LoggedRequest>& request, Connection& connection);
  void slot_action(const LoggedRequest& request, Connection& connection);
  void embed(const LoggedRequest& request, Connection& connection);
  /// Makes a slot busy with `prompt` and returns it with what it reuses; nothing: the peer left.
  struct Taken {
    int slot = 0;
    int cache_n = 0;
    bool deferred = false;
  };
  std::optional<Taken> take(Connection& connection, std::int64_t wanted, bool reuse,
                            const std::vector<int>& prompt);
  int choose_locked(std::int64_t wanted, const std::vector<int>& prompt) const;  // -1: busy
  void release(int slot, std::vector<int> tokens);
  void wake_up();
  std::string render(const Json& body, bool to_compute = false) const;
  Json chat_of_messages(const Json& body) const;
  std::vector<std::vector<int>> prompts_of(std::string_view path, const Json& body);
  std::vector<int> tokenize_locked(std::string_view text, bool add_start, bool parse_special);
  void reset_state_locked();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int port_ = 0;
  int listener_ = -1;
  bool stopping_ = true;
  std::thread acceptor_;
  std::list<std::shared_ptr<Connection>> connections_;
  std::uint64_t last_connection_ = 0;

  Behaviour behaviour_;
  Hook hook_;
  std::uint64_t wakes_ = 0;
  std::vector<std::shared_ptr<LoggedRequest>> log_;
  std::uint64_t last_request_ = 0;

  std::vector<Slot> slots_;
  bool write_state_locked(const std::string& file, int slot);
  std::optional<std::vector<int>> read_state_locked(const std::string& file, int slot) const;

  std::vector<std::vector<int>> host_cache_;
  std::map<std::string, std::vector<int>> saved_;
  std::map<std::string, int, std::less<>> words_;
  std::uint64_t uses_ = 0;
  std::uint64_t tasks_ = 0;
  std::uint64_t starts_ = 0;
  std::string media_marker_;
};

/// Length of the common prefix.
int common_prefix(const std::vector<int>& a, const std::vector<int>& b);

/// True for the paths whose POST generates.
bool is_generation_path(std::string_view path);

}  // namespace toki::test
