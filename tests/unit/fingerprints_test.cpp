#include <toki/fingerprints.hpp>

#include <catch2/catch.hpp>

#include <fstream>
#include <vector>

#include "support/wait.hpp"

using namespace toki;

namespace {
const Tokens kTokens{5, 6, 7};
const std::vector<double> kLogprobs{-0.5, -1.25, -0.001};
}  // namespace

TEST_CASE("fingerprints: a model keeps its number over restarts, another one gets another") {
  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/fingerprints";
  std::uint64_t number = 0;
  {
    Fingerprints book(path);
    number = book.number_of("a", kTokens, kLogprobs);
    CHECK(number > 0);
    CHECK(book.number_of("a", kTokens, kLogprobs) == number);
  }
  Fingerprints book(path);
  CHECK(book.number_of("a", kTokens, std::vector<double>{-0.51, -1.24, -0.002}) == number);
  CHECK(book.number_of("a", kTokens, std::vector<double>{-0.51, -1.24, -0.002}, 1e-6) != number);
  CHECK(book.number_of("a", kTokens, kLogprobs, 1e-6) == number);
  CHECK(book.number_of("a", kTokens, std::vector<double>{-0.9, -1.25, -0.001}) != number);
  CHECK(book.number_of("a", Tokens{5, 6, 8}, kLogprobs) != number);
  CHECK(book.number_of("a", kTokens, {}) != number);
  CHECK(book.number_of("b", kTokens, kLogprobs) != number);
  CHECK(book.number_of("a", kTokens, kLogprobs) == number);
}

TEST_CASE("fingerprints: a file that is none is begun anew; numbers are never used twice") {
  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/fingerprints";
  std::ofstream(path) << "garbage\n1 2 3";
  Fingerprints book(path);
  const auto first = book.number_of("a", kTokens, kLogprobs);
  CHECK(book.number_of("b", kTokens, kLogprobs) > first);
  Fingerprints nowhere("/nonexistent/folder/fingerprints");
  CHECK(nowhere.number_of("a", kTokens, kLogprobs) > 0);
}
