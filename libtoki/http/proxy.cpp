#include <toki/http/audit.hpp>
#include <toki/http/explain.hpp>
#include <toki/http/pins_call.hpp>
#include <toki/http/proxy.hpp>
#include <toki/http/volatile_line.hpp>

#include <fmt/format.h>

#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "http/proxy_flow.hpp"

namespace toki::http {

namespace asio = boost::asio;
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr std::size_t kMaxLookups = 8;  // at once

// Whether the work came to its end. A client that is gone ends it with an exception.
asio::awaitable<bool> to_its_end(asio::awaitable<void> work, AnswerWriter& answer,
                                 ClientWatch& client) {
  const Watched watched(client);
  try {
    co_await std::move(work);
    co_return true;
  } catch (const boost::system::system_error&) {
    answer.close_after();
    co_return false;
  }
}

}  // namespace

Proxy::Proxy(Upstream& upstream, LlamaServerBackend& backend, BackendMonitor& monitor,
             Engine& engine, Admission& admission, PromptEmbeddings& embeddings,
             ProxyOptions options, std::function<void(const RequestReport&)> report)
    : upstream_(upstream),
      backend_(backend),
      monitor_(monitor),
      engine_(engine),
      admission_(admission),
      embeddings_(embeddings),
      options_(std::move(options)),
      report_(std::move(report)) {}

// Everything that takes no slot: through as it is.
asio::awaitable<void> Proxy::pass(const ClientRequest& request, AnswerWriter& answer,
                                  ClientWatch& client, RequestReport& report) {
  ++passed_;
  const std::array<std::string_view, 1> body{request.body};
  const RelayRequest relayed{.method = request.method,
                             .target = request.target,
                             .fields = request.fields,
                             .body = body,
                             .has_body = request.has_body,
                             .identity = false,
                             .progress_limit = options_.progress_limit,
                             .id = request.id};
  RelayResult result;
  const std::string path = decoded_path(request.target);
  std::optional<Engine::Distrust> unseen;  // it works in a slot of which we know nothing
  if (request.method == "POST" && takes_slot(path)) {
    unseen.emplace(engine_);
  }
  auto work = relay(upstream_, relayed, answer, result);
  const bool ended = co_await to_its_end(std::move(work), answer, client);
  report.status = result.status;
  if (ended) {
    report.ending = result.end == RelayResult::End::completed ? "passed" : "failed";
  }
  if (request.method != "POST" || result.status != 200) {
    co_return;
  }
  if (path == "/lora-adapters") {
    monitor_.adapters_changed();  // what slots and store hold was made with others
  } else if (path.starts_with("/slots/")) {
    engine_.forget_residency();
  }
}

asio::awaitable<void> Proxy::serve(const ClientRequest& request, AnswerWriter& answer,
                                   ClientWatch& client) {
  const Time started = std::chrono::steady_clock::now();
  const bool plain = request.target.starts_with('/');  // an absolute form may hold a password
  RequestReport report{
      .id = request.id,
      .method = request.method,
      .path = plain ? request.target.substr(0, request.target.find_first_of("?#")) : "-",
      .client = request.client,
      .ending = "cancelled"};
  struct Teller {
    const Proxy& proxy;
    RequestReport& report;
    const AnswerWriter& answer;
    Time started;
    ~Teller() {
      report.total_ms = milliseconds(std::chrono::steady_clock::now() - started);
      report.first_byte_ms =
          answer.first_body_byte() ? milliseconds(*answer.first_body_byte() - started) : 0;
      if (proxy.report_) {
        proxy.report_(report);
      }
    }
  } const teller{*this, report, answer, started};

  if (endpoint_of(request.method, request.target) == Endpoint::none) {
    co_await pass(request, answer, client, report);
  } else {
    co_await generate(request, answer, client, report);
  }
}

namespace {

std::variant<GenerationRequest, HttpError> read_request(Endpoint endpoint,
                                                        const std::variant<Body, BodyError>& parsed,
                                                        std::size_t slots) {
  if (const auto* bad = std::get_if<BodyError>(&parsed)) {
    return HttpError{
        .status = 400,
        .type = "invalid_request_error",
        .message = fmt::format("the body is not a JSON object that can be passed on: {} at byte {}",
                               bad->reason, bad->offset),
        .offset = bad->offset};
  }
  return read_generation_request(endpoint, std::get<Body>(parsed), slots);
}

}  // namespace

