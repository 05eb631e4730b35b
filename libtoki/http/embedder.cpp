#include <toki/http/embedder.hpp>
#include <toki/scope.hpp>

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "http/control_call.hpp"
#include "http/json_string.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

namespace {

constexpr Millis kLookInterval{2000};  // a restart in between shows as a closed connection

std::chrono::steady_clock::time_point now() {
  return std::chrono::steady_clock::now();
}

// The server takes whole segments only. Its words are all that tells this from other failures.
bool too_large(const Reply& reply) {
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply.body.data(), reply.body.size()).get(root) != simdjson::SUCCESS) {
    return false;
  }
  const std::string message = text(root, "/error/message");
  return text(root, "/error/type") == "exceed_context_size_error" ||
         message.find("too large") != std::string::npos ||
         message.find("batch size") != std::string::npos;
}

std::string body_of(TokenSpan tokens, const std::vector<Segment>& segments, TokenSpan before,
                    TokenSpan after) {
  std::string body = R"({"encoding_format":"float","input":[)";
  auto out = std::back_inserter(body);
  Tokens ids;
  for (const Segment& segment : segments) {
    const TokenSpan part = tokens.subspan(segment.begin, segment.count);
    ids.assign(before.begin(), before.end());
    ids.insert(ids.end(), part.begin(), part.end());
    ids.insert(ids.end(), after.begin(), after.end());
    fmt::format_to(out, "{}[{}]", &segment == &segments.front() ? "" : ",", fmt::join(ids, ","));
  }
  return body + "]}";
}

// A finite vector of at most kMaxDimension values, or an empty one.
std::vector<float> read_vector(dom::element item) {
  dom::array numbers;
  if (item["embedding"].get(numbers) != simdjson::SUCCESS || numbers.size() > kMaxDimension) {
    return {};
  }
  std::vector<float> values;
  values.reserve(numbers.size());
  for (const dom::element number : numbers) {
    double value = 0;
    if (number.get(value) != simdjson::SUCCESS || !std::isfinite(static_cast<float>(value))) {
      return {};
    }
    values.push_back(static_cast<float>(value));
  }
  return values;
}

// One vector for each of `count` texts, all of one dimension, in the order of the texts.
Result<std::vector<std::vector<float>>> read_vectors(const Reply& reply, std::size_t count) {
  dom::parser parser;
  dom::element root;
  dom::array data;
  if (parser.parse(reply.body.data(), reply.body.size()).get(root) != simdjson::SUCCESS ||
      root["data"].get(data) != simdjson::SUCCESS || data.size() != count) {
    return nonsense("/v1/embeddings");
  }
  std::vector<std::vector<float>> vectors(count);
  std::size_t dimension = 0;
  for (const dom::element item : data) {
    const auto index = member<std::uint64_t>(item, "/index", count);
    std::vector<float> values = read_vector(item);
    dimension = dimension == 0 ? values.size() : dimension;
    if (index >= count || !vectors[index].empty() || values.empty() || values.size() != dimension) {
      return nonsense("/v1/embeddings");
    }
    vectors[index] = std::move(values);
  }
  return vectors;
}

}  // namespace

Embedder::Embedder(Upstream& upstream, EmbedderLimits limits)
    : upstream_(upstream), limits_(limits) {}

bool Embedder::available() const {
  return !unsupported_ && now() >= retry_at_;
}

void Embedder::probe_again() {
  unsupported_ = false;
  retry_at_ = {};
  window_ = 0;
  context_ = 0;
}

asio::awaitable<Result<Embedding>> Embedder::async_embed(std::string_view json_string) {
  if (unsupported_) {
    co_return Error{Errc::unsupported, "the embedding server makes no embeddings"};
  }
  if (!available()) {
    co_return Error{Errc::unavailable, "the embedding server failed a moment ago"};
  }
  auto embedding = co_await embed(inner(json_string));
  if (!embedding && embedding.error().code == Errc::unsupported) {
    unsupported_ = true;
  } else if (!embedding && embedding.error().code != Errc::invalid_argument &&
             embedding.error().code != Errc::cancelled) {
    retry_at_ = now() + limits_.pause;
    looked_ = {};
  }
  co_return embedding;
}

