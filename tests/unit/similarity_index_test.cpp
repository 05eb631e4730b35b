#include <toki/similarity_index.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/scan_kernels.hpp"

using namespace toki;

// hnswlib takes its locks in changing orders while it adds, which only one thread may do here.
#if defined(__SANITIZE_THREAD__)
extern "C" TOKI_EXPORT const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "deadlock:toki_hnswlib\n";
}
#endif

namespace {

using Vector = std::vector<float>;

struct Kind {
  std::string name;
  std::function<std::unique_ptr<SimilarityIndex>(std::size_t dimension)> make;
};

constexpr std::size_t kSwitch = 20;  // so that the growing index of a test has graphs

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"scan float32", [](std::size_t d) { return make_scan_index(d, Precision::float32); }},
      {"scan int8", [](std::size_t d) { return make_scan_index(d, Precision::int8); }},
      {"hnsw", [](std::size_t d) { return make_hnsw_index(d); }},
      {"growing", [](std::size_t d) { return make_similarity_index(d, kSwitch); }},
  };
  return all;
}

template <class Test>
void for_each_kind(Test test) {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    test(kind);
  }
}

Vector gaussian(std::mt19937& random, std::size_t dimension) {
  std::normal_distribution<float> normal;
  Vector v(dimension);
  for (float& value : v) {
    value = normal(random);
  }
  return v;
}

// Sixteen values of +-1 in 40: such a vector is normalised and multiplied without rounding, so that
// there are many ties, and every kernel must give the very same cosine.
constexpr std::size_t kExactDimension = 40;
Vector exact_vector(std::mt19937& random) {
  Vector v(kExactDimension);
  for (std::size_t i = 0; i < 16; ++i) {
    v[i] = random() % 2 == 0 ? 1.0F : -1.0F;
  }
  std::shuffle(v.begin(), v.end(), random);
  return v;
}

double cosine_of(const Vector& a, const Vector& b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    dot += x * y;
    aa += x * x;
    bb += y * y;
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0;
}

// The naive twin: every vector with its scope, compared one by one.
class Twin {
 public:
  void put(std::uint64_t id, std::size_t scope, const Vector& v) { all_[id] = {scope, v}; }
  bool remove(std::uint64_t id) { return all_.erase(id) != 0; }
  std::size_t size() const { return all_.size(); }

  std::vector<Neighbour> search(std::size_t scope, const Vector& query, std::size_t count) const {
    std::vector<Neighbour> found;
    for (const auto& [id, entry] : all_) {
      if (entry.scope == scope) {
        found.push_back({id, static_cast<float>(cosine_of(entry.vector, query))});
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const Neighbour& a, const Neighbour& b) {
      return a.cosine > b.cosine;  // the map has them by id
    });
    found.resize(std::min(found.size(), count));
    return found;
  }

  // NaN when it is not known there.
  double cosine(std::uint64_t id, std::size_t scope, const Vector& query) const {
    const auto known = all_.find(id);
    return known == all_.end() || known->second.scope != scope
               ? std::numeric_limits<double>::quiet_NaN()
               : cosine_of(known->second.vector, query);
  }

 private:
  struct Entry {
    std::size_t scope = 0;
    Vector vector;
  };
  std::map<std::uint64_t, Entry> all_;
};

std::vector<std::uint64_t> ids_of(const std::vector<Neighbour>& found) {
  std::vector<std::uint64_t> ids;
  for (const Neighbour& one : found) {
    ids.push_back(one.id);
  }
  return ids;
}

// What share of the true nearest was found, as good ones counting the same.
double recall(const std::vector<Neighbour>& found, const std::vector<Neighbour>& truth) {
  if (truth.empty()) {
    return 1;
  }
  const auto as_good = std::count_if(found.begin(), found.end(), [&](const Neighbour& one) {
    return one.cosine >= truth.back().cosine - 1e-5F;
  });
  return static_cast<double>(as_good) / static_cast<double>(truth.size());
}

const std::vector<Scope>& scopes() {
  static const std::vector<Scope> three{Scope({"a"}), Scope({"b"}), Scope({"c"})};
  return three;
}

// Most into the first scope.
std::size_t any_scope(std::mt19937& random) {
  const std::size_t draw = random() % 10;
  return draw < 8 ? 0 : draw - 7;
}

