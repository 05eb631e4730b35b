// The block tree beside other ways to find a known prefix, in one run.
//
//   micro_block_tree [--benchmark_filter=...]
//
// The tree holds prompts of 64 blocks of 64 tokens: 16 prompts share each system prompt of 16
// blocks, so paths branch as chats do. Queries are drawn from a seeded generator. `per_block`
// counts the blocks of a query; a lookup is one query.
//
// References: the same block keys in std::unordered_map and boost::unordered_flat_map (first miss
// ends the scan; keys are trusted there, nothing is compared), and whole prompts in a hash map
// (finds a prompt only when it is known whole).
#include <toki/block_tree.hpp>

#include <benchmark/benchmark.h>
#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using toki::BlockTree;
using toki::Scope;
using toki::Token;
using toki::Tokens;

constexpr std::size_t kBlock = 64;
constexpr std::size_t kPromptBlocks = 64;
constexpr std::size_t kSystemBlocks = 16;
constexpr std::size_t kFamily = 16;
const Scope kScope({"benchmark"});

Tokens random_tokens(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  Tokens tokens(count);
  for (Token& token : tokens) {
    token = static_cast<Token>(random() % 128000);
  }
  return tokens;
}

Tokens prompt_of(std::size_t number) {
  Tokens tokens = random_tokens(number / kFamily + 1, kSystemBlocks * kBlock);
  const Tokens own = random_tokens(number + 1000000007, (kPromptBlocks - kSystemBlocks) * kBlock);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

// How many prompts have so many blocks in the tree.
std::size_t prompts_for(std::size_t blocks) {
  return blocks / (kPromptBlocks - kSystemBlocks + kSystemBlocks / kFamily);
}

struct World {
  std::unique_ptr<BlockTree> tree;
  std::vector<Tokens> queries;  // known whole, then an unknown tail of 10 tokens in the last block
  std::vector<std::vector<std::uint64_t>> keys;
  std::vector<Tokens> strangers;
  std::size_t blocks = 0;
};

World& world(std::size_t blocks) {
  static std::unordered_map<std::size_t, World> worlds;
  World& w = worlds[blocks];
  if (w.tree) {
    return w;
  }
  const std::size_t prompts = prompts_for(blocks);
  w.tree = std::make_unique<BlockTree>(
      toki::BlockTreeOptions{.block_size = kBlock, .max_blocks = blocks * 2});
  std::mt19937_64 random(7);
  for (std::size_t i = 0; i < prompts; ++i) {
    const Tokens prompt = prompt_of(i);
    w.tree->insert(kScope, prompt);
    if (random() % std::max<std::size_t>(prompts / 4096, 1) == 0) {
      w.queries.push_back(prompt);
      w.keys.push_back(w.tree->keys(kScope, prompt));
      w.strangers.push_back(random_tokens(random(), kPromptBlocks * kBlock));
    }
  }
  w.blocks = w.tree->blocks();
  return w;
}

void report(benchmark::State& state, const World& w) {
  const auto blocks = static_cast<double>(state.iterations()) * kPromptBlocks;
  state.counters["block_lookups"] = benchmark::Counter(blocks, benchmark::Counter::kIsRate);
  state.counters["blocks"] = static_cast<double>(w.blocks);
}

// Times each operation alone. The prompt is copied to one buffer first, outside the time: in use it
// has just been tokenized, so it is in the cache, while the part of the tree that it meets is not.
template <class Operation>
void timed(benchmark::State& state, const std::vector<Tokens>& prompts, Operation operation) {
  Tokens prompt;
  std::vector<double> times;
  std::size_t i = 0;
  for (auto _ : state) {
    prompt = prompts[i];
    const auto begun = std::chrono::steady_clock::now();
    operation(prompt, i);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    state.SetIterationTime(took.count());
    times.push_back(took.count() * 1e9);
    i = (i + 1) % prompts.size();
  }
  std::sort(times.begin(), times.end());
  state.counters["p50_ns"] = times[times.size() / 2];
  state.counters["p99_ns"] = times[times.size() / 100 * 99];
}

void match_known(benchmark::State& state) {
  const World& w = world(static_cast<std::size_t>(state.range(0)));
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    if (w.tree->match(kScope, prompt).tokens != kPromptBlocks * kBlock) {
      state.SkipWithError("a known prompt was not found");
    }
  });
  report(state, w);
}

void match_known_prehashed(benchmark::State& state) {
  const World& w = world(static_cast<std::size_t>(state.range(0)));
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t i) {
    benchmark::DoNotOptimize(w.tree->match(kScope, prompt, w.keys[i]));
  });
  report(state, w);
}

void match_unknown(benchmark::State& state) {
  const World& w = world(static_cast<std::size_t>(state.range(0)));
  timed(state, w.strangers, [&](const Tokens& prompt, std::size_t) {
    benchmark::DoNotOptimize(w.tree->match(kScope, prompt));
  });
}

void hash_only(benchmark::State& state) {
  const World& w = world(1 << 20);
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    benchmark::DoNotOptimize(w.tree->keys(kScope, prompt));
  });
}

