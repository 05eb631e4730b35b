// The KV store beside plain copies of the same bytes, in one run.
//
//   micro_kv_store [--benchmark_filter=...]
//
// A state of 3,000 tokens, 24 layers, 12 KiB of rows a token (36 MB): taken in new each time, and
// composed whole, in one piece and as a chain of ten. Prompts for match and open: 10,000, of 200
// tokens each, 100 of them behind each of 100 system prompts of 300. Everything from fixed seeds;
// in TMPDIR or /tmp. MB/s are of rows.
//
// References: memcpy of the same bytes; a copy of the state file with read and write, 1 MiB at a
// time, without and with fsync. A take cannot be faster than the last, a compose than the first.
#include <toki/kv_store.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

namespace fs = std::filesystem;

using toki::KvStore;
using toki::Scope;
using toki::Token;
using toki::Tokens;
using toki::TokenSpan;

constexpr std::size_t kTokens = 3000;
constexpr std::size_t kLayers = 24;
constexpr std::size_t kRow = 256;  // of one layer's K or V
constexpr std::uint64_t kRows = kTokens * kLayers * 2 * kRow;
constexpr std::size_t kPiece = std::size_t{1} << 20;
const Scope kScope{"benchmark"};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "micro_kv_store: %s\n", what.c_str());
  std::exit(1);
}

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "toki-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      fail("no temporary folder");
    }
    path_ = path;
    fs::create_directory(path_ / "slots");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string slot_file(const char* name) const { return (path_ / "slots" / name).string(); }
  std::unique_ptr<KvStore> open() const {
    auto store = KvStore::open(
        {.dir = (path_ / "store").string(), .slot_dir = (path_ / "slots").string()}, {});
    if (!store) {
      fail(store.error().detail);
    }
    return std::move(*store);
  }

 private:
  fs::path path_;
};

Tokens random_tokens(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  Tokens tokens(count);
  for (Token& token : tokens) {
    token = static_cast<Token>(random() % 128000);
  }
  return tokens;
}

// A state file of version 4, one stream, V not transposed, with arbitrary rows.
std::string state_file(TokenSpan tokens, std::size_t layers, std::size_t row) {
  std::string out;
  const auto word = [&](std::uint64_t value, int bytes = 4) {
    for (int byte = 0; byte < bytes; ++byte) {
      out += static_cast<char>(static_cast<unsigned char>(value >> (8 * byte)));
    }
  };
  const std::uint64_t count = tokens.size();
  for (const std::uint64_t value : {std::uint64_t{0x67677371}, std::uint64_t{4}, count + 4,
                                    std::uint64_t{0xffffffff}, std::uint64_t{1}, count}) {
    word(value);
  }
  for (const Token token : tokens) {
    word(static_cast<std::uint32_t>(token));
  }
  word(0);
  word(1);
  word(count);
  for (std::uint64_t cell = 0; cell < count; ++cell) {
    word(cell);
    word(1);
    word(0);
  }
  word(0);
  word(layers);
  word(0);
  word(0);
  std::mt19937_64 random(7);
  for (std::size_t part = 0; part < 2 * layers; ++part) {
    word(1);
    word(row, 8);
    const std::size_t at = out.size();
    out.resize(at + count * row);
    for (std::size_t byte = 0; byte + 8 <= count * row; byte += 8) {
      const std::uint64_t value = random();
      std::memcpy(out.data() + at + byte, &value, 8);
    }
  }
  return out;
}

void write_file(const std::string& path, const std::string& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::write(file, bytes.data() + at, std::min(kPiece, bytes.size() - at));
    if (count <= 0) {
      fail("cannot write " + path);
    }
    at += static_cast<std::size_t>(count);
  }
  ::close(file);
}

void copy_file(const std::string& from, const std::string& to, bool sync) {
  std::vector<char> piece(kPiece);
  const int in = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  const int out = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  for (ssize_t count = 0; (count = ::read(in, piece.data(), piece.size())) > 0;) {
    if (::write(out, piece.data(), static_cast<std::size_t>(count)) != count) {
      fail("cannot write " + to);
    }
  }
  if (sync) {
    ::fsync(out);
  }
  ::close(in);
  ::close(out);
}

void count_rows(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kRows));
}

const Tokens& long_prompt() {
  static const Tokens tokens = random_tokens(1, kTokens);
  return tokens;
}
const std::string& long_state() {
  static const std::string bytes = state_file(long_prompt(), kLayers, kRow);
  return bytes;
}

