// The command behind `--`: llama-server's own words, with the flags that toki needs.
#pragma once

#include <toki/http/upstream.hpp>
#include <toki/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"

namespace tokid {

struct ServerCommand {
  std::vector<std::string> words;
  toki::http::Address address;  // where it will listen
  bool own_cache = true;        // it keeps prompts outside its slots
  double cache_mib = -1;        // at most so much of them; -1: no limit, or not known
  std::uint64_t batch = 512;    // prompts are computed in pieces that end at its multiples
};

/// Whether that command can be meant: its program is there, and nobody says otherwise where it listens.
/// Starts nothing. Errc::invalid_argument: it cannot.
toki::Status check_command(const Options& options);

/// What stands behind `--`, or none. Adds --host, --port, -np, --slot-save-path, --cache-ram 0 and
/// --metrics where they are not given (as a flag or in the environment) and `PROGRAM --help` lists
/// them. The options learn from it: the backend's address, the slot folder, the batch of --exact.
/// Errc::timed_out: that help does not end (kHelpLimit).
toki::Result<std::optional<ServerCommand>> complete_command(Options& options);

}  // namespace tokid
