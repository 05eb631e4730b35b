#include "options.hpp"

#include <toki/version.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "config_file.hpp"

namespace tokid {
namespace {

// What SIGHUP changes in a tokid that runs (Daemon::reload).
constexpr std::array<std::string_view, 16> kReloadable{
    "log-level",      "max-body-mib", "max-connections", "queue-length",
    "queue-wait-ms",  "slot-wait-ms", "lead-wait-ms",    "drop-volatile-line",
    "tls-cert",       "tls-key",      "cors-origin",     "api-keys",
    "admin-key-file", "host-name",    "tenant-requests", "tenant-rate"};

using toki::Status;

// CLI11's own Range says of a word that it is out of range.
CLI::Validator between(double least, double most) {
  const auto check = [least, most](std::string& text) -> std::string {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size()) {
      return fmt::format("'{}' is no number", text);
    }
    return number >= least && number <= most
               ? ""
               : fmt::format("{} is not from {} to {}", text, least, most);
  };
  return {check, fmt::format("from {} to {}", least, most)};
}

// An empty one would be taken as none, which is seldom what a script means by "$FOLDER".
void refuse_empty_paths(CLI::App& app) {
  const CLI::Validator filled(
      [](std::string& text) { return text.empty() ? "names nothing" : std::string(); }, "");
  for (const char* name :
       {"--config", "--tls-cert", "--tls-key", "--backend-ca", "--data-dir", "--slot-dir",
        "--backend-key-file", "--record", "--api-keys", "--admin-key-file"}) {
    app.get_option(name)->check(filled);
  }
}

void add_options(CLI::App& app, Options& o) {
  app.add_option("--config", o.config, "TOML file with any of these options, without the dashes");
  app.add_flag("--check-config", o.check_config,
               "only look whether all settings hold, and print them as a TOML file");
  const CLI::Validator ms = between(0, 7 * 24 * 3600 * 1000.0);
  const CLI::Validator positive_ms = between(1, 7 * 24 * 3600 * 1000.0);
  app.add_option("--listen", o.listen,
                 "ADDRESS:PORT to listen on, port 0 takes any free one, or unix:/PATH of a socket "
                 "(may be given several times)")
      ->allow_extra_args(false);
  app.add_option("--socket-mode", o.socket_mode,
                 "mode of such a socket: 0600 its owner's, 0660 its group's too, 0666 everybody's");
  app.add_option("--tls-cert", o.tls_cert,
                 "PEM file with the certificate (and its chain) for clients that connect over TCP; "
                 "then they must use https");
  app.add_option("--tls-key", o.tls_key, "PEM file with its key");
  app.add_option("--backend", o.backend,
                 "llama-server: http://HOST:PORT, https://HOST:PORT or unix:/PATH");
  app.add_option("--model", o.model,
                 "NAME=URL: requests for this model go to this llama-server (may be given several "
                 "times); --backend then gets all others, which are refused without it")
      ->allow_extra_args(false);
  app.add_option("--backend-ca", o.backend_ca,
                 "PEM file with the authorities to trust behind https, instead of the system's");
  app.add_option(
      "--data-dir", o.data_dir,
      "where toki keeps its state (default: $XDG_STATE_HOME/toki, else ~/.local/state/toki)");
  app.add_option(
      "--slot-dir", o.slot_dir,
      "the folder that llama-server has as --slot-save-path, when both can reach it; then "
      "computed KV cache is kept on disk (behind -- it is set by itself)");
  app.add_option("--kv-gib", o.kv_gib, "most disk for kept KV cache in GiB; 0: keep none")
      ->check(between(0, 1048576));
  app.add_option("--remote-states", o.remote_states,
                 "without --slot-dir: most files that llama-server is asked to keep in its own "
                 "--slot-save-path folder, whole slots under fixed names; 0: none")
      ->check(between(0, 4096));
  app.add_option("--lead-wait-ms", o.lead_wait_ms,
                 "longest wait for a prefix that another request computes now")
      ->check(ms);
  app.add_option(
         "--save-limit-ms", o.save_limit_ms,
         "longest time to save a slot; then the request goes on, and nothing is saved for a "
         "minute")
      ->check(positive_ms);
  app.add_option("--restore-limit-ms", o.restore_limit_ms,
                 "longest time to restore a slot; then the request goes on without it in another "
                 "slot, and nothing is restored for a minute")
      ->check(positive_ms);
  app.add_option("--pin-hot", o.pin_hot,
                 "so many of the prefixes that most prompts begin with keep a slot of their own")
      ->check(between(0, 1024));
  app.add_option("--backend-key-file", o.backend_key_file,
                 "file with llama-server's API key (or environment TOKID_BACKEND_KEY); without one "
                 "the client's own is passed on");
  app.add_option("--cors-origin", o.cors_origin,
                 "web pages of this origin (SCHEME://HOST[:PORT], or * for all) may use tokid from "
                 "a browser (may be given several times)")
      ->allow_extra_args(false);
  app.add_option("--max-body-mib", o.max_body_mib, "largest request body in MiB")
      ->check(between(1, 65536));
  app.add_option("--max-connections", o.max_connections, "most client connections")
      ->check(between(1, 1000000));
  app.add_option("--tree-mib", o.tree_mib, "most memory for the tree of known prompts in MiB")
      ->check(between(1, 1048576));
  app.add_option("--max-prompts", o.max_prompts,
                 "most prompts remembered whole, in memory and across restarts")
      ->check(between(0, 1000000));
  app.add_option("--prompts-mib", o.prompts_mib, "most memory for them in MiB")
      ->check(between(1, 1048576));
  app.add_option("--token-cache-mib", o.token_cache_mib,
                 "most memory for texts whose tokens are known, in MiB; 0: tokenize always")
      ->check(between(0, 1048576));
  app.add_option("--embed-backend", o.embed_backend,
                 "second llama-server, started with --embeddings, that finds similar prompts");
  app.add_option("--embed-limit-ms", o.embed_limit_ms,
                 "longest time that a request waits for its embedding")
      ->check(ms);
  app.add_option("--audit-every", o.audit_every,
                 "repeats every Nth repeatable hit without cache while nothing else is done, and "
                 "compares the answers; 0: never")
      ->check(between(0, 1000000000));
  app.add_option("--audit-cosine", o.audit_cosine,
                 "cosine of the embeddings from which two answers mean the same")
      ->check(between(0.0, 1.0));
  app.add_option("--drop-volatile-line", o.drop_volatile_line,
                 "drop the system prompt's first line when it begins with this text (may be given "
                 "several times)")
      ->allow_extra_args(false);
  app.add_option("--record", o.record,
                 "file to which the body of every generation request is appended, prompts and all, "
                 "for toki-replay");
  app.add_option("--record-mib", o.record_mib, "at this size of that file recording ends")
      ->check(between(1, 1048576));
  app.add_option("--queue-length", o.queue_length,
                 "most requests that wait for a slot; more get 429")
      ->check(between(0, 1000000));
  app.add_option("--queue-wait-ms", o.queue_wait_ms, "longest wait for a slot; then 503")
      ->check(ms);
  app.add_option(
         "--slot-wait-ms", o.slot_wait_ms,
         "longest wait for the busy slot that holds the prompt's prefix, before another is taken")
      ->check(ms);
  app.add_option(
         "--progress-limit-ms", o.progress_limit_ms,
         "longest silence of the backend; then 504 and the slot gets no work until it is idle")
      ->check(positive_ms);
  app.add_option("--tokenize-limit-ms", o.tokenize_limit_ms,
                 "longest time to render and tokenize a prompt; then it is forwarded uncached")
      ->check(positive_ms);
  app.add_option("--keepalive-grace-ms", o.keepalive_grace_ms,
                 "silence before a stream gets its first comment")
      ->check(positive_ms);
  app.add_option("--keepalive-interval-ms", o.keepalive_interval_ms, "time between comments")
      ->check(positive_ms);
  app.add_option("--keepalive-form", o.keepalive_form,
                 "comment (': toki' and a blank line), line (no blank line) or off")
      ->check(CLI::IsMember({"comment", "line", "off"}));
  app.add_option("--probe-interval-ms", o.probe_interval_ms,
                 "time between looks at the backend's health")
      ->check(positive_ms);
  app.add_option("--drain-ms", o.drain_ms, "time that running answers get at SIGTERM")->check(ms);
  app.add_option("--min-reuse-for-hit", o.min_reuse_for_hit,
                 "reused tokens from which a request counts as a hit")
      ->check(between(1, 1000000));
  app.add_flag(
      "--exact", o.exact,
      "answers are those that llama-server gives alone and without cache: one request at a "
      "time, and only whole batches of a prompt are reused");
  app.add_option(
         "--exact-batch", o.exact_batch,
         "with --exact: llama-server's -ub, or its -b where that is no multiple of it; 0: as "
         "the server behind -- is told, else 512")
      ->check(between(0, 1048576));
  app.add_option("--api-keys", o.api_keys,
                 "file of the keys that clients need, `KEY` or `NAME KEY` a line, plain or "
                 "sha256:HEX (more of them, with commas, in environment TOKID_API_KEYS)");
  app.add_option("--admin-key-file", o.admin_key_file,
                 "file with the key for what shows or changes everybody's (or environment "
                 "TOKID_ADMIN_KEY)");
  app.add_flag("--share-tenants", o.share_tenants,
               "with keys: what one tenant has computed serves all");
  app.add_flag("--allow-open", o.allow_open,
               "may listen without keys where other machines reach it");
  app.add_flag("--no-backend-cache", o.no_backend_cache,
               "the server at --backend keeps no prompts outside its slots: it was started with "
               "--cache-ram 0");
  app.add_option("--host-name", o.host_name,
                 "without keys on loopback: one more name that Host may have (may be given several "
                 "times)");
  app.add_option(
         "--tenant-requests", o.tenant_requests,
         "most requests of one tenant at work or waiting at once; more get 429; 0: no limit")
      ->check(between(0, 1000000));
  app.add_option("--tenant-rate", o.tenant_rate,
                 "most requests a minute of one tenant; more get 429; 0: no limit")
      ->check(between(0, 1000000));
  app.add_option("--log-level", o.log_level, "error, warn, info or debug")
      ->check(CLI::IsMember({"error", "warn", "info", "debug"}));
  app.add_option("--log-format", o.log_format, "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}));
}

// What --help calls the values, and docs/options.md after it (tests/options_table.py).
void name_values(CLI::App& app) {
  constexpr std::array<std::pair<std::string_view, const char*>, 22> kNames{{
      {"config", "FILE"},         {"tls-cert", "FILE"},         {"tls-key", "FILE"},
      {"backend-ca", "FILE"},     {"backend-key-file", "FILE"}, {"api-keys", "FILE"},
      {"admin-key-file", "FILE"}, {"record", "FILE"},           {"data-dir", "DIR"},
      {"slot-dir", "DIR"},        {"backend", "URL"},           {"embed-backend", "URL"},
      {"model", "NAME=URL"},      {"host-name", "NAME"},        {"cors-origin", "ORIGIN"},
      {"listen", "WHERE"},        {"socket-mode", "MODE"},      {"drop-volatile-line", "TEXT"},
      {"keepalive-form", "FORM"}, {"log-format", "FORM"},       {"log-level", "LEVEL"},
      {"audit-cosine", "X"},
  }};
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT") || type.starts_with("INT")) {
      option->type_name("N");
    }
  }
  for (const auto& [option, name] : kNames) {
    app.get_option(fmt::format("--{}", option))->type_name(name);
  }
  for (const std::string_view name : kReloadable) {
    CLI::Option* option = app.get_option(fmt::format("--{}", name));
    option->description(option->get_description() + " [SIGHUP]");
  }
}

