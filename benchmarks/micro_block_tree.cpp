// The block tree beside other ways to find a known prefix, in one run.
//
//   micro_block_tree [--benchmark_filter=...] [--benchmark_repetitions=5]
//
// The tree holds prompts of 64 blocks of 64 tokens: 16 prompts share each system prompt of 16
// blocks, so paths branch as chats do. Everything is drawn from seeded generators. Every row tells
// p50 and p99 of one operation in nanoseconds, with one clock reading inside.
//
// floor_*: what this machine needs for memory that no cache holds; no index can be faster.
// References: the same block keys in std::unordered_map and boost::unordered_flat_map (first miss
// ends the scan; keys are trusted there, nothing is compared), whole prompts and blocks in LRU
// order, a compressed trie over tokens.
#include <toki/block_tree.hpp>

#include <benchmark/benchmark.h>
#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unordered_map>
#include <vector>

#include "machine.hpp"
#include "random.hpp"
#include "references.hpp"

namespace {

using bench::BlockLru;
using bench::PromptLru;
using bench::RadixTree;
using bench::Random;
using toki::BlockTree;
using toki::Scope;
using toki::Token;
using toki::Tokens;
using toki::TokenSpan;
using Keys = std::vector<std::uint64_t>;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSeed = 1;
constexpr std::size_t kBlock = 64;
constexpr std::size_t kPromptBlocks = 64;
constexpr std::size_t kSystemBlocks = 16;
constexpr std::size_t kFamily = 16;
constexpr std::size_t kQueries = 4096;
constexpr std::int64_t kMillion = 1 << 20;
const Scope kScope({"benchmark"});

Random seeded(std::uint64_t number) {
  return Random(number * 0x9e3779b97f4a7c15ULL + kSeed);
}

Tokens random_tokens(std::uint64_t seed, std::size_t count) {
  Random random = seeded(seed);
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

Tokens stranger(std::size_t number) {
  return random_tokens(number + 9000000011, kPromptBlocks * kBlock);
}

// How many prompts have so many blocks in the tree.
std::size_t prompts_for(std::int64_t blocks) {
  return static_cast<std::size_t>(blocks) /
         (kPromptBlocks - kSystemBlocks + kSystemBlocks / kFamily);
}

struct World {
  std::unique_ptr<BlockTree> tree;
  std::vector<std::size_t> numbers;  // of the prompts that are asked for
  std::vector<Tokens> queries;       // known whole
  std::vector<Keys> keys;
  std::vector<Tokens> halves;  // known to the middle of block 40
  std::vector<Tokens> strangers;
};

World& world(std::int64_t blocks) {
  static std::unordered_map<std::int64_t, World> worlds;
  World& w = worlds[blocks];
  if (w.tree) {
    return w;
  }
  const std::size_t prompts = prompts_for(blocks);
  w.tree = std::make_unique<BlockTree>(toki::BlockTreeOptions{
      .block_size = kBlock, .max_blocks = static_cast<std::size_t>(blocks) * 2});
  for (std::size_t i = 0; i < prompts; ++i) {
    w.tree->insert(kScope, prompt_of(i));
  }
  Random random = seeded(7);
  for (std::size_t i = 0; i < kQueries; ++i) {
    w.numbers.push_back(random() % prompts);
    const Tokens prompt = prompt_of(w.numbers.back());
    const Tokens other = stranger(i);
    Tokens half = prompt;
    std::copy(other.begin() + 40 * kBlock + kBlock / 2, other.end(),
              half.begin() + 40 * kBlock + kBlock / 2);
    w.queries.push_back(prompt);
    w.keys.push_back(w.tree->keys(kScope, prompt));
    w.halves.push_back(std::move(half));
    w.strangers.push_back(other);
  }
  return w;
}

// Nanoseconds of single operations, and how they are told.
class Times {
 public:
  void add(Clock::duration took) {
    all_.push_back(std::chrono::duration<double, std::nano>(took).count());
  }
  void tell(benchmark::State& state, double parts = 1) {
    if (all_.empty()) {
      return;
    }
    std::sort(all_.begin(), all_.end());
    const auto kind = benchmark::Counter::kAvgThreads;
    state.counters["p50_ns"] = benchmark::Counter(all_[all_.size() / 2] / parts, kind);
    state.counters["p99_ns"] = benchmark::Counter(all_[all_.size() / 100 * 99] / parts, kind);
  }
  /// Blocks of a whole query a second and core, by the median: others may use the machine, too.
  void tell_lookups(benchmark::State& state) {
    if (!all_.empty()) {
      state.counters["block_lookups"] = benchmark::Counter(
          kPromptBlocks * 1e9 / all_[all_.size() / 2], benchmark::Counter::kAvgThreads);
    }
  }
  double largest() const { return *std::max_element(all_.begin(), all_.end()); }

 private:
  std::vector<double> all_;
};

// Times each operation alone. The prompt is copied to one buffer first, outside the time: in use it
// has just been tokenized, so it is in the cache, while the part of the tree that it meets is not.
template <class Operation>
void timed(benchmark::State& state, const std::vector<Tokens>& prompts, Operation operation) {
  Tokens prompt;
  Times times;
  std::size_t i = 0;
  for (auto _ : state) {
    prompt = prompts[i];
    const auto begun = Clock::now();
    operation(prompt, i);
    const auto took = Clock::now() - begun;
    state.SetIterationTime(std::chrono::duration<double>(took).count());
    times.add(took);
    i = (i + 1) % prompts.size();
  }
  times.tell(state);
}

// One operation after the other, on the first `count` queries in turn.
template <class Operation>
void back_to_back(benchmark::State& state, std::size_t first, std::size_t count,
                  Operation operation) {
  Times times;
  std::size_t i = first;
  auto before = Clock::now();
  for (auto _ : state) {
    operation(i);
    const auto now = Clock::now();
    times.add(now - before);
    before = now;
    i = (i + 1) % count;
  }
  times.tell(state);
  times.tell_lookups(state);
  state.counters["all_threads"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kPromptBlocks, benchmark::Counter::kIsRate);
}

// --- floors ---

char* memory_of(std::size_t megabytes) {
  static std::unordered_map<std::size_t, char*> all;
  char*& memory = all[megabytes];
  if (memory == nullptr) {
    memory = static_cast<char*>(std::aligned_alloc(std::size_t{2} << 20, megabytes << 20));
    madvise(memory, megabytes << 20, MADV_HUGEPAGE);
    std::memset(memory, 1, megabytes << 20);
  }
  return memory;
}

template <class Operation>
void floor_of(benchmark::State& state, Operation operation) {
  const auto size = static_cast<std::size_t>(state.range(0)) << 20;
  const char* memory = memory_of(static_cast<std::size_t>(state.range(0)));
  Random random = seeded(3);
  Times times;
  for (auto _ : state) {
    const char* place = memory + random() % (size - 16384) / 256 * 256;
    const auto begun = Clock::now();
    operation(place);
    const auto took = Clock::now() - begun;
    state.SetIterationTime(std::chrono::duration<double>(took).count());
    times.add(took);
  }
  times.tell(state);
}

// One byte at a random place of so many MiB.
void floor_one_probe(benchmark::State& state) {
  floor_of(state, [](const char* place) {
    benchmark::DoNotOptimize(int{*static_cast<const volatile char*>(place)} * 3);
  });
}

// The tokens of one prompt, at a random place, compared with what the cache holds.
void floor_16_kib(benchmark::State& state) {
  static const std::vector<char> same(16384, 1);
  floor_of(state, [](const char* place) {
    for (std::size_t i = 0; i < same.size(); i += 64) {
      __builtin_prefetch(place + i);
    }
    benchmark::DoNotOptimize(std::memcmp(place, same.data(), same.size()));
  });
}

// --- match ---

void hash_only(benchmark::State& state) {
  const World& w = world(kMillion);
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    benchmark::DoNotOptimize(w.tree->keys(kScope, prompt));
  });
}

