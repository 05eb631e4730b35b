#include "request_ids.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace tokid {
namespace {

constexpr const char* kName = "x-request-id";
constexpr std::size_t kLongest = 128;
constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // steps through all 64-bit numbers

}  // namespace

RequestIds::RequestIds() {
  std::random_device random;
  next_ = (std::uint64_t{random()} << 32) | random();
}

std::string RequestIds::id_of(const boost::beast::http::fields& fields) {
  if (fields.count(kName) == 1) {
    const auto given = fields[kName];
    const bool plain =
        !given.empty() && given.size() <= kLongest &&
        std::all_of(given.begin(), given.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (plain) {
      return {given.data(), given.size()};
    }
  }
  next_ += kOdd;
  return fmt::format("{:016x}", next_);
}

}  // namespace tokid
