// tokid: wiring, signals, exit codes. 0: ended as asked; 1: cannot run; 2: bad options.
#include <toki/fingerprints.hpp>
#include <toki/http/audit.hpp>
#include <toki/http/housekeeper.hpp>
#include <toki/index_store.hpp>
#include <toki/kv_store.hpp>
#include <toki/named_states.hpp>
#include <toki/pin_file.hpp>
#include <toki/version.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/compile.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <sys/file.h>

#include "log.hpp"
#include "options.hpp"
#include "recorder.hpp"
#include "server.hpp"
#include "supervisor.hpp"

namespace {

namespace asio = boost::asio;
using namespace tokid;
using toki::http::KeepAlive;
using toki::http::Millis;

void log_line(toki::LogLevel level, std::string_view text) {
  switch (level) {
    case toki::LogLevel::error: spdlog::error(text); break;
    case toki::LogLevel::warn: spdlog::warn(text); break;
    case toki::LogLevel::info: spdlog::info(text); break;
    case toki::LogLevel::debug: spdlog::debug(text); break;
  }
}

// Milliseconds with two decimals, without the cost of a floating point number in decimal form.
void add_ms(fmt::memory_buffer& line, std::string_view name, double ms) {
  const auto hundredths = static_cast<std::uint64_t>(std::max(ms, 0.0) * 100 + 0.5);
  fmt::format_to(std::back_inserter(line), FMT_COMPILE("{}{}.{}{}"), name, hundredths / 100,
                 hundredths / 10 % 10, hundredths % 10);
}

std::string_view or_dash(std::string_view word) {
  return word.empty() ? "-" : word;
}

// One a request, so it counts what it costs: about a microsecond.
void log_request(const toki::http::RequestReport& r) {
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (!logger.should_log(spdlog::level::info)) {
    return;
  }
  fmt::memory_buffer line;
  const auto out = std::back_inserter(line);
  fmt::format_to(out, FMT_COMPILE("request method={} path={} status={} ending={} slot="), r.method,
                 r.path, r.status, r.ending);
  r.slot ? fmt::format_to(out, FMT_COMPILE("{}"), *r.slot) : fmt::format_to(out, FMT_COMPILE("-"));
  fmt::format_to(out,
                 FMT_COMPILE(" reason={} source={} class={} prompt={} available={} predicted={} "
                             "reused={} generated={}"),
                 or_dash(r.reason), or_dash(r.source), or_dash(r.cache_class), r.prompt,
                 r.available, r.predicted, r.reused, r.generated);
  add_ms(line, " render_ms=", r.render_ms);
  add_ms(line, " queue_ms=", r.queue_ms);
  add_ms(line, " first_byte_ms=", r.first_byte_ms);
  add_ms(line, " total_ms=", r.total_ms);
  line.append(std::string_view(r.mismatch ? " mismatch=1" : ""));
  line.append(std::string_view(r.fault ? " integrity_fault=1" : ""));
  if (!r.error.empty()) {
    fmt::format_to(out, FMT_COMPILE(" error=\"{}\""), r.error);
  }
  if (!r.client.empty()) {
    fmt::format_to(out, FMT_COMPILE(" tenant={}"), r.client);
  }
  logger.log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

KeepAlive keep_alive(const Options& options) {
  return {.grace = Millis(options.keepalive_grace_ms),
          .interval = Millis(options.keepalive_interval_ms),
          .form = options.keepalive_form == "off"    ? KeepAlive::Form::off
                  : options.keepalive_form == "line" ? KeepAlive::Form::line
                                                     : KeepAlive::Form::comment};
}

std::int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Millis>(now).count();
}

toki::http::AdmissionLimits queue_limits(const Options& o) {
  return {.length = o.queue_length,
          .wait = Millis(o.queue_wait_ms),
          .slot_wait = Millis(o.slot_wait_ms),
          .lead_wait = Millis(o.lead_wait_ms)};
}

ServerLimits server_limits(const Options& o) {
  return {.max_body = o.max_body_mib << 20, .max_connections = o.max_connections};
}

GateOptions gate_options(const Options& o) {
  return {.shared = o.share_tenants,
          .check_host =
              !o.keys.any() && std::none_of(o.listen_at.begin(), o.listen_at.end(), reachable),
          .host_names = o.host_name,
          .limits = {.requests = o.tenant_requests, .per_minute = o.tenant_rate}};
}

constexpr Millis kFlushLimit{5000};  // at the end, for what is worth a save

struct Daemon {
  Daemon(asio::io_context& io, const Options& o, bool own_cache,
         std::unique_ptr<toki::StateStore> kept, std::optional<Recorder> records)
      : options(o),
        recorder(std::move(records)),
        upstream(io.get_executor(), o.backend_address, o.backend_key, o.backend_tls),
        store(std::move(kept)),
        worker(store ? std::make_unique<toki::http::StoreWorker>(*store) : nullptr),
        fingerprints(in_data_dir(o, "fingerprints")),
        pin_file(in_data_dir(o, "pins")),
        embed_upstream(io.get_executor(), o.embed_address.value_or(o.backend_address),
                       o.embed_address ? std::string() : o.backend_key, o.backend_tls),
        embedder(embed_upstream),
        backend(io.get_executor(), upstream,
                {.render = Millis(o.tokenize_limit_ms),
                 .save = Millis(o.save_limit_ms),
                 .restore = Millis(o.restore_limit_ms),
                 .token_cache_bytes = o.token_cache_mib << 20}),
        index({.path = in_data_dir(o, "index.db"), .max_prompts = o.max_prompts}, log_line,
              [this, &io](std::vector<toki::PromptRecord> prompts) {
                auto adopt = [this, kept = std::move(prompts)]() mutable {
                  if (!forgot_all) {
                    engine.adopt(std::move(kept));
                  }
                };
                asio::post(io, std::move(adopt));
              }),
        engine({.tree = {.max_bytes = o.tree_mib << 20},
                .max_prompts = o.max_prompts,
                .max_prompt_bytes = o.prompts_mib << 20,
                .min_reuse_for_hit = o.min_reuse_for_hit,
                .hot_pins = o.pin_hot,
                .exact_batch = o.exact_batch,
                .isolated = o.keys.any() && !o.share_tenants},
               &std::chrono::steady_clock::now, &unix_ms),
        admission(io.get_executor(), engine, queue_limits(o)),
        monitor(io.get_executor(), backend, upstream, engine, admission,
                {.interval = Millis(o.probe_interval_ms),
                 .own_cache = own_cache,
                 .states = states(),
                 .exact_batch = o.exact_batch},
                log_line),
        embeddings(io.get_executor(), o.embed_address ? &embedder : nullptr, engine,
                   Millis(o.embed_limit_ms), log_line),
        housekeeper(io.get_executor(), engine, backend, worker.get(), log_line),
        audit(io.get_executor(),
              {upstream, engine, backend, monitor, o.embed_address ? &embedder : nullptr,
               worker.get()},
              {.every = o.audit_every, .same_meaning = o.audit_cosine}, log_line),
        proxy(upstream, backend, monitor, engine, admission, embeddings,
              {.progress_limit = Millis(o.progress_limit_ms),
               .volatile_lines = o.drop_volatile_line,
               .keep_alive = keep_alive(o),
               .audit = o.audit_every > 0 ? &audit : nullptr,
               .store = worker.get(),
               .record = record()},
              [this](const toki::http::RequestReport& report) {
                log_request(report);
                recent.add(report, unix_ms());
              }),
        operations(engine, backend, index, store.get(), worker.get(), housekeeper, recent),
        gate(o.keys, gate_options(o)),
        server(io.get_executor(), proxy, engine, operations, monitor, gate, server_limits(o),
               [this] { return stats(); }),
        tasks(io.get_executor()) {
    if (store) {
      engine.use_store([this](const toki::Scope& scope,
                              toki::TokenSpan tokens) { return store->match(scope, tokens); },
                       [this](const toki::Scope& scope, toki::TokenSpan tokens) {
                         worker->doubt(scope, tokens);
                       });
    }
    adopt_pins();
    use_keys(o);
    engine.on_prompt_change([this](toki::PromptChange change) { keep(std::move(change)); });
  }

