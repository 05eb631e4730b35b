// The dashboard: dashboard.html, as CMake has put it into the program (embed_dashboard.cmake).
#pragma once

#include <string_view>

namespace tokid {

extern const std::string_view kDashboard;
/// The sources that its Content-Security-Policy allows: sha256-… of its one script and one style.
extern const std::string_view kDashboardScript, kDashboardStyle;

}  // namespace tokid
