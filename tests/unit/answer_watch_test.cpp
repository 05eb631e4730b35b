// The answers are those of a real llama-server (build 11669), with long names and settings cut out.
#include <toki/http/answer_watch.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace toki::http;
using toki::Tokens;

std::string timings(int cached, int computed, int predicted) {
  return "\"timings\":{\"cache_n\":" + std::to_string(cached) +
         ",\"prompt_n\":" + std::to_string(computed) +
         ",\"prompt_ms\":18.706,\"prompt_per_token_ms\":18.706,\"predicted_n\":" +
         std::to_string(predicted) + ",\"predicted_ms\":54.253}";
}

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}

std::string chat_chunk(const std::string& delta, const std::string& more = "") {
  return event(
      "{\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":" + delta +
      "}],\"created\":1,\"id\":\"c\",\"model\":\"m\",\"object\":\"chat.completion.chunk\"" + more +
      "}");
}

const std::string kDone = event("[DONE]");
const std::string kChatStart = chat_chunk("{\"role\":\"assistant\",\"content\":null}") +
                               chat_chunk("{\"content\":\"H\xC3\xA9\"}") +
                               chat_chunk("{\"content\":\"say \\\"usage\\\": data: x\"}");
const std::string kChatUsage =
    "\"usage\":{\"completion_tokens\":4,\"prompt_tokens\":33,\"total_tokens\":37,"
    "\"prompt_tokens_details\":{\"cached_tokens\":32}}";

/// One chunk of a native stream.
std::string native_chunk(const std::string& text, const std::string& ids, int predicted,
                         const std::string& more = "", int index = 0) {
  return event("{\"index\":" + std::to_string(index) + ",\"content\":\"" + text +
               "\",\"tokens\":[" + ids + "],\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":" +
               std::to_string(predicted) + ",\"tokens_evaluated\":3" + more + "}");
}

std::string native_whole(const std::string& text, const std::string& ids, int predicted,
                         int index = 0) {
  return "{\"index\":" + std::to_string(index) + ",\"content\":\"" + text + "\",\"tokens\":[" +
         ids + "],\"id_slot\":1,\"stop\":true,\"model\":\"m\",\"tokens_predicted\":" +
         std::to_string(predicted) +
         ",\"tokens_evaluated\":3,\"generation_settings\":{\"stop\":[\" 9\"],\"stream\":true},"
         "\"prompt\":\"The \\\"tokens\\\"\",\"truncated\":false,\"stop_type\":\"limit\","
         "\"tokens_cached\":6," +
         timings(2, 1, predicted) + "}";
}

std::string native_end(int predicted, int index = 0) {
  return event(native_whole("", "", predicted, index));
}

std::string typed(const std::string& type, const std::string& more) {
  return "event: " + type + "\n" + event("{\"type\":\"" + type + "\"" + more + "}");
}

struct Sample {
  std::string name;
  AnswerKind kind;
  std::string bytes;
};