  static std::string in_data_dir(const Options& o, const char* name) {
    return (std::filesystem::path(o.data_dir) / name).string();
  }

  std::function<void(toki::http::Endpoint, std::string_view)> record() {
    if (!recorder) {
      return {};
    }
    return [this](toki::http::Endpoint endpoint, std::string_view body) {
      recorder->record(toki::http::path_of(endpoint), body, unix_ms());
    };
  }

  std::optional<toki::http::StateSetup> states() {
    if (!store) {
      return std::nullopt;
    }
    return toki::http::StateSetup{.trial_dir = in_data_dir(options, "trial"),
                                  .slot_dir = options.slot_dir,
                                  .named = options.slot_dir.empty() ? worker.get() : nullptr,
                                  .fingerprints = &fingerprints};
  }

  // Pins are few, and what a person asked for must not wait in a queue: written at once.
  void adopt_pins() {
    auto kept = pin_file.read();
    if (kept) {
      engine.adopt_pins(std::move(*kept));
    } else {
      spdlog::warn("pins of earlier runs are lost: {}", kept.error().detail);
    }
    engine.on_pins_change([this](const std::vector<toki::PinRecord>& pins) {
      if (const auto status = pin_file.write(pins); !status) {
        spdlog::warn("pins will not survive a restart: {}", status.error().detail);
      }
    });
  }

