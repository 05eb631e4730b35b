// LlamaServerBackend: llama-server's control calls. Each exists as a coroutine for Asio programs
// and, through Backend, with a completion.
//
// Threads:   the executor's; one thread or strand at a time.
// Ownership: the Upstream must outlive it; it must outlive its calls.
// Errors:    values, with the call and the server's own reason.
// Cost:      one exchange on loopback (about 0.1 ms) per call and what the server does; render
// takes one or two.
#pragma once

#include <toki/backend.hpp>
#include <toki/export.hpp>
#include <toki/http/upstream.hpp>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace toki::http {

struct LlamaServerLimits {
  Millis render{5000};  ///< rendering and tokenizing one request
  Millis control{
      60000};          ///< a control call; it waits for the server's main loop and for a busy slot
  Millis probe{2000};  ///< health and description
};

/// What /health says.
enum class Health : std::uint8_t {
  down,     ///< nobody listens
  silent,   ///< no answer in time
  loading,  ///< answers, but not with 200
  ok,
};

class TOKI_EXPORT LlamaServerBackend final : public Backend {
 public:
  LlamaServerBackend(boost::asio::any_io_executor executor, Upstream& upstream,
                     LlamaServerLimits limits = {});

  boost::asio::awaitable<Health> async_health();
  /// From /props alone, which does not wake a sleeping server: everything but what /v1/models and
  /// /slots add.
  boost::asio::awaitable<Result<BackendDescription>> async_props();
  boost::asio::awaitable<Result<BackendDescription>> async_describe();
  /// Per slot: is it working now? From /slots.
  boost::asio::awaitable<Result<std::vector<bool>>> async_working();
  /// Exact tokens of the request. For /infill, whose template only the server knows: the tokens of
  /// its extra files and its prefix, which order requests by what they share but are not the
  /// prompt.
  boost::asio::awaitable<Result<Tokens>> async_render(PromptSource source);
  boost::asio::awaitable<Result<Tokens>> async_tokenize(std::string_view json_string,
                                                        bool add_special,
                                                        std::string_view authorization = {});
  boost::asio::awaitable<Result<Prefilled>> async_prefill(SlotId slot, TokenSpan prompt);
  boost::asio::awaitable<Result<std::uint64_t>> async_slot_action(SlotId slot,
                                                                  std::string_view action,
                                                                  std::string_view name);
  /// Sends one tiny chat and finds out whether the server puts its start token before a rendered
  /// chat; false when it cannot be told.
  boost::asio::awaitable<bool> async_learn_chat_tokens();

  void describe(Completion<BackendDescription> done) override;
  void render(const PromptSource& source, Completion<Tokens> done) override;
  void prefill(SlotId slot, TokenSpan prompt, Completion<Prefilled> done) override;
  void save(SlotId slot, std::string_view name, Completion<std::uint64_t> done) override;
  void restore(SlotId slot, std::string_view name, Completion<std::uint64_t> done) override;
  void erase(SlotId slot, Completion<Done> done) override;

 private:
  boost::asio::awaitable<Result<Reply>> get(std::string_view target, Millis limit);
  boost::asio::awaitable<Result<Reply>> post(std::string_view target, std::string_view json,
                                             Millis limit, std::string_view authorization = {});
  boost::asio::awaitable<Result<Tokens>> render_chat(std::span<const std::string_view> body,
                                                     std::string_view authorization);

  boost::asio::any_io_executor executor_;
  Upstream& upstream_;
  LlamaServerLimits limits_;
  std::string media_marker_ = "<__media__>";
  bool chat_start_token_ = true;
};

}  // namespace toki::http
