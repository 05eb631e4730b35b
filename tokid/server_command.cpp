#include "server_command.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <unistd.h>

#include "data_dir.hpp"
#include "program_help.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::Errc;
using toki::Error;
using toki::http::Address;

namespace {

std::string free_port() {
  asio::io_context context;
  const asio::ip::tcp::acceptor probe(context, {asio::ip::address_v4::loopback(), 0});
  return std::to_string(probe.local_endpoint().port());
}

struct Flag {
  std::string_view name;
  std::string_view short_name;
  const char* environment;
};
constexpr Flag kHost{"--host", "", "LLAMA_ARG_HOST"};
constexpr Flag kPort{"--port", "", "LLAMA_ARG_PORT"};
constexpr Flag kParallel{"--parallel", "-np", "LLAMA_ARG_N_PARALLEL"};
constexpr Flag kSlotPath{"--slot-save-path", "", "LLAMA_ARG_SLOT_SAVE_PATH"};
constexpr Flag kCacheRam{"--cache-ram", "-cram", "LLAMA_ARG_CACHE_RAM"};
constexpr Flag kBatch{"--batch-size", "-b", "LLAMA_ARG_BATCH"};
constexpr Flag kPieces{"--ubatch-size", "-ub", "LLAMA_ARG_UBATCH"};
constexpr Flag kMetrics{"--metrics", "", "LLAMA_ARG_ENDPOINT_METRICS"};

// The value given for a flag, "" for one without; nothing when it is not given.
std::optional<std::string> given(const std::vector<std::string>& words, const Flag& flag) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == flag.name || (!flag.short_name.empty() && words[i] == flag.short_name)) {
      return i + 1 < words.size() ? words[i + 1] : std::string();
    }
    if (words[i].starts_with(std::string(flag.name) + "=")) {
      return words[i].substr(flag.name.size() + 1);
    }
  }
  if (const char* value = std::getenv(flag.environment)) {
    return value;
  }
  return std::nullopt;
}

std::uint64_t number_of(const std::vector<std::string>& words, const Flag& flag,
                        std::uint64_t otherwise) {
  const std::string text = given(words, flag).value_or("");
  std::uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc{} && number > 0 ? number : otherwise;
}

// A batch is computed in pieces, so they end at the multiples of a piece where it holds a whole number of
// them.
std::uint64_t batch_of(const std::vector<std::string>& words) {
  const std::uint64_t batch = number_of(words, kBatch, 2048);
  const std::uint64_t piece = std::min(number_of(words, kPieces, 512), batch);
  return batch % piece == 0 ? piece : batch;
}

bool is_socket_path(std::string_view host) {
  return host.ends_with(".sock");  // as llama-server tells them from addresses
}

Error bad(std::string why) {
  return {Errc::invalid_argument, std::move(why)};
}

std::string host_of(const Address* wanted) {
  return wanted == nullptr ? "127.0.0.1" : wanted->path.empty() ? wanted->host : wanted->path;
}

// Whether its words and `wanted` (--backend, or null) say the same, and what it can do.
toki::Status check_place(const std::vector<std::string>& words, const Address* wanted) {
  const auto host = given(words, kHost);
  const auto port = given(words, kPort);
  if (wanted != nullptr && wanted->tls) {
    return bad("--backend https://: tokid starts llama-server without TLS; name http:// or unix:");
  }
  const std::string wanted_host = host_of(wanted);
  if (wanted != nullptr && !wanted->path.empty() && !is_socket_path(wanted->path)) {
    return bad(
        fmt::format("--backend {}: llama-server takes it for a socket only when it ends "
                    "with .sock",
                    wanted->name()));
  }
  const bool local = is_socket_path(host.value_or(wanted_host));
  if (wanted != nullptr &&
      ((host && *host != wanted_host) || (port && !local && *port != wanted->port))) {
    return bad(
        fmt::format("--backend {} and the server's own --host and --port differ", wanted->name()));
  }
  return toki::Done{};
}

