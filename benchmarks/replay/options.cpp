#include "options.hpp"

#include <toki/version.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

namespace replay {
namespace {

namespace fs = std::filesystem;
using toki::Errc;
using toki::Error;
using toki::Status;

struct Raw {
  std::vector<std::string> targets;
  std::vector<std::string> arms;
  bool spawn = false;
  std::string folder;
  std::string embed_backend;
};

void add_arms(CLI::App& app, Options& o, Raw& raw) {
  const auto positive = CLI::Range(std::size_t{1}, std::size_t{1} << 30).description("");
  app.add_option("--target", raw.targets,
                 "NAME=URL[,URL]: an endpoint that runs already, and the llama-server behind it")
      ->type_name("NAME=URL")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Arms");
  app.add_flag("--spawn", raw.spawn,
               "start llama-server and tokid for each arm; without --arm: the arms direct and toki")
      ->group("Arms");
  app.add_option("--arm", raw.arms,
                 "NAME[:KEY=VALUE;...] with KEY llama or tokid (more options of that program) or "
                 "body (a JSON object added to each request); tokid is in front when the name "
                 "begins with toki or tokid= is given")
      ->type_name("ARM")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Arms");
  app.add_option("--llama", o.spawn.llama, "llama-server to start")->group("Arms");
  app.add_option("--model", o.spawn.model, "GGUF model that it loads")->group("Arms");
  app.add_option("--tokid", o.spawn.tokid, "tokid to start")->group("Arms");
  app.add_option("--slots", o.spawn.slots, "slots of llama-server")->check(positive)->group("Arms");
  app.add_option("--context", o.spawn.context, "tokens of one slot")
      ->check(positive)
      ->group("Arms");
  app.add_option("--folder", raw.folder, "where arms keep their files (default: TMPDIR, /tmp)")
      ->group("Arms");
  app.add_flag("--keep", o.spawn.keep, "leave the folders, with the logs")->group("Arms");
}

void add_workload(CLI::App& app, Options& o) {
  const auto positive = CLI::Range(std::size_t{1}, std::size_t{1} << 30).description("");
  WorkloadSettings& w = o.workload;
  const auto number = [&](const char* name, std::size_t& into, const char* text) {
    return app.add_option(name, into, text)->group("Workload");
  };
  app.add_option("--workload", o.workload_name, "agents, or a JSONL file or a folder of them")
      ->group("Workload");
  number("--agents", w.agents, "agents: how many")->check(positive);
  number("--turns", w.turns, "agents: turns of each")->check(positive);
  number("--systems", w.systems, "agents: system prompts among them")->check(positive);
  number("--system-words", w.system_words, "agents: words of a system prompt");
  number("--task-words", w.task_words, "agents: words of a turn");
  number("--sessions", w.sessions, "text trace: only the first N sessions");
  number("--session-requests", w.session_requests, "text trace: only the first N of each session");
  number("--max-chars", w.max_chars, "traces: only the first N characters of each prompt");
  number("--block-words", w.block_words, "Mooncake: words that stand for a block of 512 tokens")
      ->check(positive);
  number("--max-requests", w.max_requests, "only the first N requests");
  number("--answer-tokens", w.answer_tokens, "max_tokens; recorded bodies keep theirs without it")
      ->check(positive);
  app.add_option("--model-name", w.model, "\"model\" in requests that are made here")
      ->group("Workload");
  app.add_option("--seed", w.seed, "of texts, order and arrival")->group("Workload");
  app.add_option("--order", w.order,
                 "shuffled (sessions take turns by the seed) or recorded; default: what suits")
      ->check(CLI::IsMember({"shuffled", "recorded"}))
      ->group("Workload");
}

void add_run(CLI::App& app, Options& o) {
  const auto positive = CLI::Range(std::size_t{1}, std::size_t{1} << 20).description("");
  const auto above_zero = CLI::Range(1e-6, 1e9).description("");
  app.add_option("--at-once", o.at_once, "most requests on their way at a time")
      ->check(positive)
      ->group("Run");
  app.add_option("--arrival", o.arrival,
                 "closed (the next when one ended), recorded (at its time) or poisson")
      ->check(CLI::IsMember({"closed", "recorded", "poisson"}))
      ->group("Run");
  app.add_option("--rate", o.rate, "poisson: requests a second")->check(above_zero)->group("Run");
  app.add_option("--speed", o.speed, "recorded: so many times faster")
      ->check(above_zero)
      ->group("Run");
  app.add_option(
         "--interleave", o.interleave,
         "arms run at the same time and take turns after N requests; 0: one after the other")
      ->group("Run");
  app.add_flag("--restart", o.restart, "stop and start the processes in the middle")->group("Run");
  app.add_option("--repeat", o.repeat, "run everything N times")->check(positive)->group("Run");
  app.add_option("--json", o.json_file, "write the report as JSON")->group("Report");
  app.add_option("--html", o.html_file, "write the report as one HTML page")->group("Report");
}

void add_answers(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("--embed-backend", raw.embed_backend,
                 "llama-server, started with --embeddings, that tells whether two answers mean the "
                 "same where no rule does; without one they do not")
      ->type_name("URL")
      ->group("Answers");
  app.add_flag("--hash-embedding", o.meaning.words,
               "instead of that, vectors made of the words: they know no meaning")
      ->group("Answers");
  app.add_option("--same-meaning", o.meaning.cosine,
                 "cosine of the embeddings from which two answers mean the same")
      ->check(CLI::Range(0.0, 1.0))
      ->group("Answers");
}

Status read_meaning(Options& options, const Raw& raw) {
  if (raw.embed_backend.empty()) return toki::Done{};
  if (options.meaning.words) {
    return Error{Errc::invalid_argument, "--embed-backend and --hash-embedding: only one of them"};
  }
  auto address = toki::http::parse_url(raw.embed_backend);
  if (!address) return Error{Errc::invalid_argument, "--embed-backend: " + address.error().detail};
  options.meaning.server = std::move(*address);
  return toki::Done{};
}

Status collect_arms(Options& options, Raw& raw) {
  for (const std::string& text : raw.targets) {
    auto arm = read_target(text);
    if (!arm) return std::move(arm).error();
    options.arms.push_back(std::move(*arm));
  }
  if (raw.spawn && raw.arms.empty()) raw.arms = {"direct", "toki"};
  for (const std::string& text : raw.arms) {
    auto arm = read_arm(text);
    if (!arm) return std::move(arm).error();
    options.arms.push_back(std::move(*arm));
  }
  std::set<std::string> names;
  for (const ArmSettings& arm : options.arms) {
    const bool plain = std::all_of(arm.name.begin(), arm.name.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (!plain) {
      return Error{Errc::invalid_argument,
                   fmt::format("arm {}: a name has letters, digits, '-', '_' and '.'", arm.name)};
    }
    if (!names.insert(arm.name).second) {
      return Error{Errc::invalid_argument, fmt::format("arm {}: named twice", arm.name)};
    }
  }
  return toki::Done{};
}

Status check(Options& options, Raw& raw) {
  const auto bad = [](std::string text) { return Error{Errc::invalid_argument, std::move(text)}; };
  if (auto status = collect_arms(options, raw); !status) return status;
  if (auto status = read_meaning(options, raw); !status) return status;
  if (options.arms.empty()) return bad("nothing to measure: give --target, --arm or --spawn");
  const auto spawned = [](const ArmSettings& arm) { return arm.spawned; };
  const bool any = std::any_of(options.arms.begin(), options.arms.end(), spawned);
  const bool all = std::all_of(options.arms.begin(), options.arms.end(), spawned);
  if (any && options.spawn.model.empty()) return bad("--model is missing");
  std::error_code ec;
  if (any && !fs::exists(options.spawn.model, ec)) {
    return bad(fmt::format("--model {}: no such file", options.spawn.model));
  }
  if (options.restart && !all) return bad("--restart: only what --arm or --spawn started");
  options.spawn.folder = raw.folder.empty() ? fs::temp_directory_path(ec) : fs::path(raw.folder);
  if (!fs::is_directory(options.spawn.folder, ec)) {
    return bad(fmt::format("--folder {}: is no folder", options.spawn.folder.string()));
  }
  options.spawn.folder = fs::absolute(options.spawn.folder, ec);
  return toki::Done{};
}

}  // namespace

OptionsResult read_options(int argc, char** argv, Options& options) {
  CLI::App app("Replays a workload against one or more endpoints and reports what each computed.");
  app.set_version_flag("--version", fmt::format("toki-replay {}", toki::version()));
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Raw raw;
  add_arms(app, options, raw);
  add_workload(app, options);
  add_run(app, options);
  add_answers(app, options, raw);
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() > 0 && option->get_name() != "--target" &&
        option->get_name() != "--arm") {
      option->capture_default_str();
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      return OptionsResult::done;
    }
    fmt::print(stderr, "toki-replay: {}\n", error.what());
    return OptionsResult::wrong;
  }
  options.workload.answer_tokens_given = app.count("--answer-tokens") > 0;
  options.words.assign(argv, argv + argc);
  if (auto status = check(options, raw); !status) {
    fmt::print(stderr, "toki-replay: {}\n", status.error().detail);
    return OptionsResult::wrong;
  }
  return OptionsResult::go_on;
}

}  // namespace replay