const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {
      {"chat", AnswerKind::json,
       "{\"choices\":[{\"finish_reason\":\"length\",\"index\":0,\"message\":{\"role\":"
       "\"assistant\","
       "\"content\":\"Hai-de\"}}],\"object\":\"chat.completion\"," +
           kChatUsage + ",\"id\":\"c\"," + timings(32, 1, 4) + "}"},
      {"chat stream", AnswerKind::sse,
       kChatStart + chat_chunk("{}", "," + timings(32, 1, 4)) + kDone},
      {"chat stream with usage", AnswerKind::sse,
       kChatStart + chat_chunk("{}") +
           event("{\"choices\":[],\"object\":\"chat.completion.chunk\"," + kChatUsage + "," +
                 timings(32, 1, 4) + "}") +
           kDone},
      {"chat stream with timings per token", AnswerKind::sse,
       kChatStart + chat_chunk("{\"content\":\"a\"}", "," + timings(32, 1, 1)) +
           chat_chunk("{\"content\":\"b\"}", "," + timings(32, 1, 2)) +
           chat_chunk("{}", "," + timings(32, 1, 4)) + kDone},
      {"completions stream", AnswerKind::sse,
       event("{\"choices\":[{\"text\":\" a\",\"index\":0,\"finish_reason\":null}]}") +
           event("{\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"length\"}]," +
                 kChatUsage + "," + timings(32, 1, 4) + "}") +
           kDone},
      {"native", AnswerKind::json, native_whole(" a canvas of endless", "253,16495,282,11746", 4)},
      {"native without ids", AnswerKind::json, native_whole(" a canvas of endless", "", 4)},
      {"native stream", AnswerKind::sse,
       native_chunk(" a", "253", 1) + native_chunk(" canvas", "16495", 2) +
           native_chunk(" of", "282", 3) + native_chunk(" endless", "11746", 4) + native_end(4) +
           "\n"},
      {"native stream that holds back parts of characters", AnswerKind::sse,
       native_chunk("\xF0\x9F\x98\x80", "218", 3) + native_chunk("\xF0\x9F\x98\x80", "218", 6) +
           native_end(6)},
      {"native stream with progress", AnswerKind::sse,
       native_chunk("", "0", 0,
                    "," + timings(2, 0, 0) +
                        ",\"prompt_progress\":{\"total\":3,\"cache\":2,\"processed\":2}") +
           native_chunk("", "0", 0,
                        "," + timings(2, 1, 0) +
                            ",\"prompt_progress\":{\"total\":3,\"cache\":2,\"processed\":3}") +
           native_chunk(" a", "253", 1, "," + timings(2, 1, 1)) +
           native_chunk(" b", "16495", 2, "," + timings(2, 1, 2)) + native_end(2)},
      {"several prompts", AnswerKind::json,
       "[" + native_whole(" was a", "436,253", 2) + "," + native_whole(" is a", "314,253", 2, 1) +
           "]"},
      {"several prompts stream", AnswerKind::sse,
       "data: null\n\n" + native_chunk(" was", "436", 1) + native_chunk(" is", "314", 1, "", 1) +
           native_end(1) + native_end(1, 1)},
      {"responses", AnswerKind::json,
       "{\"object\":\"response\",\"output\":[{\"content\":[]}],\"error\":null,\"status\":"
       "\"completed\",\"usage\":{\"input_tokens\":32,\"output_tokens\":4,\"total_tokens\":36,"
       "\"input_tokens_details\":{\"cached_tokens\":31}}}"},
      {"responses stream", AnswerKind::sse,
       typed("response.created", ",\"response\":{\"id\":\"r\",\"status\":\"in_progress\"}") +
           typed("response.output_text.delta", ",\"item_id\":\"i\",\"delta\":\"I\"") +
           typed("response.completed",
                 ",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":32,\"output_tokens\":4,"
                 "\"input_tokens_details\":{\"cached_tokens\":31}}}," +
                     timings(31, 1, 4)) +
           "\n"},
      {"messages", AnswerKind::json,
       "{\"id\":\"c\",\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"I\"}],"
       "\"usage\":{\"cache_read_input_tokens\":31,\"input_tokens\":1,\"output_tokens\":4}}"},
      {"messages stream", AnswerKind::sse,
       typed("message_start",
             ",\"message\":{\"id\":\"c\",\"content\":[],\"usage\":{\"cache_read_input_tokens\":31,"
             "\"input_tokens\":1,\"output_tokens\":0}}") +
           typed("content_block_delta", ",\"index\":1,\"delta\":{\"text\":\"I\"}") +
           typed("message_delta", ",\"delta\":{},\"usage\":{\"output_tokens\":4}") +
           typed("message_stop", "")},
      {"error", AnswerKind::json,
       "{\"error\":{\"code\":400,\"message\":\"request (3031 tokens) exceeds the available context "
       "size\",\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":3031,\"n_ctx\":1024}}"},
      {"error in a stream", AnswerKind::sse,
       kChatStart +
           event("{\"error\":{\"code\":500,\"message\":\"x\",\"type\":\"server_error\"}}")},
      {"comments everywhere", AnswerKind::sse,
       ":\n\n: ping\n\nid: 5\n: ping\nevent: x\n\n:\ndata: {\n: ping\ndata:" + kChatUsage +
           "}\n:\n\nretry: 10\n\nunknown\n\n" + kDone},
      {"a byte order mark, and data over lines", AnswerKind::sse,
       "\xEF\xBB\xBF"
       "data:{\ndata\ndata: \"usage\"\ndata::{\"prompt_tokens\":7}}\n\n"},
      {"no final blank line", AnswerKind::sse, "data: {" + timings(5, 6, 7) + "}"},
      {"nonsense", AnswerKind::sse, "data: {\"usage\"\n\n\xFF\r\n\xC3\rdata: [\"tokens\"]\r\r"},
  };
  return all;
}

