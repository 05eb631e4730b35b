// Body parse and splice, and watching of SSE answers, each beside references of the same bytes in
// the same run: simdjson (On Demand reading all top-level members, DOM reading everything), memcpy
// and memchr. Argument of chat bodies: size in bytes.
//
//     micro_body_edit --benchmark_repetitions=5 --benchmark_report_aggregates_only
#include <toki/http/answer_watch.hpp>
#include <toki/http/body_edit.hpp>

#include <benchmark/benchmark.h>
#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace {

using namespace toki::http;

constexpr std::size_t kImageBytes = std::size_t{5} << 20;

/// Prose with the quotes, line ends and few other characters that messages have.
std::string content(std::mt19937& random, std::size_t size) {
  static const char* const kWords[] = {
      "the ",  "token ", "of ",           "a ",           "prefix ", "is ",  "computed ", "again ",
      "when ", "\\n",    "\\\"slot\\\" ", "caf\xC3\xA9 ", "it, ",    "and ", "server. "};
  std::string out;
  while (out.size() < size) {
    out += kWords[random() % std::size(kWords)];
  }
  return out;
}

/// A conversation of about `size` bytes.
std::string chat_body(std::size_t size) {
  std::mt19937 random(1);
  std::string body = "{\"model\":\"m\",\"stream\":true,\"temperature\":0.7,\"messages\":[";
  const char* separator = "";
  while (body.size() + 100 < size) {
    body += separator;
    body += "{\"role\":\"user\",\"content\":\"" + content(random, 40 + random() % 1500) + "\"}";
    separator = ",";
  }
  return body + "],\"max_tokens\":256,\"stop\":[\"\\n\\n\"]}";
}

/// A question about a picture.
std::string image_body() {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::mt19937 random(1);
  std::string image(kImageBytes, ' ');
  for (char& c : image) {
    c = kDigits[random() % kDigits.size()];
  }
  return "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
         "\"image_url\":{\"url\":\"data:image/png;base64," +
         image + "\"}}]}]}";
}

/// A prompt of token ids: hardly any strings.
std::string ids_body(std::size_t size) {
  std::mt19937 random(1);
  std::string body = "{\"prompt\":[1";
  while (body.size() < size) {
    body += "," + std::to_string(random() % 50000);
  }
  return body + "],\"n_predict\":64}";
}

/// A conversation in another script, three bytes a character.
std::string wide_body(std::size_t size) {
  std::string text;
  while (text.size() < size) {
    text += "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3\x81\xAE\xE6\x96\x87\xE7\xAB\xA0\xE3\x80\x82";
  }
  return "{\"messages\":[{\"role\":\"user\",\"content\":\"" + text + "\"}]}";
}

void set_bytes(benchmark::State& state, std::string_view body) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(body.size()));
}

void toki_parse_splice(benchmark::State& state, const std::string& body) {
  const std::vector<BodyEdit> edits = {{"id_slot", "3"}, {"cache_prompt", "true"}};
  std::vector<std::string> storage;
  for (auto _ : state) {
    const auto result = Body::parse(body);
    const auto pieces = splice(std::get<Body>(result), edits, storage);
    benchmark::DoNotOptimize(pieces.data());
  }
  set_bytes(state, body);
}

void simdjson_on_demand(benchmark::State& state, const std::string& body) {
  simdjson::ondemand::parser parser;
  const simdjson::padded_string padded(body);
  for (auto _ : state) {
    simdjson::ondemand::document document;
    if (parser.iterate(padded).get(document) != simdjson::SUCCESS) {
      state.SkipWithError("not read");
    }
    std::size_t size = 0;
    for (auto field : document.get_object()) {
      std::string_view key;
      simdjson::ondemand::value value;
      if (field.unescaped_key().get(key) == simdjson::SUCCESS &&
          field.value().get(value) == simdjson::SUCCESS) {
        size += key.size();
      }
    }
    benchmark::DoNotOptimize(size);
  }
  set_bytes(state, body);
}

