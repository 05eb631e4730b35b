#include "run.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "machine.hpp"
#include "oracle.hpp"
#include "stop.hpp"

namespace replay {
namespace {

// One line on stderr that is written over on a terminal, else one every ten seconds.
class Progress {
 public:
  void say(const std::string& arm, std::size_t done, std::size_t all) {
    if (Clock::now() < next_) return;
    const bool terminal = ::isatty(STDERR_FILENO) != 0;
    next_ = Clock::now() + (terminal ? std::chrono::milliseconds(500) : std::chrono::seconds(10));
    fmt::print(stderr, "{}{}: {} of {} requests{}", terminal ? "\r" : "", arm, done, all,
               terminal ? "\033[K" : "\n");
    std::fflush(stderr);
    open_ = terminal;
  }
  void end() {
    if (open_) fmt::print(stderr, "\r\033[K");
    open_ = false;
  }

 private:
  Clock::time_point next_ = Clock::now() + std::chrono::seconds(1);
  bool open_ = false;
};

// An arm while it is measured.
class Measured {
 public:
  Measured(ArmReport& report, const Options& options, const Workload& workload, std::size_t repeat)
      : report_(report),
        options_(options),
        workload_(workload),
        player_(workload, {options.at_once, options.arrival != "closed"}, report.settings.body) {
    run_.repeat = repeat;
  }

  bool start() {
    auto arm = Arm::start(report_.settings, options_.spawn);
    if (!arm) {
      if (!stop::requested()) run_.failed = std::move(arm).error().detail;
      return false;
    }
    arm_ = std::move(*arm);
    report_.facts = arm_->facts();
    sample(true);
    return true;
  }

  void play(std::size_t begin, std::size_t end) {
    if (!arm_ || !run_.failed.empty()) return;
    player_.play(arm_->front(), begin, end, [this] {
      progress_.say(report_.settings.name, player_.done(), workload_.requests.size());
      sample(false);
    });
    progress_.end();
    sample(true);
    if (player_.failed().empty()) return;
    run_.failed = player_.failed();
    if (const std::string why = arm_->what_ended(); !why.empty()) run_.failed += "; " + why;
  }

  void restart() {
    if (!arm_ || !run_.failed.empty() || stop::requested()) return;
    if (auto status = arm_->restart(); !status && !stop::requested()) {
      run_.failed = status.error().detail;
    }
  }

  /// Reads the server's figures, asks it for the tokens of the prompts, and ends it.
  void finish() {
    if (arm_) {
      run_.counter = arm_->computed();
      run_.server = arm_->server_usage();
      run_.tokid = arm_->tokid_usage();
    }
    run_.outcomes = std::move(player_.outcomes());
    run_.wall_ms = player_.wall_ms();
    if (arm_) add_oracle();
    arm_.reset();
    failed_ = !run_.failed.empty();
    if (run_.outcomes.empty() && !failed_) return;  // stopped before it began
    report_.runs.push_back(std::move(run_));
  }

  /// After finish(): it ended early, and not because the program shall stop.
  bool failed() const { return failed_; }

 private:
  void sample(bool now) {
    if (!report_.settings.spawned) return;
    if (!now && Clock::now() < next_sample_) return;
    next_sample_ = Clock::now() + std::chrono::milliseconds(500);
    constexpr double kMib = 1024 * 1024;
    run_.samples.push_back({player_.done(), player_.wall_ms(),
                            static_cast<double>(arm_->data_bytes()) / kMib,
                            static_cast<double>(arm_->slot_bytes()) / kMib});
  }

  // In the order in which the requests were sent.
  void add_oracle() {
    std::vector<Outcome*> sent;
    for (Outcome& outcome : run_.outcomes) {
      if (outcome.failure.empty()) sent.push_back(&outcome);
    }
    std::sort(sent.begin(), sent.end(),
              [](const Outcome* a, const Outcome* b) { return a->sent_ms < b->sent_ms; });
    Oracle oracle;
    const Clock::time_point begun = Clock::now();
    for (Outcome* outcome : sent) {
      if (stop::requested() && Clock::now() - begun > std::chrono::seconds(10)) {
        run_.no_oracle = "stopped";
        return;
      }
      const std::string& path = workload_.requests[outcome->index].path;
      auto tokens = tokens_of(arm_->server(), path, outcome->body);
      if (!tokens) {
        run_.no_oracle = tokens.error().detail;
        return;
      }
      outcome->oracle_tokens = static_cast<std::int64_t>(oracle.add(*tokens));
    }
  }

