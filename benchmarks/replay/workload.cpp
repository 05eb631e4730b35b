#include "workload.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "random.hpp"

namespace replay {
namespace {

constexpr std::array<std::string_view, 38> kWords = {
    "the",   "cat",  "reads", "a",     "book",  "about", "river", "sea",    "ships", "nobody",
    "knows", "how",  "old",   "it",    "is",    "and",   "runs",  "on",     "to",    "where",
    "they",  "are",  "one",   "two",   "three", "four",  "five",  "red",    "blue",  "green",
    "house", "tree", "road",  "stone", "light", "night", "day",   "nothing"};

json::object message(std::string_view role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::uint64_t seed_of(std::uint64_t seed, std::uint64_t kind, std::uint64_t a, std::uint64_t b) {
  return bench::mix(bench::mix(bench::mix(seed * 4 + kind) + a) + b);
}

void shuffle(std::vector<std::size_t>& order, std::uint64_t seed) {
  bench::Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.below(i)]);
  }
}

// Sessions take turns in a seeded order; each keeps the order of its own requests.
void shuffle_sessions(Workload& workload, std::uint64_t seed) {
  std::vector<std::size_t> turns;
  std::vector<std::deque<Request>> sessions(workload.sessions);
  for (Request& request : workload.requests) {
    turns.push_back(request.session);
    sessions[request.session].push_back(std::move(request));
  }
  shuffle(turns, seed);
  workload.requests.clear();
  for (const std::size_t session : turns) {
    workload.requests.push_back(std::move(sessions[session].front()));
    sessions[session].pop_front();
  }
}

}  // namespace

std::string seeded_words(std::size_t count, std::uint64_t seed) {
  bench::Random random(seed);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random.below(kWords.size())];
  }
  return text;
}

std::string first_chars(std::string_view text, std::size_t count) {
  if (count == 0 || text.size() <= count) return std::string(text);
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (begins && seen++ == count) break;
  }
  return std::string(text.substr(0, at));
}

std::size_t count_random(const Workload& workload, const json::object& more) {
  constexpr double kAnySeed = 4294967295.0;  // llama-server's word, like -1, for "take one"
  const auto is_random = [&](const Request& request) {
    const auto value_of = [&](const char* name) {
      const json::value* given = more.if_contains(name);
      if (given == nullptr) given = request.body.if_contains(name);
      return given == nullptr ? -1 : number_of(*given, -1);
    };
    const double seed = value_of("seed");
    return value_of("temperature") != 0 && (seed < 0 || seed == kAnySeed);
  };
  return static_cast<std::size_t>(
      std::count_if(workload.requests.begin(), workload.requests.end(), is_random));
}

json::object chat_body(const std::string& text, const WorkloadSettings& settings) {
  json::array messages;
  messages.push_back(message("user", text));
  return {{"model", settings.model},
          {"messages", std::move(messages)},
          {"temperature", 0},
          {"max_tokens", settings.answer_tokens}};
}

Workload make_agents(const WorkloadSettings& settings) {
  Workload workload{"agents", {}, settings.agents};
  for (std::size_t agent = 0; agent < settings.agents; ++agent) {
    for (std::size_t turn = 0; turn < settings.turns; ++turn) {
      Request request;
      request.session = agent;
      request.goes_on = true;
      request.body = chat_body(
          seeded_words(settings.task_words, seed_of(settings.seed, 1, agent, turn)), settings);
      if (turn == 0) {
        json::array& messages = request.body["messages"].as_array();
        const std::uint64_t system = agent % settings.systems;
        messages.insert(messages.begin(),
                        message("system", seeded_words(settings.system_words,
                                                       seed_of(settings.seed, 0, system, 0))));
      }
      workload.requests.push_back(std::move(request));
    }
  }
  return workload;
}

std::string order_of(const Workload& workload, const WorkloadSettings& settings) {
  if (!settings.order.empty()) return settings.order;
  const bool sessions = workload.kind == "agents" || workload.kind == "text trace";
  return sessions ? "shuffled" : "recorded";
}

void put_in_order(Workload& workload, const WorkloadSettings& settings) {
  if (order_of(workload, settings) == "shuffled") {
    shuffle_sessions(workload, settings.seed);
  } else {
    std::stable_sort(workload.requests.begin(), workload.requests.end(),
                     [](const Request& a, const Request& b) { return a.at_ms < b.at_ms; });
  }
  if (settings.max_requests != 0 && workload.requests.size() > settings.max_requests) {
    workload.requests.resize(settings.max_requests);
  }
}

void set_poisson_times(Workload& workload, double rate, std::uint64_t seed) {
  bench::Random random(seed_of(seed, 2, 0, 0));
  double at = 0;
  for (Request& request : workload.requests) {
    request.at_ms = at;
    const double share = static_cast<double>((random() >> 11) + 1) * 0x1p-53;  // (0, 1]
    at -= std::log(share) / rate * 1000;
  }
}

}  // namespace replay
