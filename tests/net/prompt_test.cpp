// How tokid gets a prompt's tokens: what it need not ask for again, and prompts with media.
#include "net_test.hpp"

namespace {

using namespace toki::test;

Behaviour with_specials() {
  Behaviour behaviour;
  behaviour.cuts_specials = true;
  behaviour.chat_template = "<|im_start|> <|im_end|> <|nl|>";
  return behaviour;
}

std::string part(std::string_view text) {
  return R"({"type":"text","text":)" + quote(text) + "}";
}
std::string image(std::string_view url) {
  return R"({"type":"image_url","image_url":{"url":)" + quote(url) + "}}";
}
Message picture(std::string_view url) {
  return M_json("[" + part(W(200)) + "," + image(url) + "]");
}

constexpr const char* kRed = "data:image/png;base64,iVBORw0KGgoUkVE";
constexpr const char* kBlue = "data:image/png;base64,iVBORw0KGgoQkxVRQ";

}  // namespace

TEST_CASE("a growing conversation is tokenized once, and counted as the upstream counts it") {
  Rig rig(with_specials());
  std::vector<Message> messages{S(W(300))};
  std::size_t sent = 0;
  for (int turn = 0; turn < 4; ++turn) {
    messages.push_back(M(words("t" + std::to_string(turn), 20)));
    CHECK(rig.chat(cc(messages)).status == 200);
    messages.push_back(R("ok"));
    for (const auto& request : rig.up.requests_to("POST", "/tokenize")) {
      sent += request.json()["content"].str().size();
    }
    if (turn == 0) CHECK(sent > 1000);
    if (turn > 0) CHECK(sent < 400);  // the new turn only
    sent = 0;
    rig.up.clear_log();
  }
  const auto stats = rig.tokid.stats();
  CHECK(stats.at("token_cache_part_total") == 3);
  CHECK(stats.at("token_cache_whole_total") == 0);
  CHECK(stats.at("token_cache_bytes") > 0);
  CHECK(stats.at("token_cache_tokens_total") > 3 * 300);
  CHECK(stats.at("tokenization_mismatch_total") == 0);
  CHECK(stats.at("token_cache_off") == 0);
}

// B31
TEST_CASE("remembered tokens that do not fit what the upstream counts are not used again") {
  Rig rig(with_specials());
  CHECK(rig.chat(cc({M(W(50))})).status == 200);
  rig.up.configure([](Behaviour& b) { b.usage_offset = 1; });
  CHECK(rig.chat(cc({M("another")})).status == 200);  // tokenized whole: no fault of the cache
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 1);
  CHECK(rig.tokid.stat("token_cache_off") == 0);
  CHECK(rig.chat(cc({M(W(50)), R("ok"), M("q")})).status == 200);
  REQUIRE(rig.tokid.wait_stat("tokenization_mismatch_total", 2));
  CHECK(rig.tokid.stat("token_cache_off") == 1);
  CHECK(rig.tokid.stat("token_cache_bytes") == 0);
  CHECK(occurrences(rig.tokid.log(), "put together from remembered tokens") == 1);
  rig.up.configure([](Behaviour& b) { b.usage_offset = 0; });
  rig.up.clear_log();
  const std::string body = cc({M(W(50)), R("ok"), M("q")});
  CHECK(rig.chat(body).status == 200);
  CHECK(rig.chat(body).status == 200);
  CHECK(rig.up.requests_to("POST", "/tokenize").size() == 2);
  // The next start begins anew.
  rig.up.stop();
  rig.up.start();
  REQUIRE(rig.tokid.wait_stat("token_cache_off", 0));
  REQUIRE(rig.tokid.wait_ready());
  rig.up.clear_log();
  CHECK(rig.chat(body).status == 200);
  CHECK(rig.chat(body).status == 200);
  CHECK(rig.up.requests_to("POST", "/tokenize").size() == 1);
}

// B30
TEST_CASE("a picture is part of the prompt: reuse up to another one, and past the same one") {
  Rig rig;
  const Answer red = rig.chat(cc({picture(kRed)}));
  const Answer blue = rig.chat(cc({picture(kBlue)}));
  const Answer red_again = rig.chat(cc({picture(kRed)}));
  for (const Answer* answer : {&red, &blue, &red_again}) {
    CHECK(answer->status == 200);
    CHECK(answer->slot != "any");
    CHECK(answer->reused <= answer->cache_n + 7);  // eight tokens stand for one of the upstream's
  }
  CHECK(red.reused == 0);
  CHECK(blue.reused <= 1 + 1 + 200);
  CHECK(blue.cache_n <= 1 + 1 + 200);
  // As a text of as many tokens would be: all but one.
  const int prompt = 1 + 1 + 200 + 8 + 2 + 1;
  CHECK(red_again.reused == prompt - 1);
  CHECK(red_again.slot == red.slot);
  CHECK(red_again.cache_n == red_again.prompt_tokens - 1);
  CHECK(rig.tokid.stat("tokenization_mismatch_total") == 0);
  CHECK(rig.tokid.stat("integrity_faults_total") == 0);
}

// B30
TEST_CASE("a picture is compared in its slot: up to it when it is another one") {
  Rig rig;
  const auto ask = [&](const Message& message) {
    const Answer answer = rig.chat(cc({message}, R"(,"id_slot":0)"));
    CHECK(answer.status == 200);
    return answer.reused;
  };
  CHECK(ask(picture(kRed)) == 0);
  CHECK(ask(picture(kBlue)) == 1 + 1 + 200);
  CHECK(ask(picture(kBlue)) == 1 + 1 + 200 + 8 + 2 + 1 - 1);
  CHECK(ask(picture(kRed)) == 1 + 1 + 200);
}

// B30
TEST_CASE("what is behind the address of a picture may change, so nothing is matched past it") {
  Rig rig;
  const auto ask = [&] {
    const Answer answer = rig.chat(cc({picture("http://127.0.0.1:1/a.png")}, R"(,"id_slot":0)"));
    CHECK(answer.status == 200);
    CHECK(answer.reason != "media");
    return answer.reused;
  };
  CHECK(ask() == 0);
  CHECK(ask() == 1 + 1 + 200);
  CHECK(ask() == 1 + 1 + 200);
}

TEST_CASE("a chat whose media and markers differ in number goes its way unpinned") {
  Rig rig;
  const std::string body = cc({M_json("[" + part("a") + R"(,{"type":"new_kind","x":"data:,1"}])")});
  const Answer answer = rig.chat(body);
  CHECK(answer.status == 200);
  CHECK(answer.reason == "media");
  CHECK(answer.slot == "any");
}
