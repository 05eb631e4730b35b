// tokid's own pages: what /toki/… and /metrics answer.
#pragma once

#include <toki/engine.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/stats.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tokid {

struct Page {
  unsigned status = 200;
  std::string_view content_type = "application/json; charset=utf-8";
  std::string body;
};

/// Nothing when the path is not tokid's own, or is one of those below, which may have to ask the
/// backend.
/// Unknown paths below /toki/ are 404, other methods than
/// GET and HEAD 405.
std::optional<Page> own_page(std::string_view method, std::string_view target,
                             const toki::Engine& engine, const std::function<toki::Stats()>& stats,
                             toki::http::BackendMonitor::State state);

/// POST /toki/lookup.
bool is_lookup(std::string_view method, std::string_view target);
/// GET, HEAD, POST or DELETE /toki/pins.
bool is_pins(std::string_view method, std::string_view target);

}  // namespace tokid
