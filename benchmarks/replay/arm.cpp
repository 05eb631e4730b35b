#include "arm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "answer.hpp"
#include "stop.hpp"

namespace replay {
namespace {

namespace fs = std::filesystem;
using toki::Errc;
using toki::Error;
using toki::Status;

Error bad(std::string message) {
  return {Errc::invalid_argument, std::move(message)};
}

// The next "KEY=VALUE" of an arm: up to a ';' that another key follows.
std::size_t end_of_part(std::string_view text) {
  for (std::size_t at = text.find(';'); at != std::string_view::npos; at = text.find(';', at + 1)) {
    const std::string_view rest = text.substr(at + 1);
    for (const char* key : {"llama=", "tokid=", "body="}) {
      if (rest.starts_with(key)) return at;
    }
  }
  return text.size();
}

Status take_part(ArmSettings& arm, std::string_view part) {
  const std::size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  if (key == "llama") {
    arm.llama_options = split_words(value);
  } else if (key == "tokid") {
    arm.with_tokid = true;
    arm.tokid_options = split_words(value);
  } else if (key == "body") {
    boost::system::error_code ec;
    const json::value body = json::parse(value, ec);
    if (ec || !body.is_object()) {
      return bad(fmt::format("--arm {}: body is no JSON object", arm.name));
    }
    arm.body = body.as_object();
  } else {
    return bad(fmt::format("--arm {}: {} is none of llama=, tokid=, body=", arm.name, key));
  }
  return toki::Done{};
}

toki::Result<Reply> ask(const Address& address, std::string_view path, int limit_ms) {
  Call request{.method = "GET", .path = path};
  request.silence = std::chrono::milliseconds(limit_ms);
  request.until_stop = false;
  return call(address, request);
}

// The sum of a counter over its labels.
std::optional<double> counter(std::string_view text, std::string_view name) {
  std::optional<double> sum;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line(text.substr(at, end - at));
    at = end + 1;
    if (!line.starts_with(name) || line.size() == name.size()) continue;
    const char next = line[name.size()];
    if (next != ' ' && next != '{') continue;
    sum = sum.value_or(0) + std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return sum;
}

}  // namespace

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && c == ' ') {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote == c) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  return words;
}

// The player's connections know no TLS and no Unix sockets.
toki::Result<Address> plain_url(std::string_view url) {
  auto address = toki::http::parse_url(url);
  if (address && (address->tls || !address->path.empty())) {
    return bad(fmt::format("'{}': only http://HOST:PORT can be played to", url));
  }
  return address;
}

toki::Result<ArmSettings> read_target(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return bad(fmt::format("--target {}: expected NAME=http://HOST:PORT", text));
  }
  ArmSettings arm;
  arm.name = text.substr(0, equals);
  arm.said = text;
  const std::string urls = text.substr(equals + 1);
  const std::size_t comma = urls.find(',');
  auto front = plain_url(urls.substr(0, comma));
  if (!front) return bad(fmt::format("--target {}: {}", arm.name, front.error().detail));
  arm.front = arm.server = *front;
  if (comma != std::string::npos) {
    auto server = plain_url(urls.substr(comma + 1));
    if (!server) return bad(fmt::format("--target {}: {}", arm.name, server.error().detail));
    arm.server = *server;
  }
  return arm;
}

