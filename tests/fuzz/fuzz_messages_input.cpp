// Any bytes as a /v1/messages body: what is made of it is one JSON object with a list of messages, and
// no text of it is lost on the way.
#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "fuzz/require.hpp"
#include "http/messages_input.hpp"

namespace {

using namespace toki::http;
namespace dom = simdjson::dom;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = Body::parse(text);
  const Body* body = std::get_if<Body>(&parsed);
  if (body == nullptr) {
    return 0;
  }
  (void)has_billing_line(*body);
  for (const bool even : {false, true}) {
    const auto chat = messages_as_chat(*body, even);
    if (!chat) {
      require(chat.error().code == toki::Errc::unsupported);
      continue;
    }
    require(chat->shape != 0);
    const auto again = Body::parse(chat->body);
    // Two keys of one name, where the server's own reader takes the last, are nobody's here.
    if (const auto* refused = std::get_if<BodyError>(&again)) {
      require(refused->reason == "duplicate key" || refused->reason == "nested too deep");
      continue;
    }
    const JsonField* messages = std::get<Body>(again).find("messages");
    require(messages != nullptr && messages->kind == JsonKind::array);
    for (const JsonField& message : children(messages->value)) {
      require(message.kind == JsonKind::object);
      const auto role = member(message.value, "role");
      const auto content = member(message.value, "content");
      require(role && role->kind == JsonKind::string && content);
      require(content->kind == JsonKind::string || content->kind == JsonKind::array);
    }
  }
  return 0;
}
