// One arm of a comparison: an endpoint that is there already, or a llama-server (and a tokid before
// it) with folders and ports of its own, started and stopped here.
#pragma once

#include <toki/result.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http.hpp"
#include "json.hpp"
#include "processes.hpp"

namespace replay {

struct ArmSettings {
  std::string name;
  std::string said;  ///< as it stood on the command line
  bool spawned = false;
  Address front;   ///< of a target
  Address server;  ///< of a target: its llama-server, the same as front when nothing else was said
  bool with_tokid = false;
  std::vector<std::string> llama_options;
  std::vector<std::string> tokid_options;
  json::object body;  ///< members that every request gets, such as {"cache_prompt":false}
};

struct SpawnSettings {
  std::string llama = "llama-server";
  std::string model;
  std::string tokid = "tokid";
  std::size_t slots = 4;
  std::size_t context = 4096;
  std::filesystem::path folder;  ///< arms have theirs below it
  bool keep = false;             ///< leave the folders
};

/// "NAME=URL" or "NAME=URL,URL-OF-ITS-LLAMA-SERVER".
toki::Result<ArmSettings> read_target(const std::string& text);

/// "NAME[:KEY=VALUE[;KEY=VALUE]...]", KEY one of llama, tokid (more options of that program) and body
/// (a JSON object). A name that begins with "toki", or the key tokid, puts a tokid in front.
toki::Result<ArmSettings> read_arm(const std::string& text);

/// Words at spaces; '...' and "..." keep spaces in a word.
std::vector<std::string> split_words(std::string_view text);

/// What /props says; empty or 0 where it says nothing.
struct ServerFacts {
  std::string build;
  std::string model;
  std::int64_t slots = 0;
  std::int64_t context = 0;
};

class Arm {
 public:
  /// Ready for requests when it returns.
  static toki::Result<std::unique_ptr<Arm>> start(const ArmSettings& settings,
                                                  const SpawnSettings& spawn);
  ~Arm();  ///< stops what it started and deletes its folder

  const ArmSettings& settings() const { return settings_; }
  const Address& front() const { return front_; }
  const Address& server() const { return server_; }
  const ServerFacts& facts() const { return facts_; }

  /// Stops the processes and starts them again on the same folders. Spawned arms only.
  toki::Status restart();
  void stop();

  /// Prompt tokens that the server computed since the start, by its own counter; nothing without
  /// --metrics.
  std::optional<double> computed();
  /// Used since they were ready, and the highest memory; of a spawned arm only.
  std::optional<Usage> server_usage();
  std::optional<Usage> tokid_usage();
  std::uint64_t data_bytes() const;
  std::uint64_t slot_bytes() const;
  /// Empty while all its processes run.
  std::string what_ended();

 private:
  // A process and what it and its forerunners used.
  struct Watched {
    std::optional<Child> child;
    Usage at_ready;
    Usage before;
    Usage now() const;
    void ready();
    void stop();
  };

  Arm(const ArmSettings& settings, const SpawnSettings& spawn);
  toki::Status start_all();
  toki::Status start_llama();
  toki::Status start_tokid();
  toki::Status wait_for(Watched& watched, const Address& address, std::string_view path);
  toki::Status look_at_server();

  ArmSettings settings_;
  SpawnSettings spawn_;
  std::filesystem::path folder_;
  Address front_;
  Address server_;
  ServerFacts facts_;
  Watched llama_;
  Watched tokid_;
  double computed_before_ = 0;
  std::optional<double> computed_at_start_;
};

}  // namespace replay
