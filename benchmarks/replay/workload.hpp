// What is replayed: requests of sessions in the order in which they are sent. Made here (agents with
// shared system prompts) or read from a file.
#pragma once

#include <toki/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "json.hpp"

namespace replay {

struct Request {
  std::size_t session = 0;  ///< requests of one session are sent one after the other
  double at_ms = 0;         ///< when it was recorded, from the beginning on
  std::string path = "/v1/chat/completions";
  json::object body;
  /// The session's earlier messages and the answers to them are put before the body's messages.
  bool goes_on = false;
};

struct Workload {
  std::string kind;  ///< "agents", "text trace", "bodies", "mooncake trace"
  std::vector<Request> requests;
  std::size_t sessions = 0;
};

struct WorkloadSettings {
  // Agents.
  std::size_t agents = 12;
  std::size_t turns = 5;
  std::size_t systems = 3;
  std::size_t system_words = 400;
  std::size_t task_words = 40;
  // Files; 0: no limit.
  std::size_t sessions = 0;          ///< only the first of them
  std::size_t session_requests = 0;  ///< only the first of each session
  std::size_t max_chars = 0;         ///< of one prompt: its first characters
  std::size_t block_words = 384;     ///< words that stand for one hash of a Mooncake trace
  // All.
  std::size_t max_requests = 0;  ///< only the first that would be sent
  std::size_t answer_tokens = 16;
  bool answer_tokens_given = false;  ///< then recorded bodies are changed, too
  std::uint64_t seed = 1;
  std::string order;        ///< "shuffled", "recorded", or empty: what suits the kind
  std::string model = "m";  ///< what requests that are made here name as their model
};

Workload make_agents(const WorkloadSettings& settings);

/// A file, or a folder: all its *.jsonl, sorted by name. The first line tells which kind it is.
/// Errors name the file and the line.
toki::Result<Workload> read_workload(const std::filesystem::path& path,
                                     const WorkloadSettings& settings);

/// The order that is wanted: "shuffled" or "recorded".
std::string order_of(const Workload& workload, const WorkloadSettings& settings);

/// Puts the requests into the order in which they are sent and keeps the first max_requests.
void put_in_order(Workload& workload, const WorkloadSettings& settings);

/// Requests come at seeded random times, `rate` of them a second on average.
void set_poisson_times(Workload& workload, double rate, std::uint64_t seed);

/// `count` words that follow from `seed`, the same on every machine.
std::string seeded_words(std::size_t count, std::uint64_t seed);

/// The first `count` characters (code points) of UTF-8 text; all of it when count is 0.
std::string first_chars(std::string_view text, std::size_t count);

/// Requests whose answers are drawn at random, once each body got the members `more`: it has neither
/// `"temperature":0` nor a seed.
std::size_t count_random(const Workload& workload, const json::object& more);

/// A chat request with one user message.
json::object chat_body(const std::string& text, const WorkloadSettings& settings);

}  // namespace replay