Status refuse_pipes(const Options& options) {
  for (const std::string* file : {&options.config, &options.tls_cert, &options.tls_key,
                                  &options.backend_ca, &options.backend_key_file}) {
    std::error_code ignored;
    if (std::filesystem::is_fifo(*file, ignored)) {
      return toki::Error{toki::Errc::invalid_argument,
                         fmt::format("{}: a pipe cannot be read again", *file)};
    }
  }
  return toki::Done{};
}

// What the command line left open.
Status settle(CLI::App& app, Options& options, bool again) {
  if (auto status = check_environment(app); !status) {
    return status;
  }
  if (auto status = refuse_pipes(options); again && !status) {
    return status;
  }
  if (!options.config.empty()) {
    if (auto status = read_config(app, options.config, options.server); !status) {
      return status;
    }
  }
  if (auto status = refuse_pipes(options); again && !status) {
    return status;  // those that the file names
  }
  options.backend_given = app.count("--backend") > 0;
  return check_options(options);
}

std::string told(const CLI::App& app, const CLI::ParseError& error) {
  return one_line(dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ? what_is_unknown(app)
                                                                           : error.what());
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    line += c == '\n'                     ? "\\n"
            : byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte)
                                          : std::string(1, c);
  }
  return line;
}

Parsed parse_options(int argc, char** argv, bool again) {
  Parsed parsed;
  Options& options = parsed.options;
  int own = argc;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") {
      own = i;
      options.server.assign(argv + i + 1, argv + argc);
      break;
    }
  }
  CLI::App app{
      "tokid sits between OpenAI-API clients and llama-server and recycles KV caches.\n"
      "Behind `--` it starts llama-server itself, with the flags that toki needs:\n"
      "  tokid [OPTIONS] -- llama-server -m model.gguf ...\n"
      "Options with [SIGHUP] change in a tokid that runs when it gets that signal.",
      "tokid"};
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", std::string("tokid ") + toki::version());
  add_options(app, options);
  refuse_empty_paths(app);
  name_values(app);
  name_in_environment(app);
  try {
    app.parse(own, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == 0;
    parsed.exit_code = asked ? 0 : 2;
    parsed.text = dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr ? app.help()
                  : asked ? std::string(error.what()) + "\n"
                          : fmt::format("tokid: {}\n", told(app, error));
    return parsed;
  }
  if (own < argc && options.server.empty()) {
    parsed.exit_code = 2;
    parsed.text = "tokid: nothing stands after --\n";
    return parsed;
  }
  if (auto status = settle(app, options, again); !status) {
    parsed.exit_code = 2;
    parsed.text = fmt::format("tokid: {}\n", one_line(status.error().detail));
    return parsed;
  }
  parsed.text = write_config(app, options.server);
  parsed.run = !options.check_config;
  return parsed;
}

std::vector<std::string> changed_settings(const std::string& before, const std::string& after,
                                          bool reloadable) {
  std::istringstream old_lines(before);
  std::istringstream new_lines(after);
  std::vector<std::string> changed;
  std::string was;
  std::string is;
  while (std::getline(old_lines, was) && std::getline(new_lines, is)) {
    const std::string_view line = std::string_view(is).substr(is.starts_with("# ") ? 2 : 0);
    const std::string name(line.substr(0, line.find(' ')));
    const bool can = std::find(kReloadable.begin(), kReloadable.end(), name) != kReloadable.end();
    if (was != is && can == reloadable) {
      changed.push_back(name);
    }
  }
  return changed;
}

}  // namespace tokid
