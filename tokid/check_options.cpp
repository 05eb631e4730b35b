// What the options' words mean: addresses, certificates, keys, models, and whether all of it goes
// together. Each read_ function fills what Options has for it.
#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "access.hpp"
#include "check_places.hpp"
#include "data_dir.hpp"
#include "options.hpp"

namespace tokid {
namespace {

using toki::Errc;
using toki::Error;
using toki::Status;

Error bad(std::string message) {
  return {Errc::invalid_argument, std::move(message)};
}

// Nobody can listen in one place twice. Port 0 is another one each time.
bool overlap(const ListenAddress& a, const ListenAddress& b) {
  if (!a.path.empty() || !b.path.empty()) {
    return a.path == b.path;
  }
  boost::system::error_code ignored;
  const auto one = boost::asio::ip::make_address(a.host, ignored);
  const auto other = boost::asio::ip::make_address(b.host, ignored);
  const bool all = one.is_unspecified() || other.is_unspecified();
  return a.port == b.port && a.port != 0 && (one == other || (all && one.is_v4() == other.is_v4()));
}

Status read_listeners(Options& options) {
  const std::string& mode = options.socket_mode;
  unsigned bits = 0;
  const auto [end, ec] = std::from_chars(mode.data(), mode.data() + mode.size(), bits, 8);
  if (ec != std::errc{} || end != mode.data() + mode.size() || bits > 0777) {
    return bad(fmt::format("--socket-mode {}: expected octal digits, 0600 to 0777", mode));
  }
  for (const std::string& text : options.listen) {
    auto address = read_listen(text);
    if (!address) {
      return std::move(address).error();
    }
    address->mode = bits | 0600;
    const auto taken = std::find_if(options.listen_at.begin(), options.listen_at.end(),
                                    [&](const auto& other) { return overlap(*address, other); });
    if (taken != options.listen_at.end()) {
      return bad(fmt::format("--listen {}: --listen {} takes it already", text, taken->name()));
    }
    options.listen_at.push_back(std::move(*address));
  }
  return toki::Done{};
}

Status read_certificates(Options& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return bad("--tls-cert and --tls-key belong together");
  }
  if (!options.tls_cert.empty()) {
    auto tls = toki::http::TlsContext::server(options.tls_cert, options.tls_key);
    if (!tls) {
      return bad("--tls-cert, --tls-key: " + tls.error().detail);
    }
    options.tls = std::move(*tls);
  }
  const auto& named = options.backends;
  const bool outside = options.backend_address.tls ||
                       std::any_of(named.begin(), named.end(),
                                   [](const NamedBackend& one) { return one.address.tls; }) ||
                       (options.embed_address.has_value() && options.embed_address->tls);
  if (outside || !options.backend_ca.empty()) {
    auto trusted = toki::http::TlsContext::client(options.backend_ca);
    if (!trusted) {
      return bad("--backend-ca: " + trusted.error().detail);
    }
    options.backend_tls = std::move(*trusted);
  }
  return toki::Done{};
}

// "NAME=URL", as often as there are names. One server may have several.
Status read_models(Options& options) {
  if (!options.model.empty() && !options.server.empty()) {
    return bad("--model names servers that run already: it does not go with a server behind --");
  }
  if (!options.model.empty() && options.backend_given) {
    options.backends.push_back({.names = {}, .address = options.backend_address});
  }
  for (const std::string& entry : options.model) {
    const auto sign = entry.find('=');
    const std::string name = entry.substr(0, sign);
    if (sign == std::string::npos || name.empty()) {
      return bad(fmt::format(
          "--model {}: expected NAME=URL (a server's own options stand behind --)", entry));
    }
    auto address = toki::http::parse_url(entry.substr(sign + 1));
    if (!address) {
      return bad(fmt::format("--model {}: {}", name, address.error().detail));
    }
    const auto has_name = [&](const NamedBackend& one) {
      return std::find(one.names.begin(), one.names.end(), name) != one.names.end();
    };
    auto& all = options.backends;
    if (std::any_of(all.begin(), all.end(), has_name)) {
      return bad(fmt::format("--model {}: this name is there twice", name));
    }
    const auto same = std::find_if(all.begin(), all.end(), [&](const NamedBackend& one) {
      return one.address.name() == address->name();
    });
    if (same != all.end() && same->names.empty()) {
      return bad(fmt::format(
          "--model {}: this is --backend, which gets every model that has no server of its own",
          name));
    }
    if (options.backend_given && name == kDefaultBackend) {
      return bad(fmt::format("--model {}: this is how --backend is called", name));
    }
    if (same != all.end()) {
      same->names.push_back(name);
    } else {
      all.push_back({.names = {name}, .address = std::move(*address)});
    }
  }
  return toki::Done{};
}

Status read_key(Options& options) {
  if (const char* key = std::getenv("TOKID_BACKEND_KEY")) {
    options.backend_key = key;
  }
  if (!options.backend_key_file.empty()) {
    std::ifstream file(options.backend_key_file);
    if (!file) {
      return bad(
          fmt::format("--backend-key-file {}: {}", options.backend_key_file, std::strerror(errno)));
    }
    if (!std::getline(file, options.backend_key) || options.backend_key.empty()) {
      return bad(fmt::format("--backend-key-file {}: its first line holds no key",
                             options.backend_key_file));
    }
  }
  while (!options.backend_key.empty() &&
         std::isspace(static_cast<unsigned char>(options.backend_key.back())) != 0) {
    options.backend_key.pop_back();
  }
  const bool printable = std::all_of(options.backend_key.begin(), options.backend_key.end(),
                                     [](char c) { return c > 0x20 && c < 0x7f; });
  return printable ? Status(toki::Done{})
                   : bad("the backend key holds characters that no header may hold");
}

// Who may call. Nobody is let in from other machines by mistake.
Status read_access(Options& options) {
  auto keys = Keys::read(options.api_keys, options.admin_key_file);
  if (!keys) {
    return keys.error();
  }
  options.keys = std::move(*keys);
  const auto open = std::find_if(options.listen_at.begin(), options.listen_at.end(), reachable);
  if (!options.keys.any() && !options.allow_open && open != options.listen_at.end()) {
    return bad(
        fmt::format("--listen {}: other machines can reach this, so API keys are needed "
                    "(--api-keys FILE), or --allow-open, which lets everybody in",
                    open->name()));
  }
  if (!options.keys.any() &&
      (options.share_tenants || options.tenant_requests > 0 || options.tenant_rate > 0)) {
    return bad(
        "--share-tenants, --tenant-requests and --tenant-rate mean something with "
        "--api-keys only");
  }
  return toki::Done{};
}

}  // namespace

