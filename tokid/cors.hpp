// Web pages of other origins: which may use tokid from a browser, and what their browser is told.
#pragma once

#include <toki/http/answer_writer.hpp>
#include <toki/result.hpp>

#include <optional>
#include <string>
#include <vector>

#include "request_check.hpp"

namespace tokid {

class Cors {
 public:
  struct Verdict {
    std::string headers;     // of every answer
    bool preflight = false;  // only a browser's question: 204 with those headers is the answer
    std::optional<toki::http::HttpError> refused;
  };

  /// No page of another origin.
  Cors() = default;
  /// "SCHEME://HOST[:PORT]", "null", or "*" for every page there is.
  static toki::Result<Cors> allowing(std::vector<std::string> origins);

  Verdict look(const RequestHead& head) const;

 private:
  bool allows(std::string_view origin) const;

  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace tokid
