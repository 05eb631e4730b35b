// tokid: wiring, signals, exit codes. 0: ended as asked; 1: cannot run; 2: bad options; else that of
// a server behind -- that never served.
#include <toki/version.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <malloc.h>
#include <memory>
#include <optional>
#include <sys/file.h>

#include "log.hpp"
#include "options.hpp"
#include "recorder.hpp"
#include "server.hpp"
#include "services.hpp"
#include "supervisor.hpp"

namespace {

namespace asio = boost::asio;
using namespace tokid;
using toki::http::Millis;

constexpr Millis kFlushLimit{5000};  // at the end, for what is worth a save
constexpr Millis kFirstLookLimit{500};

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

struct Daemon {
  Daemon(asio::io_context& io, const Options& o, std::optional<Recorder> records)
      : options(o),
        recorder(std::move(records)),
        gate(o.keys, gate_options(o)),
        server(io.get_executor(), services, gate, server_limits(o)),
        ending(io, SIGINT, SIGTERM),
        tasks(io.get_executor()) {}

  void use_keys(const Options& o) {
    for (const std::string& warning : o.keys.warnings()) {
      spdlog::warn(warning);
    }
    for (const auto& service : services.all()) {
      service->monitor.set_tenants(gate.apart());
    }
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
    server.set_limits(server_limits(o));
    server.set_tls(o.tls);
    server.set_cors(o.cors);
    for (const auto& service : services.all()) {
      service->reload(o);
    }
  }

