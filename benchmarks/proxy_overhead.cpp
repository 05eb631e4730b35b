// What a proxy adds: direct, nginx as a plain reverse proxy, and tokid, in turns in one run, on the
// same upstream, which answers at once.
//
//   proxy_overhead [--repeats N] [--pairs N] [--requests N] [--connections N] [--words N] [--seed N]
//                  [--only pass|ids|chat] [--backend http://127.0.0.1:PORT]
//
// The proxies run on core 0, upstream and clients on core 1. Kinds of requests: one that tokid
// passes through as it is; a generation from token ids, which tokid accounts for and pins but has
// nothing to render or tokenize for; and a chat, for which it makes a call of its own
// (/apply-template; the tokens are in its cache). Each is measured one at a time (what is added, in
// turns with the direct way) and on several connections at once (requests a second, CPU time).
// Streams show how long an event is under way. Every figure is taken anew in each repeat.
//
// With --backend that llama-server answers (start it with -np 2, and nothing else to do), chats one
// at a time only: after the first all of the prompt but one token is reused on every way.
#include <toki/version.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <sys/utsname.h>
#include <vector>

#include "machine.hpp"
#include "overhead/clients.hpp"
#include "overhead/proxies.hpp"
#include "overhead/upstream.hpp"

using namespace bench;
using toki::test::ScriptedUpstream;
using toki::test::TokidProcess;

namespace {

constexpr int kProxyCore = 0;
constexpr int kLoadCore = 1;
constexpr StreamShape kStream{.events = 200, .gap = std::chrono::microseconds(2000)};

struct Settings {
  int repeats = 7;
  int pairs = 600;      // one at a time, in each repeat
  int requests = 8000;  // at once, in each repeat
  int connections = 32;
  int words = 400;
  unsigned seed = 1;
  std::string only;  // this kind of request, to look into it
  std::string backend;
};

struct Kind {
  std::string key;
  std::string name;
  std::vector<std::string> requests;  // one for each connection
};

// Everything that was measured of one kind on one way, a value a repeat.
struct Series {
  std::vector<double> p50, p99, added_p50, added_p99, rate, cpu_us, busy;
};

struct Arm {
  std::string name;
  int port = 0;
  pid_t pid = 0;  // none: direct
  std::map<std::string, Series> kinds;
  std::vector<double> event_p50, event_p99, event_cpu_us;
  std::size_t failed = 0;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty()
             ? 0.0
             : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

std::vector<double> logged(const std::string& log, const std::string& name) {
  std::vector<double> values;
  const std::string key = " " + name + "=";
  for (std::size_t at = log.find(key); at != std::string::npos; at = log.find(key, at + 1)) {
    values.push_back(std::atof(log.c_str() + at + key.size()));
  }
  return values;
}

std::vector<Arm*> shuffled(std::vector<Arm>& arms, std::mt19937& random) {
  std::vector<Arm*> order;
  for (Arm& arm : arms) {
    order.push_back(&arm);
  }
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// The first arm is the direct way.
void one_at_a_time(const Kind& kind, std::vector<Arm>& arms, int pairs, std::mt19937& random) {
  std::map<std::string, std::unique_ptr<Clients>> ways;
  for (const Arm& arm : arms) {
    ways[arm.name] = std::make_unique<Clients>(arm.port, 1);
    ways[arm.name]->run(kind.requests, 20);
  }
  std::map<std::string, std::vector<double>> whole;
  std::map<std::string, std::vector<double>> added;
  for (int i = 0; i < pairs; ++i) {
    std::map<std::string, double> turn;
    for (Arm* arm : shuffled(arms, random)) {
      const Load load = ways[arm->name]->run(kind.requests, 1);
      arm->failed += load.failed;
      if (load.failed == 0) {
        turn[arm->name] = load.whole_us.front();
      }
    }
    if (turn.size() == arms.size()) {
      for (const auto& [name, us] : turn) {
        whole[name].push_back(us);
        added[name].push_back(us - turn[arms.front().name]);
      }
    }
  }
  for (Arm& arm : arms) {
    Series& series = arm.kinds[kind.name];
    series.p50.push_back(median(whole[arm.name]));
    series.p99.push_back(quantile(whole[arm.name], 0.99));
    series.added_p50.push_back(median(added[arm.name]));
    series.added_p99.push_back(quantile(added[arm.name], 0.99));
  }
}

void several_at_once(const Kind& kind, std::vector<Arm>& arms, const Settings& settings,
                     std::mt19937& random) {
  for (Arm* arm : shuffled(arms, random)) {
    const auto connections = static_cast<std::size_t>(settings.connections);
    Clients clients(arm->port, connections);
    arm->failed += clients.run(kind.requests, 4 * connections).failed;
    const double before = arm->pid != 0 ? cpu_us(arm->pid) : 0;
    const Load load = clients.run(kind.requests, static_cast<std::size_t>(settings.requests));
    const double cpu = arm->pid != 0 ? cpu_us(arm->pid) - before : 0;
    Series& series = arm->kinds[kind.name];
    series.rate.push_back(settings.requests / load.seconds);
    series.cpu_us.push_back(cpu / settings.requests);
    series.busy.push_back(cpu / load.seconds / 1e4);
    arm->failed += load.failed;
  }
}

void streams(const Kind& kind, std::vector<Arm>& arms, std::mt19937& random) {
  for (Arm* arm : shuffled(arms, random)) {
    Clients clients(arm->port, kind.requests.size());
    const double before = arm->pid != 0 ? cpu_us(arm->pid) : 0;
    const Load load = clients.run(kind.requests, kind.requests.size());
    const double cpu = arm->pid != 0 ? cpu_us(arm->pid) - before : 0;
    arm->event_p50.push_back(median(load.event_us));
    arm->event_p99.push_back(quantile(load.event_us, 0.99));
    arm->event_cpu_us.push_back(cpu / static_cast<double>(load.event_us.size()));
    arm->failed += load.failed;
  }
}

std::string spread(const std::vector<double>& values) {
  char text[64];
  const int digits = median(values) < 100 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f (%.*f..%.*f)", digits, median(values), digits,
                quantile(values, 0), digits, quantile(values, 1));
  return text;
}

// Repeat by repeat, so that a busy machine is busy for both.
std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    result.push_back(a[i] / b[i]);
  }
  return result;
}