const Sample& sample(std::string_view name) {
  const auto found = std::find_if(samples().begin(), samples().end(),
                                  [name](const Sample& each) { return each.name == name; });
  REQUIRE(found != samples().end());
  return *found;
}

AnswerFacts facts_of(AnswerKind kind, std::string_view bytes) {
  AnswerWatch watch(kind);
  watch.feed(bytes);
  watch.finish();
  return watch.facts();
}

AnswerFacts facts_of(std::string_view name) {
  return facts_of(sample(name).kind, sample(name).bytes);
}

AnswerFacts facts_of_sse(std::string_view bytes) {
  return facts_of(AnswerKind::sse, bytes);
}

bool same(const AnswerFacts& a, const AnswerFacts& b) {
  return a.prompt_tokens == b.prompt_tokens && a.cached_tokens == b.cached_tokens &&
         a.computed_tokens == b.computed_tokens && a.generated_tokens == b.generated_tokens &&
         a.prompt_ms == b.prompt_ms && a.slot == b.slot && a.generated == b.generated &&
         a.error == b.error && a.done == b.done && a.several == b.several &&
         a.truncated == b.truncated;
}

bool same(const AnswerFacts& facts, const Sample& of) {
  return same(facts, facts_of(of.kind, of.bytes));
}

void check_counts(const AnswerFacts& facts, std::uint64_t prompt, std::uint64_t cached,
                  std::uint64_t generated) {
  CHECK(facts.prompt_tokens == prompt);
  CHECK(facts.cached_tokens == cached);
  CHECK(facts.generated_tokens == generated);
  CHECK(facts.done);
  CHECK_FALSE(facts.error);
}

std::string with_line_ends(std::string_view bytes, std::string_view line_end) {
  std::string out;
  for (const char c : bytes) {
    out += c == '\n' ? line_end : std::string_view(&c, 1);
  }
  return out;
}

/// The events a client would see, read as plainly as the standard says.
std::vector<std::string> events_of(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const bool second = bytes[i] == '\n' && i > 0 && bytes[i - 1] == '\r';
    text += second ? "" : bytes[i] == '\r' ? "\n" : std::string(1, bytes[i]);
  }
  std::vector<std::string> events;
  std::string fields;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string line = text.substr(0, end);
    text.erase(0, end == std::string::npos ? end : end + 1);
    if (line.empty() && !fields.empty()) {
      events.push_back(std::exchange(fields, {}));
    } else if (!line.empty() && line[0] != ':') {
      fields += line + "\n";
    }
  }
  events.push_back(fields);
  return events;
}

}  // namespace

TEST_CASE("answer: the kind is told by the content type", "[answer]") {
  CHECK(answer_kind("text/event-stream") == AnswerKind::sse);
  CHECK(answer_kind("Text/Event-Stream; charset=utf-8") == AnswerKind::sse);
  CHECK(answer_kind(" application/json ") == AnswerKind::json);
  CHECK(answer_kind("application/json; charset=utf-8") == AnswerKind::json);
  CHECK(answer_kind("APPLICATION/JSON;x") == AnswerKind::json);
  CHECK(answer_kind("application/jsonl") == AnswerKind::other);
  CHECK(answer_kind("text/plain") == AnswerKind::other);
  CHECK(answer_kind("") == AnswerKind::other);
  CHECK(answer_kind(";") == AnswerKind::other);
}

