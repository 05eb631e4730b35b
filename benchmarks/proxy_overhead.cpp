// What tokid adds to a request: direct and proxied requests, one after the other in one run, on
// kept connections.
//
//   proxy_overhead [--requests N] [--words N] [--backend http://127.0.0.1:PORT]
//
// Without --backend a scripted upstream that answers at once stands behind both, so that nothing
// but the way is measured. With one, that llama-server answers (start it with -np 2 and nothing
// else to do). Each prompt is the same conversation, so after the first request all of it but one
// token is reused on both ways. Time to first byte is taken at the client, on the first byte of the
// body. Rendering and tokenizing, two calls to the backend that a plain proxy does not make, is
// reported apart, from tokid's own log.
#include <toki/version.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

#include "raw_client.hpp"
#include "scripted_upstream.hpp"
#include "tokid_process.hpp"

using namespace toki::test;

namespace {

struct Settings {
  int requests = 2000;
  int words = 400;
  std::string backend;
};

double ms(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty()
             ? 0.0
             : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

// One way to the backend: a kept connection, opened again when the server ends it.
class Way {
 public:
  explicit Way(int port) : port_(port) {}

  std::optional<double> first_byte_ms(const std::string& body) {
    if (!client_) {
      client_.emplace(port_);
    }
    const auto begun = Clock::now();
    if (!client_->send_json("/v1/chat/completions", body)) {
      client_.reset();
      return std::nullopt;
    }
    const HttpResponse answer = client_->read_response();
    // llama-server closes a connection after a stream without saying so.
    if (answer.header("connection") == "close" || !answer.whole() ||
        client_->readable(milliseconds(1))) {
      client_.reset();
    }
    if (answer.status != 200 || answer.pieces.empty()) {
      return std::nullopt;
    }
    return ms(answer.pieces.front().at - begun);
  }

 private:
  int port_;
  std::optional<RawClient> client_;
};

double cpu_us(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) {
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) * 1e6 / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::vector<double> logged(const std::string& log, const std::string& name) {
  std::vector<double> values;
  const std::string key = " " + name + "=";
  for (std::size_t at = log.find(key); at != std::string::npos; at = log.find(key, at + 1)) {
    values.push_back(std::atof(log.c_str() + at + key.size()));
  }
  return values;
}

void row(const char* name, const std::vector<double>& values) {
  std::printf("%-34s %8.3f %8.3f %8.3f %8.3f\n", name, quantile(values, 0.05),
              quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99));
}

std::optional<Settings> read_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) {
      return std::nullopt;
    }
    if (name == "--requests") {
      settings.requests = std::atoi(argv[i + 1]);
    } else if (name == "--words") {
      settings.words = std::atoi(argv[i + 1]);
    } else if (name == "--backend") {
      settings.backend = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  return settings.requests > 0 && settings.words > 0 ? std::optional(settings) : std::nullopt;
}

void describe_machine() {
  utsname system{};
  ::uname(&system);
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  std::string model = "unknown";
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  std::printf("machine: %ld cores, %s, %s %s; tokid %s\n", ::sysconf(_SC_NPROCESSORS_ONLN),
              model.c_str(), system.sysname, system.release, toki::version());
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = read_settings(argc, argv);
  if (!settings) {
    std::fprintf(
        stderr,
        "usage: proxy_overhead [--requests N] [--words N] [--backend http://127.0.0.1:PORT]\n");
    return 2;
  }
  std::optional<ScriptedUpstream> scripted;
  std::string url = settings->backend;
  if (url.empty()) {
    scripted.emplace();
    url = scripted->url();
  }
  TokidProcess tokid(url);
  if (!tokid.wait_ready()) {
    std::fprintf(stderr, "tokid did not get ready:\n%s\n", tokid.log().c_str());
    return 1;
  }
  const int direct_port = std::atoi(url.substr(url.rfind(':') + 1).c_str());
  const std::string prompt_extra = R"(,"max_tokens":1,"temperature":0,"stream":true)";
  const std::string proxied_body = cc({S(W(settings->words)), M("hello")}, prompt_extra);
  const std::string direct_body =
      cc({S(W(settings->words)), M("hello")}, prompt_extra + R"(,"id_slot":1,"cache_prompt":true)");
  Way direct(direct_port);
  Way proxied(tokid.port());
  for (int i = 0; i < 20; ++i) {
    direct.first_byte_ms(direct_body);
    proxied.first_byte_ms(proxied_body);
  }
  std::vector<double> direct_ms;
  std::vector<double> proxied_ms;
  std::vector<double> added_ms;
  int failed = 0;
  const std::size_t log_begin = tokid.log().size();
  const double cpu_before = cpu_us(tokid.process().pid());
  for (int i = 0; i < settings->requests; ++i) {
    const auto one = direct.first_byte_ms(direct_body);
    const auto two = proxied.first_byte_ms(proxied_body);
    if (!one || !two) {
      ++failed;
      continue;
    }
    direct_ms.push_back(*one);
    proxied_ms.push_back(*two);
    added_ms.push_back(*two - *one);
  }
  const double cpu = (cpu_us(tokid.process().pid()) - cpu_before) / settings->requests;
  const std::vector<double> render_ms = logged(tokid.log().substr(log_begin), "render_ms");

  describe_machine();
  std::printf("settings: %d pairs, %zu bytes of body, stream, one at a time, %s; failed: %d\n\n",
              settings->requests, proxied_body.size(), scripted ? "scripted upstream" : url.c_str(),
              failed);
  std::printf("%-34s %8s %8s %8s %8s\n", "time to first byte, ms", "p5", "p50", "p95", "p99");
  row("direct", direct_ms);
  row("through tokid", proxied_ms);
  row("added, pair by pair", added_ms);
  row("of that rendering and tokenizing", render_ms);
  std::printf("\nadded beside rendering and tokenizing, p50: %.3f ms\n",
              quantile(added_ms, 0.5) - quantile(render_ms, 0.5));
  std::printf("CPU of tokid: %.0f us a request (rendering and tokenizing calls included)\n", cpu);
  return failed == 0 ? 0 : 1;
}
