// The parts of toki-replay: workloads, answers, the oracle, arms, figures, pairs.
#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "answer.hpp"
#include "arm.hpp"
#include "chart.hpp"
#include "figures.hpp"
#include "oracle.hpp"
#include "pairs.hpp"
#include "report.hpp"
#include "run.hpp"
#include "support/wait.hpp"
#include "workload.hpp"

using namespace replay;

namespace {

class Folder {
 public:
  std::string file(const std::string& name, const std::string& text) const {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  const std::string& path() const { return folder_.path(); }

 private:
  toki::test::TemporaryDirectory folder_;
};

std::string prompt_of(const Request& request) {
  return std::string(text_of(member(request.body.at("messages").as_array().back(), "content")));
}

std::string text_line(const std::string& session, int time_us, const std::string& input) {
  return json::serialize(json::object{
             {"timestamp", time_us}, {"input", input}, {"output", "x"}, {"session_id", session}}) +
         "\n";
}

std::string error_of(const std::string& path, const WorkloadSettings& settings = {}) {
  const auto read = read_workload(path, settings);
  REQUIRE(!read);
  return read.error().detail;
}

Workload read(const std::string& path, const WorkloadSettings& settings = {}) {
  auto workload = read_workload(path, settings);
  INFO((workload ? "" : workload.error().detail));
  REQUIRE(workload);
  return std::move(*workload);
}

}  // namespace

TEST_CASE("agents share system prompts, go on in order, and follow from the seed") {
  WorkloadSettings settings;
  settings.agents = 7;
  settings.turns = 4;
  settings.systems = 2;
  Workload one = make_agents(settings);
  put_in_order(one, settings);
  Workload two = make_agents(settings);
  put_in_order(two, settings);
  REQUIRE(one.requests.size() == 28);
  std::vector<std::size_t> turns(7);
  std::set<std::string> systems;
  std::set<std::string> tasks;
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    const Request& request = one.requests[i];
    CHECK(request.body == two.requests[i].body);
    const json::array& messages = request.body.at("messages").as_array();
    CHECK(messages.size() == (turns[request.session] == 0 ? 2 : 1));
    if (messages.size() == 2) systems.emplace(text_of(member(messages[0], "content")));
    tasks.insert(prompt_of(request));
    ++turns[request.session];
  }
  CHECK(systems.size() == 2);
  CHECK(tasks.size() == 28);
  CHECK(turns == std::vector<std::size_t>(7, 4));
  settings.seed = 2;
  Workload other = make_agents(settings);
  put_in_order(other, settings);
  CHECK(prompt_of(other.requests[0]) != prompt_of(one.requests[0]));
}

TEST_CASE("shuffled sessions keep the order of their own requests") {
  Folder folder;
  std::string text;
  for (int session = 0; session < 5; ++session) {
    for (int turn = 0; turn < 6; ++turn) {
      text += text_line("s" + std::to_string(session), turn * 1000, std::to_string(turn));
    }
  }
  WorkloadSettings settings;
  Workload workload = read(folder.file("a.jsonl", text), settings);
  put_in_order(workload, settings);
  std::vector<int> next(5);
  bool mixed = false;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    CHECK(prompt_of(request) == std::to_string(next[request.session]++));
    mixed = mixed || (i > 0 && request.session < workload.requests[i - 1].session);
  }
  CHECK(mixed);
  CHECK(next == std::vector<int>(5, 6));
}

