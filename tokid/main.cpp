// tokid: how it starts, and its exit codes. 0: ended as asked; 1: cannot run; 2: bad options; else
// that of a server behind -- that never served.
#include <toki/version.hpp>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>

#include "daemon.hpp"
#include "data_dir.hpp"
#include "log.hpp"
#include "options.hpp"
#include "process_limits.hpp"
#include "server_command.hpp"

namespace {

using namespace tokid;

int fail(const toki::Error& error) {
  fmt::print(stderr, "tokid: {}\n", one_line(error.detail));
  return error.code == toki::Errc::invalid_argument ? 2 : 1;
}

void say_where(const Daemon& daemon, const Options& options) {
  for (const std::string& place : daemon.places()) {
    fmt::print("tokid listening on {}\n", place);
  }
  std::fflush(stdout);
  spdlog::info("tokid {} on {}, backend {}, state in {}", toki::version(),
               fmt::join(daemon.places(), ", "), fmt::join(daemon.backends(), ", "),
               options.data_dir);
}

}  // namespace

int main(int argc, char** argv) {
  give_back_large_buffers();
  raise_descriptor_limit();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);  // until the daemon takes it: there is nothing to read again yet
  const Parsed parsed = parse_options(argc, argv);
  if (!parsed.run) {
    fmt::print(parsed.exit_code == 0 ? stdout : stderr, "{}", parsed.text);
    return parsed.exit_code;
  }
  Options options = parsed.options;
  start_log(options.log_level, options.log_format == "json" ? LogFormat::json : LogFormat::text);
  if (const auto locked = lock_data_dir(options.data_dir); !locked) {
    return fail(locked.error());
  }
  const auto command = complete_command(options);
  if (!command) {
    return fail(command.error());
  }
  boost::asio::io_context io(1);
  const LogGathering gathering(io.get_executor());
  Daemon daemon(io, options);
  if (const auto opened = daemon.open(*command ? &**command : nullptr); !opened) {
    return fail(opened.error());
  }
  say_where(daemon, options);
  daemon.run([=] { return parse_options(argc, argv, true); }, parsed.text);
  io.run();
  return daemon.exit_code();
}