TEST_CASE("answer: usage and timings of chat and completions are read", "[answer]") {
  for (const char* name : {"chat", "chat stream", "chat stream with usage", "completions stream",
                           "chat stream with timings per token"}) {
    CAPTURE(name);
    const AnswerFacts facts = facts_of(name);
    check_counts(facts, 33, 32, 4);
    CHECK(facts.computed_tokens == 1);
    CHECK(facts.prompt_ms == 18.706);
    CHECK(facts.generated.empty());
    CHECK_FALSE(facts.slot);
    CHECK_FALSE(facts.several);
  }
}

TEST_CASE("answer: usage tells more than the sum of timings", "[answer]") {
  const AnswerFacts facts =
      facts_of_sse(event("{\"usage\":{\"prompt_tokens\":50}," + timings(0, 9, 4) + "}"));
  CHECK(facts.prompt_tokens == 50);
  CHECK(facts.computed_tokens == 9);
}

TEST_CASE("answer: a native answer tells its slot and its ids", "[answer]") {
  for (const char* name : {"native", "native stream"}) {
    CAPTURE(name);
    const AnswerFacts facts = facts_of(name);
    check_counts(facts, 3, 2, 4);
    CHECK(facts.generated == Tokens{253, 16495, 282, 11746});
    CHECK(facts.slot == 1U);
    CHECK_FALSE(facts.truncated);
  }
}

TEST_CASE("answer: ids are complete or not known", "[answer]") {
  CHECK(facts_of("native without ids").generated.empty());
  CHECK(facts_of("native without ids").generated_tokens == 4);
  CHECK(facts_of("native stream that holds back parts of characters").generated.empty());
  CHECK(facts_of("native stream with progress").generated == Tokens{253, 16495});
  CHECK(facts_of("several prompts").generated.empty());
  CHECK(facts_of("several prompts stream").generated.empty());

  const std::string start = native_chunk(" a", "253", 1);
  CHECK(facts_of_sse(start).generated == Tokens{253});  // cut off, but all there is
  CHECK_FALSE(facts_of_sse(start).done);
  CHECK(facts_of_sse(start + native_end(2)).generated.empty());
  CHECK(facts_of_sse(start + native_chunk(" b", "\"b\"", 1) + native_end(1)).generated.empty());
  CHECK(
      facts_of_sse(start + native_chunk(" b", "3000000000", 2) + native_end(2)).generated.empty());
  CHECK(facts_of_sse(start + native_chunk(" b", "1,", 2) + native_end(1)).generated.empty());
  CHECK(facts_of_sse("data: {\"content\":\"a\",\"tokens\":[1]}\n\n").generated.empty());
}

TEST_CASE("answer: ids are there as soon as the stream says it stops", "[answer]") {
  AnswerWatch watch(AnswerKind::sse);
  watch.feed(native_chunk(" a", "253", 1));
  CHECK(watch.facts().generated.empty());
  watch.feed(native_end(1));
  CHECK(watch.facts().done);
  CHECK(watch.facts().generated == Tokens{253});
}

TEST_CASE("answer: of several prompts or choices the slot is not known", "[answer]") {
  for (const char* name : {"several prompts", "several prompts stream"}) {
    CAPTURE(name);
    CHECK(facts_of(name).several);
    CHECK_FALSE(facts_of(name).slot);
    CHECK(facts_of(name).prompt_tokens == 3);
  }
  CHECK(facts_of_sse(event("{\"choices\":[{\"index\":1}]," + timings(1, 2, 3) + "}")).several);
  CHECK(facts_of(AnswerKind::json, "{\"choices\":[{\"index\":0},{\"index\":1}]}").several);
  CHECK_FALSE(facts_of(AnswerKind::json, "[" + native_whole("a", "5", 1) + "]").several);
}

