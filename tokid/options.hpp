// What the command line, the environment and the configuration file say, checked.
#pragma once

#include <toki/divergence.hpp>
#include <toki/http/admission.hpp>
#include <toki/http/answer_writer.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/http/llama_server_backend.hpp>
#include <toki/http/proxy.hpp>
#include <toki/http/tls.hpp>
#include <toki/http/upstream.hpp>
#include <toki/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cors.hpp"
#include "keys.hpp"
#include "listener.hpp"

namespace tokid {

/// How --backend is called beside those of --model.
inline constexpr const char* kDefaultBackend = "default";

/// One llama-server and the models that requests name to reach it.
struct NamedBackend {
  std::vector<std::string> names;  ///< none: --backend, for every model that no other has
  toki::http::Address address;
};

struct Options {
  std::string config;
  bool check_config = false;
  std::vector<std::string> listen{"127.0.0.1:9090"};
  std::string socket_mode = "0600";
  std::string tls_cert;
  std::string tls_key;
  std::string backend = "http://127.0.0.1:8080";
  bool backend_given = false;
  std::vector<std::string> model;
  std::string backend_ca;
  std::vector<std::string> cors_origin;
  std::string data_dir;
  std::string slot_dir;
  std::size_t kv_gib = 32;
  std::size_t remote_states = 32;
  std::int64_t lead_wait_ms = 30000;
  std::int64_t save_limit_ms = 30000;
  std::int64_t restore_limit_ms = 30000;
  std::size_t pin_hot = 0;
  std::string backend_key_file;
  std::size_t max_body_mib = 64;
  std::size_t max_connections = 1024;
  std::size_t tree_mib = 128;
  std::size_t max_prompts = 4096;
  std::size_t prompts_mib = 64;
  std::size_t token_cache_mib = 64;
  std::string embed_backend;
  std::int64_t embed_limit_ms = 50;
  std::vector<std::string> drop_volatile_line;
  std::uint64_t audit_every = 0;
  double audit_cosine = toki::kSameMeaning;
  std::string record;
  std::uint64_t record_mib = 1024;
  std::size_t queue_length = 256;
  std::int64_t queue_wait_ms = 60000;
  std::int64_t slot_wait_ms = 1000;
  std::int64_t progress_limit_ms = 3600000;
  std::int64_t tokenize_limit_ms = 5000;
  std::int64_t keepalive_grace_ms = 5000;
  std::int64_t keepalive_interval_ms = 5000;
  std::string keepalive_form = "comment";
  std::int64_t probe_interval_ms = 1000;
  std::int64_t drain_ms = 5000;
  std::uint64_t min_reuse_for_hit = 10;
  bool exact = false;
  std::uint64_t exact_batch = 0;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string api_keys;
  std::string admin_key_file;
  bool share_tenants = false;
  bool allow_open = false;
  bool no_backend_cache = false;
  std::vector<std::string> host_name;
  std::size_t tenant_requests = 0;
  std::size_t tenant_rate = 0;
  std::vector<std::string> server;  // what stands after `--`

  // Filled by check_options().
  std::vector<ListenAddress> listen_at;
  toki::http::TlsContext tls;  // for clients; none: they connect in plain
  Cors cors;
  toki::http::TlsContext backend_tls;  // whom to trust behind https
  toki::http::Address backend_address;
  std::vector<NamedBackend> backends;  // of --model, --backend first; none without --model
  std::string backend_key;
  Keys keys;
  std::optional<toki::http::Address> embed_address;
};

/// What to do: run, or end at once with an exit code after printing `text`. When it is to run, the
/// text is all settings as a TOML file.
struct Parsed {
  Options options;
  bool run = false;
  int exit_code = 0;
  std::string text;
};

/// `text` as one line: what controls a terminal is shown as \n, \x1b and the like.
std::string one_line(std::string_view text);

/// Whether other machines can connect there.
bool reachable(const ListenAddress& address);

/// `again`: a tokid that runs must not wait for a file that is a pipe, so that is refused then.
Parsed parse_options(int argc, char** argv, bool again = false);
/// Reads what stands in the options as words; a part of parse_options(). The data folder is there then.
toki::Status check_options(Options& options);

/// The settings that differ between two such texts, by name; those that can change while tokid runs,
/// or the others.
std::vector<std::string> changed_settings(const std::string& before, const std::string& after,
                                          bool reloadable);

}  // namespace tokid
