#include <toki/http/answer_text.hpp>
#include <toki/http/body_edit.hpp>
#include <toki/http/relay.hpp>

#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace toki::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using beast::http::field;

namespace {

constexpr std::uint32_t kHeaderLimit = 64 * 1024;
constexpr int kMaxInformational = 16;
constexpr std::size_t kPieceBytes = std::size_t{64} * 1024;

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

bool same(std::string_view a, std::string_view b) {
  return beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

bool begins(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && same(name.substr(0, prefix.size()), prefix);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return result;
}

// Names listed in Connection belong to this hop, like Connection itself. In lower case.
std::unordered_set<std::string> hop_names(const beast::http::fields& fields) {
  std::unordered_set<std::string> names;
  const auto [begin, end] = fields.equal_range(field::connection);
  for (auto it = begin; it != end; ++it) {
    for (const auto name : beast::http::token_list(it->value())) {
      names.insert(lower(view(name)));
    }
  }
  return names;
}

bool hop_by_hop(field name) {
  switch (name) {
    case field::connection:
    case field::keep_alive:
    case field::proxy_connection:
    case field::proxy_authenticate:
    case field::proxy_authorization:
    case field::te:
    case field::trailer:
    case field::transfer_encoding:
    case field::upgrade:
    case field::content_length: return true;  // the message is framed anew
    default: return false;
  }
}

template <class Skip>
void append_end_to_end(std::string& out, const beast::http::fields& fields, Skip skip) {
  const auto hop = hop_names(fields);
  for (const auto& entry : fields) {
    const std::string_view name = view(entry.name_string());
    if ((!hop.empty() && hop.contains(lower(name))) || hop_by_hop(entry.name()) ||
        skip(entry.name(), name)) {
      continue;
    }
    out.append(name).append(": ").append(view(entry.value())).append("\r\n");
  }
}

// What is said when the server behind us fails before its answer began. JSON of its own is passed
// on where it fits.
HttpError unreachable(const std::string& detail) {
  return {.status = 502, .type = "upstream_error", .message = detail};
}

// The message of an error as llama-server writes it.
std::optional<std::string> message_of(std::string_view json) {
  const auto parsed = Body::parse(json);
  const Body* body = std::get_if<Body>(&parsed);
  const JsonField* error = body != nullptr ? body->find("error") : nullptr;
  const auto message = error != nullptr && error->kind == JsonKind::object
                           ? member(error->value, "message")
                           : std::nullopt;
  return message && message->kind == JsonKind::string ? std::optional(unescape(message->value))
                                                      : std::nullopt;
}

using Parser = beast::http::response_parser<beast::http::buffer_body>;

struct Exchange {
  Exchange(Upstream& u, const RelayRequest& r, AnswerWriter& a, RelayResult& out)
      : upstream(u), request(r), answer(a), result(out) {}

  Upstream& upstream;
  const RelayRequest& request;
  AnswerWriter& answer;
  RelayResult& result;
  std::unique_ptr<Connection> connection;
  std::optional<Parser> parser;
  AnswerWatch watch;
  bool late = false;       // our own head went out before the server's came
  std::string late_error;  // body of an error answer that came after our own head

  asio::awaitable<void> run();
  asio::awaitable<bool> read_head();
  asio::awaitable<void> pass_head();
  asio::awaitable<bool> pass_body();
  asio::awaitable<void> fail(beast::error_code ec, std::string_view when);
  bool body_came() const;
  void expect_progress() { connection->stream.expires_after(request.progress_limit); }
};

asio::awaitable<void> Exchange::fail(beast::error_code ec, std::string_view when) {
  const bool stalled = ec == beast::error::timeout;
  result.end = stalled ? RelayResult::End::stalled : RelayResult::End::broken;
  HttpError told = unreachable(fmt::format("the backend {}: {}", when, ec.message()));
  if (stalled) {
    told = {.status = 504,
            .type = "timeout_error",
            .message = fmt::format("the backend made no progress for {} ms",
                                   request.progress_limit.count())};
  }
  answer.between_events(watch.at_event_boundary());
  co_await answer.error(told);
  result.status = result.status < 200 ? told.status : result.status;
}

asio::awaitable<bool> Exchange::read_head() {
  for (int informational = 0;; ++informational) {
    parser.emplace();
    parser->header_limit(kHeaderLimit);
    parser->body_limit(boost::none);
    parser->skip(request.method == "HEAD");
    expect_progress();
    const auto [ec, got] =
        co_await read_header<false>(connection->stream, connection->buffer, *parser);
    if (ec) {
      co_await fail(ec, "closed or broke its answer before it began");
      co_return false;
    }
    result.status = parser->get().result_int();
    if (result.status >= 200) {
      co_return true;
    }
    if (informational == kMaxInformational) {
      co_await fail(beast::http::error::bad_status, "sends nothing but informational answers");
      co_return false;
    }
  }
}

// Whether there is something to send right behind the head.
bool Exchange::body_came() const {
  const std::string_view rest(static_cast<const char*>(connection->buffer.data().data()),
                              connection->buffer.size());
  const std::size_t size_line = parser->chunked() ? rest.find('\n') + 1 : 0;
  return parser->is_done() || (size_line < rest.size() && (size_line > 0 || !parser->chunked()));
}

asio::awaitable<void> Exchange::pass_head() {
  const auto& head = parser->get();
  const AnswerKind kind = answer_kind(view(head[field::content_type]));
  watch = AnswerWatch(request.identity ? kind : AnswerKind::other);
  late = answer.head_sent();
  if (late) {
    co_return;
  }
  std::string lines;
  append_end_to_end(lines, head, [](field, std::string_view name) {
    return begins(name, "x-toki-") || begins(name, "access-control-") || same(name, "x-request-id");
  });
  const bool no_body = result.status == 204 || result.status == 304;
  std::optional<std::uint64_t> length;
  if (const auto found = head.find(field::content_length); found != head.end() && !no_body) {
    length = parser->content_length() ? std::optional<std::uint64_t>(*parser->content_length())
                                      : std::nullopt;
  }
  if (!length && kind == AnswerKind::sse) {
    answer.opens_event_stream();
  }
  co_await answer.head(result.status, view(head.reason()), lines, length, no_body, body_came());
}

// Each piece goes out before the next is read, so a slow client slows the server down and nothing
// piles up.
asio::awaitable<bool> Exchange::pass_body() {
  if (connection->piece == nullptr) {
    connection->piece = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  }
  char* const piece = connection->piece.get();
  while (!parser->is_done()) {
    auto& body = parser->get().body();
    body.data = piece;
    body.size = kPieceBytes;
    body.more = true;
    expect_progress();
    const auto [ec, got] =
        co_await read_some<false>(connection->stream, connection->buffer, *parser);
    const std::string_view bytes(piece, kPieceBytes - body.size);
    if (!bytes.empty()) {
      result.answer_begun = true;
      watch.feed(bytes);
      if (request.text != nullptr && result.status == 200) {
        request.text->feed(bytes);
      }
      result.events = watch.facts().events;
      if (late && result.status != 200) {
        late_error.append(bytes.substr(0, kPieceBytes - std::min(kPieceBytes, late_error.size())));
      } else {
        co_await answer.body(bytes, parser->is_done());
      }
    }
    if (ec && ec != beast::http::error::need_buffer) {
      co_await fail(ec, "broke off its answer");
      co_return false;
    }
  }
  co_return true;
}

asio::awaitable<void> Exchange::run() {
  const std::string head = request_head(request, upstream);
  auto connected = co_await upstream.send(head, request.body, false, request.progress_limit);
  if (!connected && connected.error().code == Errc::timed_out) {
    co_await fail(beast::error::timeout, "");
    co_return;
  }
  if (!connected) {
    result.end = RelayResult::End::unreachable;
    const HttpError told = unreachable(connected.error().detail);
    co_await answer.error(told);
    result.status = told.status;
    co_return;
  }
  connection = std::move(*connected);
  if (!co_await read_head()) {
    co_return;
  }
  co_await pass_head();
  const bool whole = co_await pass_body();
  watch.finish();
  result.facts = watch.facts();
  if (!whole) {
    co_return;
  }
  if (late && result.status != 200) {
    HttpError told{.status = result.status,
                   .type = "upstream_error",
                   .message = fmt::format("the backend answered with status {}", result.status)};
    if (answer.error_form == ErrorForm::openai && result.facts.error) {
      co_await answer.error_event(late_error);
    } else {
      told.message = message_of(late_error).value_or(std::move(told.message));
      co_await answer.error(told);
    }
  } else {
    co_await answer.end();
  }
  // llama-server closes a connection after a stream without saying so.
  if (parser->keep_alive() && !parser->chunked()) {
    upstream.give_back(std::move(connection));
  }
}

}  // namespace

std::string request_head(const RelayRequest& request, const Upstream& upstream) {
  std::string head = fmt::format(FMT_COMPILE("{} {} HTTP/1.1\r\nHost: {}\r\n"), request.method,
                                 request.target, upstream.address().authority());
  const bool own_key = !upstream.authorization().empty();
  const beast::http::fields none;
  const auto& fields = request.fields != nullptr ? *request.fields : none;
  append_end_to_end(head, fields, [&](field name, std::string_view text) {
    return name == field::host || name == field::expect ||
           (name == field::authorization && own_key) ||
           (name == field::accept_encoding && request.identity) ||
           (!request.id.empty() && same(text, "x-request-id"));
  });
  if (!request.id.empty()) {
    head.append("X-Request-Id: ").append(request.id).append("\r\n");
  }
  if (own_key) {
    head.append("Authorization: ").append(upstream.authorization()).append("\r\n");
  }
  if (request.identity) {
    head += "Accept-Encoding: identity\r\n";
  }
  if (request.has_body) {
    std::size_t length = 0;
    for (const std::string_view piece : request.body) {
      length += piece.size();
    }
    head += fmt::format(FMT_COMPILE("Content-Length: {}\r\n"), length);
  }
  head += "\r\n";
  return head;
}

asio::awaitable<void> relay(Upstream& upstream, const RelayRequest& request, AnswerWriter& answer,
                            RelayResult& result) {
  Exchange exchange(upstream, request, answer, result);
  co_await exchange.run();
}

}  // namespace toki::http