// As its words and `wanted` say, else a free port.
toki::Result<Address> where_it_listens(const std::vector<std::string>& words, const Address* wanted,
                                       bool knows_port) {
  if (auto status = check_place(words, wanted); !status) {
    return std::move(status).error();
  }
  const auto host = given(words, kHost);
  const auto port = given(words, kPort);
  const std::string wanted_host = host_of(wanted);
  const bool local = is_socket_path(host.value_or(wanted_host));
  if (local) {
    const std::string path = std::filesystem::absolute(host.value_or(wanted_host)).string();
    return toki::http::parse_url("unix:" + path);
  }
  if (wanted == nullptr && !port && !knows_port) {
    return bad(
        fmt::format("{} --help lists no --port, so its server cannot be told where to "
                    "listen: name llama-server itself behind --, or say where it listens "
                    "with --backend",
                    words[0]));
  }
  Address address{.host = host.value_or(wanted_host),
                  .port = port                ? *port
                          : wanted != nullptr ? wanted->port
                                              : free_port()};
  if (address.host == "0.0.0.0" || address.host == "::") {
    address.host = "127.0.0.1";
  }
  return address;
}

// Adds what is missing of it, where `words[0] --help` lists it.
toki::Result<ServerCommand> completed(std::vector<std::string> words, const Address* wanted,
                                      const std::string& slot_dir) {
  auto help = program_help(words[0], kHelpLimit);
  if (!help) {
    return std::move(help).error();
  }
  const auto known = [&](const Flag& flag) { return help->find(flag.name) != std::string::npos; };
  ServerCommand command;
  const auto add = [&](const Flag& flag, const std::string& value) {
    if (known(flag) && !given(words, flag)) {
      words.emplace_back(flag.name);
      if (!value.empty()) {
        words.push_back(value);
      }
    }
  };
  auto address = where_it_listens(words, wanted, known(kPort));
  if (!address) {
    return std::move(address).error();
  }
  command.address = std::move(*address);
  const bool local = !command.address.path.empty();
  add(kHost, local ? command.address.path : command.address.host);
  if (!local) {
    add(kPort, command.address.port);
  }
  add(kParallel, "4");
  add(kSlotPath, slot_dir);
  add(kCacheRam, "0");
  add(kMetrics, "");
  const std::string cache = known(kCacheRam) ? given(words, kCacheRam).value_or("") : "0";
  command.own_cache = cache != "0";
  const auto read = std::from_chars(cache.data(), cache.data() + cache.size(), command.cache_mib);
  command.cache_mib = read.ec == std::errc{} && command.cache_mib >= 0 ? command.cache_mib : -1;
  command.batch = batch_of(words);
  command.words = std::move(words);
  return command;
}

const Address* wanted_by(const Options& options) {
  return options.backend_given ? &options.backend_address : nullptr;
}

// As execvp() looks for it.
int fault_of_program(const std::string& program) {
  const auto fault_of = [](const std::string& path) {
    std::error_code ignored;
    return ::access(path.c_str(), X_OK) != 0              ? errno
           : std::filesystem::is_directory(path, ignored) ? EACCES
                                                          : 0;
  };
  if (program.empty() || program.find('/') != std::string::npos) {
    return program.empty() ? ENOENT : fault_of(program);
  }
  const char* path = std::getenv("PATH");
  std::string_view folders = path != nullptr ? path : "/bin:/usr/bin";
  int fault = ENOENT;
  for (;;) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    const int now = fault_of(below(std::string(folder.empty() ? "." : folder), program));
    if (now == 0) {
      return 0;
    }
    fault = now == EACCES ? EACCES : fault;
    if (folder.size() == folders.size()) {
      return fault;
    }
    folders.remove_prefix(folder.size() + 1);
  }
}

}  // namespace

toki::Status check_command(const Options& options) {
  const std::string& program = options.server[0];
  if (const int fault = fault_of_program(program); fault != 0) {
    return bad(fmt::format("cannot start {}: {}", program, std::strerror(fault)));
  }
  return check_place(options.server, wanted_by(options));
}

toki::Result<std::optional<ServerCommand>> complete_command(Options& options) {
  std::optional<ServerCommand> command;
  if (!options.server.empty()) {
    options.slot_dir = below(options.data_dir, "slots");
    if (const auto made = make_folder(options.slot_dir); !made) {
      return made.error();
    }
    auto whole = completed(options.server, wanted_by(options), options.slot_dir);
    if (!whole) {
      return whole.error();
    }
    command = std::move(*whole);
    options.backend_address = command->address;
  }
  if (options.exact && options.exact_batch == 0) {
    options.exact_batch = command.value_or(ServerCommand{}).batch;
  }
  return command;
}

}  // namespace tokid