TEST_CASE(
    "a text trace: each input one user message, in the order of its times, cut by characters") {
  Folder folder;
  folder.file("1.jsonl", text_line("b", 5000, "second") + "\n" + text_line("b", 1000, "first"));
  folder.file("2.jsonl", "");
  folder.file("3.jsonl", text_line("a", 9000, "n\xc3\xa4he ist mehr") + text_line("a", 9500, "x") +
                             text_line("a", 9900, "y"));
  folder.file("4.jsonl", text_line("c", 1, "left out"));
  folder.file("note.txt", "no workload");
  WorkloadSettings settings;
  settings.sessions = 2;
  settings.session_requests = 2;
  settings.max_chars = 4;
  settings.order = "recorded";
  Workload workload = read(folder.path(), settings);
  CHECK(workload.kind == "text trace");
  CHECK(workload.sessions == 2);
  put_in_order(workload, settings);
  std::vector<std::string> prompts;
  for (const Request& request : workload.requests) prompts.push_back(prompt_of(request));
  CHECK(prompts == std::vector<std::string>{"firs", "n\xc3\xa4he", "x", "seco"});
  CHECK(workload.requests[2].at_ms == 0.5);
  CHECK(workload.requests[3].at_ms == 4);
  CHECK(workload.requests[0].body.at("max_tokens") == 16);
}

TEST_CASE("recorded bodies keep their members, path and time") {
  Folder folder;
  const std::string file = folder.file(
      "r.jsonl", R"({"path":"/v1/chat/completions","at_ms":100,"body":{"messages":[],"top_k":3}})"
                 "\n"
                 R"({"path":"/completion","at_ms":350.5,"body":"{\"prompt\":\"x\"}"})"
                 "\n"
                 R"({"messages":[{"role":"user","content":"bare"}],"max_tokens":9})"
                 "\n"
                 R"({"input":"responses"})"
                 "\n"
                 R"({"prompt":[1,2,3]})"
                 "\n");
  WorkloadSettings settings;
  Workload workload = read(file, settings);
  REQUIRE(workload.requests.size() == 5);
  CHECK(workload.kind == "bodies");
  CHECK(workload.requests[0].body.at("top_k") == 3);
  CHECK(workload.requests[0].at_ms == 100);
  CHECK(workload.requests[1].path == "/completion");
  CHECK(workload.requests[1].body.at("prompt") == "x");
  CHECK(workload.requests[2].path == "/v1/chat/completions");
  CHECK(workload.requests[2].body.at("max_tokens") == 9);
  CHECK(workload.requests[3].path == "/v1/responses");
  CHECK(workload.requests[4].path == "/v1/completions");
  settings.answer_tokens = 5;
  settings.answer_tokens_given = true;
  settings.max_requests = 3;
  workload = read(file, settings);
  REQUIRE(workload.requests.size() == 3);
  CHECK(workload.requests[2].body.at("max_tokens") == 5);
}

TEST_CASE("answers that are drawn at random are told before they are compared") {
  Folder folder;
  const std::string file = folder.file("r.jsonl", R"({"prompt":"x"})"
                                                  "\n"
                                                  R"({"prompt":"x","temperature":0.8})"
                                                  "\n"
                                                  R"({"prompt":"x","temperature":0.8,"seed":-1})"
                                                  "\n"
                                                  R"({"prompt":"x","temperature":0.0})"
                                                  "\n"
                                                  R"({"prompt":"x","temperature":0.8,"seed":7})"
                                                  "\n");
  const Workload workload = read(file);
  CHECK(count_random(workload, {}) == 3);
  CHECK(count_random(workload, {{"temperature", 0}}) == 0);
  CHECK(count_random(workload, {{"seed", 1}}) == 0);
  CHECK(count_random(workload, {{"temperature", 1}}) == 4);
  CHECK(count_random(make_agents({}), {}) == 0);

  Options options;
  options.arms.push_back(*read_arm("direct"));
  CHECK(random_answers(options, workload).empty());  // nothing to compare with
  options.arms.push_back(*read_arm("toki"));
  Report report;
  report.random_answers = random_answers(options, workload);
  CHECK(report.random_answers.find("3 of 5 requests") != std::string::npos);
  CHECK(report.random_answers.find("arms direct, toki;") != std::string::npos);
  CHECK(pair_notes(report) == std::vector<std::string>{report.random_answers});
  for (ArmSettings& arm : options.arms) arm.body = {{"temperature", 0}};
  CHECK(random_answers(options, workload).empty());
}

