#include "operations.hpp"

#include <toki/http/async_driver.hpp>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "query.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::ForgottenPrompt;
using toki::http::Millis;

namespace {

constexpr std::size_t kEntriesShown = 1000;
constexpr std::size_t kTreeShown = 128;
constexpr std::uint64_t kFlushMs = 30000;
constexpr std::uint64_t kMostFlushMs = 600000;
constexpr Millis kForgetLimit{30000};  // for saves under way, and for the index
constexpr Millis kLook{10};

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = fault == std::errc() && end == text.data() + text.size();
  return whole ? std::optional(number) : std::nullopt;
}

Page forgotten(std::size_t prompts, std::uint64_t segments, bool index) {
  return {.body = fmt::format("{{\"prompts\":{},\"segments\":{},\"index\":{}}}\n", prompts,
                              segments, index)};
}

Page not_on_disk(const toki::Error& error) {
  return error_page(500, "not all of it could be removed from the disk: " + error.detail);
}

}  // namespace

Page Operations::entries() const {
  std::string rows;
  const auto add = [&](const std::string& row) { rows += (rows.empty() ? "" : ",") + row; };
  const auto remembered = [&](const toki::PromptRecord& prompt) {
    const toki::HeldPrompt held =
        store_ != nullptr ? store_->held(prompt.scope, prompt.tokens) : toki::HeldPrompt{};
    add(fmt::format(
        R"({{"id":{},"tokens":{},"use":{:.2f},"last_used_ms":{},"embedding":"{}","stored_id":null,)"
        R"("stored_tokens":{},"stored_bytes":{},"snapshot":{}}})",
        prompt.id, prompt.tokens.size(), prompt.use, prompt.last_used_ms,
        to_string(prompt.embedding.kind), held.tokens, held.bytes, held.snapshot));
  };
  engine_.each_prompt(kEntriesShown, remembered);
  std::size_t stored_only = 0;
  if (store_ != nullptr) {
    for (const toki::StoredPrompt& stored : store_->prompts(kEntriesShown)) {
      const auto [scope, tokens] = store_->prompt(stored.id);
      const toki::NearestPrompt nearest = engine_.nearest(scope, tokens);
      if (nearest.tokens > 0 &&
          nearest.common == std::min<std::uint64_t>(nearest.tokens, tokens.size())) {
        continue;  // a remembered prompt, or its answer, or a beginning of it
      }
      ++stored_only;
      const toki::HeldPrompt held = store_->held(scope, tokens);
      const std::uint64_t bytes = held.tokens >= stored.tokens ? held.bytes : stored.bytes;
      add(fmt::format(R"({{"id":null,"tokens":{},"use":{:.2f},"last_used_ms":{},"embedding":null,)"
                      R"("stored_id":{},"stored_tokens":{},"stored_bytes":{},"snapshot":{}}})",
                      stored.tokens, stored.use, stored.last_used_ms, stored.id, stored.tokens,
                      bytes, stored.snapshot));
    }
  }
  return {.body = fmt::format("{{\"total\":{},\"entries\":[{}]}}\n",
                              engine_.stats().prompts_known + stored_only, rows)};
}

Page Operations::tree() const {
  std::string rows;
  engine_.each_prompt_in_order(kTreeShown, [&](const toki::PromptRecord& prompt,
                                               std::uint64_t common) {
    const std::uint64_t stored =
        store_ != nullptr ? store_->held(prompt.scope, prompt.tokens).tokens : 0;
    rows += fmt::format(
        R"({}{{"id":{},"tokens":{},"common":{},"stored_tokens":{},"use":{:.2f},"last_used_ms":{}}})",
        rows.empty() ? "" : ",", prompt.id, prompt.tokens.size(), common, stored, prompt.use,
        prompt.last_used_ms);
  });
  return {.body = fmt::format("{{\"total\":{},\"prompts\":[{}]}}\n", engine_.stats().prompts_known,
                              rows)};
}

Page Operations::requests(std::string_view target) const {
  const auto text = query_field(target, "after");
  const auto after = text ? number_of(*text) : std::optional<std::uint64_t>(0);
  if (!after || !query_has_only(target, {"after"})) {
    return error_page(400, "the only parameter is after, the number of a request");
  }
  return {.body = recent_.to_json(*after)};
}