TEST_CASE("answer: progress tells the whole prompt, not the part computed so far", "[answer]") {
  const std::string progress = "\"prompt_progress\":{\"total\":33,\"cache\":25,\"processed\":25}";
  const AnswerFacts native =
      facts_of_sse(native_chunk("", "0", 0, "," + timings(2, 0, 0) + "," + progress));
  CHECK(native.prompt_tokens == 3);
  CHECK(native.generated.empty());
  const AnswerFacts chat = facts_of_sse(chat_chunk("{}", "," + timings(25, 0, 0) + "," + progress));
  CHECK_FALSE(chat.prompt_tokens);
  CHECK(chat.cached_tokens == 25);
}

TEST_CASE("answer: a full context is told", "[answer]") {
  CHECK(facts_of(AnswerKind::json, "{\"content\":\"\",\"truncated\":true}").truncated);
  CHECK_FALSE(facts_of(AnswerKind::json, "{\"truncated\":true}").truncated);
}

TEST_CASE("answer: responses and messages are read", "[answer]") {
  for (const char* name : {"responses", "responses stream", "messages", "messages stream"}) {
    CAPTURE(name);
    check_counts(facts_of(name), 32, 31, 4);
  }
  const AnswerFacts written =
      facts_of(AnswerKind::json,
               "{\"usage\":{\"cache_read_input_tokens\":5,\"cache_creation_input_tokens\":7,"
               "\"input_tokens\":1}}");
  CHECK(written.prompt_tokens == 13);
  CHECK(written.cached_tokens == 5);
}

TEST_CASE("answer: errors are told", "[answer]") {
  CHECK(facts_of("error").error);
  CHECK(facts_of("error in a stream").error);
  CHECK_FALSE(facts_of("error in a stream").done);
  CHECK(facts_of_sse("error: {\"code\":500}\n\n").error);
  CHECK(facts_of_sse(typed("response.failed", ",\"response\":{\"error\":{\"code\":\"x\"}}")).error);
  CHECK(facts_of_sse(typed("error", ",\"error\":{\"type\":\"api_error\"}")).error);
  CHECK_FALSE(facts_of("responses").error);
  CHECK_FALSE(facts_of_sse(chat_chunk("{\"content\":\"{\\\"error\\\":1}\"}")).error);
  CHECK_FALSE(facts_of_sse(chat_chunk("{\"error\":1}")).error);
}

TEST_CASE("answer: figures that make no sense are not known", "[answer]") {
  const AnswerFacts facts = facts_of(
      AnswerKind::json,
      "{\"content\":\"\",\"id_slot\":-1,\"tokens_evaluated\":-3,\"tokens_predicted\":\"4\","
      "\"usage\":[1],\"timings\":{\"cache_n\":18446744073709551615,\"prompt_n\":1,\"prompt_ms\":{}}"
      "}");
  CHECK_FALSE(facts.slot);
  CHECK_FALSE(facts.prompt_tokens);
  CHECK_FALSE(facts.generated_tokens);
  CHECK_FALSE(facts.prompt_ms);
  CHECK(facts.computed_tokens == 1);
  CHECK_FALSE(facts_of(AnswerKind::json, "{\"id_slot\":4294967296}").slot);
}

TEST_CASE("answer: a JSON body is done when it is one whole value", "[answer]") {
  CHECK(facts_of(AnswerKind::json, "{}").done);
  CHECK(facts_of(AnswerKind::json, " [1] ").done);
  CHECK_FALSE(facts_of(AnswerKind::json, "").done);
  CHECK_FALSE(facts_of(AnswerKind::json, "{}x").done);
  const std::string& whole = sample("native").bytes;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK(same(facts_of(AnswerKind::json, whole.substr(0, size)), AnswerFacts()));
  }
}

TEST_CASE("answer: other kinds of answers are not looked at", "[answer]") {
  CHECK(same(facts_of(AnswerKind::other, sample("chat").bytes), AnswerFacts()));
  CHECK(same(facts_of(AnswerKind::other, sample("chat stream").bytes), AnswerFacts()));
  CHECK(same(facts_of(AnswerKind::json, sample("chat stream").bytes), AnswerFacts()));
  CHECK(same(facts_of(AnswerKind::sse, sample("chat").bytes), AnswerFacts()));
}

