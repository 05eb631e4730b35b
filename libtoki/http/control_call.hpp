// What the control calls to a llama-server share: how its replies are read and what a failure says.
#pragma once

#include <toki/http/upstream.hpp>
#include <toki/result.hpp>
#include <toki/token.hpp>

#include <boost/asio/awaitable.hpp>
#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace toki::http {

/// `call` answered something that no llama-server answers.
Error nonsense(std::string_view call);

/// `call` was refused. Without the request's text: the server's own message may quote the prompt,
/// so only the type is kept. Errc::unsupported when the server does not have the call.
Error refused(std::string_view call, const Reply& reply);

/// Why `call` gave nothing: no reply, or another status than 200; nothing when it did.
std::optional<Error> failure(std::string_view call, const Result<Reply>& reply);

/// A member of a reply, or `otherwise`: every field is optional, because builds differ.
template <class T>
T member(simdjson::dom::element root, std::string_view pointer, T otherwise) {
  T value{};
  return root.at_pointer(pointer).get(value) == simdjson::SUCCESS ? value : otherwise;
}
std::uint64_t number(simdjson::dom::element root, std::string_view pointer);
std::string text(simdjson::dom::element root, std::string_view pointer);

/// Token ids; nothing when one of them is none.
std::optional<Tokens> read_tokens(simdjson::dom::array ids);

/// How /tokenize is to read a text.
struct TokenizeFlags {
  bool add_special = false;  ///< put the model's start token in front (and its end token behind)
  bool parse_special = true;
};

/// POST /tokenize. `escaped` is the inside of a JSON string.
boost::asio::awaitable<Result<Tokens>> tokenize(Upstream& upstream, std::string_view escaped,
                                                TokenizeFlags flags, std::string_view authorization,
                                                Millis limit);

}  // namespace toki::http
