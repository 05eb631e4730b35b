// Nearest prompts by cosine: the scan beside the memory it reads, a plain loop and HNSW, in a run.
//
//   micro_similarity [--hnsw=VECTORS] [--benchmark_filter=...]
//
// Vectors of 384 floats from a seeded generator. `uniform`: every direction alike, the hard case.
// `clustered`: groups of about 100 round common centres (cosine 0.8 within a group), as embeddings
// of prompts are; queries are members with as much noise once more. Recall is of the 10 nearest,
// against the float32 scan.
//
// `share` sets a scan beside a pass that only adds up as many bytes, with the same instructions;
// the two take turns within the row. Times are the thread's CPU time, so that others on the machine
// disturb less (their use of its memory still does). The graphs are built in the run, which takes
// some minutes; --hnsw=VECTORS builds larger ones instead.
#include <toki/embedding.hpp>
#include <toki/similarity_index.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using toki::Neighbour;
using toki::Precision;
using toki::Scope;
using toki::SimilarityIndex;

// The time that this thread had a CPU.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<Clock, duration>;
  static time_point now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return time_point(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
  }
};

constexpr std::size_t kDimension = 384;
constexpr std::size_t kNearest = 10;
constexpr std::size_t kQueries = 200;
constexpr std::size_t kGroup = 100;
constexpr std::uint64_t kSeed = 20251130;
const Scope kScope({"benchmark"});

enum class Data : std::uint8_t { uniform, clustered };

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Vectors by number, so that millions need not be held twice.
class Source {
 public:
  Source(Data data, std::size_t count)
      : data_(data), groups_(std::max<std::size_t>(count / kGroup, 1)) {}

  std::vector<float> vector(std::size_t number) const {
    std::vector<float> v = gaussian(number);
    if (data_ == Data::clustered) {
      add(v, gaussian(kCentres + number % groups_), kCentreWeight);
    }
    toki::normalise(v);
    return v;
  }

  std::vector<float> query(std::size_t number) const {
    std::vector<float> v = gaussian(kQueryNoise + number);
    if (data_ == Data::clustered) {
      add(v, gaussian(kCentres + number * 7919 % groups_), kCentreWeight);
    }
    return v;
  }

 private:
  static constexpr std::uint64_t kCentres = 1ULL << 40;
  static constexpr std::uint64_t kQueryNoise = 1ULL << 41;
  static constexpr float kCentreWeight = 2;  // cosine 4 / 5 within a group

  static std::vector<float> gaussian(std::uint64_t number) {
    std::mt19937_64 random(kSeed ^ (number * 0x9e3779b97f4a7c15ULL));
    std::normal_distribution<float> normal;
    std::vector<float> v(kDimension);
    for (float& value : v) {
      value = normal(random);
    }
    return v;
  }

  static void add(std::vector<float>& v, const std::vector<float>& other, float weight) {
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] += weight * other[i];
    }
  }

  Data data_;
  std::size_t groups_;
};

// One pass over the bytes, with the widest loads there are: what any scan must at least take.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) std::uint64_t sum_avx512(const std::uint64_t* at,
                                                            std::size_t count) {
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (std::size_t i = 0; i + 32 <= count; i += 32) {
    a = _mm512_add_epi64(a, _mm512_load_si512(at + i));
    b = _mm512_add_epi64(b, _mm512_load_si512(at + i + 8));
    c = _mm512_add_epi64(c, _mm512_load_si512(at + i + 16));
    d = _mm512_add_epi64(d, _mm512_load_si512(at + i + 24));
  }
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  std::array<std::uint64_t, 8> parts{};
  _mm512_storeu_si512(parts.data(), a);
  return parts[0] + parts[1] + parts[2] + parts[3] + parts[4] + parts[5] + parts[6] + parts[7];
}

__attribute__((target("avx2"))) std::uint64_t sum_avx2(const std::uint64_t* at, std::size_t count) {
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    a = _mm256_add_epi64(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i)));
    b = _mm256_add_epi64(b, _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i + 4)));
  }
  std::array<std::uint64_t, 4> parts{};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts.data()), _mm256_add_epi64(a, b));
  return parts[0] + parts[1] + parts[2] + parts[3];
}
#endif

std::uint64_t sum_of(const std::vector<std::uint64_t>& words) {
  const std::uint64_t* at = words.data();
  std::size_t count = words.size();
  while (reinterpret_cast<std::uintptr_t>(at) % 64 != 0) {
    ++at;
    --count;
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) {
    return sum_avx512(at, count);
  }
  if (__builtin_cpu_supports("avx2") != 0) {
    return sum_avx2(at, count);
  }
#endif
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += at[i];
  }
  return sum;
}