TEST_CASE("answer: comments, unknown fields and data over several lines are read", "[answer]") {
  const AnswerFacts comments = facts_of("comments everywhere");
  CHECK(comments.prompt_tokens == 33);
  CHECK(comments.done);
  CHECK(facts_of("a byte order mark, and data over lines").prompt_tokens == 7);
  CHECK(facts_of("no final blank line").prompt_tokens == 11);
  CHECK_FALSE(facts_of_sse("\xEF\xBB\xBF\xEF\xBB\xBF" + kDone).done);
  CHECK_FALSE(facts_of_sse("data:  [DONE]\n\n").done);
  CHECK_FALSE(facts_of_sse("datax: [DONE]\n\n").done);
  CHECK(same(facts_of("nonsense"), AnswerFacts()));
}

TEST_CASE("answer: every split of every sample gives the same facts", "[answer]") {
  for (const Sample& each : samples()) {
    CAPTURE(each.name);
    for (const char* line_end : {"\n", "\r\n", "\r"}) {
      const bool sse = each.kind == AnswerKind::sse;
      const std::string bytes = sse ? with_line_ends(each.bytes, line_end) : each.bytes;
      AnswerWatch single(each.kind);
      for (const char& c : bytes) {
        single.feed({&c, 1});
        single.feed({});
      }
      single.finish();
      REQUIRE(same(single.facts(), each));
      for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        AnswerWatch watch(each.kind);
        watch.feed(std::string_view(bytes).substr(0, cut));
        watch.feed(std::string_view(bytes).substr(cut));
        watch.finish();
        REQUIRE(same(watch.facts(), each));
      }
    }
  }
}

TEST_CASE("answer: random pieces of random line ends give the same facts", "[answer][model]") {
  std::mt19937 random(7);
  const char* const line_ends[] = {"\n", "\r\n", "\r"};
  for (const Sample& each : samples()) {
    if (each.kind != AnswerKind::sse) {
      continue;
    }
    for (int round = 0; round < 100; ++round) {
      std::string bytes;
      for (const char c : each.bytes) {
        // A lone CR before a blank line that is LF would make one line end of two.
        const bool after_cr = !bytes.empty() && bytes.back() == '\r';
        bytes +=
            c == '\n' ? line_ends[after_cr ? 1 + random() % 2 : random() % 3] : std::string(1, c);
      }
      AnswerWatch watch(each.kind);
      for (std::string_view rest = bytes; !rest.empty();) {
        const std::string_view piece = rest.substr(0, 1 + random() % 40);
        watch.feed(piece);
        rest.remove_prefix(piece.size());
      }
      watch.finish();
      CAPTURE(each.name, round);
      REQUIRE(same(watch.facts(), each));
    }
  }
}

TEST_CASE("answer: a comment at a boundary never changes what a client sees", "[answer]") {
  for (const Sample& each : samples()) {
    if (each.kind != AnswerKind::sse || each.bytes.starts_with("\xEF\xBB\xBF")) {
      continue;
    }
    for (const char* line_end : {"\n", "\r\n", "\r"}) {
      const std::string bytes = with_line_ends(each.bytes, line_end);
      const std::vector<std::string> events = events_of(bytes);
      AnswerWatch watch(each.kind);
      for (std::size_t at = 0; at < bytes.size(); ++at) {
        CAPTURE(each.name, at);
        if (watch.at_event_boundary()) {
          for (const char* comment : {": toki\n\n", ": toki\n"}) {
            const std::string with = bytes.substr(0, at) + comment + bytes.substr(at);
            REQUIRE(events_of(with) == events);
          }
        }
        watch.feed({&bytes[at], 1});
      }
    }
  }
}

