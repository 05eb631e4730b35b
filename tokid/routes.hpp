// tokid's own pages: what /toki/… and /metrics answer.
#pragma once

#include <toki/engine.hpp>
#include <toki/http/backend_monitor.hpp>
#include <toki/stats.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tokid {

struct Page {
  unsigned status = 200;
  std::string_view content_type = "application/json; charset=utf-8";
  std::string body;
  std::string headers{};  // more of them, each with its line's end
};

class Operations;

/// What the pages tell of one backend.
struct BackendPages {
  std::string_view name;  ///< empty: the only one
  const toki::Engine& engine;
  const Operations& operations;
  const toki::http::BackendMonitor& monitor;
  std::function<toki::Stats()> stats;
};

/// Which of tokid's own calls a request is.
enum class OwnCall : std::uint8_t {
  none,    ///< the backend's
  lookup,  ///< POST /toki/lookup, which asks the backend
  pins,    ///< GET, HEAD, POST or DELETE /toki/pins, which may ask it
  flush,   ///< POST /toki/flush
  forget,  ///< DELETE /toki/entries
  page,    ///< any other path of tokid's own: own_page() answers
};
OwnCall own_call(std::string_view method, std::string_view target);

/// A page about `all[chosen]`; /metrics, /toki/live and, unless `only`, /toki/ready tell of all.
/// Unknown paths below /toki/ are 404, methods that the page does not answer 405.
Page own_page(std::string_view method, std::string_view target, std::span<const BackendPages> all,
              std::size_t chosen, bool only);

/// What those are told of /toki/health who may not see more.
Page health_in_short(const toki::http::BackendMonitor& monitor);

/// An error in the shape of OpenAI's.
Page error_page(unsigned status, std::string message);

}  // namespace tokid