void match_known(benchmark::State& state) {
  const World& w = world(state.range(0));
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    if (w.tree->match(kScope, prompt).tokens != kPromptBlocks * kBlock) {
      state.SkipWithError("a known prompt was not found");
    }
  });
}

void match_known_prehashed(benchmark::State& state) {
  const World& w = world(state.range(0));
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t i) {
    benchmark::DoNotOptimize(w.tree->match(kScope, prompt, w.keys[i]));
  });
}

void match_half_known(benchmark::State& state) {
  const World& w = world(state.range(0));
  timed(state, w.halves, [&](const Tokens& prompt, std::size_t) {
    if (w.tree->match(kScope, prompt).tokens != 40 * kBlock + kBlock / 2) {
      state.SkipWithError("half a known prompt was not found");
    }
  });
}

void match_unknown(benchmark::State& state) {
  const World& w = world(state.range(0));
  timed(state, w.strangers, [&](const Tokens& prompt, std::size_t) {
    benchmark::DoNotOptimize(w.tree->match(kScope, prompt));
  });
}

// In a tree that has been full for long: every number was used several times.
void match_known_churned(benchmark::State& state) {
  static std::unique_ptr<BlockTree> tree;
  static std::vector<Tokens> queries;
  if (!tree) {
    tree = std::make_unique<BlockTree>(
        toki::BlockTreeOptions{.block_size = kBlock, .max_blocks = kMillion});
    const std::size_t prompts = 4 * prompts_for(kMillion);
    for (std::size_t i = 0; i < prompts; ++i) {
      tree->insert(kScope, prompt_of(i));
    }
    for (std::size_t i = 0; queries.size() < kQueries; ++i) {
      queries.push_back(prompt_of(prompts - 1 - i * 2));
    }
  }
  timed(state, queries, [&](const Tokens& prompt, std::size_t) {
    if (tree->match(kScope, prompt).tokens != kPromptBlocks * kBlock) {
      state.SkipWithError("a known prompt was not found");
    }
  });
}

