#include "tokid_process.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef TOKI_TOKID_PATH
#define TOKI_TOKID_PATH ""
#endif

namespace toki::test {
namespace {

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<std::string> tokid_arguments(const std::string& backend_url,
                                         const std::string& data_dir,
                                         std::vector<std::string> options,
                                         const std::vector<std::string>& program) {
  std::vector<std::string> all;
  auto unless_given = [&](const std::string& name, const std::string& value) {
    if (std::find(options.begin(), options.end(), name) != options.end()) return;
    all.push_back(name);
    all.push_back(value);
  };
  unless_given("--listen", "127.0.0.1:0");
  if (!backend_url.empty()) {
    unless_given("--backend", backend_url);
  }
  unless_given("--data-dir", data_dir);
  unless_given("--probe-interval-ms", "100");
  unless_given("--remote-states", "0");
  unless_given("--host-name", "x");  // that raw requests have
  all.insert(all.end(), options.begin(), options.end());
  if (!program.empty()) {
    all.emplace_back("--");
    all.insert(all.end(), program.begin(), program.end());
  }
  return all;
}

long status_kib(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(field + ":", 0) == 0) return std::atol(line.c_str() + field.size() + 1);
  }
  return -1;
}

}  // namespace

std::string tokid_path() {
  const char* given = std::getenv("TOKID");
  return given != nullptr && *given != '\0' ? given : TOKI_TOKID_PATH;
}

// -------------------------------------------------------------------------------------- Process

Process::Process(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {program.c_str()};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  const pid_t parent = ::getpid();
  // Until it runs its own program, the child must not run the test runner's signal handlers.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    // Ends with the test, however the test ends.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(number, SIG_DFL);
    for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGILL}) ::signal(number, SIG_DFL);
    ::sigemptyset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out_write.get(), STDOUT_FILENO);
    ::dup2(err_write.get(), STDERR_FILENO);
    ::execv(program.c_str(), const_cast<char* const*>(argv.data()));
    ::_exit(127);
  }
  out_fd_ = std::move(out_read);
  err_fd_ = std::move(err_read);
  out_reader_ = std::thread([this] { collect(out_fd_.get(), out_); });
  err_reader_ = std::thread([this] { collect(err_fd_.get(), err_); });
}

Process::~Process() {
  if (running()) {
    signal(SIGTERM);
    if (!wait_exit(milliseconds(3000))) kill();
  }
  // The readers end at the end of file, or soon after the exit when a grandchild holds the pipes.
  out_reader_.join();
  err_reader_.join();
}

void Process::collect(int fd, std::string& into) {
  struct Reading {
    std::atomic<int>& readers;
    ~Reading() { --readers; }
  } const end{readers_};
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, 200);
    const std::lock_guard lock(mutex_);
    if (ready == 0 ? code_.has_value() : !take(fd, into)) return;
  }
}

// What lies in the pipe; false when nothing will come any more. REQUIRES the mutex: whoever asks what
// was written takes it himself, and need not wait for the reader's turn.
bool Process::take(int fd, std::string& into) {
  char buffer[16384];
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 0) != 1) return true;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    into.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string Process::out() const {
  const std::lock_guard lock(mutex_);
  (void)take(out_fd_.get(), out_);
  return out_;
}

std::string Process::err() const {
  const std::lock_guard lock(mutex_);
  (void)take(err_fd_.get(), err_);
  return err_;
}

void Process::signal(int number) const {
  if (pid_ > 0 && !code_) ::kill(pid_, number);
}

void Process::kill() {
  killed_ = true;
  signal(SIGKILL);
  wait_exit(milliseconds(10000));
}

std::optional<int> Process::wait_exit(milliseconds limit) {
  wait_until(
      [&] {
        if (code_) return true;
        int status = 0;
        const pid_t done = ::waitpid(pid_, &status, WNOHANG);
        if (done == 0) return false;
        const std::lock_guard lock(mutex_);
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      },
      limit);
  if (code_) {  // what it wrote is there as well
    wait_until([&] { return readers_ == 0; }, milliseconds(2000));
  }
  return code_;
}