void reference_memcpy(benchmark::State& state) {
  std::string to(long_state().size(), '\1');
  for (auto _ : state) {
    std::memcpy(to.data(), long_state().data(), to.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  count_rows(state);
}
BENCHMARK(reference_memcpy)->Unit(benchmark::kMillisecond)->UseRealTime();

// Argument: with fsync.
void reference_file_copy(benchmark::State& state) {
  const Folder folder;
  const std::string from = folder.slot_file("from"), to = folder.slot_file("to");
  write_file(from, long_state());
  for (auto _ : state) {
    copy_file(from, to, state.range(0) != 0);
    state.PauseTiming();
    ::unlink(to.c_str());
    state.ResumeTiming();
  }
  count_rows(state);
}
BENCHMARK(reference_file_copy)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void take(benchmark::State& state) {
  const Folder folder;
  const auto store = folder.open();
  for (auto _ : state) {
    state.PauseTiming();
    if (!store->forget(std::nullopt)) {
      fail("cannot forget");
    }
    write_file(folder.slot_file("toki-in"), long_state());
    state.ResumeTiming();
    const auto taken = store->take(kScope, long_prompt(), "toki-in", false, 1);
    if (!taken || taken->new_tokens != kTokens) {
      fail("nothing taken");
    }
  }
  count_rows(state);
}
BENCHMARK(take)->Unit(benchmark::kMillisecond)->UseRealTime();

// Of a state that is known already.
void take_nothing_new(benchmark::State& state) {
  const Folder folder;
  const auto store = folder.open();
  for (auto _ : state) {
    state.PauseTiming();
    write_file(folder.slot_file("toki-in"), long_state());
    state.ResumeTiming();
    if (!store->take(kScope, long_prompt(), "toki-in", false, 1)) {
      fail("nothing taken");
    }
  }
}
BENCHMARK(take_nothing_new)->Unit(benchmark::kMillisecond)->UseRealTime();

// Argument: segments of which the prompt consists.
void compose(benchmark::State& state) {
  const Folder folder;
  const auto store = folder.open();
  const auto segments = static_cast<std::size_t>(state.range(0));
  for (std::size_t i = 1; i <= segments; ++i) {
    const TokenSpan begin = TokenSpan(long_prompt()).first(kTokens * i / segments);
    write_file(folder.slot_file("toki-in"), state_file(begin, kLayers, kRow));
    if (!store->take(kScope, begin, "toki-in", false, 1)) {
      fail("nothing taken");
    }
  }
  for (auto _ : state) {
    const auto tokens = store->compose(kScope, long_prompt(), kTokens, 0, "toki-out");
    if (!tokens || *tokens != kTokens) {
      fail("nothing composed");
    }
    state.PauseTiming();
    ::unlink(folder.slot_file("toki-out").c_str());
    state.ResumeTiming();
  }
  count_rows(state);
}
BENCHMARK(compose)->Arg(1)->Arg(10)->Unit(benchmark::kMillisecond)->UseRealTime();

Tokens prompt_of(std::size_t number) {
  Tokens tokens = random_tokens(number / 100 + 1, 300);
  const Tokens own = random_tokens(number + 1000000007, 200);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

// 10,000 prompts; small rows, as only their number matters.
struct World {
  Folder folder;
  std::unique_ptr<KvStore> store = folder.open();
  std::vector<Tokens> prompts;
  World() {
    for (std::size_t i = 0; i < 10000; ++i) {
      prompts.push_back(prompt_of(i));
      write_file(folder.slot_file("toki-in"), state_file(prompts.back(), 1, 8));
      if (!store->take(kScope, {}, "toki-in", false, 1)) {
        fail("nothing taken");
      }
    }
  }
};
World& world() {
  static World world;
  return world;
}

void match_of_10000(benchmark::State& state) {
  std::mt19937_64 random(3);
  world();
  for (auto _ : state) {
    const Tokens& prompt = world().prompts[random() % 10000];
    if (world().store->match(kScope, prompt).tokens != prompt.size()) {
      fail("no match");
    }
  }
}
BENCHMARK(match_of_10000)->Unit(benchmark::kMicrosecond);

// A start over the same 10,000 segments.
void open_10000(benchmark::State& state) {
  world();
  for (auto _ : state) {
    world().store.reset();
    world().store = world().folder.open();
  }
  state.counters["segments"] = static_cast<double>(world().store->stats().segments);
}
BENCHMARK(open_10000)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("seeds", "1, 3, 7, fixed");
  benchmark::AddCustomContext("state", "3000 tokens x 24 layers x 2 x 256 bytes");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