// Random writes on both, and now and then check(scope, query).
template <class MakeVector, class Check>
void random_steps(SimilarityIndex& index, Twin& twin, std::mt19937& random, int steps,
                  std::uint64_t ids, MakeVector make_vector, Check check) {
  for (int step = 0; step < steps; ++step) {
    // Mostly growing in the first part, mostly shrinking in the last.
    const bool put = random() % 10 < (step < steps * 2 / 3 ? 8U : 3U);
    const std::uint64_t id = random() % ids;
    if (put) {
      const std::size_t scope = any_scope(random);
      const Vector v = make_vector();
      index.put(id, scopes()[scope], v);
      twin.put(id, scope, v);
    } else {
      REQUIRE(index.remove(id) == twin.remove(id));
    }
    REQUIRE(index.size() == twin.size());
    if (step % 10 == 0) {
      check(any_scope(random), make_vector());
    }
  }
}

}  // namespace

TEST_CASE("similarity: every instruction set computes the same dot products") {
  std::mt19937 random(1);
  std::vector<std::size_t> dimensions{127, 129, 383, 384, 385, 1000, 1537};
  for (std::size_t d = 1; d <= 70; ++d) {
    dimensions.push_back(d);
  }
  for (const ScanKernels& kernels : usable_scan_kernels()) {
    INFO(kernels.name);
    for (const std::size_t d : dimensions) {
      for (const std::size_t count : {1U, 2U, 3U, 4U, 5U, 9U}) {
        const std::size_t float_lines = (d + kLineFloats - 1) / kLineFloats;
        const std::size_t code_lines = (d + kLineBytes - 1) / kLineBytes;
        // One value before the rows: they need not be aligned.
        Vector rows(1 + float_lines * kLineFloats * count);
        Vector query(1 + float_lines * kLineFloats);
        std::vector<std::uint8_t> codes(1 + code_lines * kLineBytes * count, 0xff);
        std::vector<std::int8_t> code(1 + code_lines * kLineBytes);
        for (std::size_t i = 0; i < d; ++i) {
          query[1 + i] = static_cast<float>(random() % 2001) / 1000 - 1;
          code[1 + i] = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
          for (std::size_t r = 0; r < count; ++r) {
            rows[1 + r * float_lines * kLineFloats + i] =
                static_cast<float>(random() % 2001) / 1000 - 1;
            codes[1 + r * code_lines * kLineBytes + i] = static_cast<std::uint8_t>(random());
          }
        }
        Vector dots(count);
        std::vector<std::int32_t> code_dots(count);
        kernels.dots_float32(rows.data() + 1, float_lines, count, query.data() + 1, dots.data());
        kernels.dots_int8(codes.data() + 1, code_lines, count, code.data() + 1, code_dots.data());
        for (std::size_t r = 0; r < count; ++r) {
          double dot = 0;
          std::int32_t code_dot = 0;
          for (std::size_t i = 0; i < d; ++i) {
            dot += static_cast<double>(rows[1 + r * float_lines * kLineFloats + i]) *
                   static_cast<double>(query[1 + i]);
            code_dot += codes[1 + r * code_lines * kLineBytes + i] * code[1 + i];
          }
          CAPTURE(d, count, r);
          REQUIRE(static_cast<double>(dots[r]) == Approx(dot).margin(1e-4));
          REQUIRE(code_dots[r] == code_dot);
        }
      }
    }
  }
}

TEST_CASE("similarity: the largest int8 products of the largest dimension stay in range") {
  constexpr std::size_t kLargest = 65536;
  const std::vector<std::uint8_t> row(kLargest, 255);
  const std::vector<std::int8_t> query(kLargest, 127);
  for (const ScanKernels& kernels : usable_scan_kernels()) {
    INFO(kernels.name);
    std::int32_t dot = 0;
    kernels.dots_int8(row.data(), kLargest / kLineBytes, 1, query.data(), &dot);
    CHECK(dot == 65536 * 255 * 127);
  }
}

TEST_CASE("similarity: an empty index finds nothing") {
  for_each_kind([](const Kind& kind) {
    const auto index = kind.make(3);
    CHECK(index->search(scopes()[0], Vector{1, 2, 3}, 5).empty());
    CHECK(index->size() == 0);
    CHECK(index->dimension() == 3);
    CHECK_FALSE(index->remove(1));
  });
}