asio::awaitable<Result<Embedding>> Embedder::embed(std::string_view escaped) {
  const bool suspicion = upstream_.take_suspicion();
  if (suspicion || window_ == 0 || now() - looked_ > kLookInterval) {
    if (auto status = co_await look(); !status) {
      co_return std::move(status).error();
    }
  }
  const std::string model = model_;
  const auto tokens = co_await tokenize(upstream_, escaped, {}, {}, limits_.call);
  if (!tokens) {
    co_return tokens.error();
  }
  if (tokens->empty()) {
    co_return Error{Errc::invalid_argument, "there is nothing to embed"};
  }
  for (;;) {
    const auto segments = segments_of(tokens->size());
    const auto vectors = co_await post(*tokens, segments);
    const std::size_t longest = segments.front().count;
    if (!vectors && vectors.error().code == Errc::invalid_argument && window_ > kMinWindow) {
      window_ = std::max(kMinWindow, std::min(window_, longest) / 2);
      continue;
    }
    if (!vectors) {
      Error error = vectors.error();
      error.code = error.code == Errc::invalid_argument ? Errc::backend : error.code;
      co_return error;
    }
    if (upstream_.take_suspicion()) {
      if (auto status = co_await look(); !status) {
        co_return std::move(status).error();
      }
    }
    if (model != model_) {
      co_return Error{Errc::backend, "the embedding model was changed meanwhile"};
    }
    std::vector<std::size_t> lengths;
    for (const Segment& segment : segments) {
      lengths.push_back(segment.count);
    }
    Embedding result{
        .kind = EmbeddingKind::model, .values = average(*vectors, lengths), .model = {}};
    identity_ = Scope({model_, std::to_string(result.values.size())}).bytes();
    result.model = identity_;
    co_return result;
  }
}

std::vector<Segment> Embedder::segments_of(std::size_t tokens) const {
  auto all = embedding_segments(tokens, window_, window_ / 8);
  if (all.size() <= kMaxSegments) {
    return all;
  }
  std::vector<Segment> spread;
  for (std::size_t i = 0; i < kMaxSegments; ++i) {
    spread.push_back(all[i * (all.size() - 1) / (kMaxSegments - 1)]);
  }
  return spread;
}

// Which model it is and how much it takes. What was learnt of another one means nothing.
asio::awaitable<Status> Embedder::look() {
  dom::parser parser;
  dom::element root;
  const auto props = co_await upstream_.call("GET", "/props", {}, {}, limits_.call);
  if (const auto failed = failure("/props", props)) {
    co_return *failed;
  }
  if (parser.parse(props->body.data(), props->body.size()).get(root) != simdjson::SUCCESS) {
    co_return nonsense("/props");
  }
  const std::uint64_t context = number(root, "/default_generation_settings/n_ctx");
  const std::string path = text(root, "/model_path");
  std::string size;
  const auto models = co_await upstream_.call("GET", "/v1/models", {}, {}, limits_.call);
  if (models && models->status == 200 &&
      parser.parse(models->body.data(), models->body.size()).get(root) == simdjson::SUCCESS) {
    size = fmt::format("{},{}", number(root, "/data/0/meta/size"),
                       number(root, "/data/0/meta/n_params"));
  }
  const std::string model = Scope({path, size}).bytes();
  looked_ = now();
  if (window_ != 0 && model == model_ && context == context_) {
    co_return Done{};
  }
  if (auto status = co_await learn_ends(); !status) {
    co_return std::move(status).error();
  }
  model_ = model;
  context_ = context;
  constexpr std::uint64_t kGuess = 512;  // where the server does not say its context
  const std::uint64_t takes = context > 0 ? context : kGuess;
  const std::uint64_t ends = before_.size() + after_.size();
  window_ = std::max<std::size_t>(kMinWindow, takes - std::min(takes, ends));
  co_return Done{};
}

// What the tokenizer puts around a text, for example [CLS] and [SEP].
asio::awaitable<Status> Embedder::learn_ends() {
  static constexpr std::string_view kWord = "word";
  const TokenizeFlags with_ends{.add_special = true};
  const auto bare = co_await tokenize(upstream_, kWord, {}, {}, limits_.call);
  if (!bare) {
    co_return bare.error();
  }
  const auto whole = co_await tokenize(upstream_, kWord, with_ends, {}, limits_.call);
  if (!whole) {
    co_return whole.error();
  }
  const auto at = std::search(whole->begin(), whole->end(), bare->begin(), bare->end());
  before_.clear();
  after_.clear();
  if (!bare->empty() && at != whole->end()) {
    before_.assign(whole->begin(), at);
    after_.assign(at + static_cast<std::ptrdiff_t>(bare->size()), whole->end());
  }
  co_return Done{};
}

// Errc::invalid_argument: a segment was too large.
asio::awaitable<Result<Embedder::Vectors>> Embedder::post(TokenSpan tokens,
                                                          const std::vector<Segment>& segments) {
  const std::string json = body_of(tokens, segments, before_, after_);
  const std::array<std::string_view, 1> body{json};
  const auto reply = co_await upstream_.call("POST", "/v1/embeddings", body, {}, limits_.call);
  if (!reply) {
    co_return reply.error();
  }
  if (reply->status != 200) {
    co_return too_large(*reply)
        ? Error{Errc::invalid_argument, "the embedding server takes no input of this length"}
        : refused("/v1/embeddings", *reply);
  }
  co_return read_vectors(*reply, segments.size());
}

}  // namespace toki::http