std::string ratio_text(const std::vector<double>& values) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f (%.2f..%.2f)", median(values), quantile(values, 0),
                quantile(values, 1));
  return text;
}

void print_one_at_a_time(const std::vector<Kind>& kinds, std::vector<Arm>& arms) {
  std::printf("\n%-34s %-20s %-20s %-20s %s\n", "one at a time, us", "p50", "p99", "added p50",
              "added p99");
  for (const Kind& kind : kinds) {
    for (Arm& arm : arms) {
      const Series& series = arm.kinds[kind.name];
      const bool direct = arm.pid == 0;
      std::printf("%-27s %-6s %-20s %-20s %-20s %s\n", kind.name.c_str(), arm.name.c_str(),
                  spread(series.p50).c_str(), spread(series.p99).c_str(),
                  direct ? "" : spread(series.added_p50).c_str(),
                  direct ? "" : spread(series.added_p99).c_str());
    }
  }
}

void print_at_once(const std::vector<Kind>& kinds, std::vector<Arm>& arms, int connections) {
  const std::string title = std::to_string(connections) + " at once";
  std::printf("\n%-34s %-24s %-22s %s\n", title.c_str(), "requests/s", "CPU us a request",
              "its core busy, %");
  for (const Kind& kind : kinds) {
    for (Arm& arm : arms) {
      const Series& series = arm.kinds[kind.name];
      std::printf("%-27s %-6s %-24s", kind.name.c_str(), arm.name.c_str(),
                  spread(series.rate).c_str());
      if (arm.pid != 0) {
        std::printf(" %-22s %.0f", spread(series.cpu_us).c_str(), median(series.busy));
      }
      std::printf("\n");
    }
  }
}

