#include "request_ids.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tokid {
namespace {

constexpr const char* kName = "x-request-id";
constexpr std::size_t kLongest = 128;

}  // namespace

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
  return fmt::format("{:08x}{:08x}", random_(), random_());
}

}  // namespace tokid