TEST_CASE("a recorded body may be as deep as tokid passes on") {
  Folder folder;
  const std::string deep = std::string(509, '[') + std::string(509, ']');
  const std::string file = folder.file(
      "deep.jsonl", R"({"path":"/completion","at_ms":1,"body":{"prompt":"x","a":)" + deep + "}}\n");
  CHECK(read(file).requests.size() == 1);
}

TEST_CASE("a Mooncake trace: equal hashes become equal text, the last block its share") {
  Folder folder;
  const std::string file = folder.file(
      "m.jsonl", R"({"timestamp":1000,"input_length":1280,"output_length":5,"hash_ids":[0,7,8]})"
                 "\n"
                 R"({"timestamp":3500,"input_length":1536,"output_length":5,"hash_ids":[0,7,9]})"
                 "\n");
  WorkloadSettings settings;
  settings.block_words = 10;
  const Workload workload = read(file, settings);
  REQUIRE(workload.requests.size() == 2);
  const auto words = [](const std::string& text) {
    return 1 + std::count(text.begin(), text.end(), ' ');
  };
  const std::string one = prompt_of(workload.requests[0]);
  const std::string two = prompt_of(workload.requests[1]);
  CHECK(words(one) == 25);
  CHECK(words(two) == 30);
  const auto parting = std::mismatch(one.begin(), one.end(), two.begin(), two.end()).first;
  const std::string common(one.begin(), parting);
  CHECK(words(common) >= 20);
  CHECK(words(common) < 25);
  CHECK(workload.requests[1].at_ms == 2500);
}

