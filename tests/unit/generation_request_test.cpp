#include <toki/http/generation_request.hpp>

#include <catch2/catch.hpp>

#include <string>
#include <variant>
#include <vector>

using namespace toki;
using namespace toki::http;

namespace {

Body parse(std::string_view text) {
  auto parsed = Body::parse(text);
  REQUIRE(std::holds_alternative<Body>(parsed));
  return std::get<Body>(std::move(parsed));
}

GenerationRequest read(Endpoint endpoint, std::string_view text) {
  const Body body = parse(text);
  auto result = read_generation_request(endpoint, body, 4);
  REQUIRE(std::holds_alternative<GenerationRequest>(result));
  return std::get<GenerationRequest>(result);
}

std::string edited(std::string_view text, std::optional<std::uint32_t> slot,
                   bool may_reuse = true) {
  const Body body = parse(text);
  const auto request =
      std::get<GenerationRequest>(read_generation_request(Endpoint::chat, body, 4));
  const auto edits = slot_edits(request, body, slot, may_reuse);
  std::vector<std::string> storage;
  std::string out;
  for (const std::string_view piece : splice(body, edits, storage)) {
    out += piece;
  }
  return out;
}

}  // namespace

TEST_CASE(
    "request: the calls that take a slot are known by method and path, whatever their query") {
  CHECK(endpoint_of("POST", "/v1/chat/completions") == Endpoint::chat);
  CHECK(endpoint_of("POST", "/v1/chat/completions?beta=true") == Endpoint::chat);
  CHECK(endpoint_of("POST", "/completion") == Endpoint::completion);
  CHECK(endpoint_of("POST", "/completions") == Endpoint::completion);
  CHECK(endpoint_of("POST", "/v1/completions") == Endpoint::completions);
  CHECK(endpoint_of("POST", "/infill") == Endpoint::infill);
  CHECK(endpoint_of("POST", "/v1/responses") == Endpoint::responses);
  CHECK(endpoint_of("POST", "/v1/messages") == Endpoint::messages);
  CHECK(endpoint_of("POST", "/v1/messages/count_tokens?beta=true") == Endpoint::none);  // B35
  CHECK(endpoint_of("GET", "/v1/chat/completions") == Endpoint::none);
  CHECK(endpoint_of("POST", "/v1/embeddings") == Endpoint::none);
}

TEST_CASE("request: a list of numbers is one prompt, a list of strings is several") {  // B56
  CHECK(read(Endpoint::completions, R"({"prompt":[1,15,27]})").known_prompt);
  CHECK(read(Endpoint::completions, R"({"prompt":[1,15,27]})").sequences == 1);
  const auto two = read(Endpoint::completions, R"({"prompt":["a b","c d"]})");
  CHECK(two.sequences == 2);
  CHECK(two.bypass == Reason::several_answers);
  CHECK(read(Endpoint::completions, R"({"prompt":[[1,2],[1,3]]})").sequences == 2);
  const auto mixed = read(Endpoint::completions, R"({"prompt":[1,"x"]})");
  CHECK(mixed.sequences == 1);
  CHECK(mixed.bypass == Reason::tokenize_failed);
  CHECK(read(Endpoint::completions, R"({"prompt":""})").known_prompt);
  CHECK(read(Endpoint::completions, R"({"prompt":"p","n":3})").sequences == 3);
  CHECK(read(Endpoint::completions, R"({"prompt":["a","b"],"n":3})").sequences == 6);
  CHECK(read(Endpoint::completions, R"({"prompt":[]})").bypass == Reason::tokenize_failed);
  CHECK(read(Endpoint::completions, R"({"prompt":{"prompt_string":"x","multimodal_data":[]}})")
            .bypass == Reason::tokenize_failed);
  CHECK(read(Endpoint::chat, R"({"messages":[],"n":1})").sequences == 1);
}

TEST_CASE(
    "request: an id_slot in range is honoured, -1 leaves the choice, anything else is refused") {  // B57
  CHECK(read(Endpoint::chat, R"({"id_slot":3})").slot == 3);
  CHECK_FALSE(read(Endpoint::chat, R"({"id_slot":-1})").slot);
  CHECK_FALSE(read(Endpoint::chat, R"({"slot_id":1})").slot);
  for (const char* bad :
       {R"({"id_slot":4})", R"({"id_slot":7})", R"({"id_slot":"0"})", R"({"id_slot":1.5})",
        R"({"id_slot":-2})", R"({"id_slot":99999999999999999999})"}) {
    CAPTURE(bad);
    const Body body = parse(bad);
    const auto result = read_generation_request(Endpoint::chat, body, 4);
    REQUIRE(std::holds_alternative<HttpError>(result));
    CHECK(std::get<HttpError>(result).status == 400);
  }
}

TEST_CASE("request: only what toki adds changes") {
  CHECK(edited(R"({"b":1, "a" : [ 2 ]})", 2) ==
        R"({"id_slot":2,"cache_prompt":true,"b":1, "a" : [ 2 ]})");
  CHECK(edited(R"({"id_slot":-1,"x":1})", 2) == R"({"cache_prompt":true,"id_slot":2,"x":1})");
  CHECK(edited(R"({"id_slot":2,"cache_prompt":true})", 2) ==
        R"({"id_slot":2,"cache_prompt":true})");
  CHECK(edited(R"({"cache_prompt":false})", 1) == R"({"id_slot":1,"cache_prompt":false})");  // B65
  CHECK(edited(R"({})", std::nullopt) == R"({"cache_prompt":true})");
  CHECK(edited(R"({"cache_prompt":true})", 0, false) == R"({"id_slot":0,"cache_prompt":false})");
  CHECK(edited(R"({"n":2})", std::nullopt) == R"({"n":2})");
  CHECK(edited(R"({"n":2})", std::nullopt, false) == R"({"cache_prompt":false,"n":2})");
}

TEST_CASE("request: no reuse asked for is a bypass with a known prompt") {  // B65
  const auto request = read(Endpoint::chat, R"({"cache_prompt":false})");
  CHECK(request.bypass == Reason::cache_prompt_false);
  CHECK(request.known_prompt);
}

TEST_CASE("request: adapters are taken as they are written") {
  CHECK(read(Endpoint::chat, R"({"lora":[{"id":0,"scale":0.5}]})").adapters ==
        R"([{"id":0,"scale":0.5}])");
}

TEST_CASE("request: an Anthropic message names no slot and is never edited") {
  const auto request =
      read(Endpoint::messages, R"({"id_slot":"x","cache_prompt":false,"n":2,"stream":true})");
  CHECK_FALSE(request.bypass);
  CHECK(request.known_prompt);
  CHECK(request.sequences == 1);
  CHECK(request.stream);
  CHECK(query_for(request, "i").unnamed);
  CHECK_FALSE(query_for(read(Endpoint::chat, "{}"), "i").unnamed);
  CHECK(slot_edits(request, parse("{}"), 1, true).empty());
}
