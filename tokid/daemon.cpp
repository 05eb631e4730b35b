#include "daemon.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "log.hpp"
#include "process_limits.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::http::Millis;

namespace {

constexpr Millis kFlushLimit{5000};  // at the end, for what is worth a save
constexpr Millis kFirstLookLimit{500};

ServerLimits server_limits(const Options& o) {
  const std::size_t most = most_connections();
  if (o.max_connections > most) {
    spdlog::warn("descriptors suffice for {} connections (ulimit -n), not for --max-connections {}",
                 most, o.max_connections);
  }
  return {.max_body = o.max_body_mib << 20, .max_connections = std::min(o.max_connections, most)};
}

GateOptions gate_options(const Options& o) {
  return {.shared = o.share_tenants,
          .check_host =
              !o.keys.any() && std::none_of(o.listen_at.begin(), o.listen_at.end(), reachable),
          .host_names = o.host_name,
          .limits = {.requests = o.tenant_requests, .per_minute = o.tenant_rate}};
}

}  // namespace

Daemon::Daemon(asio::io_context& io, const Options& options)
    : io_(io),
      options_(options),
      gate_(options.keys, gate_options(options)),
      server_(io.get_executor(), services_, gate_, server_limits(options)),
      ending_(io, SIGINT, SIGTERM),
      tasks_(io.get_executor()) {}

toki::Status Daemon::open(const ServerCommand* command) {
  if (auto status = open_recorder(); !status) {
    return status;
  }
  auto opened = services_.open(io_, options_, command, recorder_ ? &*recorder_ : nullptr);
  if (!opened) {
    return opened;
  }
  use_keys(options_);
  if (auto status = listen(); !status) {
    return status;
  }
  return command != nullptr ? start_child(*command) : toki::Done{};
}

toki::Status Daemon::open_recorder() {
  if (!options_.record.empty()) {
    auto opened = Recorder::open(options_.record, options_.record_mib << 20, log_line);
    if (!opened) {
      return opened.error();
    }
    recorder_.emplace(std::move(*opened));
    spdlog::warn("every generation request is recorded with its prompt: {}", options_.record);
  }
  return toki::Done{};
}

toki::Status Daemon::listen() {
  server_.set_tls(options_.tls);
  server_.set_cors(options_.cors);
  for (const ListenAddress& wanted : options_.listen_at) {
    const auto address = server_.listen(wanted);
    if (!address) {
      return address.error();
    }
    const std::string scheme = !address->path.empty() ? "" : options_.tls ? "https://" : "http://";
    places_.push_back(scheme + address->name());
  }
  return toki::Done{};
}

toki::Status Daemon::start_child(const ServerCommand& command) {
  const Service& service = *services_.all()[0];
  child_ = std::make_unique<Supervisor>(
      io_.get_executor(), command.words, command.address.path,
      [&service] { return !service.monitor.identity().empty(); }, log_line);
  return child_->start();
}

std::vector<std::string> Daemon::backends() const {
  std::vector<std::string> names;
  for (const auto& service : services_.all()) {
    names.push_back(service->name() + (service->name().empty() ? "" : "=") +
                    service->address().name());
  }
  return names;
}

void Daemon::use_keys(const Options& now) {
  for (const std::string& warning : now.keys.warnings()) {
    spdlog::warn(warning);
  }
  for (const auto& service : services_.all()) {
    service->monitor.set_tenants(gate_.apart());
  }
  const Keys& keys = gate_.keys();
  if (keys.any() || keys.has_admin()) {
    spdlog::info("{} keys of {} tenants{}{}", keys.size(), keys.tenants().size(),
                 keys.any() && !gate_.isolates() ? ", which share what is computed" : "",
                 keys.has_admin() ? ", and one of the admin" : "");
  }
}

// Only what kReloadable names (options.cpp).
void Daemon::reload(const Options& now) {
  if (now.keys.any() != gate_.keys().any()) {
    spdlog::warn("that keys are wanted, or not any more, waits for a restart");
  }
  gate_.change(now.keys, gate_options(now));
  use_keys(now);
  spdlog::set_level(spdlog::level::from_str(now.log_level));
  server_.set_limits(server_limits(now));
  server_.set_tls(now.tls);
  server_.set_cors(now.cors);
  for (const auto& service : services_.all()) {
    service->reload(now);
  }
}