  void use_keys(const Options& o) {
    for (const std::string& warning : o.keys.warnings()) {
      spdlog::warn(warning);
    }
    monitor.set_tenants(gate.apart());
    if (gate.keys().any() || gate.keys().has_admin()) {
      spdlog::info("{} keys of {} tenants{}{}", gate.keys().size(), gate.keys().tenants().size(),
                   gate.keys().any() && !gate.isolates() ? ", which share what is computed" : "",
                   gate.keys().has_admin() ? ", and one of the admin" : "");
    }
  }

  // Only what kReloadable names (options.cpp).
  void reload(const Options& o) {
    if (o.keys.any() != gate.keys().any()) {
      spdlog::warn("that keys are wanted, or not any more, waits for a restart");
    }
    gate.change(o.keys, gate_options(o));
    use_keys(o);
    spdlog::set_level(spdlog::level::from_str(o.log_level));
    admission.set_limits(queue_limits(o));
    server.set_limits(server_limits(o));
    server.set_tls(o.tls);
    server.set_cors(o.cors);
    proxy.set_volatile_lines(o.drop_volatile_line);
  }

  void keep(toki::PromptChange change) {
    toki::PromptRecord& prompt = change.prompt;
    switch (change.kind) {
      case toki::PromptChange::Kind::put: index.put(std::move(prompt)); break;
      case toki::PromptChange::Kind::used:
        index.use(prompt.id, prompt.use, prompt.last_used_ms);
        break;
      case toki::PromptChange::Kind::removed: index.remove(prompt.id); break;
      case toki::PromptChange::Kind::cleared:
        forgot_all = true;
        index.clear();
        break;
    }
  }

  toki::Stats stats() const {
    toki::Stats all = proxy.stats();
    all.backend_cache_mib = cache_mib;
    index.add_to(all);
    if (store) {
      store->add_to(all);
    }
    if (recorder) {
      recorder->add_to(all);
    }
    gate.add_to(all);
    return all;
  }

