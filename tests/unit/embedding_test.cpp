#include <toki/embedding.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace toki;

namespace {

// Frequent tokens and rare ones, as in text.
Token any_token(std::mt19937& random) {
  const double u = static_cast<double>(random() % 1'000'000 + 1) / 1'000'000;
  return static_cast<Token>(std::pow(20000.0, u));
}

Tokens any_prompt(std::mt19937& random, std::size_t size) {
  Tokens tokens(size);
  for (Token& token : tokens) {
    token = any_token(random);
  }
  return tokens;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return dot;
}

double cosine(const Tokens& a, const Tokens& b) {
  return cosine(hash_embedding(a).values, hash_embedding(b).values);
}

}  // namespace

TEST_CASE("hash embedding: has its kind, its dimension and length 1; nothing has no length") {
  const Embedding made = hash_embedding(Tokens{1, 2, 3});
  CHECK(made.kind == EmbeddingKind::hash);
  CHECK(made.values.size() == kHashDimension);
  CHECK(cosine(made.values, made.values) == Approx(1));
  for (std::size_t dimension : {1U, 2U, 7U, 1000U}) {
    CHECK(hash_embedding(Tokens{5, -1, 7}, dimension).values.size() == dimension);
  }
  CHECK(hash_embedding({}).values == std::vector<float>(kHashDimension));
}

TEST_CASE("hash embedding: the values are the same on every machine") {
  const Embedding made = hash_embedding(Tokens{1, 15043, 3186, 29991, 3186, 15043, -7, 128000}, 16);
  CHECK(made.values == std::vector<float>{0, 0.392232269F, 0, 0, 0.277350098F, 0, -0.480384469F, 0,
                                          0.277350098F, 0.277350098F, 0, 0.277350098F, 0, 0,
                                          0.277350098F, 0.480384469F});
  Tokens longer(4096);
  for (std::size_t i = 0; i < longer.size(); ++i) {
    longer[i] = static_cast<Token>(i * i % 30011);
  }
  const std::vector<float> values = hash_embedding(longer).values;
  CHECK(values[0] == -0.0341294929F);
  CHECK(values[1] == -0.0638504401F);
  CHECK(values[383] == -0.0682589859F);
}

TEST_CASE("hash embedding: a prompt of which a tenth changed is nearer than one of equal words") {
  std::mt19937 random(1);
  for (const std::size_t size : {30U, 300U, 3000U}) {
    for (int i = 0; i < 50; ++i) {
      CAPTURE(size, i);
      const Tokens prompt = any_prompt(random, size);
      Tokens changed = prompt;
      for (std::size_t n = 0; n < size / 10; ++n) {
        changed[random() % size] = any_token(random);
      }
      Tokens shuffled = prompt;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      const double near = cosine(prompt, changed);
      CHECK(near > 0.5);
      CHECK(near > cosine(prompt, any_prompt(random, size)) + 0.1);
      CHECK(near > cosine(prompt, shuffled));
    }
  }
}

TEST_CASE("hash embedding: a token that is everywhere does not drown the rest") {
  std::mt19937 random(2);
  for (int i = 0; i < 20; ++i) {
    Tokens a;
    Tokens b;
    for (int n = 0; n < 500; ++n) {  // every other token is the same one
      a.insert(a.end(), {13, any_token(random)});
      b.insert(b.end(), {13, any_token(random)});
    }
    CHECK(cosine(a, b) < 0.8);
    Tokens changed = a;
    for (int n = 0; n < 100; ++n) {
      changed[random() % changed.size()] = any_token(random);
    }
    CHECK(cosine(a, changed) > cosine(a, b) + 0.1);
  }
}

TEST_CASE("embedding segments: they cover everything, overlap as asked, and none is too long") {
  for (std::size_t window = 1; window <= 12; ++window) {
    for (std::size_t overlap = 0; overlap < window; ++overlap) {
      for (std::size_t tokens = 0; tokens <= 40; ++tokens) {
        CAPTURE(window, overlap, tokens);
        const std::vector<Segment> segments = embedding_segments(tokens, window, overlap);
        REQUIRE(segments.empty() == (tokens == 0));
        std::size_t covered = 0;
        for (const Segment& one : segments) {
          REQUIRE(one.count >= 1);
          REQUIRE(one.count <= window);
          // The first begins at 0, each other one `overlap` before the end of the one before.
          REQUIRE(one.begin == (covered == 0 ? 0 : covered - overlap));
          REQUIRE(one.begin + one.count > covered);
          covered = one.begin + one.count;
        }
        REQUIRE(covered == tokens);
      }
    }
  }
}

TEST_CASE("embedding average: longer parts weigh more, and the mean has length 1") {
  const std::vector<std::vector<float>> parts{{1, 0}, {0, 1}};
  const std::vector<float> mean = average(parts, std::vector<std::size_t>{3, 4});
  REQUIRE(mean.size() == 2);
  CHECK(mean[0] == Approx(0.6));
  CHECK(mean[1] == Approx(0.8));
}

TEST_CASE("embedding average: no parts or unlike parts give nothing; no length gives zero") {
  CHECK(average({}, {}).empty());
  const std::vector<std::vector<float>> unlike{{1, 0}, {1, 0, 0}};
  CHECK(average(unlike, std::vector<std::size_t>{1, 1}).empty());
  const std::vector<std::vector<float>> parts{{1, 0}};
  CHECK(average(parts, std::vector<std::size_t>{0}) == std::vector<float>{0, 0});
  const std::vector<std::vector<float>> broken{{1, std::nanf("")}, {1, 0}};
  CHECK(average(broken, std::vector<std::size_t>{1, 1}) == std::vector<float>{0, 0});
}

TEST_CASE("normalise: to length 1, over the whole range of float; what cannot be is zero") {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  const auto normalised = [](std::vector<float> values) {
    normalise(values);
    return values;
  };
  CHECK(normalised({3, -4}) == std::vector<float>{0.6F, -0.8F});
  CHECK(normalised({kLargest, kLargest})[0] == Approx(std::sqrt(0.5)));
  CHECK(normalised({kSmallest, 0}) == std::vector<float>{1, 0});
  CHECK(normalised({0, 0}) == std::vector<float>{0, 0});
  CHECK(normalised({1, std::numeric_limits<float>::infinity()}) == std::vector<float>{0, 0});
  CHECK(normalised({std::nanf(""), 1}) == std::vector<float>{0, 0});
  CHECK(normalised({}).empty());
}
