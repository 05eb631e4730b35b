// Request ids: what a client calls its request, or a name of ours.
//
// Threads:   one at a time.
// Ownership: none.
// Errors:    none: an id of the client that is no plain word is replaced.
// Cost:      two numbers from the system's random source, under a microsecond, and one small string.
#pragma once

#include <boost/beast/http/fields.hpp>

#include <random>
#include <string>

namespace tokid {

class RequestIds {
 public:
  /// The client's x-request-id when there is one, of 1 to 128 visible ASCII characters; else 16
  /// hexadecimal digits by chance: no two requests share them, and they do not tell a client how many
  /// requests of others came between two of its own.
  std::string id_of(const boost::beast::http::fields& fields);

 private:
  std::random_device random_;
};

}  // namespace tokid
