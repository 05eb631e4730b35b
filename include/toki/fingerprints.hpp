// Fingerprints: which models were seen. Two models of the same shape, path and name are told apart
// by how they continue one fixed prompt: nothing that was computed by one may be restored into the
// other.
//
// Threads:   one at a time.
// Ownership: owns its file.
// Errors:    none; a file that cannot be read is begun anew, one that cannot be written means that
//            the model counts as new at the next start.
// Cost:      one small file, read once and written for each new model.
#pragma once

#include <toki/export.hpp>
#include <toki/token.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace toki {

/// Tells models of one name and shape apart by how they continue a prompt, across runs.
class TOKI_EXPORT Fingerprints {
 public:
  /// Of a log probability (nats), between two runs of one model: other batches and other builds give
  /// other last digits.
  static constexpr double kTolerance = 0.05;

  /// Reads `path`, where it is there; lines that are damaged are left out.
  explicit Fingerprints(std::string path);

  /// The number under which this model was seen before, or a new one that was never used.
  /// `identity`: what it says of itself; `tokens` and `logprobs`: its greedy continuation of one
  /// fixed prompt. Log probabilities may differ by `tolerance` (nats).
  std::uint64_t number_of(const std::string& identity, TokenSpan tokens,
                          std::span<const double> logprobs, double tolerance = kTolerance);

 private:
  struct Model {
    std::uint64_t number = 0;
    std::uint64_t identity = 0;  // its hash
    Tokens tokens;
    std::vector<double> logprobs;
  };
  static bool same(const Model& a, const Model& b, double tolerance);
  void write() const;

  std::string path_;
  std::vector<Model> models_;
};

}  // namespace toki