TEST_CASE("similarity: the nearest comes first, whatever the lengths of vectors and query") {
  for_each_kind([](const Kind& kind) {
    const auto index = kind.make(2);
    index->put(1, scopes()[0], Vector{100, 0});
    index->put(2, scopes()[0], Vector{0.01F, 0.01F});
    index->put(3, scopes()[0], Vector{0, 5});
    index->put(4, scopes()[0], Vector{-3, 0});
    const auto found = index->search(scopes()[0], Vector{7, 0.7F}, 3);
    REQUIRE(ids_of(found) == std::vector<std::uint64_t>{1, 2, 3});
    CHECK(found[0].cosine == Approx(0.99503719).margin(1e-6));
    CHECK(found[1].cosine == Approx(0.77395730).margin(1e-6));
    CHECK(found[2].cosine == Approx(0.09950372).margin(1e-6));
  });
}

TEST_CASE("similarity: ties are by id, and a count beyond the size gives all") {
  for_each_kind([](const Kind& kind) {
    const auto index = kind.make(2);
    for (const std::uint64_t id : {5U, 3U, 9U, 1U}) {
      index->put(id, scopes()[0], Vector{1, 1});
    }
    CHECK(ids_of(index->search(scopes()[0], Vector{1, 0}, 100)) ==
          std::vector<std::uint64_t>{1, 3, 5, 9});
    CHECK(index->search(scopes()[0], Vector{1, 0}, 2).size() == 2);
    CHECK(index->search(scopes()[0], Vector{1, 0}, 0).empty());
  });
}

TEST_CASE("similarity: scopes are never mixed") {
  for_each_kind([](const Kind& kind) {
    std::mt19937 random(2);
    const auto index = kind.make(8);
    for (std::uint64_t id = 0; id < 90; ++id) {
      index->put(id, scopes()[id % 3], gaussian(random, 8));
    }
    for (std::size_t scope = 0; scope < 3; ++scope) {
      const auto found = index->search(scopes()[scope], gaussian(random, 8), 90);
      CHECK(found.size() == 30);
      CHECK(std::all_of(found.begin(), found.end(),
                        [&](const Neighbour& one) { return one.id % 3 == scope; }));
    }
    CHECK(index->search(Scope({"a", ""}), gaussian(random, 8), 90).empty());
  });
}

TEST_CASE("similarity: putting an id again replaces its vector, also from another scope") {
  for_each_kind([](const Kind& kind) {
    const auto index = kind.make(2);
    index->put(1, scopes()[0], Vector{1, 0});
    index->put(2, scopes()[0], Vector{1, 1});
    index->put(1, scopes()[0], Vector{0, 1});
    CHECK(index->size() == 2);
    CHECK(ids_of(index->search(scopes()[0], Vector{1, 0}, 9)) == std::vector<std::uint64_t>{2, 1});
    index->put(1, scopes()[1], Vector{1, 0});
    CHECK(index->size() == 2);
    CHECK(ids_of(index->search(scopes()[0], Vector{1, 0}, 9)) == std::vector<std::uint64_t>{2});
    CHECK(ids_of(index->search(scopes()[1], Vector{1, 0}, 9)) == std::vector<std::uint64_t>{1});
  });
}

TEST_CASE("similarity: what is removed is not found again, and memory is given back") {
  for_each_kind([](const Kind& kind) {
    std::mt19937 random(3);
    const auto index = kind.make(16);
    const std::size_t empty = index->bytes();
    for (std::uint64_t id = 0; id < 300; ++id) {
      index->put(id, scopes()[0], gaussian(random, 16));
    }
    CHECK(index->bytes() >= empty + 300 * 16 * sizeof(float));
    for (std::uint64_t id = 0; id < 299; ++id) {
      REQUIRE(index->remove(id));
      REQUIRE_FALSE(index->remove(id));
      const auto found = index->search(scopes()[0], gaussian(random, 16), 300);
      REQUIRE_FALSE(found.empty());
      REQUIRE(std::all_of(found.begin(), found.end(),
                          [&](const Neighbour& one) { return one.id > id; }));
    }
    CHECK(index->remove(299));
    CHECK(index->search(scopes()[0], gaussian(random, 16), 300).empty());
    CHECK(index->size() == 0);
    CHECK(index->bytes() < empty + 300 * 16 * sizeof(float));
    index->put(1, scopes()[0], gaussian(random, 16));
    index->clear();
    CHECK(index->size() == 0);
    CHECK(index->search(scopes()[0], gaussian(random, 16), 1).empty());
  });
}

