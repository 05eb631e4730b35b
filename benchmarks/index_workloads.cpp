// Replays workloads on the block tree and on the caches it stands for, in one run: what share of
// the prompts' blocks and tokens is found, without a bound and against several capacities, and how
// long finding and remembering one prompt takes.
//
//   index_workloads [--workload all|chat|ide|scan|churn|many-tenants|mooncake] [--seed N]
//                   [--mooncake FILE]
//
// References: block keys in LRU order (keys are trusted, nothing is compared) and whole prompts in
// LRU order (a prompt is found when it goes on from one that is there). A block that is not whole,
// a prompt's last, counts as found when all of it was. Only prompts are remembered, not answers.
//
// The Mooncake trace: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces,
// conversation_trace.jsonl. Its blocks of 512 tokens are known by numbers only; each is expanded to
// the same 512 tokens wherever it stands.
#include <toki/block_tree.hpp>

#include <simdjson.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine.hpp"
#include "random.hpp"
#include "references.hpp"

namespace {

using bench::BlockLru;
using bench::mix;
using bench::PromptLru;
using bench::Random;
using toki::BlockTree;
using toki::Scope;
using toki::Token;
using toki::Tokens;
using toki::TokenSpan;
using Keys = std::vector<std::uint64_t>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kUnbounded = std::size_t{1} << 30;

void append(Tokens& tokens, std::uint64_t seed, std::size_t count) {
  Random random(seed);
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>(random.below(128000)));
  }
}

struct Request {
  std::size_t tenant = 0;
  Tokens prompt;
};
using Requests = std::vector<Request>;

struct Workload {
  std::string name;
  std::size_t block_size = 64;
  std::size_t count = 0;                        // requests
  std::function<Request(std::size_t)> request;  // the one of that number
  std::vector<std::size_t> capacities;          // blocks; empty: shares of what is distinct
};

Workload made(std::string name, Requests requests) {
  const std::size_t count = requests.size();
  return {.name = std::move(name),
          .count = count,
          .request = [all = std::move(requests)](std::size_t i) { return all[i]; }};
}

// One conversation: its prompt grows by an answer and a question each turn.
struct Conversation {
  std::size_t tenant = 0;
  Tokens prompt;
  std::size_t turns_left = 0;

  Request turn(Random& random) {
    append(prompt, random(), random.between(20, 200));
    Request request{tenant, prompt};
    append(prompt, random(), random.between(50, 400));  // the answer
    --turns_left;
    return request;
  }
};

Conversation begin(Random& random, std::size_t tenant, std::uint64_t system,
                   std::size_t system_tokens) {
  Conversation conversation{.tenant = tenant, .turns_left = random.between(3, 12)};
  append(conversation.prompt, system, system_tokens);
  return conversation;
}

// 300 people talk to 8 assistants at once, each with a system prompt of 900 tokens; 3 to 12 turns,
// then the next conversation.
Requests chat(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<Conversation> open(300);
  Requests requests;
  while (requests.size() < count) {
    Conversation& one = open[random.below(open.size())];
    if (one.turns_left == 0) {
      one = begin(random, 0, seed + random.below(8), 900);
    }
    requests.push_back(one.turn(random));
  }
  return requests;
}

// 20 editors ask to complete at a cursor in a file of 6,000 tokens: the prompt is the file before
// the cursor, which mostly moves on by some tokens, sometimes jumps; now and then an edit above the
// cursor changes all that follows.
Requests ide(std::uint64_t seed, std::size_t count) {
  struct Editor {
    Tokens file;
    std::size_t cursor = 0;
  };
  Random random(seed);
  std::vector<Editor> editors(20);
  for (Editor& editor : editors) {
    append(editor.file, random(), 6000);
  }
  Requests requests;
  while (requests.size() < count) {
    Editor& editor = editors[random.below(editors.size())];
    const std::size_t what = random.below(20);
    if (what == 0 || editor.cursor + 40 >= editor.file.size()) {
      editor.cursor = random.between(500, editor.file.size() - 500);
    } else if (what == 1) {
      editor.file[random.below(editor.cursor + 1)] = static_cast<Token>(random.below(128000));
    } else {
      editor.cursor += random.between(1, 40);
    }
    const auto end = editor.file.begin() + static_cast<std::ptrdiff_t>(editor.cursor);
    requests.push_back({0, Tokens(editor.file.begin(), end)});
  }
  return requests;
}

// The chat, and for each of its requests a document of 4,000 tokens that never comes again.
Requests scan(std::uint64_t seed, std::size_t count) {
  Requests requests;
  Random random(seed + 1);
  for (Request& request : chat(seed, count / 2)) {
    requests.push_back(std::move(request));
    Tokens once;
    append(once, random(), 4000);
    requests.push_back({0, std::move(once)});
  }
  return requests;
}

