#include <toki/divergence.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/json.hpp"

using namespace toki;
using test::Json;

namespace {

struct Model {
  const char* name;
  double threshold;  // from which two texts mean the same, for this model
  bool languages;    // knows more than English
};

// What docs/divergence.md recommends for each.
const std::vector<Model> kModels = {{"multilingual-e5-small", kSameMeaning, true},
                                    {"all-MiniLM-L6-v2", 0.85, false}};

std::vector<Json> labelled() {
  std::ifstream file(TOKI_TEST_DATA "/divergence.jsonl");
  REQUIRE(file);
  std::vector<Json> pairs;
  for (std::string line; std::getline(file, line);) {
    const auto pair = Json::parse(line);
    REQUIRE(pair);
    pairs.push_back(*pair);
  }
  return pairs;
}

// Two unit vectors with this cosine.
std::pair<Embedding, Embedding> with_cosine(double cosine) {
  const auto x = static_cast<float>(cosine);
  const auto y = static_cast<float>(std::sqrt(std::max(0.0, 1 - cosine * cosine)));
  return {{.kind = EmbeddingKind::model, .values = {1, 0}, .model = "m"},
          {.kind = EmbeddingKind::model, .values = {x, y}, .model = "m"}};
}

Comparison classify(const Json& pair, const Model& model) {
  Comparison found = compare(pair["a"].str(), pair["b"].str());
  if (found.undecided) {
    REQUIRE(pair["cosine"].has(model.name));
    const auto [a, b] = with_cosine(pair["cosine"][model.name].num());
    decide(found, &a, &b, model.threshold);
  }
  return found;
}

Comparison of(std::string_view a, std::string_view b) {
  return compare(a, b);
}

bool open(std::string_view a, std::string_view b) {
  return compare(a, b).undecided;
}

std::string any_text(std::mt19937& random) {
  static const std::vector<std::string> kParts = {"the",
                                                  "cat",
                                                  "not",
                                                  "42",
                                                  "1,000",
                                                  "-5",
                                                  "3.14",
                                                  "não",
                                                  "мир",
                                                  "你",
                                                  "好",
                                                  "不",
                                                  "。",
                                                  "?",
                                                  "```",
                                                  "`",
                                                  "{",
                                                  "}",
                                                  "a_b",
                                                  "/usr/bin",
                                                  "\n",
                                                  "\t",
                                                  " ",
                                                  " ",
                                                  " ",
                                                  ", ",
                                                  ".",
                                                  "\xFF",
                                                  "\xC3",
                                                  "\xED\xA0\x80",
                                                  "\xF4\x90\x80\x80",
                                                  "é",
                                                  "É",
                                                  "\u2019",
                                                  "don't",
                                                  "before",
                                                  "and",
                                                  "Paris"};
  std::string text;
  for (std::size_t left = random() % 40; left > 0; --left) {
    text += kParts[random() % kParts.size()];
    text += random() % 3 == 0 ? "" : " ";
  }
  if (random() % 4 == 0) {
    for (std::size_t left = random() % 20; left > 0; --left) {
      text += static_cast<char>(random() % 256);
    }
  }
  return text;
}

}  // namespace

TEST_CASE("divergence: the labelled set is classified as people do, with real embeddings") {
  const auto pairs = labelled();
  REQUIRE(pairs.size() >= 90);
  for (const Model& model : kModels) {
    std::size_t right = 0;
    std::size_t held_out = 0;
    std::size_t held_out_right = 0;
    std::string wrong;
    for (const Json& pair : pairs) {
      const Comparison found = classify(pair, model);
      const bool ok = to_string(found.kind) == pair["class"].str();
      right += ok ? 1U : 0U;
      held_out += pair["held_out"].boolean() ? 1U : 0U;
      held_out_right += ok && pair["held_out"].boolean() ? 1U : 0U;
      if (!ok) {
        wrong += "\n  " + std::string(to_string(found.kind)) + " by " +
                 std::string(to_string(found.reason)) + ": " + pair.dump();
      }
      const std::string& category = pair["category"].str();
      if (pair["class"].str() == "substantive" &&
          (category == "numbers" || category == "negation" || category == "truncation")) {
        INFO(pair.dump());
        CHECK(found.kind == Divergence::substantive);
        CHECK(found.reason != DivergenceReason::similarity);  // no model was asked
      }
    }
    INFO(model.name << ": " << right << " of " << pairs.size() << " right, " << held_out_right
                    << " of the " << held_out << " that no rule was made by" << wrong);
    CHECK(right * 10 >= pairs.size() * 9);
    CHECK((held_out_right * 10 >= held_out * 9 || !model.languages));
  }
}

TEST_CASE("divergence: either text may come first") {
  for (const Json& pair : labelled()) {
    INFO(pair.dump());
    const Comparison one = compare(pair["a"].str(), pair["b"].str());
    const Comparison other = compare(pair["b"].str(), pair["a"].str());
    CHECK(one.kind == other.kind);
    CHECK(one.reason == other.reason);
    CHECK(one.undecided == other.undecided);
    CHECK(one.parting.bytes == other.parting.bytes);
    CHECK(one.words_a == other.words_b);
  }
}