TEST_CASE("a bad line is named with its file and number") {
  Folder folder;
  const std::string good = text_line("a", 1, "x");
  std::string path = folder.file("1.jsonl", good + "no json\n");
  CHECK(error_of(path).rfind(path + ":2: no JSON", 0) == 0);
  path = folder.file("2.jsonl", good + good + good.substr(0, good.size() / 2));
  CHECK(error_of(path) == path + ":3: the line breaks off: half a JSON value");
  path = folder.file("3.jsonl", good + R"({"hash_ids":[1]})");
  CHECK(error_of(path) == path + ":2: a mooncake trace among a text trace");
  path = folder.file("4.jsonl", R"({"what":1})");
  CHECK(error_of(path).rfind(path + ":1: neither", 0) == 0);
  path = folder.file("5.jsonl", R"({"session_id":1,"input":"x"})");
  CHECK(error_of(path) == path + ":1: session_id is no string");
  path = folder.file("6.jsonl", R"({"hash_ids":[1,2],"input_length":5})");
  CHECK(error_of(path) == path + ":1: input_length does not fit hash_ids");
  path = folder.file("7.jsonl", R"({"body":"{"})");
  CHECK(error_of(path).rfind(path + ":1: body holds no JSON", 0) == 0);
  path = folder.file("8a.jsonl", R"({"prompt":"a"})"
                                 "\n"
                                 R"({"prompt":"a"} {"prompt":"b"})");
  CHECK(error_of(path).rfind(path + ":2: no JSON", 0) == 0);
  path = folder.file("8.jsonl", "[1]\n");
  CHECK(error_of(path) == path + ":1: no JSON object");
  path = folder.file("9.jsonl", "\n");
  CHECK(error_of(path) == path + ": no request in it");
  CHECK(error_of(folder.path() + "/none.jsonl").find("No such file") != std::string::npos);
}

TEST_CASE("text is cut between characters") {
  CHECK(first_chars("abc", 0) == "abc");
  CHECK(first_chars("abc", 2) == "ab");
  CHECK(first_chars("\xe4\xb8\xad\xe6\x96\x87x", 1) == "\xe4\xb8\xad");
  CHECK(first_chars("\xe4\xb8\xad\xe6\x96\x87x", 2) == "\xe4\xb8\xad\xe6\x96\x87");
  CHECK(first_chars("\xe4\xb8\xad", 3) == "\xe4\xb8\xad");
}

TEST_CASE("Poisson arrivals rise from 0 with the wanted mean") {
  WorkloadSettings settings;
  settings.agents = 200;
  settings.turns = 10;
  settings.system_words = settings.task_words = 1;
  Workload workload = make_agents(settings);
  set_poisson_times(workload, 4, 1);
  CHECK(workload.requests[0].at_ms == 0);
  for (std::size_t i = 1; i < workload.requests.size(); ++i) {
    REQUIRE(workload.requests[i].at_ms >= workload.requests[i - 1].at_ms);
  }
  CHECK(workload.requests.back().at_ms / 1999 == Approx(250).epsilon(0.1));
}

TEST_CASE("the oracle counts what a set of all prefixes counts") {
  std::mt19937 random(1);
  Oracle oracle;
  std::set<toki::Tokens> prefixes;
  std::vector<toki::Tokens> prompts;
  for (int round = 0; round < 300; ++round) {
    toki::Tokens prompt;
    if (!prompts.empty() && random() % 4 != 0) {  // goes on from a part of an earlier one
      prompt = prompts[random() % prompts.size()];
      prompt.resize(random() % (prompt.size() + 1));
    }
    for (std::size_t more = random() % 20; more > 0; --more) {
      prompt.push_back(static_cast<toki::Token>(random() % 3));
    }
    std::size_t fresh = 0;
    for (std::size_t length = 1; length <= prompt.size(); ++length) {
      const auto end = prompt.begin() + static_cast<std::ptrdiff_t>(length);
      fresh += prefixes.insert(toki::Tokens(prompt.begin(), end)).second ? 1U : 0U;
    }
    REQUIRE(oracle.add(prompt) == fresh);
    REQUIRE(oracle.total() == prefixes.size());
    prompts.push_back(std::move(prompt));
  }
}

TEST_CASE("an answer is read alike however its stream is cut") {
  const std::string stream =
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n"
      ": toki\n\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"He\"}}]}\r\n\r\n"
      "data: {\"choices\":[{\"delta\":{\"content\":\"llo\"}}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":2},"
      "\"timings\":{\"cache_n\":7,\"prompt_n\":5,\"predicted_n\":2}}\n\n"
      "data: [DONE]\n\n";
  const Clock::time_point start;
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    AnswerReader reader;
    reader.take(stream.substr(0, cut), start + std::chrono::seconds(1));
    reader.take(stream.substr(cut), start + std::chrono::seconds(2));
    reader.end(start + std::chrono::seconds(3));
    REQUIRE(reader.text == "Hello");
    REQUIRE(reader.token_ends == std::vector<std::size_t>{2, 5});
    REQUIRE(reader.prompt_tokens == 12);
    REQUIRE(reader.cached_tokens == 7);
    REQUIRE(reader.output_tokens == 2);
    const bool early = cut > stream.find('\n', stream.find("\"He\""));  // its line was whole
    REQUIRE(reader.first.has_value());
    REQUIRE((*reader.first - start) / std::chrono::seconds(1) == (early ? 1 : 2));
  }
}

TEST_CASE("plain answers, other shapes and errors in the stream are read") {
  const Clock::time_point now;
  AnswerReader plain;
  plain.take("{\"choices\":[{\"message\":{\"content\":\"x\"}}],\n\"usage\":{\"prompt_tokens\":3,",
             now);
  plain.take("\"prompt_tokens_details\":{\"cached_tokens\":2}}}", now);
  plain.end(now);
  CHECK(plain.text == "x");
  CHECK(plain.token_ends.empty());  // no stream
  CHECK(plain.cached_tokens == 2);
  AnswerReader responses;
  responses.take(
      "event: response.output_text.delta\n"
      "data: {\"type\":\"response.output_text.delta\",\"delta\":\"ab\"}\n\n"
      "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{"
      "\"input_tokens\":4,\"output_tokens\":1,"
      "\"input_tokens_details\":{\"cached_tokens\":1}}}}\n\n",
      now);
  CHECK(responses.text == "ab");
  CHECK(responses.prompt_tokens == 4);
  CHECK(responses.cached_tokens == 1);
  AnswerReader native;
  native.take("data: {\"content\":\"q\",\"stop\":false}\n\n", now);
  CHECK(native.text == "q");
  AnswerReader wrong;
  wrong.take("data: {\"error\":{\"message\":\"no\\nmore\"}}\n\n", now);
  CHECK(wrong.error == "no more");
  CHECK(error_message(R"({"error":{"code":404,"message":"model not found"}})") ==
        "model not found");
  CHECK(error_message("<html>") == "<html>");
}