// --------------------------------------------------------------------------------- TokidProcess

TokidProcess::TokidProcess(const std::string& backend_url, std::vector<std::string> options,
                           std::vector<std::string> program)
    : process_(tokid_path(),
               tokid_arguments(backend_url, data_dir_.path(), std::move(options), program)) {
  const std::string start = "://127.0.0.1:";  // http or https
  const bool said = wait_until(
      [&] {
        const std::string out = process_.out();
        const auto at = out.find(start);
        if (at != std::string::npos && out.find('\n', at) != std::string::npos) {
          port_ = std::atoi(out.c_str() + at + start.size());
          return true;
        }
        return !process_.running();
      },
      milliseconds(15000));
  if (!said || port_ == 0) {
    throw std::runtime_error("tokid (" + tokid_path() + ") did not start; stdout: " +
                             process_.out() + " stderr: " + process_.err());
  }
}

TokidProcess::~TokidProcess() {
  finish();
}

std::string TokidProcess::finish() {
  if (fault_) return *fault_;
  std::string fault;
  if (process_.running()) {
    // A second signal ends the drain; then 130 and 143 are as good as 0.
    process_.signal(SIGTERM);
    if (!process_.wait_exit(milliseconds(300))) process_.signal(SIGTERM);
    if (!process_.wait_exit(milliseconds(10000))) {
      fault = "does not end on SIGTERM";
      process_.kill();
    }
  }
  const int code = process_.wait_exit(milliseconds(0)).value_or(-1);
  if (fault.empty() && !process_.killed() && code != 0 && code != 128 + SIGINT &&
      code != 128 + SIGTERM) {
    fault = "ended with code " + std::to_string(code);
  }
  const std::string log = process_.err();
  std::size_t from = log.size() < 3000 ? 0 : log.size() - 3000;
  for (const char* report : {"AddressSanitizer", "LeakSanitizer", "ThreadSanitizer",
                             "runtime error:", "broken precondition"}) {
    const auto at = log.find(report);
    if (at == std::string::npos) continue;
    fault += std::string(" reported by ") + report;
    from = std::min(from, at);
  }
  if (!fault.empty()) fault += "; log: " + log.substr(from, 3000);
  if (std::getenv("TOKI_TEST_LOG") != nullptr) {
    std::fprintf(stderr, "---- tokid, exit code %d\n%s----\n", code, log.c_str());
  }
  fault_ = fault;
  return fault;
}

int TokidProcess::health_status() const {
  try {
    return get(port_, "/toki/health").status;
  } catch (const std::runtime_error&) {
    return 0;
  }
}

bool TokidProcess::wait_ready(milliseconds limit) {
  bool ready = false;
  wait_until(
      [&] {
        ready = health_status() == 200;
        return ready || !process_.running();
      },
      limit, milliseconds(20));
  return ready;
}

std::map<std::string, double> TokidProcess::stats() const {
  std::map<std::string, double> out;
  const Json json = get(port_, "/toki/stats").json();
  for (const auto& [name, value] : json.members()) {
    if (value.is_number() || value.kind() == Json::Kind::boolean) out[name] = value.num();
  }
  return out;
}

double TokidProcess::stat(const std::string& name) const {
  const auto all = stats();
  const auto at = all.find(name);
  return at == all.end() ? std::numeric_limits<double>::quiet_NaN() : at->second;
}

bool TokidProcess::wait_stat(const std::string& name, double value, milliseconds limit) const {
  return wait_until([&] { return stat(name) == value; }, limit, milliseconds(20));
}

std::vector<SlotView> TokidProcess::slots() const {
  std::vector<SlotView> out;
  const Json json = get(port_, "/toki/slots").json();
  for (const auto& slot : json["slots"].items()) {
    out.push_back({static_cast<int>(slot["id"].integer(-1)), slot["state"].str(),
                   static_cast<int>(slot["tokens"].integer(-1)),
                   static_cast<int>(slot["known_tokens"].integer(-1))});
  }
  return out;
}