// Throughput of one core. Argument: how many prompts take turns; 32 and their part of the tree fit
// the second-level cache, 4,096 (64 MiB, and as much of the tree) do not.
void throughput_hashed(benchmark::State& state) {
  const World& w = world(kMillion);
  back_to_back(state, 0, static_cast<std::size_t>(state.range(0)), [&](std::size_t i) {
    benchmark::DoNotOptimize(w.tree->match(kScope, w.queries[i]));
  });
}

void throughput_prehashed(benchmark::State& state) {
  const World& w = world(kMillion);
  back_to_back(state, 0, static_cast<std::size_t>(state.range(0)), [&](std::size_t i) {
    benchmark::DoNotOptimize(w.tree->match(kScope, w.queries[i], w.keys[i]));
  });
}

// Readers, while one more thread inserts a prompt every millisecond.
void match_while_writing(benchmark::State& state) {
  static std::unique_ptr<std::jthread> writer;
  World& w = world(kMillion);
  if (state.thread_index() == 0) {
    writer = std::make_unique<std::jthread>([&w](const std::stop_token& stop) {
      for (std::size_t i = 0; !stop.stop_requested(); ++i) {
        w.tree->insert(kScope, stranger(i + kQueries));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  back_to_back(
      state, static_cast<std::size_t>(state.thread_index()) * 911, kQueries,
      [&](std::size_t i) { benchmark::DoNotOptimize(w.tree->match(kScope, w.queries[i])); });
  if (state.thread_index() == 0) {
    writer.reset();
  }
}

// --- references for match ---

using StdMap = std::unordered_map<std::uint64_t, std::uint32_t>;
using FlatMap = boost::unordered_flat_map<std::uint64_t, std::uint32_t>;

template <class Map>
void reference_map(benchmark::State& state) {
  const World& w = world(state.range(0));
  static std::unordered_map<std::int64_t, Map> maps;
  Map& map = maps[state.range(0)];
  if (map.empty()) {
    for (std::size_t p = 0; p < prompts_for(state.range(0)); ++p) {
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
}

void reference_radix_tree(benchmark::State& state) {
  const World& w = world(state.range(0));
  RadixTree tree;
  for (std::size_t p = 0; p < prompts_for(state.range(0)); ++p) {
    tree.insert(prompt_of(p));
  }
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    if (tree.match(prompt) != prompt.size()) {
      state.SkipWithError("a known prompt was not found");
    }
  });
}

void reference_whole_prompt_lru(benchmark::State& state) {
  const World& w = world(state.range(0));
  PromptLru prompts(static_cast<std::size_t>(state.range(0)) * 2);
  for (std::size_t p = 0; p < prompts_for(state.range(0)); ++p) {
    prompts.insert(w.tree->keys(kScope, prompt_of(p)));
  }
  timed(state, w.queries, [&](const Tokens& prompt, std::size_t) {
    benchmark::DoNotOptimize(prompts.match(w.tree->keys(kScope, prompt)));
  });
}

// --- insert and evict ---

// Inserts prompts that share nothing, one at a time; each is in the cache, as is its list of keys.
// Tells times for one block. `insert(prompt, keys)`.
template <class Insert>
void insert_fresh(benchmark::State& state, Insert insert) {
  static std::size_t number = std::size_t{1} << 32;
  const BlockTree hasher({.block_size = kBlock, .max_blocks = 1});
  Times times;
  for (auto _ : state) {
    const Tokens prompt = stranger(++number);
    const Keys keys = hasher.keys(kScope, prompt);
    const auto begun = Clock::now();
    insert(prompt, keys);
    const auto took = Clock::now() - begun;
    state.SetIterationTime(std::chrono::duration<double>(took).count());
    times.add(took);
  }
  times.tell(state, kPromptBlocks);
}

// Iterations of the rows that fill something of a million blocks.
constexpr std::int64_t kFill = kMillion / static_cast<std::int64_t>(kPromptBlocks);

void insert_prehashed(benchmark::State& state) {
  BlockTree tree({.block_size = kBlock, .max_blocks = 2 * kMillion});
  tree.reserve(kMillion);
  insert_fresh(state,
               [&](const Tokens& prompt, const Keys& keys) { tree.insert(kScope, prompt, keys); });
  state.counters["index_bytes_a_block"] =
      static_cast<double>(tree.bytes()) / static_cast<double>(tree.blocks()) -
      kBlock * sizeof(Token);
}

void insert_hashed(benchmark::State& state) {
  BlockTree tree({.block_size = kBlock, .max_blocks = 2 * kMillion});
  tree.reserve(kMillion);
  insert_fresh(state, [&](const Tokens& prompt, const Keys&) { tree.insert(kScope, prompt); });
}

// CPU time of this thread: what it takes while it is not put aside for others.
Clock::duration cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Nothing reserved. The slowest insert, the one that grows the most: of several trees the median
// and the most, in CPU time, because on a shared machine a thread is put aside for milliseconds.
void insert_growing(benchmark::State& state) {
  std::vector<double> worst;
  for (auto _ : state) {
    BlockTree tree({.block_size = kBlock, .max_blocks = 2 * kMillion});
    Times times;
    for (std::int64_t i = 0; i < kFill; ++i) {
      const Tokens prompt = stranger(static_cast<std::size_t>(i));
      const auto begun = cpu_time();
      tree.insert(kScope, prompt);
      times.add(cpu_time() - begun);
    }
    worst.push_back(times.largest() * 1e-6);
    times.tell(state, kPromptBlocks);
  }
  std::sort(worst.begin(), worst.end());
  state.counters["worst_ms"] = worst[worst.size() / 2];
  state.counters["worst_ms_most"] = worst.back();
}

template <class Map>
void reference_insert_map(benchmark::State& state) {
  Map map;
  map.reserve(kMillion);
  insert_fresh(state, [&](const Tokens&, const Keys& keys) {
    for (const std::uint64_t key : keys) {
      map.emplace(key, 1);
    }
  });
}

void reference_insert_radix_tree(benchmark::State& state) {
  RadixTree tree;
  insert_fresh(state, [&](const Tokens& prompt, const Keys&) { tree.insert(prompt); });
}

// The same prompts again, which only marks them as used.
void insert_known(benchmark::State& state) {
  World& w = world(kMillion);
  timed(state, w.queries,
        [&](const Tokens& prompt, std::size_t i) { w.tree->insert(kScope, prompt, w.keys[i]); });
}

// Into a full tree: every new block first evicts one.
void evict_prehashed(benchmark::State& state) {
  BlockTree tree({.block_size = kBlock, .max_blocks = kMillion});
  for (std::int64_t i = 0; i < kFill; ++i) {
    tree.insert(kScope, stranger(static_cast<std::size_t>(i)));
  }
  insert_fresh(state,
               [&](const Tokens& prompt, const Keys& keys) { tree.insert(kScope, prompt, keys); });
}

void reference_evict_block_lru(benchmark::State& state) {
  BlockLru lru(kMillion);
  const BlockTree hasher({.block_size = kBlock, .max_blocks = 1});
  for (std::int64_t i = 0; i < kFill; ++i) {
    lru.insert(hasher.keys(kScope, stranger(static_cast<std::size_t>(i))));
  }
  insert_fresh(state, [&](const Tokens&, const Keys& keys) { lru.insert(keys); });
}

}  // namespace

BENCHMARK(floor_one_probe)->UseManualTime()->Arg(256)->Arg(2048);
BENCHMARK(floor_16_kib)->UseManualTime()->Arg(256)->Arg(2048);
BENCHMARK(hash_only)->UseManualTime();
BENCHMARK(match_known)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK(match_known_prehashed)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK(match_half_known)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK(match_known_churned)->UseManualTime();
BENCHMARK(match_unknown)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK_TEMPLATE(reference_map, StdMap)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK_TEMPLATE(reference_map, FlatMap)->UseManualTime()->Arg(kMillion)->Arg(8 * kMillion);
BENCHMARK(reference_radix_tree)->UseManualTime()->Arg(kMillion);
BENCHMARK(reference_whole_prompt_lru)->UseManualTime()->Arg(kMillion);
BENCHMARK(throughput_hashed)->Arg(32)->Arg(kQueries)->UseRealTime();
BENCHMARK(throughput_prehashed)->Arg(32)->Arg(kQueries)->UseRealTime();
BENCHMARK(match_while_writing)->Threads(1)->Threads(2)->UseRealTime();
BENCHMARK(insert_prehashed)->UseManualTime()->Iterations(kFill);
BENCHMARK(insert_hashed)->UseManualTime()->Iterations(kFill);
BENCHMARK(insert_known)->UseManualTime();
BENCHMARK(insert_growing)->Iterations(5)->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(reference_insert_map, StdMap)->UseManualTime()->Iterations(kFill);
BENCHMARK_TEMPLATE(reference_insert_map, FlatMap)->UseManualTime()->Iterations(kFill);
BENCHMARK(reference_insert_radix_tree)->UseManualTime()->Iterations(kFill);
BENCHMARK(evict_prehashed)->UseManualTime()->Iterations(kFill);
BENCHMARK(reference_evict_block_lru)->UseManualTime()->Iterations(kFill);

int main(int argc, char** argv) {
  benchmark::AddCustomContext("machine", bench::machine());
  benchmark::AddCustomContext("transparent huge pages", bench::huge_pages());
  benchmark::AddCustomContext("seed", std::to_string(kSeed));
  benchmark::AddCustomContext(
      "settings", "prompts of 64 blocks of 64 tokens, 16 share a system prompt of 16 blocks");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