  const Options& options;
  std::optional<Recorder> recorder;
  Services services;
  Gate gate;
  Server server;
  std::unique_ptr<Supervisor> child;
  asio::signal_set ending;  // cancelled: the child is given up
  int exit_code = 0;
  toki::http::TaskGroup tasks;
};

// Everything that runs is ended before what it uses goes.
asio::awaitable<bool> wind_down(Daemon& daemon) {
  bool clean = co_await daemon.server.drain(Millis(daemon.options.drain_ms));
  const auto deadline = std::chrono::steady_clock::now() + kFlushLimit;
  for (const auto& service : daemon.services.all()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    co_await service->save(std::max(std::chrono::duration_cast<Millis>(left), Millis(0)));
  }
  if (daemon.child != nullptr) {
    co_await daemon.child->stop(Millis(10000));
  }
  clean = co_await daemon.tasks.stop(Millis(500)) && clean;
  for (const auto& service : daemon.services.all()) {
    service->close();
  }
  co_return clean;
}

// The first signal drains and stops; a second one ends at once.
asio::awaitable<void> stop_on_signal(Daemon& daemon) {
  const auto [ec, first] = co_await daemon.ending.async_wait(asio::as_tuple(asio::use_awaitable));
  if (!ec) {
    spdlog::info("signal {}: draining for up to {} ms", first, daemon.options.drain_ms);
  }
  auto end_at_once = [child = daemon.child.get()](const boost::system::error_code& failed,
                                                  int second) {
    if (!failed) {
      if (child != nullptr) {
        child->kill();
      }
      std::_Exit(128 + second);
    }
  };
  daemon.ending.async_wait(end_at_once);
  const bool clean = co_await wind_down(daemon);
  daemon.ending.cancel();
  spdlog::info("stopped");
  if (!clean) {
    spdlog::default_logger()->flush();
    std::_Exit(daemon.exit_code);  // a call to the backend hangs; nothing of ours is half done
  }
}

asio::awaitable<void> supervise(Daemon& daemon) {
  const std::optional<int> status = co_await daemon.child->run();
  if (status) {
    spdlog::error(
        "{} ended {} times and never once answered /health: tokid ends with its status {}",
        daemon.options.server[0], Supervisor::kTries, *status);
    daemon.exit_code = *status != 0 ? *status : 1;
    daemon.ending.cancel();
  }
}

// Until the backends were looked at once, connections wait in the kernel: after a restart of tokid
// nobody is told that they are down.
asio::awaitable<void> start_serving(asio::io_context& io, Daemon& daemon) {
  asio::steady_timer pause(io);
  const auto& all = daemon.services.all();
  const auto serving = [](const auto& service) { return service->monitor.serving(); };
  const auto deadline = std::chrono::steady_clock::now() + kFirstLookLimit;
  while (!std::all_of(all.begin(), all.end(), serving) &&
         std::chrono::steady_clock::now() < deadline) {
    pause.expires_after(Millis(5));
    co_await pause.async_wait(asio::use_awaitable);
  }
  daemon.server.start();
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

// The server behind --, with what toki needs of it; its folder is the slot folder.
toki::Result<std::optional<ServerCommand>> prepare_command(Options& options) {
  if (options.server.empty()) {
    return std::optional<ServerCommand>();
  }
  const auto slot_dir = std::filesystem::path(options.data_dir) / "slots";
  std::error_code ec;
  std::filesystem::create_directories(slot_dir, ec);
  if (ec) {
    return toki::Error{toki::Errc::unavailable,
                       fmt::format("{}: {}", slot_dir.string(), ec.message())};
  }
  auto completed =
      complete_command(options.server, options.backend_given ? &options.backend_address : nullptr,
                       slot_dir.string());
  if (!completed) {
    return completed.error();
  }
  options.slot_dir = slot_dir.string();
  options.backend_address = completed->address;
  return std::optional<ServerCommand>(std::move(*completed));
}

toki::Result<std::vector<std::string>> listen_everywhere(Daemon& daemon) {
  const Options& options = daemon.options;
  std::vector<std::string> places;
  daemon.server.set_tls(options.tls);
  daemon.server.set_cors(options.cors);
  for (const ListenAddress& wanted : options.listen_at) {
    const auto address = daemon.server.listen(wanted);
    if (!address) {
      return address.error();
    }
    const std::string scheme = !address->path.empty() ? "" : options.tls ? "https://" : "http://";
    places.push_back(scheme + address->name());
  }
  return places;
}

void say_where(const Options& options, const std::vector<std::string>& places,
               const Services& services) {
  for (const std::string& place : places) {
    fmt::print("tokid listening on {}\n", place);
  }
  std::fflush(stdout);
  std::vector<std::string> backends;
  for (const auto& service : services.all()) {
    backends.push_back(service->name() + (service->name().empty() ? "" : "=") +
                       service->address().name());
  }
  spdlog::info("tokid {} on {}, backend {}, state in {}", toki::version(), fmt::join(places, ", "),
               fmt::join(backends, ", "), options.data_dir);
}

int run(Options options, int argc, char** argv, const std::string& settings) {
  if (const auto locked = lock_data_dir(options); !locked) {
    return fail(locked.error());
  }
  const auto command = prepare_command(options);
  if (!command) {
    return fail(command.error());
  }
  if (options.exact && options.exact_batch == 0) {
    options.exact_batch = *command ? (*command)->batch : ServerCommand{}.batch;
  }
  auto recorder = open_recorder(options);
  if (!recorder) {
    return fail(recorder.error());
  }
  asio::io_context io(1);
  const LogGathering gathering(io.get_executor());
  Daemon daemon(io, options, std::move(*recorder));
  const auto opened = daemon.services.open(io, options, *command ? &**command : nullptr,
                                           daemon.recorder ? &*daemon.recorder : nullptr);
  if (!opened) {
    return fail(opened.error());
  }
  daemon.use_keys(options);
  const auto places = listen_everywhere(daemon);
  if (!places) {
    return fail(places.error());
  }
  if (*command) {
    const Service& service = *daemon.services.all()[0];
    daemon.child = std::make_unique<Supervisor>(
        io.get_executor(), (*command)->words, (*command)->address.path,
        [&service] { return !service.monitor.identity().empty(); }, log_line);
    if (const auto status = daemon.child->start(); !status) {
      return fail(status.error());
    }
    daemon.tasks.spawn(supervise(daemon));
  }
  say_where(options, *places, daemon.services);
  asio::co_spawn(io, stop_on_signal(daemon), asio::detached);
  daemon.tasks.spawn(reload_on_signal(io, daemon, argc, argv, settings));
  for (const auto& service : daemon.services.all()) {
    service->run(daemon.tasks);
  }
  daemon.tasks.spawn(start_serving(io, daemon));
  io.run();
  return daemon.exit_code;
}

// glibc raises the size from which it maps memory to whatever was freed last: after one body of megabytes
// they all come from the heap, where what lives longer keeps them from being given back. Measured in the
// soak: 28 MB at rest, which stay so, against 77 to 200.
void give_back_large_buffers() {
#ifdef M_ARENA_MAX
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
  mallopt(M_ARENA_MAX, 2);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  give_back_large_buffers();
  std::signal(SIGPIPE, SIG_IGN);
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.run) {
    fmt::print(parsed.exit_code == 0 ? stdout : stderr, "{}", parsed.text);
    return parsed.exit_code;
  }
  start_log(parsed.options.log_level,
            parsed.options.log_format == "json" ? LogFormat::json : LogFormat::text);
  return run(parsed.options, argc, argv, parsed.text);
}