TEST_CASE("answer: the boundary is known to the byte", "[answer]") {
  const auto boundary_after = [](std::string_view bytes) {
    AnswerWatch watch(AnswerKind::sse);
    watch.feed(bytes);
    AnswerWatch single(AnswerKind::sse);
    for (const char& c : bytes) {
      single.feed({&c, 1});
    }
    CHECK(single.at_event_boundary() == watch.at_event_boundary());
    return watch.at_event_boundary();
  };
  CHECK(boundary_after(""));
  CHECK(boundary_after(":\n\n"));
  CHECK(boundary_after(":\n"));
  CHECK(boundary_after(": ping\n"));
  CHECK(boundary_after("event: x\n\n"));
  CHECK(boundary_after("data: x\n\n"));
  CHECK(boundary_after("data: x\n\n\n"));
  CHECK(boundary_after("data: x\n: ping\n\n"));
  CHECK(boundary_after("data: x\r\n\r\n"));
  CHECK(boundary_after("data: x\r\r"));
  CHECK(boundary_after("\n"));
  CHECK_FALSE(boundary_after(":"));
  CHECK_FALSE(boundary_after(": ping"));
  CHECK_FALSE(boundary_after("d"));
  CHECK_FALSE(boundary_after("data: x\n"));
  CHECK_FALSE(boundary_after("data\n"));
  CHECK_FALSE(boundary_after("event: x\n"));
  CHECK_FALSE(boundary_after("id: 1\n"));
  CHECK_FALSE(boundary_after("data: x\n: ping\n"));
  CHECK_FALSE(boundary_after("data: x\r\n"));
  CHECK_FALSE(boundary_after("data: x\r\n\r"));
  CHECK_FALSE(boundary_after("data: x\r"));
  CHECK_FALSE(boundary_after("data: \xF0\x9F"));
  for (const AnswerKind kind : {AnswerKind::json, AnswerKind::other}) {
    CHECK_FALSE(AnswerWatch(kind).at_event_boundary());
  }
}

TEST_CASE("answer: what is too long is passed over, the rest is still read", "[answer]") {
  const std::string filling(AnswerWatch::kMaxWatchedBytes, ' ');
  const std::string usage = "{\"usage\":{\"prompt_tokens\":7";
  CHECK_FALSE(facts_of(AnswerKind::json, usage + "}}" + filling).prompt_tokens);
  CHECK_FALSE(facts_of(AnswerKind::json, usage + "}}" + filling).done);
  CHECK_FALSE(facts_of_sse(event(usage + filling + "}}")).prompt_tokens);
  CHECK(facts_of_sse(event(usage + filling + "}}") + event(usage + "}}")).prompt_tokens == 7);
  CHECK(facts_of_sse(":" + filling + "\n" + event(usage + "}}")).prompt_tokens == 7);
  const std::string half = filling.substr(filling.size() / 2);
  CHECK_FALSE(
      facts_of_sse("data:" + half + "\ndata: " + half + "\n" + event(usage + "}}")).prompt_tokens);

  AnswerWatch pieces(AnswerKind::sse);
  for (int i = 0; i < 40; ++i) {
    pieces.feed("data: ");
    pieces.feed(std::string_view(filling).substr(0, filling.size() / 16));
    CHECK_FALSE(pieces.at_event_boundary());
  }
  pieces.feed("\n\n");
  CHECK(pieces.at_event_boundary());
  pieces.feed(event(usage + "}}"));
  CHECK(pieces.facts().prompt_tokens == 7);
}

TEST_CASE("answer: many line ends in one piece take linear time", "[answer]") {
  for (const char* line : {"\r", "\n", "\r\n", ":\r", "data:\r"}) {
    std::string bytes;
    while (bytes.size() < 4'000'000) {
      bytes += line;
    }
    CHECK(same(facts_of_sse(bytes), AnswerFacts()));
  }
}

TEST_CASE("answer: finish may be called again, and watches may be moved", "[answer]") {
  AnswerWatch first(AnswerKind::sse);
  const std::string& bytes = sample("native stream").bytes;
  first.feed(std::string_view(bytes).substr(0, 200));
  AnswerWatch second = std::move(first);
  second.feed(std::string_view(bytes).substr(200));
  second.finish();
  second.finish();
  CHECK(same(second.facts(), sample("native stream")));
}