void insert_prehashed(benchmark::State& state) {
  const auto prompts = static_cast<std::size_t>(state.range(0)) / kPromptBlocks;
  std::vector<Tokens> fresh;
  std::vector<std::vector<std::uint64_t>> keys;
  const BlockTree hasher({.block_size = kBlock, .max_blocks = 1});
  for (std::size_t i = 0; i < prompts; ++i) {
    fresh.push_back(random_tokens(i + 99, kPromptBlocks * kBlock));
    keys.push_back(hasher.keys(kScope, fresh.back()));
  }
  for (auto _ : state) {
    state.PauseTiming();
    BlockTree tree({.block_size = kBlock, .max_blocks = prompts * kPromptBlocks * 2});
    tree.reserve(prompts * kPromptBlocks);
    state.ResumeTiming();
    for (std::size_t i = 0; i < prompts; ++i) {
      tree.insert(kScope, fresh[i], keys[i]);
    }
    state.PauseTiming();
    const double per_block = static_cast<double>(tree.bytes()) / static_cast<double>(tree.blocks());
    state.counters["index_bytes_a_block"] = per_block - kBlock * sizeof(Token);
    state.ResumeTiming();
  }
  state.counters["per_block"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(prompts * kPromptBlocks),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// The slowest single insert while the tree grows to its size without being told.
void insert_growing_worst(benchmark::State& state) {
  const auto prompts = static_cast<std::size_t>(state.range(0)) / kPromptBlocks;
  for (auto _ : state) {
    BlockTree tree({.block_size = kBlock, .max_blocks = prompts * kPromptBlocks * 2});
    double worst = 0;
    for (std::size_t i = 0; i < prompts; ++i) {
      const Tokens prompt = random_tokens(i + 99, kPromptBlocks * kBlock);
      const auto begun = std::chrono::steady_clock::now();
      tree.insert(kScope, prompt);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begun;
      worst = std::max(worst, took.count());
    }
    state.counters["worst_ms"] = worst;
  }
}

void insert_evicting(benchmark::State& state) {
  BlockTree tree({.block_size = kBlock, .max_blocks = 1 << 16});
  std::vector<Tokens> fresh;
  for (std::size_t i = 0; i < 4096; ++i) {
    fresh.push_back(random_tokens(i + 99, kPromptBlocks * kBlock));
    tree.insert(kScope, fresh.back());
  }
  std::size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(tree.insert(kScope, fresh[i]));
    i = (i + 1) % fresh.size();
  }
  state.counters["per_block"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kPromptBlocks,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// Readers, while one more thread inserts a prompt every millisecond.
void match_while_writing(benchmark::State& state) {
  static std::unique_ptr<std::jthread> writer;
  World& w = world(1 << 20);
  if (state.thread_index() == 0) {
    writer = std::make_unique<std::jthread>([&w](const std::stop_token& stop) {
      for (std::size_t i = 0; !stop.stop_requested(); ++i) {
        w.tree->insert(kScope, random_tokens(i + 77777777, kPromptBlocks * kBlock));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  std::size_t i = static_cast<std::size_t>(state.thread_index()) * 911 % w.queries.size();
  for (auto _ : state) {
    benchmark::DoNotOptimize(w.tree->match(kScope, w.queries[i]));
    i = (i + 1) % w.queries.size();
  }
  if (state.thread_index() == 0) {
    writer.reset();
  }
  state.counters["block_lookups"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kPromptBlocks, benchmark::Counter::kIsRate);
}

template <class Map>
void reference_map(benchmark::State& state) {
  const World& w = world(static_cast<std::size_t>(state.range(0)));
  static std::unordered_map<std::size_t, Map> maps;
  Map& map = maps[static_cast<std::size_t>(state.range(0))];
  if (map.empty()) {
    const std::size_t prompts = prompts_for(static_cast<std::size_t>(state.range(0)));
    for (std::size_t p = 0; p < prompts; ++p) {
      for (const std::uint64_t key : w.tree->keys(kScope, prompt_of(p))) {
        map.emplace(key, static_cast<std::uint32_t>(p));
      }
    }
  }
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    const auto keys = w.tree->keys(kScope, prompt);
    std::size_t known = 0;
    while (known < keys.size() && map.find(keys[known]) != map.end()) {
      ++known;
    }
    benchmark::DoNotOptimize(known);
  });
  report(state, w);
}
using StdMap = std::unordered_map<std::uint64_t, std::uint32_t>;
using FlatMap = boost::unordered_flat_map<std::uint64_t, std::uint32_t>;

void reference_whole_prompt(benchmark::State& state) {
  const World& w = world(static_cast<std::size_t>(state.range(0)));
  std::unordered_map<std::string, std::size_t> whole;
  for (std::size_t i = 0; i < w.queries.size(); ++i) {
    whole.emplace(std::string(reinterpret_cast<const char*>(w.queries[i].data()),
                              w.queries[i].size() * sizeof(Token)),
                  i);
  }
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    const std::string key(reinterpret_cast<const char*>(prompt.data()),
                          prompt.size() * sizeof(Token));
    benchmark::DoNotOptimize(whole.find(key));
  });
}

}  // namespace

BENCHMARK(hash_only)->UseManualTime();
BENCHMARK(match_known)->UseManualTime()->Arg(1 << 20);
BENCHMARK(match_known_prehashed)->UseManualTime()->Arg(1 << 20);
BENCHMARK(match_unknown)->UseManualTime()->Arg(1 << 20);
BENCHMARK_TEMPLATE(reference_map, StdMap)->UseManualTime()->Arg(1 << 20);
BENCHMARK_TEMPLATE(reference_map, FlatMap)->UseManualTime()->Arg(1 << 20);
BENCHMARK(reference_whole_prompt)->UseManualTime()->Arg(1 << 20);
BENCHMARK(insert_prehashed)->Arg(1 << 20)->Unit(benchmark::kMillisecond);
BENCHMARK(insert_growing_worst)->Arg(1 << 20)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(insert_evicting);
BENCHMARK(match_while_writing)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(match_known)->UseManualTime()->Arg(1 << 23);
BENCHMARK(match_unknown)->UseManualTime()->Arg(1 << 23);

BENCHMARK_MAIN();
