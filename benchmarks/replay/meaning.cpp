#include "meaning.hpp"

#include <toki/embedding.hpp>
#include <toki/http/body_edit.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <fmt/format.h>

#include "random.hpp"
#include "stop.hpp"

namespace replay {
namespace {

namespace asio = boost::asio;
using toki::Embedding;
using toki::Errc;
using toki::Error;
using toki::Result;

constexpr toki::http::Millis kCallLimit{60000};

asio::awaitable<void> embed_into(std::optional<Result<Embedding>>& into,
                                 toki::http::Embedder& embedder, std::string_view json) {
  into.emplace(co_await embedder.async_embed(json));
}

}  // namespace

toki::Tokens word_tokens(std::string_view text) {
  toki::Tokens tokens;
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t at = text.find_first_not_of(kSpace); at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    std::uint64_t hash = 0;
    for (; at < end; ++at) hash = bench::mix(hash + 1 + static_cast<unsigned char>(text[at]));
    tokens.push_back(static_cast<toki::Token>(hash >> 33));
    at = text.find_first_not_of(kSpace, end);
  }
  return tokens;
}

Meaning::Meaning(const MeaningSettings& settings) : settings_(settings) {
  if (!settings.server) return;
  upstream_.emplace(io_.get_executor(), *settings.server, std::string());
  embedder_.emplace(*upstream_, toki::http::EmbedderLimits{.call = kCallLimit, .pause = {}});
}

Result<Embedding> Meaning::embed(std::string_view text) {
  const std::string json = toki::http::quote(text);
  std::optional<Result<Embedding>> made;
  io_.restart();
  asio::co_spawn(io_, embed_into(made, *embedder_, json), asio::detached);
  io_.run();
  return made ? std::move(*made) : Result<Embedding>(Error{Errc::backend, "no embedding came"});
}

toki::Status Meaning::probe() {
  if (!embedder_) return toki::Done{};
  const auto made = embed("Is anybody there?");
  if (made) return toki::Done{};
  return Error{made.error().code, fmt::format("--embed-backend http://{}: {}",
                                              settings_.server->authority(), made.error().detail)};
}

void Meaning::decide(toki::Comparison& found, std::string_view a, std::string_view b) {
  if (settings_.words) {
    const Embedding of_a = toki::hash_embedding(word_tokens(a));
    const Embedding of_b = toki::hash_embedding(word_tokens(b));
    toki::decide(found, &of_a, &of_b, settings_.cosine);
    return;
  }
  if (!embedder_ || stop::requested()) {
    if (embedder_) why_ = "stopped";
    missed_ += embedder_ ? 1U : 0U;
    toki::decide(found, nullptr, nullptr);
    return;
  }
  const auto of_a = embed(a);
  const auto of_b = of_a ? embed(b) : of_a;
  if (!of_b) {
    ++missed_;
    why_ = of_b.error().detail;
  }
  toki::decide(found, of_a ? &*of_a : nullptr, of_b ? &*of_b : nullptr, settings_.cosine);
}

}  // namespace replay