asio::awaitable<void> Proxy::generate(const ClientRequest& request, AnswerWriter& answer,
                                      ClientWatch& client, RequestReport& report) {
  const Endpoint endpoint = endpoint_of(request.method, request.target);
  auto parsed = Body::parse(request.body);
  std::string shortened;
  ClientRequest request_now = request;
  if (const Body* whole = std::get_if<Body>(&parsed)) {
    if (auto rest = without_volatile_line(endpoint, *whole, options_.volatile_lines)) {
      ++dropped_lines_;
      shortened = std::move(*rest);
      request_now.body = shortened;
      parsed = Body::parse(shortened);
    }
  }
  auto read = read_request(endpoint, parsed, engine_.slots());
  if (const auto* bad = std::get_if<HttpError>(&read)) {
    ++refused_;
    report.status = bad->status;
    report.ending = "refused";
    report.error = bad->message;
    co_await answer.error(*bad);
    co_return;
  }
  auto& wanted = std::get<GenerationRequest>(read);
  // The slot that shares most of it may be another tenant's, and nothing can be said against that.
  const bool alone = engine_.isolated() && endpoint == Endpoint::messages;
  if (monitor_.several_models() || alone) {
    leave_to_backend(wanted,
                     monitor_.several_models() ? Reason::several_models : Reason::not_cacheable);
  }
  if (options_.record) {
    options_.record(endpoint, request.body);
  }
  const Audit::Client present(options_.audit);
  Flow flow{.proxy = *this,
            .request = request_now,
            .answer = answer,
            .report = report,
            .wanted = std::move(wanted),
            .body = std::get_if<Body>(&parsed),
            .alone = alone};
  const bool comments = flow.wanted.stream && options_.keep_alive.form != KeepAlive::Form::off;
  auto work = comments ? run_beside(flow.run(), answer.comments(options_.keep_alive)) : flow.run();
  co_await to_its_end(std::move(work), answer, client);
  if (flow.ticket && flow.unproven) {
    co_await flow.settle_asked();
  } else if (flow.ticket && flow.sent) {
    flow.settle(true);
  }
}

asio::awaitable<void> Proxy::look_up(const ClientRequest& request, AnswerWriter& answer) {
  PromptSource source{.path = query_value(request.target, "path"),
                      .body = request.body,
                      .authorization = authorization_of(request),
                      .tenant = request.tenant};
  const ExplainLimits limits{.volatile_lines = options_.volatile_lines,
                             .max_rendered_bytes = options_.max_rendered_bytes};
  const auto explained = co_await explain(backend_, monitor_, engine_, source, limits);
  if (const auto* refused = std::get_if<HttpError>(&explained)) {
    co_await answer.error(*refused);
    co_return;
  }
  const std::string body = to_json(std::get<Explanation>(explained));
  co_await answer.whole(200, "application/json; charset=utf-8", body);
}

asio::awaitable<void> Proxy::lookup(const ClientRequest& request, AnswerWriter& answer,
                                    ClientWatch& client) {
  return own_work(look_up(request, answer), answer, client);
}

asio::awaitable<void> Proxy::change_pins(const ClientRequest& request, AnswerWriter& answer) {
  std::variant<std::string, HttpError> done;
  if (request.method == "POST") {
    const PinLimits limits{.volatile_lines = options_.volatile_lines,
                           .max_rendered_bytes = options_.max_rendered_bytes};
    const PinAsker asker{.authorization = authorization_of(request), .tenant = request.tenant};
    done = co_await add_pin(backend_, monitor_, engine_, request.body, asker, limits);
  } else if (request.method == "DELETE") {
    // Without a parameter all go: so one that is no id must not be taken for none.
    const auto query = request.target.find('?');
    const bool whole = query == std::string_view::npos;
    const std::string_view id = query_value(request.target, "id");
    const bool clear = whole || (!id.empty() && request.target.substr(query + 1).size() ==
                                                    std::string_view("id=").size() + id.size());
    done = clear ? remove_pins(engine_, id, request.tenant)
                 : std::variant<std::string, HttpError>(
                       HttpError{.status = 400,
                                 .type = "invalid_request_error",
                                 .message = "the only parameter is id, the number of a pin"});
  } else {
    done = list_pins(engine_, request.tenant);
  }
  if (const auto* refused = std::get_if<HttpError>(&done)) {
    co_await answer.error(*refused);
  } else {
    co_await answer.whole(200, "application/json; charset=utf-8", std::get<std::string>(done));
  }
}

asio::awaitable<void> Proxy::pins(const ClientRequest& request, AnswerWriter& answer,
                                  ClientWatch& client) {
  return own_work(change_pins(request, answer), answer, client);
}

// Only some run at once: each makes calls to the backend.
asio::awaitable<void> Proxy::own_work(asio::awaitable<void> work, AnswerWriter& answer,
                                      ClientWatch& client) {
  if (lookups_ >= kMaxLookups) {
    HttpError busy{.status = 429, .type = "rate_limit_error", .message = "too many at once"};
    busy.retry_after = 1;
    co_await answer.error(busy);
    co_return;
  }
  struct Count {
    std::size_t& count;
    explicit Count(std::size_t& c) : count(c) { ++count; }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    ~Count() { --count; }
  } const counted(lookups_);
  co_await to_its_end(std::move(work), answer, client);
}

Stats Proxy::stats() const {
  Stats stats = engine_.stats();
  admission_.add_to(stats);
  embeddings_.add_to(stats);
  if (options_.audit != nullptr) {
    options_.audit->add_to(stats);
  }
  stats.passthrough_total = passed_;
  stats.volatile_lines_dropped_total = dropped_lines_;
  stats.requests_refused += refused_;
  const TokenCacheStats cache = backend_.token_cache_stats();
  stats.token_cache_bytes = cache.bytes;
  stats.token_cache_whole_total = cache.whole_hits;
  stats.token_cache_part_total = cache.part_hits;
  stats.token_cache_tokens_total = cache.tokens_saved;
  stats.token_cache_off = cache.off ? 1 : 0;
  stats.backend_ready = monitor_.state() == BackendMonitor::State::ready ? 1 : 0;
  return stats;
}

}  // namespace toki::http
