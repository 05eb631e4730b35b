// How a request's prompt becomes tokens: the server's own template and tokenizer are asked for what the
// token cache does not know. (/v1/messages: render_messages.cpp.)
#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>
#include <toki/http/llama_server_backend.hpp>

#include <boost/asio/use_awaitable.hpp>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http/control_call.hpp"
#include "http/json_string.hpp"
#include "http/media_tokens.hpp"
#include "http/responses_input.hpp"

namespace toki::http {

namespace asio = boost::asio;

namespace {

Result<Tokens> read_ids(const JsonField& list) {
  Tokens tokens;
  Children items(list.value);
  while (const JsonField* item = items.next()) {
    const auto value = as_integer(*item);
    if (!value || *value < INT32_MIN || *value > INT32_MAX) {
      return Error{Errc::unsupported, "the prompt's token ids are not integers"};
    }
    tokens.push_back(static_cast<Token>(*value));
  }
  return tokens;
}

// What of an infill request comes before the place to be filled, as one JSON string: it orders requests
// by what they share.
std::optional<std::string> infill_text(const Body& body) {
  std::string joined = "\"";
  if (const JsonField* extra = body.find("input_extra");
      extra != nullptr && extra->kind == JsonKind::array) {
    for (const JsonField& file : children(extra->value)) {
      const auto members =
          file.kind == JsonKind::object ? children(file.value) : std::vector<JsonField>{};
      for (const JsonField& member : members) {
        if ((member.key == "filename" || member.key == "text") && member.kind == JsonKind::string) {
          joined.append(inner(member.value)).append("\\n");
        }
      }
    }
  }
  const JsonField* prefix = body.find("input_prefix");
  if (prefix == nullptr || prefix->kind != JsonKind::string) {
    return std::nullopt;
  }
  return joined.append(inner(prefix->value)).append("\"");
}

}  // namespace

asio::awaitable<Result<Tokens>> LlamaServerBackend::async_tokenize(std::string_view json_string,
                                                                   bool add_special,
                                                                   std::string_view authorization) {
  const TokenizeFlags flags{.add_special = add_special};
  co_return co_await tokenize(upstream_, inner(json_string), flags, authorization, limits_.render);
}

// Asks the server only for what the cache does not know: the rest after the last known boundary.
asio::awaitable<Result<Rendered>> LlamaServerBackend::tokenize_text(std::string_view escaped,
                                                                    bool start_token,
                                                                    std::string_view authorization,
                                                                    std::string_view tenant) {
  Rendered rendered;
  auto known =
      cache_stats_.off ? TokenCache::Known{} : token_cache_.find(escaped, start_token, tenant);
  const std::uint64_t epoch = tokenizer_epoch_;
  const std::size_t saved = known.tokens.size();
  rendered.tokens = std::move(known.tokens);
  if (known.bytes > 0 && known.bytes == escaped.size()) {
    ++cache_stats_.whole_hits;
    cache_stats_.tokens_saved += saved;
    co_return rendered;
  }
  rendered.from_parts = known.bytes > 0;
  const TokenizeFlags flags{.add_special = start_token && !rendered.from_parts};
  const auto rest = co_await tokenize(upstream_, escaped.substr(known.bytes), flags, authorization,
                                      limits_.render);
  if (!rest) {
    co_return rest.error();
  }
  if (epoch != tokenizer_epoch_ && rendered.from_parts) {  // the parts are of two tokenizers
    co_return co_await tokenize_text(escaped, start_token, authorization, tenant);
  }
  cache_stats_.part_hits += rendered.from_parts ? 1 : 0;
  cache_stats_.tokens_saved += saved;
  rendered.tokens.insert(rendered.tokens.end(), rest->begin(), rest->end());
  if (epoch == tokenizer_epoch_ && !cache_stats_.off) {
    token_cache_.put(escaped, start_token, rendered.tokens, tenant);
  }
  co_return rendered;
}

// The text between the media has its own tokens, each medium its pseudo tokens.
asio::awaitable<Result<Rendered>> LlamaServerBackend::render_media(std::string_view prompt,
                                                                   const std::vector<Tokens>& media,
                                                                   std::string_view authorization,
                                                                   std::string_view tenant) {
  Rendered rendered{.tokens = {}, .surrogate = true, .from_parts = false, .text = {}};
  std::string_view rest = prompt;
  for (std::size_t i = 0; i <= media.size(); ++i) {
    const std::size_t end = rest.find(media_marker_);
    if ((end == std::string_view::npos) != (i == media.size())) {
      co_return Error{Errc::unsupported, "the prompt holds media"};
    }
    const std::string_view piece = rest.substr(0, end);
    rest.remove_prefix(i < media.size() ? end + media_marker_.size() : rest.size());
    if (i == 0 || !piece.empty()) {
      const bool start = i == 0 && chat_start_token_;
      const auto part = co_await tokenize_text(piece, start, authorization, tenant);
      if (!part) {
        co_return part.error();
      }
      rendered.tokens.insert(rendered.tokens.end(), part->tokens.begin(), part->tokens.end());
    }
    if (i < media.size()) {
      rendered.tokens.insert(rendered.tokens.end(), media[i].begin(), media[i].end());
    }
  }
  co_return rendered;
}

asio::awaitable<Result<Rendered>> LlamaServerBackend::render_chat(
    std::span<const std::string_view> body, std::string_view authorization,
    std::string_view tenant) {
  auto reply =
      co_await upstream_.call("POST", "/apply-template", body, authorization, limits_.render);
  if (const auto failed = failure("/apply-template", reply)) {
    co_return *failed;
  }
  const auto parsed = Body::parse(reply->body);
  const Body* answer = std::get_if<Body>(&parsed);
  const JsonField* prompt = answer != nullptr ? answer->find("prompt") : nullptr;
  if (prompt == nullptr || prompt->kind != JsonKind::string) {
    co_return nonsense("/apply-template");
  }
  if (prompt->value.find(media_marker_) != std::string_view::npos) {
    std::string chat;
    for (const std::string_view piece : body) {
      chat += piece;
    }
    const std::vector<Tokens> media = media_tokens(chat);
    co_return co_await render_media(inner(prompt->value), media, authorization, tenant);
  }
  auto rendered =
      co_await tokenize_text(inner(prompt->value), chat_start_token_, authorization, tenant);
  if (rendered) {
    rendered->text = prompt->value;
  }
  co_return rendered;
}

asio::awaitable<Result<Rendered>> LlamaServerBackend::async_render(PromptSource source) {
  const Endpoint endpoint = endpoint_of("POST", source.path);
  if (endpoint == Endpoint::chat) {
    const std::array<std::string_view, 1> whole{source.body};
    co_return co_await render_chat(whole, source.authorization, source.tenant);
  }
  const auto parsed = Body::parse(source.body);
  const Body* body = std::get_if<Body>(&parsed);
  const Error unknown{Errc::unsupported, "the request's prompt has no known form"};
  if (body == nullptr) {
    co_return unknown;
  }
  switch (endpoint) {
    case Endpoint::responses: {
      auto edits = responses_as_chat(*body);
      if (!edits) {
        co_return std::move(edits).error();
      }
      std::vector<std::string> storage;
      const auto pieces = splice(*body, *edits, storage);
      co_return co_await render_chat(pieces, source.authorization, source.tenant);
    }
    case Endpoint::completions:
    case Endpoint::completion: {
      const JsonField* prompt = body->find("prompt");
      if (prompt != nullptr && prompt->kind == JsonKind::array) {
        auto ids = read_ids(*prompt);
        if (!ids) {
          co_return std::move(ids).error();
        }
        Rendered rendered;
        rendered.tokens = std::move(*ids);
        co_return rendered;
      }
      if (prompt == nullptr || prompt->kind != JsonKind::string) {
        co_return unknown;
      }
      auto rendered =
          co_await tokenize_text(inner(prompt->value), true, source.authorization, source.tenant);
      if (rendered) {
        rendered->text = prompt->value;
      }
      co_return rendered;
    }
    case Endpoint::infill: {
      const auto text = infill_text(*body);
      if (!text) {
        co_return unknown;
      }
      auto tokens = co_await async_tokenize(*text, false, source.authorization);
      if (!tokens) {
        co_return std::move(tokens).error();
      }
      Rendered rendered{
          .tokens = std::move(*tokens), .surrogate = true, .from_parts = false, .text = {}};
      co_return rendered;
    }
    case Endpoint::messages:
      co_return co_await render_messages(*body, source.authorization, source.tenant);
    case Endpoint::chat:
    case Endpoint::none: break;
  }
  co_return unknown;
}

}  // namespace toki::http