bool reachable(const ListenAddress& address) {
  return address.path.empty() && !is_loopback(address.host);
}

Status check_options(Options& options) {
  if (options.exact && options.pin_hot > 0) {
    return bad("--exact pins nothing: leave --pin-hot away");
  }
  if (!options.exact && options.exact_batch > 0) {
    return bad("--exact-batch means something with --exact only");
  }
  if (auto status = read_listeners(options); !status) {
    return status;
  }
  auto address = toki::http::parse_url(options.backend);
  if (!address) {
    return bad("--backend: " + address.error().detail);
  }
  options.backend_address = std::move(*address);
  if (auto status = read_models(options); !status) {
    return status;
  }
  if (!options.embed_backend.empty()) {
    auto embedder = toki::http::parse_url(options.embed_backend);
    if (!embedder) {
      return bad("--embed-backend: " + embedder.error().detail);
    }
    options.embed_address = std::move(*embedder);
  }
  if (auto status = read_certificates(options); !status) {
    return status;
  }
  auto cors = Cors::allowing(options.cors_origin);
  if (!cors) {
    return bad("--cors-origin: " + cors.error().detail);
  }
  options.cors = std::move(*cors);
  if (auto status = read_key(options); !status) {
    return status;
  }
  if (auto status = read_access(options); !status) {
    return status;
  }
  auto data_dir = data_dir_of(options.data_dir);
  if (!data_dir) {
    return data_dir.error();
  }
  options.data_dir = std::move(*data_dir);
  return options.check_config ? check_places(options) : make_data_dir(options.data_dir);
}

}  // namespace tokid