  const Options& options;
  std::optional<Recorder> recorder;
  double cache_mib = -1;    // of the server's own prompt cache
  bool forgot_all = false;  // before the index was read: it is not wanted any more
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
  Gate gate;
  Server server;
  toki::http::TaskGroup tasks;
};

// The first signal drains and stops; a second one ends at once. Everything that runs is ended
// before what it uses goes.
asio::awaitable<void> stop_on_signal(asio::io_context& io, Daemon& daemon, Supervisor* child) {
  asio::signal_set signals(io, SIGINT, SIGTERM);
  const int first = co_await signals.async_wait(asio::use_awaitable);
  spdlog::info("signal {}: draining for up to {} ms", first, daemon.options.drain_ms);
  auto end_at_once = [child](const boost::system::error_code& ec, int second) {
    if (!ec) {
      if (child != nullptr) {
        child->kill();
      }
      std::_Exit(128 + second);
    }
  };
  signals.async_wait(end_at_once);
  bool clean = co_await daemon.server.drain(Millis(daemon.options.drain_ms));
  co_await daemon.housekeeper.flush(kFlushLimit);
  if (child != nullptr) {
    co_await child->stop(Millis(10000));
  }
  clean = co_await daemon.tasks.stop(Millis(500)) && clean;
  daemon.upstream.keep_none();
  daemon.embed_upstream.keep_none();
  if (!daemon.index.flush(Millis(2000))) {
    spdlog::warn("not all of the index could be written");
  }
  spdlog::info("stopped");
  if (!clean) {
    spdlog::default_logger()->flush();
    std::_Exit(0);  // a call to the backend hangs; nothing of ours is half done
  }
}

// SIGHUP: the settings are read again, all of them or none.
asio::awaitable<void> reload_on_signal(asio::io_context& io, Daemon& daemon, int argc, char** argv,
                                       std::string settings) {
  asio::signal_set hangups(io, SIGHUP);
  for (;;) {
    co_await hangups.async_wait(asio::use_awaitable);
    const Parsed now = parse_options(argc, argv);
    if (!now.run) {
      spdlog::error("the old settings stay: {}", now.text.substr(0, now.text.find('\n')));
      continue;
    }
    daemon.reload(now.options);
    const auto done = changed_settings(settings, now.text, true);
    const auto later = changed_settings(settings, now.text, false);
    spdlog::info("settings read again; changed: {}; only after a restart: {}",
                 done.empty() ? "none" : fmt::format("{}", fmt::join(done, ", ")),
                 later.empty() ? "none" : fmt::format("{}", fmt::join(later, ", ")));
    settings = now.text;
  }
}

int fail(const toki::Error& error) {
  fmt::print(stderr, "tokid: {}\n", error.detail);
  return error.code == toki::Errc::invalid_argument ? 2 : 1;
}

using OpenedStore = toki::Result<std::unique_ptr<toki::StateStore>>;

template <class Store>
OpenedStore as_store(toki::Result<std::unique_ptr<Store>> opened) {
  return opened ? OpenedStore(std::move(*opened)) : OpenedStore(opened.error());
}

// For a folder that only llama-server reaches. Nobody asked for it, so its failing stops nothing.
OpenedStore open_named(const Options& options) {
  auto opened = toki::NamedStates::open(
      {.dir = Daemon::in_data_dir(options, "named"), .names = options.remote_states}, log_line);
  if (!opened) {
    spdlog::warn("no slot states are kept by the backend: {}", opened.error().detail);
    return std::unique_ptr<toki::StateStore>();
  }
  return as_store(std::move(opened));
}

// For a folder that both reach.
OpenedStore open_shared(const Options& options) {
  auto opened = toki::KvStore::open({.dir = Daemon::in_data_dir(options, "kv"),
                                     .slot_dir = options.slot_dir,
                                     .max_bytes = std::uint64_t{options.kv_gib} << 30},
                                    log_line);
  if (opened) {
    return as_store(std::move(opened));
  }
  const toki::Error& error = opened.error();
  if (error.code == toki::Errc::unavailable || error.code == toki::Errc::no_space) {
    spdlog::warn("no KV cache is kept on disk until the next start: {}", error.detail);
    return std::unique_ptr<toki::StateStore>();  // a disk that fails is no reason not to serve
  }
  return toki::Error{error.code, fmt::format("--slot-dir {}, --data-dir {}: {}", options.slot_dir,
                                             options.data_dir, error.detail)};
}

// Null where nothing is to be kept.
OpenedStore open_store(const Options& options) {
  if (!options.slot_dir.empty()) {
    return options.kv_gib > 0 ? open_shared(options) : std::unique_ptr<toki::StateStore>();
  }
  return options.remote_states > 0 ? open_named(options) : std::unique_ptr<toki::StateStore>();
}

toki::Result<std::optional<Recorder>> open_recorder(const Options& options) {
  if (options.record.empty()) {
    return std::optional<Recorder>();
  }
  auto opened = Recorder::open(options.record, options.record_mib << 20, log_line);
  if (!opened) {
    return opened.error();
  }
  spdlog::warn("every generation request is recorded with its prompt: {}", options.record);
  return std::optional<Recorder>(std::move(*opened));
}

// Held until the process ends, however it ends. A file system that locks no folders refuses nobody.
toki::Status lock_data_dir(const Options& options) {
  const int folder = ::open(options.data_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0 && ::flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return toki::Error{
        toki::Errc::busy,
        fmt::format("--data-dir {}: another tokid uses this folder", options.data_dir)};
  }
  return toki::Done{};
}

int run(Options options, int argc, char** argv, const std::string& settings) {
  if (const auto locked = lock_data_dir(options); !locked) {
    return fail(locked.error());
  }
  std::optional<ServerCommand> command;
  if (!options.server.empty()) {
    const auto slot_dir = std::filesystem::path(options.data_dir) / "slots";
    std::error_code ec;
    std::filesystem::create_directories(slot_dir, ec);
    if (ec) {
      return fail(
          {toki::Errc::unavailable, fmt::format("{}: {}", slot_dir.string(), ec.message())});
    }
    auto completed =
        complete_command(options.server, options.backend_given ? &options.backend_address : nullptr,
                         slot_dir.string());
    if (!completed) {
      return fail(completed.error());
    }
    command = std::move(*completed);
    options.slot_dir = slot_dir.string();
    options.backend_address = command->address;
  }
  if (options.exact && options.exact_batch == 0) {
    options.exact_batch = command ? command->batch : ServerCommand{}.batch;
  }
  auto store = open_store(options);
  if (!store) {
    return fail(store.error());
  }
  auto recorder = open_recorder(options);
  if (!recorder) {
    return fail(recorder.error());
  }
  asio::io_context io(1);
  const LogGathering gathering(io.get_executor());
  const bool own_cache = command ? command->own_cache : !options.no_backend_cache;
  Daemon daemon(io, options, own_cache, std::move(*store), std::move(*recorder));
  daemon.cache_mib = command ? command->cache_mib : -1;
  std::unique_ptr<Supervisor> child;
  std::vector<std::string> places;
  daemon.server.set_tls(options.tls);
  daemon.server.set_cors(options.cors);
  for (const ListenAddress& wanted : options.listen_at) {
    const auto address = daemon.server.listen(wanted);
    if (!address) {
      return fail(address.error());
    }
    const std::string scheme = !address->path.empty() ? "" : options.tls ? "https://" : "http://";
    places.push_back(scheme + address->name());
  }
  if (command) {
    child = std::make_unique<Supervisor>(io.get_executor(), command->words, command->address.path,
                                         log_line);
    if (const auto status = child->start(); !status) {
      return fail(status.error());
    }
    daemon.tasks.spawn(child->run());
  }
  for (const std::string& place : places) {
    fmt::print("tokid listening on {}\n", place);
  }
  std::fflush(stdout);
  spdlog::info("tokid {} on {}, backend {}, state in {}", toki::version(), fmt::join(places, ", "),
               options.backend_address.name(), options.data_dir);
  asio::co_spawn(io, stop_on_signal(io, daemon, child.get()), asio::detached);
  daemon.tasks.spawn(reload_on_signal(io, daemon, argc, argv, settings));
  daemon.tasks.spawn(daemon.monitor.run());
  daemon.tasks.spawn(daemon.embeddings.run());
  daemon.tasks.spawn(daemon.housekeeper.run());
  if (options.audit_every > 0) {
    daemon.tasks.spawn(daemon.audit.run());
  }
  daemon.server.start();
  io.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.run) {
    fmt::print(parsed.exit_code == 0 ? stdout : stderr, "{}", parsed.text);
    return parsed.exit_code;
  }
  start_log(parsed.options.log_level);
  return run(parsed.options, argc, argv, parsed.text);
}