  ArmReport& report_;
  const Options& options_;
  const Workload& workload_;
  Player player_;
  Run run_;
  bool failed_ = false;
  std::unique_ptr<Arm> arm_;
  Progress progress_;
  Clock::time_point next_sample_;
};

// Where the arms take turns: the end of each slice. The middle is always one, for a restart.
std::vector<std::size_t> slice_ends(std::size_t requests, std::size_t interleave, bool restart) {
  std::vector<std::size_t> ends;
  const std::size_t step = interleave == 0 ? requests : interleave;
  for (std::size_t end = step; end < requests; end += step) ends.push_back(end);
  if (restart) ends.push_back(requests / 2);
  ends.push_back(requests);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// The arms of a group run at the same time and take turns.
void measure(std::deque<Measured>& group, const Options& options, const Workload& workload) {
  const bool started =
      std::all_of(group.begin(), group.end(), [](Measured& arm) { return arm.start(); });
  std::size_t begin = 0;
  const std::size_t all = started ? workload.requests.size() : 0;
  for (const std::size_t end : slice_ends(all, options.interleave, options.restart)) {
    for (Measured& arm : group) {
      if (options.restart && begin == all / 2 && begin > 0) arm.restart();
      if (!stop::requested()) arm.play(begin, end);
    }
    begin = end;
  }
  for (Measured& arm : group) arm.finish();
}

// Each two of them.
std::vector<ArmPairs> compare_arms(const std::vector<ArmReport>& arms, Meaning& meaning) {
  std::vector<ArmPairs> all;
  for (std::size_t a = 0; a < arms.size(); ++a) {
    for (std::size_t b = a + 1; b < arms.size(); ++b) {
      ArmPairs pairs{arms[a].settings.name, arms[b].settings.name};
      for (std::size_t i = 0; i < std::min(arms[a].runs.size(), arms[b].runs.size()); ++i) {
        compare_runs(arms[a].runs[i], arms[b].runs[i], meaning, pairs);
      }
      all.push_back(std::move(pairs));
    }
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> settings_of(const Options& o,
                                                             const Workload& workload) {
  std::vector<std::pair<std::string, std::string>> settings;
  const auto add = [&](const char* name, const auto& value) {
    settings.emplace_back(name, fmt::format("{}", value));
  };
  const WorkloadSettings& w = o.workload;
  add("workload", o.workload_name);
  add("kind", workload.kind);
  add("requests", workload.requests.size());
  if (workload.kind == "agents") {
    add("agents", w.agents);
    add("turns", w.turns);
    add("systems", w.systems);
    add("system_words", w.system_words);
    add("task_words", w.task_words);
  } else {
    add("sessions", workload.sessions);
    if (w.session_requests != 0) add("session_requests", w.session_requests);
    if (w.max_chars != 0) add("max_chars", w.max_chars);
    if (workload.kind == "mooncake trace") add("block_words", w.block_words);
  }
  add("answer_tokens", w.answer_tokens);
  add("order", order_of(workload, w));
  add("arrival", o.arrival);
  if (o.arrival == "poisson") add("rate", o.rate);
  if (o.arrival == "recorded") add("speed", o.speed);
  add("at_once", o.at_once);
  if (std::any_of(o.arms.begin(), o.arms.end(), [](const auto& arm) { return arm.spawned; })) {
    add("slots", o.spawn.slots);
    add("context", o.spawn.context);
  }
  add("interleave", o.interleave);
  add("restart", o.restart);
  add("repeat", o.repeat);
  add("seed", w.seed);
  for (const ArmSettings& arm : o.arms) add("arm", arm.said);
  return settings;
}

// A target that is not there ends the run before another arm took an hour.
bool targets_answer(Report& report, const Options& options) {
  for (ArmReport& arm : report.arms) {
    if (arm.settings.spawned) continue;
    auto there = Arm::start(arm.settings, options.spawn);
    if (there) continue;
    Run run;
    run.failed = std::move(there).error().detail;
    arm.runs.push_back(std::move(run));
    return false;
  }
  return true;
}

std::string words_for(const MeaningSettings& meaning) {
  if (!meaning.server && !meaning.words) return "substantive: there is no --embed-backend";
  const std::string by = meaning.words ? "vectors made of their words (--hash-embedding)"
                                       : "the embeddings of http://" + meaning.server->authority();
  return fmt::format("noise where the cosine of {} is {} or more", by, meaning.cosine);
}

}  // namespace

std::string random_answers(const Options& options, const Workload& workload) {
  if (options.arms.size() < 2) return {};
  std::string arms;
  std::size_t requests = 0;
  for (const ArmSettings& arm : options.arms) {
    const std::size_t count = count_random(workload, arm.body);
    if (count > 0) arms += (arms.empty() ? "" : ", ") + arm.name;
    requests = std::max(requests, count);
  }
  if (requests == 0) return {};
  return fmt::format(
      "warning: answers differ by chance: {} of {} requests have neither temperature 0 nor a seed "
      "(arms {}; body={{\"temperature\":0}} in each --arm mends it)",
      requests, workload.requests.size(), arms);
}

Report run_all(const Options& options, const Workload& workload, Meaning& meaning) {
  Report report;
  report.machine = bench::machine();
  utsname system{};
  ::uname(&system);
  report.system = fmt::format("{} {}", system.sysname, system.release);
  report.begun = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  report.settings = settings_of(options, workload);
  for (const ArmSettings& settings : options.arms) {
    report.arms.push_back({settings, {}, {}});
    if (settings.with_tokid && report.tokid_version.empty()) {
      report.tokid_version = first_line_of({options.spawn.tokid, "--version"});
    }
  }
  bool failed = !targets_answer(report, options);
  for (std::size_t repeat = 0; repeat < options.repeat && !failed; ++repeat) {
    const std::size_t at_a_time = options.interleave == 0 ? 1 : report.arms.size();
    for (std::size_t i = 0; i < report.arms.size() && !failed; i += at_a_time) {
      std::deque<Measured> group;
      for (std::size_t k = i; k < i + at_a_time; ++k) {
        group.emplace_back(report.arms[k], options, workload, repeat);
      }
      if (!stop::requested()) measure(group, options, workload);
      failed =
          std::any_of(group.begin(), group.end(), [](const Measured& m) { return m.failed(); });
    }
  }
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  report.own_cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  report.comparisons = compare_arms(report.arms, meaning);
  report.meaning = words_for(options.meaning);
  report.random_answers = random_answers(options, workload);
  report.undecided = meaning.missed();
  report.undecided_why = meaning.why();
  report.interrupted = stop::requested();
  return report;
}

}  // namespace replay
