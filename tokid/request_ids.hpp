// Request ids: what a client calls its request, or a name of ours.
//
// Threads:   one at a time.
// Ownership: none.
// Errors:    none: an id of the client that is no plain word is replaced.
// Cost:      some 20 ns and one small string.
#pragma once

#include <boost/beast/http/fields.hpp>

#include <cstdint>
#include <string>

namespace tokid {

class RequestIds {
 public:
  RequestIds();

  /// The client's x-request-id when there is one, of 1 to 128 visible ASCII characters; else 16
  /// hexadecimal digits that no other request of this process has, and hardly any of another.
  std::string id_of(const boost::beast::http::fields& fields);

 private:
  std::uint64_t next_;
};

}  // namespace tokid