TEST_CASE("arms and targets are read as documented") {
  const auto plain = read_arm("direct");
  REQUIRE(plain);
  CHECK(plain->spawned);
  CHECK_FALSE(plain->with_tokid);
  CHECK(read_arm("toki-small")->with_tokid);
  const auto full =
      read_arm(R"(x:llama=--cache-ram 0 --alias 'a b';tokid=--kv-gib 1;body={"a":";b","n":1})");
  REQUIRE(full);
  CHECK(full->name == "x");
  CHECK(full->with_tokid);
  CHECK(full->llama_options == std::vector<std::string>{"--cache-ram", "0", "--alias", "a b"});
  CHECK(full->tokid_options == std::vector<std::string>{"--kv-gib", "1"});
  CHECK(full->body.at("a") == ";b");
  CHECK_FALSE(read_arm(":llama=x"));
  CHECK(read_arm("x:lama=y").error().detail == "--arm x: lama is none of llama=, tokid=, body=");
  CHECK(read_arm("x:body=[1]").error().detail == "--arm x: body is no JSON object");
  const auto target = read_target("t=http://127.0.0.1:9090,http://[::1]:8080");
  REQUIRE(target);
  CHECK(target->front.port == "9090");
  CHECK(target->server.host == "::1");
  CHECK(read_target("t=http://h:1")->server.host == "h");
  CHECK_FALSE(read_target("http://127.0.0.1:1"));
  CHECK_FALSE(read_target("t=ftp://h"));
}

TEST_CASE("figures of a run: classes, counts, quantiles by nearest rank") {
  Run run;
  for (int i = 1; i <= 100; ++i) {
    Outcome outcome;
    outcome.first_ms = i;
    outcome.total_ms = 2 * i;
    outcome.prompt_tokens = 30;
    outcome.cached_tokens = i <= 50 ? 10 : i <= 80 ? 9 : 0;
    outcome.output_tokens = 4;
    outcome.oracle_tokens = 5;
    run.outcomes.push_back(outcome);
  }
  run.outcomes.emplace_back().failure = "x";
  run.wall_ms = 2000;
  Figures f = figures_of(run);
  CHECK(f.requests == 101);
  CHECK(f.failures == 1);
  CHECK(f.hits == 50);
  CHECK(f.soft == 30);
  CHECK(f.misses == 20);
  CHECK(f.prompt_tokens == 3000);
  CHECK(f.computed == 3000 - 500 - 270);
  CHECK(f.ratio == Approx(2230.0 / 500));
  CHECK(f.first_p50 == 50);
  CHECK(f.first_p95 == 95);
  CHECK(f.first_p99 == 99);
  CHECK(f.total_p95 == 190);
  CHECK(f.output_rate == 200);
  CHECK(std::isnan(f.server_cpu));
  run.counter = 1000;
  run.outcomes[3].oracle_tokens = -1;  // one that is not known leaves the sum unknown
  f = figures_of(run);
  CHECK(f.computed == 1000);
  CHECK(f.computed_usage == 2230);
  CHECK(std::isnan(f.oracle));
  CHECK(std::isnan(f.ratio));
  const Spread spread = spread_of({4, NAN, 1, 3, 2});
  CHECK(spread.min == 1);
  CHECK(spread.median == 2.5);
  CHECK(spread.max == 4);
}

namespace {

Outcome answer(std::size_t index, const std::vector<std::string>& pieces, std::int64_t cached = 0,
               const std::string& source = "", const std::string& body = "p") {
  Outcome outcome;
  outcome.index = index;
  outcome.body = body;
  outcome.cached_tokens = cached;
  outcome.source = source;
  for (const std::string& piece : pieces) {
    outcome.text += piece;
    outcome.token_ends.push_back(outcome.text.size());
  }
  return outcome;
}

}  // namespace