void Daemon::run(std::function<Parsed()> reread, std::string settings) {
  if (child_ != nullptr) {
    tasks_.spawn(supervise());
  }
  asio::co_spawn(io_, stop_on_signal(), asio::detached);
  tasks_.spawn(reload_on_signal(std::move(reread), std::move(settings)));
  for (const auto& service : services_.all()) {
    service->run(tasks_);
  }
  tasks_.spawn(start_serving());
}

// Until the backends were looked at once, connections wait in the kernel: after a restart of tokid
// nobody is told that they are down.
asio::awaitable<void> Daemon::start_serving() {
  asio::steady_timer pause(io_);
  const auto& all = services_.all();
  const auto serving = [](const auto& service) { return service->monitor.serving(); };
  const auto deadline = std::chrono::steady_clock::now() + kFirstLookLimit;
  while (!std::all_of(all.begin(), all.end(), serving) &&
         std::chrono::steady_clock::now() < deadline) {
    pause.expires_after(Millis(5));
    co_await pause.async_wait(asio::use_awaitable);
  }
  server_.start();
}

asio::awaitable<void> Daemon::supervise() {
  const std::optional<int> status = co_await child_->run();
  if (status) {
    spdlog::error(
        "{} ended {} times and never once answered /health: tokid ends with its status {}",
        options_.server[0], Supervisor::kTries, *status);
    exit_code_ = *status != 0 ? *status : 1;
    ending_.cancel();
  }
}

// SIGHUP: the settings are read again, all of them or none.
asio::awaitable<void> Daemon::reload_on_signal(std::function<Parsed()> reread,
                                               std::string settings) {
  asio::signal_set hangups(io_, SIGHUP);
  for (;;) {
    co_await hangups.async_wait(asio::use_awaitable);
    const Parsed now = reread();
    if (!now.run) {
      spdlog::error("the old settings stay: {}", now.text.substr(0, now.text.find('\n')));
      continue;
    }
    reload(now.options);
    const auto done = changed_settings(settings, now.text, true);
    const auto later = changed_settings(settings, now.text, false);
    spdlog::info("settings read again; changed: {}; only after a restart: {}",
                 done.empty() ? "none" : fmt::format("{}", fmt::join(done, ", ")),
                 later.empty() ? "none" : fmt::format("{}", fmt::join(later, ", ")));
    settings = now.text;
  }
}

// The first signal drains and stops; a second one ends at once.
asio::awaitable<void> Daemon::stop_on_signal() {
  const auto [ec, first] = co_await ending_.async_wait(asio::as_tuple(asio::use_awaitable));
  if (!ec) {
    spdlog::info("signal {}: draining for up to {} ms", first, options_.drain_ms);
  }
  auto end_at_once = [child = child_.get()](const boost::system::error_code& failed, int second) {
    if (!failed) {
      if (child != nullptr) {
        child->kill();
      }
      std::_Exit(128 + second);
    }
  };
  ending_.async_wait(end_at_once);
  const bool clean = co_await wind_down();
  ending_.cancel();
  spdlog::info("stopped");
  if (!clean) {
    spdlog::default_logger()->flush();
    std::_Exit(exit_code_);  // a call to the backend hangs; nothing of ours is half done
  }
}

// Everything that runs is ended before what it uses goes.
asio::awaitable<bool> Daemon::wind_down() {
  bool clean = co_await server_.drain(Millis(options_.drain_ms));
  const auto deadline = std::chrono::steady_clock::now() + kFlushLimit;
  for (const auto& service : services_.all()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    co_await service->save(std::max(std::chrono::duration_cast<Millis>(left), Millis(0)));
  }
  if (child_ != nullptr) {
    co_await child_->stop(Millis(10000));
  }
  clean = co_await tasks_.stop(Millis(500)) && clean;
  for (const auto& service : services_.all()) {
    service->close();
  }
  co_return clean;
}

}  // namespace tokid