TEST_CASE("similarity: a vector of zeros, or with something that is no number, is far from all") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for_each_kind([](const Kind& kind) {
    const auto index = kind.make(3);
    index->put(1, scopes()[0], Vector{0, 0, 0});
    index->put(2, scopes()[0], Vector{1, std::nanf(""), 0});
    index->put(3, scopes()[0], Vector{1, kInfinity, 0});
    index->put(4, scopes()[0], Vector{1, 0, 0});
    const auto found = index->search(scopes()[0], Vector{1, 0, 0}, 9);
    REQUIRE(ids_of(found) == std::vector<std::uint64_t>{4, 1, 2, 3});
    CHECK(found[0].cosine == 1);
    CHECK(found[1].cosine == 0);
    CHECK(found[3].cosine == 0);
    CHECK(index->search(scopes()[0], Vector{0, std::nanf(""), 0}, 9).size() == 4);
  });
}

TEST_CASE("similarity: every dimension works") {
  for_each_kind([](const Kind& kind) {
    std::mt19937 random(4);
    for (std::size_t d = 1; d <= 70; ++d) {
      CAPTURE(d);
      const auto index = kind.make(d);
      Twin twin;
      for (std::uint64_t id = 0; id < 10; ++id) {
        const Vector v = gaussian(random, d);
        index->put(id, scopes()[0], v);
        twin.put(id, 0, v);
      }
      const Vector query = gaussian(random, d);
      const auto found = index->search(scopes()[0], query, 10);
      REQUIRE(found.size() == 10);
      for (const Neighbour& one : found) {
        REQUIRE(static_cast<double>(one.cosine) ==
                Approx(twin.cosine(one.id, 0, query)).margin(1e-5));
      }
    }
  });
}

TEST_CASE("similarity model: 10000 random steps of a scan agree with comparing one by one") {
  const Precision precision = GENERATE(Precision::float32, Precision::int8);
  CAPTURE(static_cast<int>(precision));
  std::mt19937 random(1);
  const auto index = make_scan_index(kExactDimension, precision);
  Twin twin;
  std::size_t largest = 0;
  random_steps(
      *index, twin, random, 10000, 4000, [&] { return exact_vector(random); },
      [&](std::size_t scope, const Vector& query) {
        const std::size_t count = random() % 4 == 0 ? 1 + random() % 200 : 10;
        const auto found = index->search(scopes()[scope], query, count);
        const auto truth = twin.search(scope, query, count);
        REQUIRE(ids_of(found) == ids_of(truth));
        for (std::size_t i = 0; i < found.size(); ++i) {
          REQUIRE(found[i].cosine == truth[i].cosine);
        }
        largest = std::max(largest, twin.size());
      });
  CHECK(largest > 2048);  // several chunks
}

// ThreadSanitizer makes a graph some fifty times slower; this test has one thread.
#if defined(__SANITIZE_THREAD__)
constexpr int kGraphSteps = 200;
#else
constexpr int kGraphSteps = 2000;
#endif

TEST_CASE("similarity model: a graph finds what is there, nothing else, and nearly all of it") {
  const Kind kind = GENERATE(kinds()[2], kinds()[3]);
  const unsigned seed = GENERATE(3U, 4U);
  CAPTURE(kind.name, seed);
  std::mt19937 random(seed);
  constexpr std::size_t kDimension = 12;
  const auto index = kind.make(kDimension);
  Twin twin;
  double sum = 0;
  int searches = 0;
  random_steps(
      *index, twin, random, kGraphSteps, 600, [&] { return gaussian(random, kDimension); },
      [&](std::size_t scope, const Vector& query) {
        const auto found = index->search(scopes()[scope], query, 10);
        const auto truth = twin.search(scope, query, 10);
        REQUIRE(found.size() == truth.size());
        for (const Neighbour& one : found) {
          REQUIRE(static_cast<double>(one.cosine) ==
                  Approx(twin.cosine(one.id, scope, query)).margin(1e-5));
        }
        REQUIRE(std::is_sorted(found.begin(), found.end(),
                               [](const auto& a, const auto& b) { return a.cosine > b.cosine; }));
        sum += recall(found, truth);
        ++searches;
      });
  CHECK(sum / searches >= 0.98);
}