void print_streams(std::vector<Arm>& arms, int connections) {
  const std::string title = std::to_string(connections) + " streams, an event each 2 ms, us";
  std::printf("\n%-34s %-24s %-24s %s\n", title.c_str(), "event delay p50", "p99",
              "CPU us an event");
  for (Arm& arm : arms) {
    std::printf("%-27s %-6s %-24s %-24s %s\n", "", arm.name.c_str(), spread(arm.event_p50).c_str(),
                spread(arm.event_p99).c_str(),
                arm.pid != 0 ? spread(arm.event_cpu_us).c_str() : "");
  }
}

void print_against_nginx(const std::vector<Kind>& kinds, Arm& nginx, Arm& tokid, bool at_once) {
  std::printf("\n%-34s %-24s %-24s %s\n", "tokid / nginx", "requests/s", "added p50",
              "CPU a request");
  for (const Kind& kind : kinds) {
    Series& a = tokid.kinds[kind.name];
    Series& b = nginx.kinds[kind.name];
    std::printf("%-34s %-24s %-24s %s\n", kind.name.c_str(),
                at_once ? ratio_text(ratios(a.rate, b.rate)).c_str() : "",
                ratio_text(ratios(a.added_p50, b.added_p50)).c_str(),
                at_once ? ratio_text(ratios(a.cpu_us, b.cpu_us)).c_str() : "");
  }
}

std::optional<Settings> read_settings(int argc, char** argv) {
  Settings settings;
  const std::map<std::string, int*> numbers{{"--repeats", &settings.repeats},
                                            {"--pairs", &settings.pairs},
                                            {"--requests", &settings.requests},
                                            {"--connections", &settings.connections},
                                            {"--words", &settings.words}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) {
      return std::nullopt;
    }
    if (const auto number = numbers.find(name); number != numbers.end()) {
      *number->second = std::atoi(argv[i + 1]);
    } else if (name == "--seed") {
      settings.seed = static_cast<unsigned>(std::atoi(argv[i + 1]));
    } else if (name == "--only") {
      settings.only = argv[i + 1];
    } else if (name == "--backend") {
      settings.backend = argv[i + 1];
    } else {
      return std::nullopt;
    }
  }
  const bool sensible = std::all_of(numbers.begin(), numbers.end(),
                                    [](const auto& entry) { return *entry.second > 0; });
  return sensible && settings.connections <= 64 ? std::optional(settings) : std::nullopt;
}

// Starts a proxy on its core; what this process starts later runs on the other.
template <class Start>
void on_proxy_core(Start start) {
  pin_to(kProxyCore);
  start();
  pin_all_to(kLoadCore);
}

