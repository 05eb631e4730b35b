#include <toki/fingerprints.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/hash.hpp"

namespace toki {
namespace {

constexpr std::size_t kMostModels = 256;  // the oldest are forgotten
constexpr std::string_view kFirstLine = "toki fingerprints 1";

}  // namespace

Fingerprints::Fingerprints(std::string path) : path_(std::move(path)) {
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != kFirstLine) {
    return;
  }
  while (std::getline(file, line)) {
    std::istringstream words(line);
    Model model;
    std::size_t tokens = 0;
    std::size_t logprobs = 0;
    words >> model.number >> model.identity >> tokens >> logprobs;
    if (!words || tokens > 4096 || logprobs > 4096) {
      continue;
    }
    model.tokens.resize(tokens);
    model.logprobs.resize(logprobs);
    for (Token& token : model.tokens) {
      words >> token;
    }
    for (double& logprob : model.logprobs) {
      words >> logprob;
    }
    if (words) {
      models_.push_back(std::move(model));
    }
  }
}

bool Fingerprints::same(const Model& a, const Model& b, double tolerance) {
  const auto close = [&](double x, double y) { return std::abs(x - y) <= tolerance; };
  return a.identity == b.identity && a.tokens == b.tokens &&
         std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(),
                    close);
}

std::uint64_t Fingerprints::number_of(const std::string& identity, TokenSpan tokens,
                                      std::span<const double> logprobs, double tolerance) {
  Model model{.identity = hash_bytes(identity.data(), identity.size()),
              .tokens = {tokens.begin(), tokens.end()},
              .logprobs = {logprobs.begin(), logprobs.end()}};
  const auto known = std::find_if(models_.begin(), models_.end(), [&](const Model& other) {
    return same(other, model, tolerance);
  });
  if (known != models_.end()) {
    return known->number;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  model.number = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  for (const Model& other : models_) {
    model.number = std::max(model.number, other.number + 1);
  }
  models_.push_back(model);
  if (models_.size() > kMostModels) {
    models_.erase(models_.begin());
  }
  write();
  return model.number;
}

// Whole or not at all. One that cannot be written is a model that will not be known again.
void Fingerprints::write() const {
  const std::string fresh = path_ + ".new";
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << kFirstLine << '\n';
    file.precision(17);
    for (const Model& model : models_) {
      file << model.number << ' ' << model.identity << ' ' << model.tokens.size() << ' '
           << model.logprobs.size();
      for (const Token token : model.tokens) {
        file << ' ' << token;
      }
      for (const double logprob : model.logprobs) {
        file << ' ' << logprob;
      }
      file << '\n';
    }
    if (!file.flush()) {
      return;
    }
  }
  std::error_code ignored;
  std::filesystem::rename(fresh, path_, ignored);
}

}  // namespace toki