SlotView TokidProcess::slot(int id) const {
  for (const auto& view : slots()) {
    if (view.id == id) return view;
  }
  return {};
}

long TokidProcess::open_descriptors() const {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(process_.pid()) + "/fd");
  return std::distance(begin(all), end(all));
}

long TokidProcess::memory_kib() const {
  return status_kib(process_.pid(), "VmRSS");
}
long TokidProcess::peak_memory_kib() const {
  return status_kib(process_.pid(), "VmHWM");
}

bool TokidProcess::sanitized() const {
  // Their shadow memory is terabytes of address space.
  return status_kib(process_.pid(), "VmSize") > 1024L * 1024 * 1024;
}

// -------------------------------------------------------------------------- Answers and bodies

Answer as_answer(HttpResponse response) {
  Answer answer;
  answer.status = response.status;
  answer.cache = response.header("x-toki-cache");
  answer.slot = response.header("x-toki-slot");
  answer.reason = response.header("x-toki-reason");
  const std::string reused = response.header("x-toki-reused");
  if (!reused.empty()) answer.reused = std::atoi(reused.c_str());
  auto read = [&](const Json& json) {
    const Json& timings = json["timings"];
    if (timings.is_object()) {
      answer.cache_n = static_cast<int>(timings["cache_n"].integer(-1));
      answer.prompt_n = static_cast<int>(timings["prompt_n"].integer(-1));
    }
    const Json& usage = json["usage"];
    if (usage.is_object()) {
      answer.prompt_tokens = static_cast<int>(usage["prompt_tokens"].integer(-1));
      answer.cached_tokens =
          static_cast<int>(usage["prompt_tokens_details"]["cached_tokens"].integer(-1));
    }
  };
  if (response.header("content-type").rfind("text/event-stream", 0) == 0) {
    for (const auto& data : sse_data(response.body)) {
      if (const auto json = Json::parse(data)) read(*json);
    }
  } else {
    read(response.json());
  }
  answer.http = std::move(response);
  return answer;
}

Message S(std::string_view text) {
  return {"system", quote(text)};
}
Message M(std::string_view text) {
  return {"user", quote(text)};
}
Message R(std::string_view text) {
  return {"assistant", quote(text)};
}
Message M_json(std::string_view raw_content) {
  return {"user", std::string(raw_content)};
}

std::string W(int words) {
  std::string out;
  for (int i = 1; i <= words; ++i) out += (i > 1 ? " w" : "w") + std::to_string(i);
  return out;
}

std::string cc(const std::vector<Message>& messages, std::string_view extra) {
  std::string out = R"({"model":"m","messages":[)";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i > 0) out += ',';
    out += R"({"role":)" + quote(messages[i].role) + R"(,"content":)" + messages[i].content + "}";
  }
  return out.append("]").append(extra).append("}");
}

std::string forwarding_fault(std::string_view sent, std::string_view received) {
  if (received.size() < sent.size()) {
    return "shorter: " + std::to_string(received.size()) + " of " + std::to_string(sent.size());
  }
  const std::string_view rest = sent.substr(1);
  if (received.substr(received.size() - rest.size()) != rest) {
    std::size_t same = 0;
    while (same < rest.size() &&
           rest[rest.size() - 1 - same] == received[received.size() - 1 - same]) {
      ++same;
    }
    return "bytes differ " + std::to_string(same) + " before the end";
  }
  std::string added(received.substr(0, received.size() - rest.size()));
  if (added == "{") return "";
  if (added.back() != ',') return "added part ends in no comma: " + added;
  added.back() = '}';
  const auto json = Json::parse(added);
  if (!json) return "added part is not JSON: " + added;
  for (const auto& [key, value] : json->members()) {
    if (key != "id_slot" && key != "cache_prompt") return "added member " + key;
    if (json->count(key) != 1) return "member added twice: " + key;
  }
  return "";
}

}  // namespace toki::test
