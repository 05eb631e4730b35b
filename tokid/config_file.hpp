// The options of the command line, from the environment and from a TOML file: `--max-body-mib 64` is
// TOKID_MAX_BODY_MIB=64 and `max-body-mib = 64`. The command line wins over the environment, that over
// the file.
#pragma once

#include <toki/result.hpp>

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tokid {

/// After a parse that was left with words: the first of them, and what was probably meant.
std::string what_is_unknown(const CLI::App& app);

/// Before the command line is parsed: every option may be given in the environment.
void name_in_environment(CLI::App& app);

/// A TOKID_ variable that means nothing is a mistake.
toki::Status check_environment(const CLI::App& app);

/// After the command line was parsed: what it and the environment left open. `server` is the command
/// behind `--`, where there was none.
toki::Status read_config(CLI::App& app, const std::string& path, std::vector<std::string>& server);

/// All settings as they came out, as a TOML file.
std::string write_config(const CLI::App& app, const std::vector<std::string>& server);

}  // namespace tokid