std::unique_ptr<SimilarityIndex> filled(std::unique_ptr<SimilarityIndex> index,
                                        const Source& source, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    index->put(i, kScope, source.vector(i));
  }
  return index;
}

const SimilarityIndex& scan_of(Data data, std::size_t count, Precision precision) {
  static std::map<std::pair<std::size_t, int>, std::unique_ptr<SimilarityIndex>> known;
  auto& index = known[{count, static_cast<int>(data) * 2 + static_cast<int>(precision)}];
  if (!index) {
    index = filled(toki::make_scan_index(kDimension, precision), Source(data, count), count);
  }
  return *index;
}

double recall_of(const std::vector<Neighbour>& found, const std::vector<Neighbour>& truth) {
  std::size_t hits = 0;
  for (const Neighbour& one : truth) {
    hits += std::any_of(
                found.begin(),
                found.begin() + static_cast<std::ptrdiff_t>(std::min(found.size(), truth.size())),
                [&](const Neighbour& other) { return other.id == one.id; })
                ? 1U
                : 0U;
  }
  return static_cast<double>(hits) / static_cast<double>(truth.size());
}

const std::vector<std::vector<Neighbour>>& truth_of(Data data, std::size_t count) {
  static std::map<std::pair<std::size_t, Data>, std::vector<std::vector<Neighbour>>> known;
  auto& truth = known[{count, data}];
  if (truth.empty()) {
    const SimilarityIndex& scan = scan_of(data, count, Precision::float32);
    for (std::size_t q = 0; q < kQueries; ++q) {
      truth.push_back(scan.search(kScope, Source(data, count).query(q), kNearest));
    }
  }
  return truth;
}

double recall(const SimilarityIndex& index, Data data, std::size_t count, std::size_t nearest) {
  double sum = 0;
  for (std::size_t q = 0; q < kQueries; ++q) {
    sum += recall_of(index.search(kScope, Source(data, count).query(q), nearest),
                     truth_of(data, count)[q]);
  }
  return sum / kQueries;
}

void scan(benchmark::State& state, Precision precision, Data data) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const SimilarityIndex& index = scan_of(data, count, precision);
  const Source source(data, count);
  const std::size_t bytes = count * kDimension * (precision == Precision::int8 ? 1 : 4);
  const std::vector<std::uint64_t> memory(bytes / 8 + 8, 1);
  std::vector<double> scans;
  std::vector<double> reads;
  std::size_t q = 0;
  for (auto _ : state) {
    const std::vector<float> query = source.query(q++ % kQueries);
    auto begun = Clock::now();
    benchmark::DoNotOptimize(index.search(kScope, query, kNearest));
    scans.push_back(seconds_since(begun));
    state.SetIterationTime(scans.back());
    begun = Clock::now();
    benchmark::DoNotOptimize(sum_of(memory));
    reads.push_back(seconds_since(begun));
  }
  const double scan_rate = static_cast<double>(bytes) / median(scans);
  const double read_rate = static_cast<double>(bytes) / median(reads);
  state.counters["p50_us"] = median(scans) * 1e6;
  state.counters["GB/s"] = scan_rate / 1e9;
  state.counters["read_GB/s"] = read_rate / 1e9;
  state.counters["share"] = scan_rate / read_rate;
  state.counters["recall"] = recall(index, data, count, kNearest);
}

// What one would write first: float32, no SIMD asked for.
void plain_loop(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const Source source(Data::uniform, count);
  std::vector<float> rows;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float> v = source.vector(i);
    rows.insert(rows.end(), v.begin(), v.end());
  }
  const std::vector<float> query = source.query(0);
  for (auto _ : state) {
    std::vector<std::pair<float, std::size_t>> scores(count);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (std::size_t d = 0; d < kDimension; ++d) {
        sum += rows[i * kDimension + d] * query[d];
      }
      scores[i] = {-sum, i};
    }
    std::partial_sort(scores.begin(), scores.begin() + kNearest, scores.end());
    benchmark::DoNotOptimize(scores);
  }
}

struct Built {
  std::unique_ptr<SimilarityIndex> index;
  double seconds = 0;
  double last_put = 0;  // median of the last thousand
};