TEST_CASE(
    "divergence: any bytes are classified, either way alike, and are identical to themselves") {
  std::mt19937 random(20);
  for (int round = 0; round < 3000; ++round) {
    const std::string a = any_text(random);
    std::string b = any_text(random);
    if (random() % 2 == 0) {
      b = a;
      if (!b.empty()) {
        b.insert(random() % b.size(), any_text(random).substr(0, 1 + random() % 8));
      }
    }
    const Comparison one = compare(a, b);
    const Comparison other = compare(b, a);
    CHECK(one.kind == other.kind);
    CHECK(one.reason == other.reason);
    CHECK(one.undecided == other.undecided);
    CHECK((one.kind == Divergence::identical) == (a == b));
    CHECK(a.substr(0, one.parting.bytes) == b.substr(0, one.parting.bytes));
    CHECK(compare(a, a).kind == Divergence::identical);
    if (a != b && one.kind != Divergence::identical) {
      CHECK(one.parting.bytes <= std::min(a.size(), b.size()));
    }
  }
}

TEST_CASE("divergence: white space alone is told by the words around it") {
  CHECK(of("a b", "a  b\n").kind == Divergence::whitespace_only);
  CHECK(of("f( x )", "f(x)").kind == Divergence::whitespace_only);
  CHECK(of("now here", "nowhere").kind != Divergence::whitespace_only);
  CHECK(of("12 000", "12000").reason == DivergenceReason::numbers);
  CHECK(of("", " \n").kind == Divergence::whitespace_only);
}

TEST_CASE("divergence: says where texts part") {
  const Comparison found = of("Zwölf Äpfel und Birnen", "Zwölf Äpfel und Nüsse");
  CHECK(found.parting.characters == 16);
  CHECK(found.parting.bytes == 18);
  CHECK(found.parting.words == 3);
  CHECK(found.words_a == 4);
  CHECK(found.words_changed == 2);
  CHECK(of("café", "cafè").parting.bytes == 3);  // whole characters only
}

TEST_CASE("divergence: a one that is an article is no number, a one that is counted is") {
  CHECK(open("This is one way to do it.", "This is a way to do it."));
  CHECK(of("He has one car.", "He has two cars.").reason == DivergenceReason::numbers);
  CHECK(open("It has 1 door in all.", "It has one door in all."));
}

TEST_CASE("divergence: what is cut off is a truncation, also behind another difference") {
  CHECK(of("a b c d", "a b c").reason == DivergenceReason::truncation);
  CHECK(of("We first look at the sky.", "We then look at").reason == DivergenceReason::truncation);
  CHECK(of("I like fast cars and", "I like quick cars").reason != DivergenceReason::similarity);
  CHECK(of("Yes.", "").reason == DivergenceReason::truncation);
}

TEST_CASE("divergence: code is compared to the letter, prose beside it is not") {
  CHECK(of("Use `a` here.", "Use `b` here.").reason == DivergenceReason::code);
  CHECK(of("x = y + 1;", "x = Y + 1;").reason == DivergenceReason::code);
  CHECK(of("See my_name.", "See my_game.").reason == DivergenceReason::code);
  CHECK(open("Run `ls` and look.", "Run `ls` and see."));
}

TEST_CASE("divergence: only embeddings of one model decide, and the threshold is theirs") {
  const std::string a = "The car is very fast.";
  const std::string b = "The automobile is very fast.";
  REQUIRE(open(a, b));
  auto [one, other] = with_cosine(0.9);
  Comparison found = compare(a, b);
  decide(found, &one, &other, 0.89);
  CHECK(found.kind == Divergence::restore_noise);
  CHECK(found.cosine == Approx(0.9));
  CHECK_FALSE(found.undecided);
  found = compare(a, b);
  decide(found, &one, &other, 0.91);
  CHECK(found.kind == Divergence::substantive);
  other.model = "another";
  found = compare(a, b);
  decide(found, &one, &other, 0.1);
  CHECK(found.kind == Divergence::substantive);
  CHECK(found.reason == DivergenceReason::no_similarity);
  found = compare(a, b);
  decide(found, nullptr, &one, 0.1);
  CHECK(found.kind == Divergence::substantive);
}

TEST_CASE("divergence: very long answers cost bounded time and memory") {
  std::string a, b;
  for (int i = 0; i < 40000; ++i) {
    a += "word" + std::string(1, static_cast<char>('a' + i % 26)) + " ";
    b += "term" + std::string(1, static_cast<char>('a' + i % 25)) + " ";
  }
  CHECK(compare(a, b).words_changed == 80000);
}

TEST_CASE("wilson: the interval of the textbooks, and all is possible without observations") {
  const Interval some = wilson(8, 10);
  CHECK(some.low == Approx(0.4902).margin(0.0005));
  CHECK(some.high == Approx(0.9433).margin(0.0005));
  const Interval none = wilson(0, 200);
  CHECK(none.low == 0);
  CHECK(none.high == Approx(0.01885).margin(0.0005));
  CHECK(wilson(0, 0).low == 0);
  CHECK(wilson(0, 0).high == 1);
  CHECK(wilson(5, 5).high == Approx(1));
}

TEST_CASE("divergence counts: the share is of the divergent pairs") {
  DivergenceCounts counts;
  CHECK(counts.substantive_share() == 0);
  counts.add(compare("a", "a"));
  counts.add(compare("a b", "a  b"));
  counts.add(compare("It is 4.", "It is 5."));
  CHECK(counts.pairs() == 3);
  CHECK(counts.divergent() == 2);
  CHECK(counts.substantive_share() == Approx(0.5));
  CHECK(counts.substantive_interval().low == Approx(wilson(1, 2).low));
}
