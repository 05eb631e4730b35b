// LlamaServerBackend: llama-server's control calls. Each exists as a coroutine for Asio programs
// and, through Backend, with a completion.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: the Upstream must outlive it; it must outlive its calls.
// Errors:    values, with the call and the server's own reason.
// Cost:      one exchange on loopback (about 0.1 ms) per call and what the server does; render
// takes one or two. What was tokenized before is not tokenized again (TokenCache): of a growing
// conversation only the new part is.
#pragma once

#include <toki/backend.hpp>
#include <toki/embedding.hpp>
#include <toki/export.hpp>
#include <toki/http/embedder.hpp>
#include <toki/http/upstream.hpp>
#include <toki/token_cache.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace toki::http {

class Body;

/// How long its calls may take.
struct LlamaServerLimits {
  Millis render{5000};  ///< rendering and tokenizing one request
  Millis control{
      60000};          ///< a control call; it waits for the server's main loop and for a busy slot
  Millis save{30000};  ///< saving a slot's state
  Millis restore{30000};  ///< restoring or erasing one
  Millis probe{2000};     ///< health and description
  std::size_t token_cache_bytes =
      std::size_t{64} << 20;  ///< memory for texts and their tokens; 0: each is tokenized anew
};

/// A request's tokens, and what they are worth.
struct Rendered {
  Tokens tokens;  ///< of the whole prompt
  /// They order requests by what they share, but are not the prompt: for /infill, whose template
  /// only the server knows, and for chats with media, in which eight negative tokens stand for each
  /// medium.
  bool surrogate = false;
  /// Put together from remembered parts: when the server counts otherwise, tell
  /// tokens_were_wrong().
  bool from_parts = false;
  /// The prompt as a JSON string, for async_embed(); empty where the request itself holds tokens,
  /// and for surrogates.
  std::string text;
  /// /v1/messages: the kinds of things in the body. When the server counts otherwise and it was not
  /// from_parts, tell messages_were_wrong(). 0: another call.
  std::uint32_t messages_shape = 0;
};

/// What the token cache holds and has saved since the start.
struct TokenCacheStats {
  std::uint64_t texts = 0;         ///< now
  std::uint64_t bytes = 0;         ///< now
  std::uint64_t whole_hits = 0;    ///< prompts that were not tokenized at all
  std::uint64_t part_hits = 0;     ///< prompts of which only the end was
  std::uint64_t tokens_saved = 0;  ///< tokens that came from the cache
  bool off = false;                ///< until the next start of the server
};

/// A prompt that was continued greedily.
struct Continued {
  Tokens tokens;                 ///< generated
  std::vector<double> logprobs;  ///< of each, where the server tells
  std::uint64_t cached = 0;      ///< prompt tokens reused
};

/// What /health says.
enum class Health : std::uint8_t {
  down,     ///< nobody listens
  silent,   ///< no answer in time
  loading,  ///< answers, but not with 200
  ok,
};

/// llama-server's control calls, as coroutines and as a Backend. Every field of its answers is
/// optional, and its build is never asked for: what it answers decides.
class TOKI_EXPORT LlamaServerBackend final : public Backend {
 public:
  /// `upstream` and `embedder` (null: no embeddings) must outlive it.
  LlamaServerBackend(boost::asio::any_io_executor executor, Upstream& upstream,
                     LlamaServerLimits limits = {}, Embedder* embedder = nullptr);

  /// Within LlamaServerLimits::probe.
  boost::asio::awaitable<Health> async_health();
  /// Why the last async_health() came out as `down`; empty: it did not.
  const std::string& health_failure() const noexcept { return health_failure_; }
  /// From /props alone, which does not wake a sleeping server: everything but what /v1/models and
  /// /slots add.
  boost::asio::awaitable<Result<BackendDescription>> async_props();
  /// All of it; may wake a sleeping server.
  boost::asio::awaitable<Result<BackendDescription>> async_describe();
  /// Token ids there are, as the last description said; 0: it did not.
  std::uint64_t vocabulary() const noexcept { return vocabulary_; }
  /// Per slot: is it working now? From /slots.
  boost::asio::awaitable<Result<std::vector<bool>>> async_working();
  /// Per slot: tokens that it holds, where the server says so. From /slots.
  boost::asio::awaitable<Result<std::vector<std::uint64_t>>> async_held();
  /// The request's tokens. Media whose number differs from that of the markers in the rendered
  /// prompt: Errc::unsupported, "the prompt holds media". The first /v1/messages body of each shape
  /// is counted by the server too; where it counts otherwise, bodies of that shape are unsupported.
  boost::asio::awaitable<Result<Rendered>> async_render(PromptSource source);
  /// The tokens of a text as it stands in a JSON text; `add_special`: with the model's start token.
  boost::asio::awaitable<Result<Tokens>> async_tokenize(std::string_view json_string,
                                                        bool add_special,
                                                        std::string_view authorization = {});
  /// Backend::prefill(), by a completion of no tokens.
  boost::asio::awaitable<Result<Prefilled>> async_prefill(SlotId slot, TokenSpan prompt);
  /// Slot actions. Errc::unsupported: the server will never do it (501, or started without
  /// --slot-save-path).
  boost::asio::awaitable<Result<Timed>> async_save(SlotId slot, std::string_view name);
  /// As async_save().
  boost::asio::awaitable<Result<Timed>> async_restore(SlotId slot, std::string_view name);
  /// As async_save().
  boost::asio::awaitable<Result<Done>> async_erase(SlotId slot);
  /// Computes the prompt in the slot and continues it greedily by `count` tokens, for trials.
  boost::asio::awaitable<Result<Continued>> async_continue(SlotId slot, TokenSpan prompt,
                                                           std::uint32_t count);
  /// Sends one tiny chat to slot 0 and finds out whether the server puts its start token before a
  /// rendered chat; false when it cannot be told.
  boost::asio::awaitable<bool> async_learn_chat_tokens();

