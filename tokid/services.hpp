// Services: one for each backend, and which of them a request is for.
//
// Threads:   the executor's.
// Ownership: owns the services.
// Errors:    what to tell the client.
// Cost:      with one backend none; with several the body is looked through once more for its model.
#pragma once

#include <toki/http/answer_writer.hpp>
#include <toki/http/proxy.hpp>

#include <boost/asio/awaitable.hpp>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "routes.hpp"
#include "server_command.hpp"
#include "service.hpp"

namespace tokid {

class Services {
 public:
  /// Opens one for each backend that the options name. `command`: of the server behind --, or null;
  /// `recorder`: null: nothing is recorded.
  toki::Status open(boost::asio::io_context& io, const Options& options,
                    const ServerCommand* command, Recorder* recorder);

  const std::vector<std::unique_ptr<Service>>& all() const noexcept { return all_; }
  /// Models have names, so each backend's figures are told apart.
  bool named() const noexcept { return !by_name_.empty(); }

  /// By ?backend= for tokid's own pages; else by the model that the body or ?model= names; else the
  /// default. A model that nobody serves: 404.
  std::variant<Service*, toki::http::HttpError> choose(
      const toki::http::ClientRequest& request) const;

  /// Of all backends, for the pages.
  std::vector<BackendPages> pages() const;
  /// GET /v1/models: what every backend says of its model, under the names that requests use.
  boost::asio::awaitable<Page> models(std::string_view authorization) const;

 private:
  // `names`: of the models that it serves; without any, it serves all that nobody else is named for.
  void add(std::unique_ptr<Service> service, const std::vector<std::string>& names);
  std::string known() const;

  std::vector<std::unique_ptr<Service>> all_;  // the default first
  std::map<std::string, Service*, std::less<>> by_name_;
  std::vector<std::string> names_;  // in their order
  bool open_ = false;               // the first one serves any other model as well
};

}  // namespace tokid