const Built& graph_of(Data data, std::size_t count) {
  static std::map<std::pair<std::size_t, Data>, Built> known;
  Built& built = known[{count, data}];
  if (built.index) {
    return built;
  }
  // An effort of one: the rows below ask for as many neighbours as they want weighed.
  built.index = toki::make_hnsw_index(kDimension, {.search_effort = 1});
  const Source source(data, count);
  std::vector<double> last;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float> v = source.vector(i);
    const auto begun = Clock::now();
    built.index->put(i, kScope, v);
    const double took = seconds_since(begun);
    built.seconds += took;
    if (i + 1000 >= count) {
      last.push_back(took);
    }
  }
  built.last_put = median(last);
  return built;
}

void hnsw(benchmark::State& state, Data data) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const auto effort = static_cast<std::size_t>(state.range(1));
  const Built& built = graph_of(data, count);
  std::vector<std::vector<float>> queries;
  for (std::size_t q = 0; q < kQueries; ++q) {
    queries.push_back(Source(data, count).query(q));
  }
  std::size_t q = 0;
  std::vector<double> times;
  for (auto _ : state) {
    const auto begun = Clock::now();
    benchmark::DoNotOptimize(built.index->search(kScope, queries[q++ % kQueries], effort));
    times.push_back(seconds_since(begun));
    state.SetIterationTime(times.back());
  }
  state.counters["p50_us"] = median(times) * 1e6;
  state.counters["build_s"] = built.seconds;
  state.counters["put_us"] = built.last_put * 1e6;
  state.counters["bytes/vector"] =
      static_cast<double>(built.index->bytes()) / static_cast<double>(count);
  state.counters["recall"] = recall(*built.index, data, count, effort);
}

void put_in_scan(benchmark::State& state) {
  const Source source(Data::uniform, 1);
  std::vector<std::vector<float>> vectors;
  for (std::size_t i = 0; i < 1000; ++i) {
    vectors.push_back(source.vector(i));
  }
  const auto index = toki::make_scan_index(kDimension);
  std::uint64_t id = 0;
  for (auto _ : state) {
    if (id == 100'000) {
      index->clear();
      id = 0;
    }
    index->put(id, kScope, vectors[id % vectors.size()]);
    ++id;
  }
  state.counters["bytes/vector"] =
      static_cast<double>(index->bytes()) / static_cast<double>(index->size());
}

void hash_embedding(benchmark::State& state) {
  std::mt19937_64 random(kSeed);
  toki::Tokens tokens(static_cast<std::size_t>(state.range(0)));
  for (toki::Token& token : tokens) {
    token = static_cast<toki::Token>(random() % 128000);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(toki::hash_embedding(tokens));
  }
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(tokens.size()),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void register_scan(const char* name, Precision precision, Data data,
                   const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t size : sizes) {
    benchmark::RegisterBenchmark(name, scan, precision, data)->Arg(size)->UseManualTime();
  }
}

void register_graphs(const char* name, Data data, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t size : sizes) {
    for (const std::int64_t effort : {32, 64, 128, 256, 512}) {
      benchmark::RegisterBenchmark(name, hnsw, data)->Args({size, effort})->UseManualTime();
    }
  }
}

const char* instructions() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni") != 0) {
    return "AVX-512 VNNI";
  }
  return __builtin_cpu_supports("avx2") != 0 ? "AVX2" : "none";
#else
  return "the portable ones, or NEON";
#endif
}

}  // namespace

BENCHMARK(plain_loop)->Arg(1'000)->Arg(10'000)->Arg(100'000);
BENCHMARK(put_in_scan);
BENCHMARK(hash_embedding)->Arg(128)->Arg(4'096);

int main(int argc, char** argv) {
  std::vector<std::int64_t> scans{1'000, 4'096, 10'000, 100'000};
  std::vector<std::int64_t> clustered{10'000, 100'000};
  std::vector<std::int64_t> uniform{10'000};
  constexpr std::string_view kFlag = "--hnsw=";
  if (argc > 1 && std::string_view(argv[1]).starts_with(kFlag)) {
    scans = clustered = uniform = {std::atoll(argv[1] + kFlag.size())};
    argv[1] = argv[0];
    ++argv;
    --argc;
  }
  benchmark::AddCustomContext("instructions", instructions());
  benchmark::AddCustomContext("seed", std::to_string(kSeed));
  benchmark::AddCustomContext("settings",
                              "dimension 384, 10 nearest, 200 queries, M 16, ef_construction 200");
  register_scan("scan/float32", Precision::float32, Data::uniform, scans);
  register_scan("scan/int8", Precision::int8, Data::uniform, scans);
  register_scan("scan/int8/clustered", Precision::int8, Data::clustered, clustered);
  register_graphs("hnsw/uniform", Data::uniform, uniform);
  register_graphs("hnsw/clustered", Data::clustered, clustered);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