TEST_CASE("similarity: ranking int8 candidates again gives the order of float32") {
  std::mt19937 random(5);
  constexpr std::size_t kDimension = 100;
  const auto exact = make_scan_index(kDimension, Precision::float32);
  const auto coarse = make_scan_index(kDimension, Precision::int8);
  // Fifty vectors, each turned a little further from the query: cosines 0.01 and more apart.
  const Vector query = gaussian(random, kDimension);
  for (std::uint64_t id = 0; id < 50; ++id) {
    Vector v = gaussian(random, kDimension);
    double qq = 0;
    double vq = 0;
    for (std::size_t i = 0; i < kDimension; ++i) {
      qq += static_cast<double>(query[i]) * static_cast<double>(query[i]);
      vq += static_cast<double>(v[i]) * static_cast<double>(query[i]);
    }
    double rest = 0;
    for (std::size_t i = 0; i < kDimension; ++i) {  // the part at right angles to the query
      v[i] -= static_cast<float>(vq / qq) * query[i];
      rest += static_cast<double>(v[i]) * static_cast<double>(v[i]);
    }
    const double cosine = 0.98 - 0.015 * static_cast<double>(id);
    const double sine = std::sqrt(1 - cosine * cosine);
    for (std::size_t i = 0; i < kDimension; ++i) {
      v[i] = static_cast<float>(cosine / std::sqrt(qq) * static_cast<double>(query[i]) +
                                sine / std::sqrt(rest) * static_cast<double>(v[i]));
    }
    exact->put(49 - id, scopes()[0], v);
    coarse->put(49 - id, scopes()[0], v);
  }
  const auto truth = exact->search(scopes()[0], query, 20);
  const auto found = coarse->search(scopes()[0], query, 20);
  REQUIRE(ids_of(found) == ids_of(truth));
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(truth[i].id == 49 - i);
    CHECK(found[i].cosine == truth[i].cosine);
  }
}

TEST_CASE("similarity: int8 finds 99 of 100 of the nearest among random directions") {
  std::mt19937 random(6);
  constexpr std::size_t kDimension = 384;
  const auto exact = make_scan_index(kDimension, Precision::float32);
  const auto coarse = make_scan_index(kDimension, Precision::int8);
  for (std::uint64_t id = 0; id < 2000; ++id) {
    const Vector v = gaussian(random, kDimension);
    exact->put(id, scopes()[0], v);
    coarse->put(id, scopes()[0], v);
  }
  double sum = 0;
  for (int i = 0; i < 50; ++i) {
    const Vector query = gaussian(random, kDimension);
    sum += recall(coarse->search(scopes()[0], query, 10), exact->search(scopes()[0], query, 10));
  }
  CHECK(sum / 50 >= 0.99);
}

TEST_CASE("similarity: a graph of two thousand vectors finds 95 of 100 of the nearest") {
  std::mt19937 random(7);
  constexpr std::size_t kDimension = 24;
  const auto scan = make_scan_index(kDimension, Precision::float32);
  const auto graph = make_hnsw_index(kDimension);
  for (std::uint64_t id = 0; id < 2000; ++id) {
    const Vector v = gaussian(random, kDimension);
    scan->put(id, scopes()[0], v);
    graph->put(id, scopes()[0], v);
  }
  double sum = 0;
  for (int i = 0; i < 100; ++i) {
    const Vector query = gaussian(random, kDimension);
    const auto truth = scan->search(scopes()[0], query, 10);
    const auto found = graph->search(scopes()[0], query, 10);
    sum += recall(found, truth);
    CHECK(found[0].cosine <= truth[0].cosine);
  }
  CHECK(sum / 100 >= 0.95);
}