// 2,000 system prompts of 1,500 tokens, some much more popular than others, and which ones drifts:
// every request is a new question of 50 to 300 tokens.
Requests churn(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  Requests requests;
  while (requests.size() < count) {
    const std::size_t drift = requests.size() / 20;
    Tokens prompt;
    append(prompt, seed + (drift + random.skewed(2000)) % 2000, 1500);
    append(prompt, random(), random.between(50, 300));
    requests.push_back({0, std::move(prompt)});
  }
  return requests;
}

// 400 tenants that share nothing, though all have the same system prompt of 600 tokens; few are
// busy, most are not.
Requests many_tenants(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<Conversation> open(400);
  Requests requests;
  while (requests.size() < count) {
    const std::size_t tenant = random.skewed(open.size());
    Conversation& one = open[tenant];
    if (one.turns_left == 0) {
      one = begin(random, tenant, seed, 600);
    }
    requests.push_back(one.turn(random));
  }
  return requests;
}

// Nothing when there is no such file.
std::optional<Workload> mooncake(const std::string& file) {
  constexpr std::size_t kBlock = 512;
  struct Line {
    std::size_t tokens;
    std::vector<std::uint64_t> blocks;
  };
  if (!std::filesystem::exists(file)) {
    return std::nullopt;
  }
  std::vector<Line> lines;
  simdjson::dom::parser parser;
  for (const simdjson::dom::element line : parser.load_many(file)) {
    Line one{.tokens = std::uint64_t{line["input_length"]}, .blocks = {}};
    for (const std::uint64_t block : simdjson::dom::array(line["hash_ids"])) {
      one.blocks.push_back(block);
    }
    lines.push_back(std::move(one));
  }
  const std::size_t count = lines.size();
  const auto expand = [all = std::move(lines)](std::size_t i) {
    Request request;
    for (const std::uint64_t block : all[i].blocks) {
      append(request.prompt, mix(block + 1), kBlock);
    }
    request.prompt.resize(std::min(request.prompt.size(), all[i].tokens));
    return request;
  };
  return Workload{.name = "mooncake",
                  .block_size = kBlock,
                  .count = count,
                  .request = expand,
                  .capacities = {5000, 20000, 50000}};
}

// What one cache made of a workload.
struct Score {
  std::size_t blocks = 0;
  std::size_t tokens = 0;
  std::vector<double> us;  // of finding and remembering, hashing included

  void add(std::size_t found_tokens, std::size_t prompt, std::size_t block_size,
           Clock::duration took) {
    tokens += found_tokens;
    blocks +=
        found_tokens == prompt ? (prompt + block_size - 1) / block_size : found_tokens / block_size;
    us.push_back(std::chrono::duration<double, std::micro>(took).count());
  }
  double quantile(double q) {
    std::sort(us.begin(), us.end());
    return us.empty() ? 0 : us[static_cast<std::size_t>(q * static_cast<double>(us.size() - 1))];
  }
};

// Keys of all blocks; of the last, short one, too.
Keys all_keys(const BlockTree& hasher, const Scope& scope, TokenSpan prompt) {
  Keys keys = hasher.keys(scope, prompt);
  const TokenSpan rest = prompt.subspan(keys.size() * hasher.options().block_size);
  if (!rest.empty()) {
    std::uint64_t key = keys.empty() ? scope.seed() : keys.back();
    for (const Token token : rest) {
      key = mix(key ^ static_cast<std::uint32_t>(token));
    }
    keys.push_back(key);
  }
  return keys;
}

const Scope& scope_of(std::size_t tenant) {
  static std::vector<Scope> scopes;
  while (scopes.size() <= tenant) {
    scopes.push_back(Scope({"model", std::to_string(scopes.size())}));
  }
  return scopes[tenant];
}

class Replay {
 public:
  Replay(const Workload& workload, std::size_t capacity)
      : size_(workload.block_size),
        tree_({.block_size = size_, .max_blocks = capacity}),
        block_lru_(capacity),
        prompt_lru_(capacity) {
    for (std::size_t i = 0; i < workload.count; ++i) {
      one(workload.request(i));
    }
  }

  Score tree, block_lru, prompt_lru;
  std::size_t blocks = 0;  // asked for
  std::size_t tokens = 0;
  std::size_t distinct() const { return tree_.blocks(); }

 private:
  void one(const Request& request) {
    const Tokens& prompt = request.prompt;
    const Scope& scope = scope_of(request.tenant);
    blocks += (prompt.size() + size_ - 1) / size_;
    tokens += prompt.size();
    timed(tree, prompt, [&] {
      const std::size_t found = tree_.match(scope, prompt).tokens;
      tree_.insert(scope, prompt);
      return found;
    });
    timed(block_lru, prompt, [&] { return with_keys(block_lru_, scope, prompt); });
    timed(prompt_lru, prompt, [&] { return with_keys(prompt_lru_, scope, prompt); });
  }