asio::awaitable<Page> Operations::flush(std::string_view target) {
  const auto text = query_field(target, "limit_ms");
  const auto limit = text ? number_of(*text) : std::optional(kFlushMs);
  if (!limit || *limit > kMostFlushMs || !query_has_only(target, {"limit_ms"})) {
    co_return error_page(400, fmt::format("the only parameter is limit_ms, 0 to {}", kMostFlushMs));
  }
  const auto deadline = std::chrono::steady_clock::now() + Millis(*limit);
  const toki::http::Flushed done = co_await housekeeper_.flush(Millis(*limit));
  const auto left = std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now());
  const bool index = co_await index_written(std::max(left, kLook));
  co_return Page{.body = fmt::format("{{\"saved\":{},\"unsaved\":[{}],\"index\":{}}}\n", done.saved,
                                     fmt::join(done.unsaved, ","), index)};
}

// Not IndexStore::flush(), which would hold up the executor.
asio::awaitable<bool> Operations::index_written(Millis limit) {
  asio::steady_timer pause(co_await asio::this_coro::executor);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const std::uint64_t dropped = index_.stats().dropped;
  for (;;) {
    const toki::IndexStoreStats stats = index_.stats();
    if (stats.queued == 0) {
      co_return stats.open&& stats.dropped == dropped;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      co_return false;
    }
    pause.expires_after(kLook);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

// What was being saved when something was forgotten goes to the store after that.
asio::awaitable<void> Operations::saves_ended(std::vector<std::string> names) {
  asio::steady_timer pause(co_await asio::this_coro::executor);
  const auto deadline = std::chrono::steady_clock::now() + kForgetLimit;
  for (;;) {
    const std::vector<std::string> now = engine_.saving();
    const bool running = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return std::find(now.begin(), now.end(), name) != now.end();
    });
    if (!running || std::chrono::steady_clock::now() >= deadline) {
      co_return;
    }
    pause.expires_after(kLook);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> Operations::erase_slots() {
  auto ticket = engine_.begin_erasing();
  if (ticket) {
    co_await run_steps(*ticket, backend_, worker_);
    std::move(*ticket).dismiss({}, toki::SlotContent::unknown);
  }
}

asio::awaitable<Page> Operations::forget(std::string_view target) {
  const auto id = query_field(target, "id"), stored_id = query_field(target, "stored_id");
  if (!query_has_only(target, {"id", "stored_id"}) || (id && stored_id)) {
    co_return error_page(400,
                         "the parameters are id or stored_id, as GET /toki/entries shows them");
  }
  if (!id && !stored_id) {
    co_return co_await forget_all();
  }
  const auto number = number_of(id ? *id : *stored_id);
  if (!number) {
    co_return error_page(400, "an id is a number");
  }
  if (id) {
    auto gone = engine_.forget(*number);
    if (!gone) {
      co_return error_page(404, gone.error().detail);
    }
    co_return co_await forget_one(std::move(*gone));
  }
  ForgottenPrompt gone;
  if (store_ != nullptr) {
    std::tie(gone.scope, gone.tokens) = store_->prompt(*number);
  }
  if (gone.tokens.empty()) {
    co_return error_page(404, "no stored prompt has this id");
  }
  gone.shared = engine_.shared(gone.scope, gone.tokens);
  engine_.forget_slots(gone);
  co_return co_await forget_one(std::move(gone));
}

asio::awaitable<Page> Operations::forget_one(ForgottenPrompt gone) {
  backend_.forget_texts();
  index_.wipe();
  co_await saves_ended(engine_.saving());
  engine_.forget_slots(gone);
  co_await erase_slots();
  std::uint64_t segments = 0;
  if (worker_ != nullptr) {
    const auto removed = co_await worker_->forget(gone.scope, gone.tokens, gone.shared);
    if (!removed) {
      co_return not_on_disk(removed.error());
    }
    segments = *removed;
  }
  const bool index = co_await index_written(kForgetLimit);
  co_return forgotten(1, segments, index);
}

asio::awaitable<Page> Operations::forget_all() {
  const std::vector<std::string> saving = engine_.saving();
  const std::size_t prompts = engine_.forget_all();
  backend_.forget_texts();
  co_await erase_slots();
  co_await saves_ended(saving);
  std::uint64_t segments = 0;
  if (worker_ != nullptr) {
    const auto removed = co_await worker_->forget(std::nullopt);
    if (!removed) {
      co_return not_on_disk(removed.error());
    }
    segments = *removed;
  }
  const bool index = co_await index_written(kForgetLimit);
  co_return forgotten(prompts, segments, index);
}

}  // namespace tokid