TEST_CASE("similarity: a graph survives the removal of all but a few, again and again") {
  std::mt19937 random(8);
  constexpr std::size_t kDimension = 6;
  const auto graph = make_hnsw_index(kDimension, {.links = 2, .build_effort = 4});
  for (int round = 0; round < 40; ++round) {
    for (std::uint64_t id = 0; id < 60; ++id) {
      graph->put(id, scopes()[0], gaussian(random, kDimension));
    }
    for (std::uint64_t id = random() % 3; id < 60; id += 1 + random() % 2) {
      graph->remove(id);
    }
    const Vector last = gaussian(random, kDimension);
    graph->put(1000, scopes()[0], last);
    const auto found = graph->search(scopes()[0], last, 60);
    REQUIRE_FALSE(found.empty());
    REQUIRE(found.size() <= graph->size());
    for (std::uint64_t id = 0; id < 60; ++id) {
      graph->remove(id);
    }
    REQUIRE(ids_of(graph->search(scopes()[0], last, 60)) == std::vector<std::uint64_t>{1000});
  }
}

TEST_CASE("similarity: a scope gets its graph bit by bit when it has grown, and loses it again") {
  std::mt19937 random(9);
  constexpr std::size_t kDimension = 8;
  const auto scan = make_scan_index(kDimension);
  const auto growing = make_similarity_index(kDimension, 100);
  std::vector<std::uint64_t> all;
  const auto put = [&](std::uint64_t id) {
    const Vector v = gaussian(random, kDimension);
    scan->put(id, scopes()[0], v);
    growing->put(id, scopes()[0], v);
    all.push_back(id);
    return ids_of(growing->search(scopes()[0], v, 1)) == std::vector<std::uint64_t>{id};
  };
  for (std::uint64_t id = 0; id < 100; ++id) {
    REQUIRE(put(id));
  }
  CHECK(growing->bytes() == scan->bytes());
  // The scan answers meanwhile: everything is found at every step.
  for (std::uint64_t id = 100; id < 300; ++id) {
    REQUIRE(put(id));
    REQUIRE(growing->search(scopes()[0], gaussian(random, kDimension), 300).size() == id + 1);
  }
  CHECK(growing->bytes() > scan->bytes());
  for (std::uint64_t id = 299; id >= 50; --id) {
    REQUIRE(growing->remove(id));
    REQUIRE(scan->remove(id));
    REQUIRE(growing->search(scopes()[0], gaussian(random, kDimension), 300).size() <= id);
  }
  CHECK(growing->bytes() == scan->bytes());
}

TEST_CASE("similarity: several threads may search at once") {
  for_each_kind([](const Kind& kind) {
    std::mt19937 random(10);
    const auto index = kind.make(16);
    for (std::uint64_t id = 0; id < 200; ++id) {
      index->put(id, scopes()[0], gaussian(random, 16));
    }
    const Vector query = gaussian(random, 16);
    const auto alone = ids_of(index->search(scopes()[0], query, 10));
    std::atomic<int> same{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          same += ids_of(index->search(scopes()[0], query, 10)) == alone ? 1 : 0;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(same == 200);
  });
}

TEST_CASE("band: those near the best one stay, the longest first") {
  std::vector<Candidate> candidates{
      {1, 0.80F, 100}, {2, 0.77F, 900}, {3, 0.75F, 5000}, {4, 0.79F, 900}, {5, 0.79F, 900}};
  keep_band(candidates);
  std::vector<std::uint64_t> ids;
  for (const Candidate& one : candidates) {
    ids.push_back(one.id);
  }
  CHECK(ids == std::vector<std::uint64_t>{4, 5, 2, 1});
}

TEST_CASE("band: a width of nothing keeps the best alone, and nothing below 0 is kept") {
  std::vector<Candidate> one{{1, 0.5F, 1}, {2, 0.4999F, 100}};
  keep_band(one, 0);
  REQUIRE(one.size() == 1);
  CHECK(one[0].id == 1);

  std::vector<Candidate> below{{1, -0.1F, 1}, {2, -0.11F, 1}, {3, std::nanf(""), 7}};
  keep_band(below);
  CHECK(below.empty());

  std::vector<Candidate> zero{{1, 0, 1}, {2, -0.1F, 9}};
  keep_band(zero);
  REQUIRE(zero.size() == 1);
  CHECK(zero[0].id == 1);

  std::vector<Candidate> none;
  keep_band(none);
  CHECK(none.empty());
}
