// What is learnt of a server's tokenizer, at each of its starts, by trying it: whether chats begin with a
// start token, and in front of which special tokens a text may be cut.
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/use_awaitable.hpp>
#include <simdjson.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/control_call.hpp"
#include "http/special_texts.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

asio::awaitable<bool> LlamaServerBackend::async_learn_chat_tokens() {
  static constexpr std::string_view kChat =
      R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"id_slot":0,"cache_prompt":false})";
  const std::array<std::string_view, 1> body{kChat};
  auto reply = co_await post("/v1/chat/completions", kChat, limits_.control);
  if (!reply || reply->status != 200) {
    co_return false;
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return false;
  }
  const std::uint64_t counted = number(root, "/usage/prompt_tokens");
  for (const bool start_token : {true, false}) {
    chat_start_token_ = start_token;
    const auto rendered = co_await render_chat(body, {}, {});
    if (rendered && rendered->tokens.size() == counted) {
      co_return true;
    }
  }
  chat_start_token_ = true;
  co_return false;
}

// The one token that `text` becomes when special tokens are read, and only then.
asio::awaitable<Result<std::optional<Token>>> LlamaServerBackend::special_id(
    std::string_view text) {
  const auto special = co_await tokenize(upstream_, text, {}, {}, limits_.render);
  if (!special) {
    co_return special.error();
  }
  const TokenizeFlags as_text{.add_special = false, .parse_special = false};
  const auto plain = co_await tokenize(upstream_, text, as_text, {}, limits_.render);
  if (!plain) {
    co_return plain.error();
  }
  co_return special->size() == 1 && *plain != *special ? std::optional<Token>((*special)[0])
                                                       : std::nullopt;
}

// Are tokens of the parts the tokens of the whole when it is cut in front of `text`? Some special
// tokens swallow white space beside them, some tokenizers put something in front of what follows.
asio::awaitable<Result<bool>> LlamaServerBackend::cuts_exactly(std::string_view text) {
  static constexpr std::array<std::string_view, 8> kAfter{
      "user\\nword ", " word\\n\\n", "word  ", "\\n  word\\t", "", " ", "-word.", "word"};
  std::vector<std::string> parts{"The word"};
  std::string whole = parts[0];
  for (const std::string_view after : kAfter) {
    parts.push_back(std::string(text).append(after));
    whole += parts.back();
  }
  const TokenizeFlags with_start{.add_special = true};
  const auto wanted = co_await tokenize(upstream_, whole, with_start, {}, limits_.render);
  if (!wanted) {
    co_return wanted.error();
  }
  Tokens joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TokenizeFlags flags{.add_special = i == 0};
    const auto tokens = co_await tokenize(upstream_, parts[i], flags, {}, limits_.render);
    if (!tokens) {
      co_return tokens.error();
    }
    joined.insert(joined.end(), tokens->begin(), tokens->end());
  }
  co_return joined == *wanted;
}

asio::awaitable<std::size_t> LlamaServerBackend::async_learn_special_tokens() {
  forget_tokens();
  const std::uint64_t epoch = tokenizer_epoch_;
  if (limits_.token_cache_bytes == 0) {
    co_return 0;
  }
  const auto reply = co_await get("/props", limits_.probe);
  dom::parser parser;
  dom::element root;
  if (!reply || reply->status != 200 ||
      parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return 0;
  }
  const std::array<std::string, 3> sources{text(root, "/bos_token"), text(root, "/eos_token"),
                                           text(root, "/chat_template")};
  std::vector<SpecialToken> found;
  const std::vector<std::string> candidates = special_texts(sources);
  for (const std::string& candidate : candidates) {
    const auto id = co_await special_id(candidate);
    if (!id) {
      co_return 0;  // it does not answer: nothing is learnt
    }
    if (!*id) {
      continue;
    }
    const auto exact = co_await cuts_exactly(candidate);
    if (!exact) {
      co_return 0;
    }
    if (*exact) {
      found.push_back({.text = candidate, .id = **id});
    }
  }
  if (epoch != tokenizer_epoch_) {
    co_return 0;
  }
  const std::size_t count = found.size();
  token_cache_.reset(std::move(found));
  co_return count;
}

void LlamaServerBackend::forget_tokens() {
  ++tokenizer_epoch_;
  token_cache_.reset({});
  cache_stats_.off = false;
  messages_shapes_.clear();
  evens_billing_.reset();
}

bool LlamaServerBackend::tokens_were_wrong() {
  if (std::exchange(cache_stats_.off, true)) {
    return false;
  }
  token_cache_.reset({});
  return true;
}

TokenCacheStats LlamaServerBackend::token_cache_stats() const {
  TokenCacheStats stats = cache_stats_;
  stats.texts = token_cache_.texts();
  stats.bytes = token_cache_.bytes();
  return stats;
}

}  // namespace toki::http
