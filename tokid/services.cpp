#include "services.hpp"

#include <toki/http/body_edit.hpp>
#include <toki/http/generation_request.hpp>

#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "data_dir.hpp"
#include "query.hpp"

namespace tokid {

namespace asio = boost::asio;
using toki::http::Body;
using toki::http::ClientRequest;
using toki::http::HttpError;
using toki::http::JsonKind;
using toki::http::Millis;

namespace {

constexpr std::size_t kNameShown = 100;  // of a name that a client made up
constexpr Millis kModelsLimit{2000};

// The model that a JSON body names; empty where it names none.
std::string model_in(std::string_view text) {
  const auto parsed = Body::parse(text);
  const Body* body = std::get_if<Body>(&parsed);
  const auto* model = body != nullptr ? body->find("model") : nullptr;
  return model != nullptr && model->kind == JsonKind::string ? toki::http::unescape(model->value)
                                                             : std::string();
}

void append(std::string& list, std::string_view entry) {
  list.append(list.empty() ? "" : ",").append(entry);
}

// A backend of --model has folders of its own, below those that are named; --backend has those.
ServiceSetup setup_of(const Options& options, const NamedBackend& backend) {
  ServiceSetup setup{.name = backend.names.empty() ? kDefaultBackend : backend.names[0],
                     .address = backend.address,
                     .data_dir = options.data_dir,
                     .slot_dir = options.slot_dir,
                     .own_cache = !options.no_backend_cache};
  if (!backend.names.empty()) {
    const std::string own = folder_name(setup.name);
    setup.data_dir = below(below(options.data_dir, "models"), own);
    setup.slot_dir = options.slot_dir.empty() ? std::string() : below(options.slot_dir, own);
  }
  return setup;
}

// `entry` of a list of models under another name.
std::string renamed(std::string_view entry, const std::string& name) {
  const auto parsed = Body::parse(entry);
  std::string text;
  if (const Body* body = std::get_if<Body>(&parsed)) {
    const std::array<toki::http::BodyEdit, 1> edits{{{"id", toki::http::quote(name)}}};
    std::vector<std::string> storage;
    for (const std::string_view piece : splice(*body, edits, storage)) {
      text.append(piece);
    }
  }
  return text;
}

}  // namespace

toki::Status Services::open(asio::io_context& io, const Options& options,
                            const ServerCommand* command, Recorder* recorder) {
  std::vector<ServiceSetup> setups;
  if (options.backends.empty()) {
    setups.push_back(
        {.name = {},
         .address = options.backend_address,
         .data_dir = options.data_dir,
         .slot_dir = options.slot_dir,
         .own_cache = command != nullptr ? command->own_cache : !options.no_backend_cache,
         .cache_mib = command != nullptr ? command->cache_mib : -1});
  }
  for (const NamedBackend& backend : options.backends) {
    setups.push_back(setup_of(options, backend));
  }
  for (std::size_t i = 0; i < setups.size(); ++i) {
    if (auto made = make_folder(setups[i].data_dir); !made) {
      return made;
    }
    auto opened = Service::open(io, options, std::move(setups[i]), recorder);
    if (!opened) {
      return opened.error();
    }
    add(std::move(*opened),
        options.backends.empty() ? std::vector<std::string>() : options.backends[i].names);
  }
  return toki::Done{};
}

void Services::add(std::unique_ptr<Service> service, const std::vector<std::string>& names) {
  open_ = open_ || names.empty();
  for (const std::string& name : names) {
    by_name_.emplace(name, service.get());
    names_.push_back(name);
  }
  all_.push_back(std::move(service));
}

std::string Services::known() const {
  return fmt::format("{}", fmt::join(names_, ", "));
}

std::variant<Service*, HttpError> Services::choose(const ClientRequest& request) const {
  Service* const first = all_.front().get();
  const bool own = own_call(request.method, request.target) != OwnCall::none;
  std::string name = own ? query_text(request.target, "backend") : std::string();
  if (!name.empty()) {
    const auto is_it = [&](const auto& service) { return service->name() == name; };
    const auto found = std::find_if(all_.begin(), all_.end(), is_it);
    if (found != all_.end()) {
      return found->get();
    }
  }
  const bool backend = !name.empty();
  if (!backend && named()) {
    name = request.method == "POST" ? model_in(request.body) : std::string();
    name = name.empty() ? query_text(request.target, "model") : name;
  }
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) {
    return found->second;
  }
  if (name.empty() || (!backend && (open_ || !named()))) {
    return first;
  }
  const char* what = backend ? "backend" : "model";
  return HttpError{
      .status = 404,
      .type = backend ? "invalid_request_error" : "model_not_found",
      .message = fmt::format("there is no {} {}; there {}", what, name.substr(0, kNameShown),
                             named() ? "are: " + known() : "is one only, without a name")};
}

std::vector<BackendPages> Services::pages() const {
  std::vector<BackendPages> all;
  for (const auto& service : all_) {
    all.push_back({.name = service->name(),
                   .engine = service->engine,
                   .operations = service->operations,
                   .monitor = service->monitor,
                   .stats = [at = service.get()] { return at->stats(); }});
  }
  return all;
}

asio::awaitable<Page> Services::models(std::string_view authorization) const {
  std::string list;
  for (const auto& service : all_) {
    std::vector<std::string> names;
    std::copy_if(names_.begin(), names_.end(), std::back_inserter(names),
                 [&](const auto& name) { return by_name_.at(name) == service.get(); });
    std::vector<std::string> entries;
    if (service->monitor.serving()) {
      auto reply =
          co_await service->upstream.call("GET", "/v1/models", {}, authorization, kModelsLimit);
      const std::string text = reply && reply->status == 200 ? std::move(reply->body) : "{}";
      const auto parsed = Body::parse(text);
      const Body* said = std::get_if<Body>(&parsed);
      const auto* data = said != nullptr ? said->find("data") : nullptr;
      if (data != nullptr && data->kind == JsonKind::array) {
        for (toki::http::Children all(data->value); const auto* entry = all.next();) {
          entries.emplace_back(entry->value);
        }
      }
    }
    for (const std::string& name : names) {
      const std::string entry = entries.empty() ? std::string() : renamed(entries[0], name);
      append(list, entry.empty() ? fmt::format(R"({{"id":{},"object":"model","created":0,)"
                                               R"("owned_by":"tokid"}})",
                                               toki::http::quote(name))
                                 : entry);
    }
    if (names.empty()) {  // it is there for all other names, so its own is one of them
      for (const std::string& entry : entries) {
        append(list, entry);
      }
    }
  }
  co_return Page{.body = fmt::format("{{\"object\":\"list\",\"data\":[{}]}}\n", list)};
}

}  // namespace tokid
