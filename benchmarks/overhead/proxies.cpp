#include "proxies.hpp"

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

#include "sockets.hpp"

namespace bench {

using namespace toki::test;

namespace {

std::string config(const std::string& folder, int port, int upstream_port) {
  std::ostringstream text;
  text << "daemon off;\nmaster_process off;\nworker_processes 1;\n"
       << "pid " << folder << "/pid;\nerror_log " << folder << "/error.log error;\n"
       << "events { worker_connections 1024; }\n"
       << "http {\n  access_log off;\n  tcp_nodelay on;\n"
       << "  keepalive_requests 100000000;\n  keepalive_timeout 75s;\n"
       << "  client_max_body_size 64m;\n  client_body_buffer_size 1m;\n";
  for (const char* kind : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"}) {
    text << "  " << kind << "_temp_path " << folder << "/" << kind << ";\n";
  }
  text << "  upstream backend {\n    server 127.0.0.1:" << upstream_port
       << ";\n    keepalive 64;\n    keepalive_requests 100000000;\n  }\n"
       << "  server {\n    listen 127.0.0.1:" << port << ";\n    location / {\n"
       << "      proxy_pass http://backend;\n      proxy_http_version 1.1;\n"
       << "      proxy_set_header Connection \"\";\n      proxy_buffering off;\n"
       << "      proxy_read_timeout 3600s;\n    }\n  }\n}\n";
  return text.str();
}

cpu_set_t only(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  return set;
}

}  // namespace

std::optional<std::string> Nginx::program() {
  for (const char* path : {"/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"}) {
    if (::access(path, X_OK) == 0) {
      return path;
    }
  }
  return std::nullopt;
}

std::string Nginx::version() {
  Process process(program().value(), {"-v"});
  process.wait_exit();
  wait_until([&] { return process.err().find('\n') != std::string::npos; });
  const std::string said = process.err();
  const auto slash = said.find('/');
  return slash == std::string::npos ? "?" : said.substr(slash + 1, said.find('\n') - slash - 1);
}

Nginx::Nginx(int upstream_port) : port_(unused_port()) {
  const std::string file = folder_.path() + "/nginx.conf";
  std::ofstream(file) << config(folder_.path(), port_, upstream_port);
  process_.emplace(program().value(),
                   std::vector<std::string>{"-p", folder_.path(), "-c", file, "-e",
                                            folder_.path() + "/error.log"});
}

bool Nginx::wait_ready() {
  bool ready = false;
  wait_until([&] {
    try {
      connect_to(port_);
      ready = true;
    } catch (const std::runtime_error&) {
    }
    return ready || !process_->running();
  });
  return ready && process_->running();
}

std::string Nginx::trouble() const {
  std::ifstream file(folder_.path() + "/error.log");
  std::ostringstream text;
  text << process_->err() << file.rdbuf();
  return text.str();
}

double cpu_us(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) {
    throw std::runtime_error("a proxy has ended");
  }
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

double peak_mib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::atof(line.c_str() + 6) / 1024;
    }
  }
  return 0;
}

void pin_to(int core) {
  const cpu_set_t set = only(core);
  ::sched_setaffinity(0, sizeof set, &set);
}

void pin_all_to(int core) {
  const cpu_set_t set = only(core);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ::sched_setaffinity(std::atoi(entry.path().filename().c_str()), sizeof set, &set);
  }
}

}  // namespace bench
