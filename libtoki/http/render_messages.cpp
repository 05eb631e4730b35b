// The tokens of a /v1/messages body: converted here as the server does it, then rendered and tokenized
// like a chat. How a build converts can only be told by what it counts, so the first body of each
// shape is counted by the server as well.
#include <toki/http/body_edit.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <utility>

#include "http/control_call.hpp"
#include "http/messages_input.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace dom = simdjson::dom;

asio::awaitable<Result<std::uint64_t>> LlamaServerBackend::count_messages(
    std::string_view body, std::string_view authorization) {
  static constexpr std::string_view kCall = "/v1/messages/count_tokens";
  auto reply = co_await post(kCall, body, limits_.render, authorization);
  if (const auto failed = failure(kCall, reply)) {
    co_return *failed;
  }
  dom::parser parser;
  dom::element root;
  if (parser.parse(reply->body.data(), reply->body.size()).get(root) != simdjson::SUCCESS) {
    co_return nonsense(kCall);
  }
  co_return number(root, "/input_tokens");
}

// Three stamps that hardly have the same number of tokens: a server that evens them out counts alike.
asio::awaitable<Result<bool>> LlamaServerBackend::evens_billing(std::string_view authorization) {
  static constexpr std::array<std::string_view, 3> kStamps{"fffff", "~}{|^", "Zq9#x"};
  std::optional<std::uint64_t> first;
  for (const std::string_view stamp : kStamps) {
    const std::string body =
        fmt::format(R"({{"max_tokens":1,"system":"x-anthropic-billing-header: cch={};",)"
                    R"("messages":[{{"role":"user","content":"a"}}]}})",
                    stamp);
    const auto count = co_await count_messages(body, authorization);
    if (!count) {
      co_return count.error();
    }
    if (first && *first != *count) {
      co_return false;
    }
    first = *count;
  }
  co_return true;
}

std::optional<std::string> LlamaServerBackend::chat_of_messages(const Body& body) const {
  auto chat = messages_as_chat(body, evens_billing_.value_or(true));
  return chat ? std::optional(std::move(chat->body)) : std::nullopt;
}

asio::awaitable<Result<Rendered>> LlamaServerBackend::render_messages(
    const Body& body, std::string_view authorization, std::string_view tenant) {
  const std::uint64_t epoch = tokenizer_epoch_;
  if (!evens_billing_ && has_billing_line(body)) {
    const auto evens = co_await evens_billing(authorization);
    if (!evens) {
      co_return evens.error();
    }
    evens_billing_ = *evens;
  }
  const auto chat = messages_as_chat(body, evens_billing_.value_or(true));
  if (!chat) {
    co_return chat.error();
  }
  const Error otherwise{Errc::unsupported,
                        "the server renders such a /v1/messages body in a way that is not known"};
  const auto known = messages_shapes_.find(chat->shape);
  if (known != messages_shapes_.end() && !known->second) {
    co_return otherwise;
  }
  const bool counted = known != messages_shapes_.end();
  const std::array<std::string_view, 1> whole{chat->body};
  auto rendered = co_await render_chat(whole, authorization, tenant);
  if (!rendered || counted) {
    if (rendered) {
      rendered->messages_shape = chat->shape;
    }
    co_return rendered;
  }
  const auto count = co_await count_messages(body.text(), authorization);
  if (!count) {
    co_return count.error();
  }
  const bool same = *count == rendered->tokens.size();
  if (!same && rendered->from_parts) {
    (void)tokens_were_wrong();  // the parts may be to blame: the next one tells
    co_return otherwise;
  }
  if (epoch == tokenizer_epoch_) {
    messages_shapes_[chat->shape] = same;
  }
  if (!same) {
    co_return otherwise;
  }
  rendered->messages_shape = chat->shape;
  co_return rendered;
}

}  // namespace toki::http