  template <class Operation>
  void timed(Score& score, const Tokens& prompt, Operation operation) {
    const auto begun = Clock::now();
    const std::size_t found = operation();
    score.add(found, prompt.size(), size_, Clock::now() - begun);
  }

  template <class Lru>
  std::size_t with_keys(Lru& lru, const Scope& scope, const Tokens& prompt) {
    const Keys keys = all_keys(tree_, scope, prompt);
    const std::size_t found = std::min(lru.match(keys) * size_, prompt.size());
    lru.insert(keys);
    return found;
  }

  std::size_t size_;
  BlockTree tree_;
  BlockLru block_lru_;
  PromptLru prompt_lru_;
};

void print(const char* capacity, Replay& replay) {
  const auto share = [](std::size_t part, std::size_t all) {
    return all == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(all);
  };
  std::printf("  %10s", capacity);
  for (Score* score : {&replay.tree, &replay.block_lru, &replay.prompt_lru}) {
    std::printf(" | %5.1f %% %5.1f %% %6.1f %6.1f", share(score->blocks, replay.blocks),
                share(score->tokens, replay.tokens), score->quantile(0.5), score->quantile(0.99));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void run(const Workload& workload) {
  Replay unbounded(workload, kUnbounded);
  std::printf("\n%s: %zu requests, %.1f M tokens, %zu blocks of %zu, %zu of them distinct\n",
              workload.name.c_str(), workload.count, static_cast<double>(unbounded.tokens) / 1e6,
              unbounded.blocks, workload.block_size, unbounded.distinct());
  std::printf("  %10s | %-29s | %-29s | %-29s\n", "", "tree", "block LRU", "whole-prompt LRU");
  std::printf("  %10s", "capacity");
  for (int i = 0; i < 3; ++i) {
    std::printf(" | %7s %7s %6s %6s", "blocks", "tokens", "p50 us", "p99");
  }
  std::printf("\n");
  print("unbounded", unbounded);
  std::vector<std::size_t> capacities = workload.capacities;
  if (capacities.empty()) {
    for (const std::size_t percent : {2U, 5U, 10U, 25U, 50U}) {
      capacities.push_back(std::max<std::size_t>(unbounded.distinct() * percent / 100, 1));
    }
  }
  for (const std::size_t capacity : capacities) {
    Replay bounded(workload, capacity);
    print(std::to_string(capacity).c_str(), bounded);
  }
}

struct Settings {
  std::string workload = "all";
  std::string mooncake = "mooncake_conversation.jsonl";
  std::uint64_t seed = 1;
};

constexpr std::size_t kRequests = 6000;
using Maker = Requests (*)(std::uint64_t seed, std::size_t count);
struct Named {
  const char* name;
  Maker make;
};
constexpr Named kSynthetic[] = {
    {"chat", chat}, {"ide", ide}, {"scan", scan}, {"churn", churn}, {"many-tenants", many_tenants}};

bool wanted(const Settings& settings, std::string_view name) {
  return settings.workload == "all" || settings.workload == name;
}

std::optional<Settings> settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--workload") {
      settings.workload = argv[i + 1];
    } else if (option == "--mooncake") {
      settings.mooncake = argv[i + 1];
    } else if (option == "--seed") {
      settings.seed = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      return std::nullopt;
    }
  }
  const bool known = wanted(settings, "mooncake") ||
                     std::any_of(std::begin(kSynthetic), std::end(kSynthetic),
                                 [&](const Named& one) { return wanted(settings, one.name); });
  return argc % 2 == 1 && known ? std::optional(settings) : std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Settings> settings = settings_of(argc, argv);
  if (!settings) {
    std::fprintf(stderr,
                 "index_workloads [--workload all|chat|ide|scan|churn|many-tenants|mooncake] "
                 "[--seed N] [--mooncake FILE]\n");
    return 2;
  }
  std::printf(
      "machine: %s; huge pages: %s\nseed: %llu; times are of match and insert, hashing "
      "included, prompt in the cache\n",
      bench::machine().c_str(), bench::huge_pages().c_str(),
      static_cast<unsigned long long>(settings->seed));
  for (const Named& one : kSynthetic) {
    if (wanted(*settings, one.name)) {
      run(made(one.name, one.make(settings->seed, kRequests)));
    }
  }
  if (!wanted(*settings, "mooncake")) {
    return 0;
  }
  const std::optional<Workload> trace = mooncake(settings->mooncake);
  if (trace) {
    run(*trace);
    return 0;
  }
  std::printf("\n*** mooncake: NOT RUN, there is no file '%s' (--mooncake FILE) ***\n",
              settings->mooncake.c_str());
  return settings->workload == "all" ? 0 : 1;
}
