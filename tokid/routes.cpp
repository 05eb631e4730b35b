#include "routes.hpp"

#include <toki/http/answer_writer.hpp>
#include <toki/version.hpp>

#include <fmt/format.h>

#include <array>

namespace tokid {
namespace {

using toki::SlotContent;
using toki::SlotInfo;

std::array<toki::StatRow, toki::kStatRows> rows_of(const toki::Stats& stats) {
  std::array<toki::StatRow, toki::kStatRows> rows{};
  toki::stat_rows(stats, rows);
  return rows;
}

Page stats_page(const toki::Stats& stats) {
  std::string body = "{";
  for (const toki::StatRow& row : rows_of(stats)) {
    body += fmt::format("{}\"{}\":{}", body.size() > 1 ? "," : "", row.name, row.value);
  }
  return {.body = body + "}\n"};
}

Page metrics_page(const toki::Stats& stats) {
  std::string body;
  for (const toki::StatRow& row : rows_of(stats)) {
    body += fmt::format("# HELP toki_{0} {1}\n# TYPE toki_{0} {2}\ntoki_{0} {3}\n", row.name,
                        row.help, row.counter ? "counter" : "gauge", row.value);
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(body)};
}

std::string_view state_of(const SlotInfo& slot) {
  if (slot.fenced) {
    return "fenced";
  }
  if (slot.leased) {
    return "busy";
  }
  switch (slot.content) {
    case SlotContent::empty: return "empty";
    case SlotContent::known: return "known";
    case SlotContent::unknown: break;
  }
  return "unknown";
}

Page slots_page(const toki::Engine& engine) {
  std::string rows;
  std::size_t id = 0;
  for (const SlotInfo& slot : engine.slot_table()) {
    rows += fmt::format(
        R"({}{{"id":{},"state":"{}","tokens":{},"known_tokens":{},"last_used":{},"pin":{}}})",
        rows.empty() ? "" : ",", id++, state_of(slot), slot.known_tokens + slot.unknown_tail,
        slot.known_tokens, slot.last_used, slot.pin != 0 ? std::to_string(slot.pin) : "null");
  }
  return {.body = "{\"slots\":[" + rows + "]}\n"};
}

constexpr std::size_t kEntriesShown = 1000;

Page entries_page(const toki::Engine& engine) {
  std::string rows;
  for (const toki::PromptInfo& prompt : engine.prompts(kEntriesShown)) {
    rows +=
        fmt::format(R"({}{{"id":{},"tokens":{},"use":{:.2f},"last_used_ms":{},"embedding":"{}"}})",
                    rows.empty() ? "" : ",", prompt.id, prompt.tokens, prompt.use,
                    prompt.last_used_ms, to_string(prompt.embedding));
  }
  return {.body = fmt::format("{{\"total\":{},\"entries\":[{}]}}\n", engine.stats().prompts_known,
                              rows)};
}

Page health_page(toki::http::BackendMonitor::State state) {
  const bool ready = state == toki::http::BackendMonitor::State::ready;
  return {.status = ready ? 200U : 503U,
          .body = fmt::format("{{\"status\":\"{}\",\"version\":\"{}\"}}\n", to_string(state),
                              toki::version())};
}

Page error_page(unsigned status, std::string message) {
  return {.status = status,
          .body = toki::http::error_body(
              {.status = status, .type = "invalid_request_error", .message = std::move(message)})};
}

}  // namespace

bool is_lookup(std::string_view method, std::string_view target) {
  return method == "POST" && target.substr(0, target.find('?')) == "/toki/lookup";
}

bool is_pins(std::string_view method, std::string_view target) {
  return target.substr(0, target.find('?')) == "/toki/pins" &&
         (method == "GET" || method == "HEAD" || method == "POST" || method == "DELETE");
}

std::optional<Page> own_page(std::string_view method, std::string_view target,
                             const toki::Engine& engine, const std::function<toki::Stats()>& stats,
                             toki::http::BackendMonitor::State state) {
  const std::string_view path = target.substr(0, target.find('?'));
  if (path != "/metrics" && path != "/toki" && !path.starts_with("/toki/")) {
    return std::nullopt;
  }
  if (is_lookup(method, target) || is_pins(method, target)) {
    return std::nullopt;
  }
  if (path == "/toki/lookup") {
    return error_page(405, "this page only answers POST");
  }
  if (path == "/toki/pins") {
    return error_page(405, "this page only answers GET, POST and DELETE");
  }
  if (method != "GET" && method != "HEAD") {
    return error_page(405, "this page only answers GET");
  }
  if (path == "/metrics") {
    return metrics_page(stats());
  }
  if (path == "/toki/health") {
    return health_page(state);
  }
  if (path == "/toki/stats") {
    return stats_page(stats());
  }
  if (path == "/toki/slots") {
    return slots_page(engine);
  }
  if (path == "/toki/entries") {
    return entries_page(engine);
  }
  return error_page(404, "tokid has no such page");
}

}  // namespace tokid