TEST_CASE("pairs: tokens are equal up to the first event that differs, however much text is") {
  const auto equal = [](const std::vector<std::string>& a, const std::vector<std::string>& b) {
    const std::int64_t count = equal_tokens(answer(0, a), answer(0, b));
    CHECK(count == equal_tokens(answer(0, b), answer(0, a)));
    return count;
  };
  CHECK(equal({"a", "bc"}, {"a", "bc"}) == 2);
  CHECK(equal({"a", "bc"}, {"a", "bd"}) == 1);
  CHECK(equal({"a", "bc"}, {"a", "b", "c"}) == 1);  // the same text of other tokens
  CHECK(equal({"a", "b"}, {"a", "b", "c"}) == 2);
  CHECK(equal({}, {"a"}) == 0);
  Outcome plain = answer(0, {"a"});
  plain.token_ends.clear();
  CHECK(equal_tokens(plain, answer(0, {"a"})) == -1);
}

TEST_CASE("pairs: each is classified, told where it parts, and grouped by what it began with") {
  Run a;
  Run b;
  a.outcomes = {answer(0, {"the ", "same"}, 40, "slot"),
                answer(1, {"it is ", "12"}, 30, "slot"),
                answer(2, {"x"}),
                answer(3, {"only here"}),
                answer(4, {"a", " b"}, 0),
                answer(5, {"Yes", "."}, 20, "slot")};
  b.outcomes = {answer(2, {"x"}, 0, "", "another prompt"), answer(1, {"it is ", "13"}, 30, "disk"),
                answer(0, {"the ", "same"}, 40, "copy"), answer(4, {"a", "  b"}, 0),
                answer(5, {"Yes", "!"}, 16, "disk")};
  Meaning none({});
  ArmPairs pairs;
  compare_runs(a, b, none, pairs);
  CHECK(pairs.counts.of == std::array<std::uint64_t, 4>{1, 1, 1, 1});
  CHECK(pairs.other_prompts == 1);
  REQUIRE(pairs.groups.size() == 3);
  CHECK(pairs.groups[0].a == Start::live);
  CHECK(pairs.groups[0].b == Start::restored);
  CHECK(pairs.groups[0].equal_reuse);
  CHECK(pairs.groups[0].counts.of == std::array<std::uint64_t, 4>{1, 0, 0, 1});
  CHECK(pairs.groups[1].a == Start::computed);
  CHECK(pairs.groups[2].b == Start::restored);
  CHECK_FALSE(pairs.groups[2].equal_reuse);
  REQUIRE(pairs.parted.size() == 3);
  const PartedPair& number = pairs.parted[0];
  CHECK(number.index == 1);
  CHECK(number.found.reason == toki::DivergenceReason::numbers);
  CHECK(number.found.parting.characters == 7);
  CHECK(number.tokens == 1);
  CHECK(number.cached_b == 30);
  CHECK(pairs.parted[1].found.kind == toki::Divergence::whitespace_only);
  CHECK(pairs.parted[2].found.kind == toki::Divergence::restore_noise);
}

TEST_CASE("pairs: what no rule decides is substantive, or for vectors of words when asked for") {
  Run a;
  Run b;
  a.outcomes = {answer(0, {"the car stands in front of the old house by the river and is fast"})};
  b.outcomes = {
      answer(0, {"the automobile stands in front of the old house by the river and is fast"})};
  ArmPairs pairs;
  Meaning none({});
  compare_runs(a, b, none, pairs);
  REQUIRE(pairs.parted.size() == 1);
  CHECK(pairs.parted[0].found.reason == toki::DivergenceReason::no_similarity);
  CHECK(pairs.counts.count(toki::Divergence::substantive) == 1);
  CHECK(none.missed() == 0);
  Meaning words({.server = {}, .words = true, .cosine = 0.5});
  ArmPairs judged;
  compare_runs(a, b, words, judged);
  CHECK(judged.parted[0].found.reason == toki::DivergenceReason::similarity);
  CHECK(judged.parted[0].found.cosine > 0.5);
  CHECK(judged.parted[0].found.cosine < 0.99);
  CHECK(judged.counts.count(toki::Divergence::restore_noise) == 1);
}