void simdjson_dom(benchmark::State& state, const std::string& body) {
  simdjson::dom::parser parser;
  const simdjson::padded_string padded(body);
  for (auto _ : state) {
    simdjson::dom::element root;
    if (parser.parse(padded).get(root) != simdjson::SUCCESS) {
      state.SkipWithError("not read");
    }
    benchmark::DoNotOptimize(root);
  }
  set_bytes(state, body);
}

void plain_memcpy(benchmark::State& state, const std::string& body) {
  std::string copy(body.size(), ' ');
  for (auto _ : state) {
    std::memcpy(copy.data(), body.data(), body.size());
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
  }
  set_bytes(state, body);
}

/// About 1 MB of answer: OpenAI chunks that say nothing, or native ones that are all parsed.
std::string answer(bool native) {
  std::string bytes;
  for (int i = 1; bytes.size() < 1'000'000; ++i) {
    bytes += native
                 ? "data: {\"index\":0,\"content\":\" word\",\"tokens\":[253],\"stop\":false,"
                   "\"id_slot\":-1,\"tokens_predicted\":" +
                       std::to_string(i) + ",\"tokens_evaluated\":3}\n\n"
                 : "data: {\"choices\":[{\"finish_reason\":null,\"index\":0,\"delta\":{\"content\":"
                   "\" word\"}}],\"created\":1796005250,\"id\":\"chatcmpl-9vJpyGpM6HfQKBF0HPFlo3"
                   "O9vakTVofp\",\"model\":\"model.gguf\",\"system_fingerprint\":\"b11669\","
                   "\"object\":\"chat.completion.chunk\"}\n\n";
  }
  return bytes;
}

void watch_sse(benchmark::State& state, const std::string& bytes, std::size_t piece_bytes) {
  for (auto _ : state) {
    AnswerWatch watch(AnswerKind::sse);
    for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
      watch.feed(std::string_view(bytes).substr(at, piece_bytes));
    }
    watch.finish();
    benchmark::DoNotOptimize(watch.facts().generated.data());
  }
  set_bytes(state, bytes);
}

void plain_memchr(benchmark::State& state, const std::string& bytes) {
  for (auto _ : state) {
    std::size_t lines = 0;
    for (std::size_t at = bytes.find('\n'); at != std::string::npos;
         at = bytes.find('\n', at + 1)) {
      ++lines;
    }
    benchmark::DoNotOptimize(lines);
  }
  set_bytes(state, bytes);
}

void add_body(const std::string& name, const std::string& body) {
  using benchmark::RegisterBenchmark;
  RegisterBenchmark((name + "/toki_parse_splice").c_str(), toki_parse_splice, body);
  RegisterBenchmark((name + "/simdjson_on_demand").c_str(), simdjson_on_demand, body);
  RegisterBenchmark((name + "/simdjson_dom").c_str(), simdjson_dom, body);
  RegisterBenchmark((name + "/memcpy").c_str(), plain_memcpy, body);
}

void add_answer(const std::string& name, const std::string& bytes) {
  using benchmark::RegisterBenchmark;
  RegisterBenchmark((name + "/toki_pieces_of_1400").c_str(), watch_sse, bytes, std::size_t{1400});
  RegisterBenchmark((name + "/toki_pieces_of_64k").c_str(), watch_sse, bytes, std::size_t{65536});
  RegisterBenchmark((name + "/memchr").c_str(), plain_memchr, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  add_body("chat_1k", chat_body(1000));
  add_body("chat_100k", chat_body(100'000));
  add_body("chat_1m", chat_body(1'000'000));
  add_body("wide_100k", wide_body(100'000));
  add_body("ids_100k", ids_body(100'000));
  add_body("image_5m", image_body());
  add_answer("sse_chat", answer(false));
  add_answer("sse_native", answer(true));
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