int run(const Settings& settings) {
  pin_all_to(kLoadCore);
  toki::test::Behaviour behaviour;
  behaviour.slots = std::max(2, settings.connections);
  ScriptedUpstream scripted(behaviour);
  Upstream upstream(scripted, settings.connections, settings.words, kStream);
  const bool real = !settings.backend.empty();
  const std::string url = real ? settings.backend : upstream.url();
  const int port = std::atoi(url.substr(url.rfind(':') + 1).c_str());

  std::vector<Arm> arms{{.name = "direct", .port = port}};
  std::optional<Nginx> nginx;
  std::string nginx_version = "absent";
  if (Nginx::program()) {
    nginx_version = Nginx::version();
    on_proxy_core([&] { nginx.emplace(port); });
    if (!nginx->wait_ready()) {
      std::fprintf(stderr, "nginx did not start: %s\n", nginx->trouble().c_str());
      return 1;
    }
    arms.push_back({.name = "nginx", .port = nginx->port(), .pid = nginx->pid()});
  } else {
    std::printf(
        "*** THERE IS NO nginx HERE (apt install nginx): nothing below is compared with it "
        "***\n");
  }
  std::optional<TokidProcess> tokid;
  on_proxy_core([&] {
    tokid.emplace(url, std::vector<std::string>{"--probe-interval-ms", "1000"});
  });
  if (!tokid->wait_ready()) {
    std::fprintf(stderr, "tokid did not get ready:\n%s\n", tokid->log().c_str());
    return 1;
  }
  arms.push_back({.name = "tokid", .port = tokid->port(), .pid = tokid->process().pid()});

  Kind pass{"pass", "GET /v1/models", {http_request("/v1/models", "")}};
  Kind ids{"ids", "generation from token ids", {}};
  Kind chat{"chat", "chat", {}};
  Kind streamed{"stream", "chat, streamed", {}};
  for (std::size_t i = 0; i < static_cast<std::size_t>(settings.connections); ++i) {
    const Conversation& talk = upstream.conversation(i);
    ids.requests.push_back(http_request("/completion", talk.ids));
    chat.requests.push_back(http_request("/v1/chat/completions", talk.chat));
    streamed.requests.push_back(http_request("/v1/chat/completions", talk.chat_stream));
  }
  std::vector<Kind> kinds = real ? std::vector<Kind>{chat} : std::vector<Kind>{pass, ids, chat};
  if (!settings.only.empty()) {
    std::erase_if(kinds, [&](const Kind& kind) { return kind.key != settings.only; });
  }

  utsname system{};
  ::uname(&system);
  std::printf("machine: %s, %s %s; tokid %s, nginx %s\n", machine().c_str(), system.sysname,
              system.release, toki::version(), nginx_version.c_str());
  std::printf(
      "settings: %d repeats of %d pairs one at a time and %d requests on %d connections; "
      "chat of %zu bytes, %d prompt tokens; %s; proxies on core %d, upstream and clients on "
      "core %d; seed %u\nfigures: median over repeats (smallest..largest)\n",
      settings.repeats, settings.pairs, settings.requests, settings.connections,
      upstream.conversation(0).chat.size(), upstream.prompt_tokens(0),
      real ? url.c_str() : "scripted upstream", kProxyCore, kLoadCore, settings.seed);
  std::fflush(stdout);

  std::mt19937 random(settings.seed);
  std::vector<double> render_us;
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    for (const Kind& kind : kinds) {
      const std::size_t log_begin = tokid->log().size();
      one_at_a_time(kind, arms, settings.pairs, random);
      if (kind.name == chat.name) {
        render_us.push_back(1000 * median(logged(tokid->log().substr(log_begin), "render_ms")));
      }
      if (!real) {
        several_at_once(kind, arms, settings, random);
      }
    }
    if (!real) {
      streams(streamed, arms, random);
    }
  }

  print_one_at_a_time(kinds, arms);
  if (!render_us.empty()) {
    std::printf("chat, of that rendering and tokenizing, p50: %s\n", spread(render_us).c_str());
  }
  if (!real) {
    print_at_once(kinds, arms, settings.connections);
    print_streams(arms, settings.connections);
  }
  if (nginx) {
    print_against_nginx(kinds, arms[1], arms[2], !real);
  }
  std::printf("\npeak memory, MiB:");
  std::size_t failed = 0;
  for (const Arm& arm : arms) {
    if (arm.pid != 0) {
      std::printf(" %s %.1f", arm.name.c_str(), peak_mib(arm.pid));
    }
    failed += arm.failed;
  }
  std::printf("; failed requests: %zu\n", failed);
  const auto stats = tokid->stats();
  std::printf("tokid's own account: %.0f hits, %.0f misses, %.0f passed through\n",
              stats.at("class_hit"), stats.at("class_miss"), stats.at("passthrough_total"));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = read_settings(argc, argv);
  if (!settings) {
    std::fprintf(
        stderr,
        "usage: proxy_overhead [--repeats N] [--pairs N] [--requests N] [--connections N] "
        "[--words N] [--seed N] [--only pass|ids|chat] [--backend http://127.0.0.1:PORT]\n");
    return 2;
  }
  return run(*settings);
}