TEST_CASE("pairs: a server of embeddings that is not there is named before, and missed after") {
  MeaningSettings settings;
  settings.server = Address{"127.0.0.1", "1"};
  Meaning meaning(settings);
  const auto status = meaning.probe();
  REQUIRE_FALSE(status);
  CHECK(status.error().detail.rfind("--embed-backend http://127.0.0.1:1: ", 0) == 0);
  toki::Comparison found = toki::compare("the car is fast", "the automobile is fast");
  REQUIRE(found.undecided);
  meaning.decide(found, "the car is fast", "the automobile is fast");
  CHECK(found.kind == toki::Divergence::substantive);
  CHECK(meaning.missed() == 1);
  CHECK_FALSE(meaning.why().empty());
}

TEST_CASE("words are told apart, and equal ones are alike") {
  const toki::Tokens tokens = word_tokens("  one two\n one ");
  REQUIRE(tokens.size() == 3);
  CHECK(tokens[0] == tokens[2]);
  CHECK(tokens[0] != tokens[1]);
  CHECK(word_tokens("").empty());
}

TEST_CASE("reports show classes, shares with their interval and where pairs part, and no text") {
  Run a;
  Run b;
  for (std::size_t i = 0; i < 8; ++i) {
    a.outcomes.push_back(answer(i, {"secret ", "12"}, 5, "slot"));
    b.outcomes.push_back(answer(i, {"secret ", i < 2 ? "13" : "12"}, 5, "disk"));
  }
  Report report;
  report.meaning = "substantive: there is no --embed-backend";
  ArmPairs pairs{"live", "<restored>"};
  Meaning none({});
  compare_runs(a, b, none, pairs);
  report.comparisons.push_back(pairs);
  const auto rows = pair_rows(report);
  REQUIRE(rows.size() == 3);
  CHECK(rows[1] == std::vector<std::string>{"live, <restored>", "8", "6", "0", "0", "2",
                                            "25.0 % (7.1 to 59.1)", "100 % (34.2 to 100)"});
  CHECK(rows[2][0] == "  live, restored, equal reuse");
  CHECK(parted_rows(pairs, 1).size() == 2);
  CHECK(parted_rows(pairs, 9)[2] == std::vector<std::string>{"1", "substantive", "numbers", "8",
                                                             "1", "1", "5 live", "5 restored"});
  for (const std::string& shown : {as_text(report), as_json(report), as_html(report)}) {
    CHECK(shown.find("numbers") != std::string::npos);
    CHECK(shown.find("secret") == std::string::npos);
  }
  CHECK(as_html(report).find("<restored>") == std::string::npos);
  const json::value parsed = json::parse(as_json(report));
  const json::value& one = parsed.at("comparisons").at(0);
  CHECK(one.at("pairs") == 8);
  CHECK(one.at("divergent_of_pairs").at("share") == 0.25);
  CHECK(one.at("groups").at(0).at("start_b") == "restored");
  CHECK(one.at("parted").at(1).at("equal_tokens") == 1);
}

TEST_CASE("plots stay inside their frame and escape names") {
  CHECK(escape_html("<a & \"b\">") == "&lt;a &amp; &quot;b&quot;&gt;");
  LineChart chart{"x", "y", true, true, {{"<one>", 0, false, {{1, 0}, {10, 0.5}, {100, 1}}}}};
  const std::string svg = svg_of(chart);
  CHECK(svg.find("&lt;one&gt;") != std::string::npos);
  CHECK(svg.find("M64.0 254.0") != std::string::npos);  // the first point: left, at the bottom
  CHECK(svg.find("H624.0") != std::string::npos);       // the last one: at the right edge
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg_of(LineChart{}).find("nothing") != std::string::npos);
  CHECK(svg_of(LineChart{"x", "y", false, false, {{"n", 0, false, {{0, 0}}}}}).find("nan") ==
        std::string::npos);
}