toki::Result<ArmSettings> read_arm(const std::string& text) {
  ArmSettings arm;
  arm.spawned = true;
  arm.said = text;
  arm.name = text.substr(0, text.find(':'));
  if (arm.name.empty()) return bad(fmt::format("--arm {}: it has no name", text));
  arm.with_tokid = arm.name.starts_with("toki");
  std::string_view rest = text;
  rest.remove_prefix(std::min(arm.name.size() + 1, rest.size()));
  while (!rest.empty()) {
    const std::size_t end = end_of_part(rest);
    if (auto status = take_part(arm, rest.substr(0, end)); !status)
      return std::move(status).error();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return arm;
}

// ---- processes of an arm

Usage Arm::Watched::now() const {
  Usage usage = before;
  if (child) {
    const Usage used = child->usage();
    usage.cpu_s += std::max(0.0, used.cpu_s - at_ready.cpu_s);
    usage.peak_mib = std::max(usage.peak_mib, used.peak_mib);
  }
  return usage;
}

void Arm::Watched::ready() {
  at_ready = child->usage();
}

void Arm::Watched::stop() {
  before = now();
  child.reset();
  at_ready = {};
}

Arm::Arm(const ArmSettings& settings, const SpawnSettings& spawn)
    : settings_(settings), spawn_(spawn), front_(settings.front), server_(settings.server) {}

Arm::~Arm() {
  stop();
  std::error_code ec;
  if (!folder_.empty() && !spawn_.keep) fs::remove_all(folder_, ec);
}

toki::Result<std::unique_ptr<Arm>> Arm::start(const ArmSettings& settings,
                                              const SpawnSettings& spawn) {
  std::unique_ptr<Arm> arm(new Arm(settings, spawn));
  Status status = settings.spawned ? arm->start_all() : arm->look_at_server();
  if (!status) {
    return std::move(status).error();
  }
  return arm;
}

Status Arm::start_all() {
  if (folder_.empty()) {
    std::string name = (spawn_.folder / ("toki-replay-" + settings_.name + "-XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr) {
      return Error{Errc::unavailable, fmt::format("{}: {}", name, std::strerror(errno))};
    }
    folder_ = name;
    fs::create_directory(folder_ / "slots");
  }
  if (auto status = start_llama(); !status) return status;
  front_ = server_;
  if (settings_.with_tokid) {
    if (auto status = start_tokid(); !status) return status;
  }
  return look_at_server();
}

Status Arm::start_llama() {
  const int port = free_port();
  server_ = {"127.0.0.1", std::to_string(port)};
  std::vector<std::string> words{spawn_.llama,
                                 "-m",
                                 spawn_.model,
                                 "--host",
                                 "127.0.0.1",
                                 "--port",
                                 server_.port,
                                 "-np",
                                 std::to_string(spawn_.slots),
                                 "-c",
                                 std::to_string(spawn_.slots * spawn_.context),
                                 "--metrics"};
  if (settings_.with_tokid) {
    words.insert(words.end(),
                 {"--slot-save-path", (folder_ / "slots").string(), "--cache-ram", "0"});
  }
  words.insert(words.end(), settings_.llama_options.begin(), settings_.llama_options.end());
  auto child = Child::start(words, folder_ / "llama-server.log");
  if (!child) return std::move(child).error();
  llama_.child.emplace(std::move(*child));
  return wait_for(llama_, server_, "/health");
}

Status Arm::start_tokid() {
  front_ = {"127.0.0.1", std::to_string(free_port())};
  std::vector<std::string> words{spawn_.tokid,
                                 "--listen",
                                 front_.authority(),
                                 "--backend",
                                 "http://" + server_.authority(),
                                 "--slot-dir",
                                 (folder_ / "slots").string(),
                                 "--data-dir",
                                 (folder_ / "data").string()};
  words.insert(words.end(), settings_.tokid_options.begin(), settings_.tokid_options.end());
  auto child = Child::start(words, folder_ / "tokid.log");
  if (!child) return std::move(child).error();
  tokid_.child.emplace(std::move(*child));
  return wait_for(tokid_, front_, "/toki/health");
}

Status Arm::wait_for(Watched& watched, const Address& address, std::string_view path) {
  const auto limit = Clock::now() + std::chrono::minutes(10);  // large models load slowly
  const std::string name = &watched == &llama_ ? "llama-server" : "tokid";
  while (Clock::now() < limit) {
    if (stop::requested()) return Error{Errc::cancelled, "stopped"};
    if (!watched.child->alive()) {
      return Error{Errc::unavailable,
                   fmt::format("{} {}; its last words: {}", name, watched.child->why_ended(),
                               watched.child->last_words())};
    }
    const auto reply = ask(address, path, 5000);
    if (reply && reply->status == 200) {
      watched.ready();
      return toki::Done{};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return Error{Errc::timed_out, fmt::format("{} is not ready after 10 minutes", name)};
}

Status Arm::look_at_server() {
  // Any answer of the front means that somebody is there.
  if (auto reply = ask(front_, "/v1/models", 10000); !reply) {
    return Error{Errc::unavailable, fmt::format("cannot reach http://{}: {}", front_.authority(),
                                                reply.error().detail)};
  }
  if (auto props = ask(server_, "/props", 10000); props && props->status == 200) {
    boost::system::error_code ec;
    const json::value value = json::parse(props->body, ec);
    facts_.build = text_of(member(value, "build_info"));
    facts_.model = fs::path(std::string(text_of(member(value, "model_path")))).filename().string();
    facts_.slots = integer_of(member(value, "total_slots"), 0);
    facts_.context = integer_of(member(member(value, "default_generation_settings"), "n_ctx"), 0);
  }
  computed_at_start_.reset();
  if (const auto now = computed()) computed_at_start_ = *now - computed_before_;
  return toki::Done{};
}

Status Arm::restart() {
  const auto until_now = computed();
  stop();
  computed_before_ = until_now.value_or(0);
  return start_all();
}

void Arm::stop() {
  tokid_.stop();
  llama_.stop();
}

std::optional<double> Arm::computed() {
  const auto reply = ask(server_, "/metrics", stop::requested() ? 3000 : 60000);
  if (!reply || reply->status != 200) return std::nullopt;
  const auto now = counter(reply->body, "llamacpp:prompt_tokens_total");
  if (!now) return std::nullopt;
  return computed_before_ + *now - computed_at_start_.value_or(0);
}

std::optional<Usage> Arm::server_usage() {
  return settings_.spawned ? std::optional(llama_.now()) : std::nullopt;
}

std::optional<Usage> Arm::tokid_usage() {
  return settings_.spawned && settings_.with_tokid ? std::optional(tokid_.now()) : std::nullopt;
}

std::uint64_t Arm::data_bytes() const {
  return folder_.empty() ? 0 : disk_bytes(folder_ / "data");
}

std::uint64_t Arm::slot_bytes() const {
  return folder_.empty() ? 0 : disk_bytes(folder_ / "slots");
}

std::string Arm::what_ended() {
  for (Watched* watched : {&llama_, &tokid_}) {
    if (watched->child && !watched->child->alive()) {
      return fmt::format("{} {}; its last words: {}", watched == &llama_ ? "llama-server" : "tokid",
                         watched->child->why_ended(), watched->child->last_words());
    }
  }
  return {};
}

}  // namespace replay
