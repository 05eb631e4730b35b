#include "recent_requests.hpp"

#include <toki/http/generation_request.hpp>

#include <fmt/format.h>

#include "json_text.hpp"

namespace tokid {
void RecentRequests::add(const toki::http::RequestReport& r, std::int64_t ended_ms) {
  using toki::http::Endpoint;
  const Endpoint endpoint = toki::http::endpoint_of(r.method, r.path);
  if (endpoint == Endpoint::none) {
    return;
  }
  rows_.push_back(fmt::format(
      R"({{"number":{},"id":{},"ended_ms":{},"endpoint":"{}","status":{},"ending":"{}","class":{},)"
      R"("source":{},"reason":{},"slot":{},"prompt_tokens":{},"known_tokens":{},)"
      R"("predicted_tokens":{},"reused_tokens":{},"generated_tokens":{},"render_ms":{:.1f},)"
      R"("queue_ms":{:.1f},"first_byte_ms":{:.1f},"total_ms":{:.1f},"error":{},"tenant":{}}})",
      ++last_, text_or_null(r.id), ended_ms, path_of(endpoint), r.status, r.ending,
      text_or_null(r.cache_class), text_or_null(r.source), text_or_null(r.reason),
      r.slot ? std::to_string(*r.slot) : "null", r.prompt, r.available, r.predicted, r.reused,
      r.generated, r.render_ms, r.queue_ms, r.first_byte_ms, r.total_ms, text_or_null(r.error),
      text_or_null(r.client)));
  if (rows_.size() > kKept) {
    rows_.pop_front();
  }
}

std::string RecentRequests::to_json(std::uint64_t after) const {
  std::string rows;
  std::uint64_t number = last_;
  for (auto row = rows_.rbegin(); row != rows_.rend() && number > after; ++row, --number) {
    rows += (rows.empty() ? "" : ",") + *row;
  }
  return fmt::format("{{\"last\":{},\"requests\":[{}]}}\n", last_, rows);
}

}  // namespace tokid