  /// Finds the special tokens of the model's chat template in front of which a text can be cut
  /// without changing its tokens, by trying each on the server, and lets the token cache use them:
  /// how many. 0: only whole texts are remembered. Some ten small calls a candidate.
  boost::asio::awaitable<std::size_t> async_learn_special_tokens();
  /// The server was started again or changed: what was learnt of its tokens means nothing now.
  void forget_tokens();
  /// Forgets the texts, and goes on remembering new ones.
  void forget_texts() { token_cache_.clear(); }
  /// A prompt that was put together from remembered parts did not have as many tokens as the server
  /// counted: remembers nothing until forget_tokens(). True when this is news.
  bool tokens_were_wrong();
  /// Of the token cache.
  TokenCacheStats token_cache_stats() const;

  /// Bodies of this shape are unsupported from now on, until forget_tokens().
  void messages_were_wrong(std::uint32_t shape) { messages_shapes_[shape] = false; }
  /// The body of a chat that is rendered as this /v1/messages body is; none: that is not known.
  std::optional<std::string> chat_of_messages(const Body& body) const;

  /// `json_string` as it stands in a JSON text. Errc::unsupported without an Embedder.
  boost::asio::awaitable<Result<Embedding>> async_embed(std::string_view json_string);

  void describe(Completion<BackendDescription> done) override;
  /// Prompts with media are unsupported here, because their tokens are not exact.
  void render(const PromptSource& source, Completion<Tokens> done) override;
  void prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) override;
  void save(SlotId slot, std::string_view name, Completion<Timed> done) override;
  void restore(SlotId slot, std::string_view name, Completion<Timed> done) override;
  void erase(SlotId slot, Completion<Done> done) override;
  void embed(std::string_view text, Completion<Embedding> done) override;

 private:
  boost::asio::awaitable<Result<Timed>> slot_action(SlotId slot, std::string_view action,
                                                    std::string_view name, std::string_view count,
                                                    std::string_view time);
  boost::asio::awaitable<Result<Reply>> get(std::string_view target, Millis limit);
  boost::asio::awaitable<Result<Reply>> post(std::string_view target, std::string_view json,
                                             Millis limit, std::string_view authorization = {});
  boost::asio::awaitable<Result<Rendered>> render_chat(std::span<const std::string_view> body,
                                                       std::string_view authorization,
                                                       std::string_view tenant);
  boost::asio::awaitable<Result<Rendered>> render_media(std::string_view prompt,
                                                        const std::vector<Tokens>& media,
                                                        std::string_view authorization,
                                                        std::string_view tenant);
  boost::asio::awaitable<Result<Rendered>> tokenize_text(std::string_view escaped, bool start_token,
                                                         std::string_view authorization,
                                                         std::string_view tenant);
  boost::asio::awaitable<Result<Rendered>> render_messages(const Body& body,
                                                           std::string_view authorization,
                                                           std::string_view tenant);
  boost::asio::awaitable<Result<std::uint64_t>> count_messages(std::string_view body,
                                                               std::string_view authorization);
  boost::asio::awaitable<Result<bool>> evens_billing(std::string_view authorization);
  boost::asio::awaitable<Result<std::optional<Token>>> special_id(std::string_view text);
  boost::asio::awaitable<Result<bool>> cuts_exactly(std::string_view text);

  boost::asio::any_io_executor executor_;
  Upstream& upstream_;
  LlamaServerLimits limits_;
  std::string media_marker_ = "<__media__>";
  std::string health_failure_;
  std::string model_alias_;  // named in slot actions: a server of several models wants it
  std::uint64_t vocabulary_ = 0;
  bool chat_start_token_ = true;
  Embedder* embedder_;
  TokenCache token_cache_;
  TokenCacheStats cache_stats_;                              // but for what the cache itself knows
  std::uint64_t tokenizer_epoch_ = 0;                        // counts forget_tokens()
  std::unordered_map<std::uint32_t, bool> messages_shapes_;  // counted: was our count the server's?
  std::optional<bool>
      evens_billing_;  // does the server even out billing lines? none: not asked yet
};

}  // namespace toki::http
