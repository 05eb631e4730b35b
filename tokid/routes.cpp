#include "routes.hpp"

#include <toki/http/answer_writer.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/pins_call.hpp>
#include <toki/version.hpp>

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <vector>

#include "dashboard.hpp"
#include "operations.hpp"

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

// With several backends each figure has one line for each of them.
Page metrics_page(std::span<const BackendPages> all) {
  std::vector<std::array<toki::StatRow, toki::kStatRows>> rows;
  std::vector<std::string> labels;
  for (const BackendPages& one : all) {
    rows.push_back(rows_of(one.stats()));
    labels.push_back(one.name.empty() ? std::string()
                                      : fmt::format("{{backend={}}}", toki::http::quote(one.name)));
  }
  std::string body;
  for (std::size_t i = 0; i < toki::kStatRows; ++i) {
    const toki::StatRow& row = rows[0][i];
    body += fmt::format("# HELP toki_{0} {1}\n# TYPE toki_{0} {2}\n", row.name, row.help,
                        row.counter ? "counter" : "gauge");
    for (std::size_t at = 0; at < all.size(); ++at) {
      body += fmt::format("toki_{}{} {}\n", row.name, labels[at], rows[at][i].value);
    }
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

std::string id_or_null(std::uint64_t id) {
  return id != 0 ? std::to_string(id) : "null";
}

Page slots_page(const toki::Engine& engine) {
  std::string rows;
  std::size_t id = 0;
  for (const SlotInfo& slot : engine.slot_table()) {
    rows += fmt::format(
        R"({}{{"id":{},"state":"{}","tokens":{},"known_tokens":{},"last_used":{},"used_ms_ago":{},)"
        R"("pin":{},"prompt":{},"prompt_tokens":{}}})",
        rows.empty() ? "" : ",", id++, state_of(slot), slot.known_tokens + slot.unknown_tail,
        slot.known_tokens, slot.last_used,
        slot.last_used > 0 ? std::to_string(slot.used_ago.count()) : "null", id_or_null(slot.pin),
        id_or_null(slot.prompt), slot.common);
  }
  return {.body = "{\"slots\":[" + rows + "]}\n"};
}

Page health_page(const toki::http::BackendMonitor& monitor, const toki::Stats& stats) {
  const bool ready =
      monitor.state() == toki::http::BackendMonitor::State::ready && !monitor.silent();
  return {.status = ready ? 200U : 503U,
          .body = fmt::format(R"({{"status":"{}","version":"{}","states":{{"saved":{},"cut":{},)"
                              R"("rewound":{},"why":{}}}}})"
                              "\n",
                              monitor.status(), toki::version(), stats.can_save != 0,
                              stats.can_cut != 0, stats.can_rewind != 0,
                              toki::http::quote(monitor.states_why()))};
}

// Whether to send requests here: 200 while every backend answers.
Page ready_page(std::span<const BackendPages> all) {
  std::string why;
  for (const BackendPages& one : all) {
    if (!one.monitor.serving() || one.monitor.silent()) {
      why += fmt::format("{}backend {}{}is {}", why.empty() ? "" : "; ", one.name,
                         one.name.empty() ? "" : " ", one.monitor.status());
    }
  }
  return {.status = why.empty() ? 200U : 503U,
          .body = why.empty()
                      ? "{\"ready\":true}\n"
                      : fmt::format("{{\"ready\":false,\"reason\":{}}}\n", toki::http::quote(why))};
}

// What the dashboard shows, in one answer: each part is what the page of its name answers.
Page overview_page(std::string_view target, std::span<const BackendPages> all,
                   const BackendPages& one) {
  Page requests = one.operations.requests(target);
  if (requests.status != 200) {
    return requests;
  }
  std::string names;
  for (const BackendPages& other : all) {
    if (!other.name.empty()) {
      names += (names.empty() ? "" : ",") + toki::http::quote(other.name);
    }
  }
  const toki::Stats stats = one.stats();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {
      .body = fmt::format(
          R"({{"now_ms":{},"backends":[{}],"backend":{},"health":{},"stats":{},"slots":{},"pins":{},)"
          R"("requests":{},"tree":{}}})"
          "\n",
          std::chrono::duration_cast<toki::http::Millis>(now).count(), names,
          toki::http::quote(one.name), health_page(one.monitor, stats).body, stats_page(stats).body,
          slots_page(one.engine).body, toki::http::list_pins(one.engine), requests.body,
          one.operations.tree().body)};
}

// Nothing in it comes from elsewhere, and no other page may frame it.
Page dashboard_page() {
  return {.content_type = "text/html; charset=utf-8",
          .body = std::string(kDashboard),
          .headers = fmt::format("Content-Security-Policy: default-src 'none'; script-src '{}'; "
                                 "style-src '{}'; connect-src 'self'; img-src data:; "
                                 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                                 "X-Content-Type-Options: nosniff\r\n"
                                 "Referrer-Policy: no-referrer\r\n"
                                 "Cache-Control: no-cache\r\n",
                                 kDashboardScript, kDashboardStyle)};
}

}  // namespace

Page health_in_short(const toki::http::BackendMonitor& monitor) {
  const bool ready =
      monitor.state() == toki::http::BackendMonitor::State::ready && !monitor.silent();
  return {.status = ready ? 200U : 503U,
          .body = fmt::format("{{\"status\":\"{}\"}}\n", monitor.status())};
}

Page error_page(unsigned status, std::string message) {
  const char* type = status < 500 ? "invalid_request_error" : "server_error";
  return {.status = status,
          .body = toki::http::error_body(
              {.status = status, .type = type, .message = std::move(message)})};
}

namespace {

Page wrong_method(std::string_view methods) {
  Page page = error_page(405, fmt::format("this page only answers {}", methods));
  page.headers = fmt::format("Allow: {}\r\n", methods);
  return page;
}

}  // namespace

OwnCall own_call(std::string_view method, std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  if (method == "POST" && path == "/toki/lookup") {
    return OwnCall::lookup;
  }
  if (method == "POST" && path == "/toki/flush") {
    return OwnCall::flush;
  }
  if (method == "DELETE" && path == "/toki/entries") {
    return OwnCall::forget;
  }
  const bool reads = method == "GET" || method == "HEAD";
  if (path == "/toki/pins" && (reads || method == "POST" || method == "DELETE")) {
    return OwnCall::pins;
  }
  const bool own = path == "/metrics" || path == "/toki" || path.starts_with("/toki/");
  return own ? OwnCall::page : OwnCall::none;
}

Page own_page(std::string_view method, std::string_view target, std::span<const BackendPages> all,
              std::size_t chosen, bool only) {
  const BackendPages& one = all[chosen];
  const std::string_view path = target.substr(0, target.find('?'));
  if (path == "/toki/lookup" || path == "/toki/flush") {
    return wrong_method("POST");
  }
  if (path == "/toki/pins") {
    return wrong_method("GET, HEAD, POST, DELETE");
  }
  if (method != "GET" && method != "HEAD") {
    return wrong_method(path == "/toki/entries" ? "GET, HEAD, DELETE" : "GET, HEAD");
  }
  if (path == "/metrics") {
    return metrics_page(all);
  }
  if (path == "/toki/live") {
    return {.body = "{\"live\":true}\n"};
  }
  if (path == "/toki/ready") {
    return ready_page(only ? all.subspan(chosen, 1) : all);
  }
  if (path == "/toki/health") {
    return health_page(one.monitor, one.stats());
  }
  if (path == "/toki/stats") {
    return stats_page(one.stats());
  }
  if (path == "/toki/slots") {
    return slots_page(one.engine);
  }
  if (path == "/toki/entries") {
    return one.operations.entries();
  }
  if (path == "/toki/tree") {
    return one.operations.tree();
  }
  if (path == "/toki/requests") {
    return one.operations.requests(target);
  }
  if (path == "/toki/overview") {
    return overview_page(target, all, one);
  }
  if (path == "/toki/") {
    return dashboard_page();
  }
  if (path == "/toki") {  // relative, for a proxy in front that adds a path of its own
    return {.status = 308, .body = {}, .headers = "Location: toki/\r\n"};
  }
  return error_page(404, "tokid has no such page");
}

}  // namespace tokid
