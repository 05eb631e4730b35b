#include "http/proxy_flow.hpp"

#include <toki/http/audit.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "http/message_tokens.hpp"

namespace toki::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

double since(Time start) {
  return milliseconds(std::chrono::steady_clock::now() - start);
}

// Returns only by being cancelled.
asio::awaitable<void> never(asio::any_io_executor executor) {
  asio::steady_timer timer(executor, asio::steady_timer::time_point::max());
  (void)co_await timer.async_wait(kAsTuple);
}

// Which slots a request without id_slot works in, asked until it is seen. Until then its ticket
// keeps every idle slot. A slot that still works off a cancelled task is not counted before it was
// seen idle.
asio::awaitable<void> find_slots(LlamaServerBackend& backend, std::optional<Ticket>& ticket,
                                 std::vector<bool>& old_work, std::uint32_t sequences,
                                 asio::any_io_executor executor) {
  asio::steady_timer timer(executor);
  Millis pause{5};
  for (;;) {
    timer.expires_after(pause);
    auto [ec] = co_await timer.async_wait(kAsTuple);
    if (ec) {
      co_return;
    }
    const auto working = co_await backend.async_working();
    if (!working || !ticket) {
      break;
    }
    old_work.resize(working->size());
    std::vector<std::uint32_t> found;
    for (std::uint32_t i = 0; i < working->size(); ++i) {
      old_work[i] = old_work[i] && (*working)[i];
      if ((*working)[i] && !old_work[i]) {
        found.push_back(i);
      }
    }
    if (ticket->claimed_among(found) >= sequences) {
      ticket->settle(found);
      break;
    }
    pause = std::min(pause * 2, Millis(200));
  }
  co_await never(executor);
}

// The restore that a request was sent behind never ended, or its backend was started again: it is
// taken back, and sent anew.
struct SentInVain {};

}  // namespace

std::string_view authorization_of(const ClientRequest& request) {
  const auto found = request.fields->find(beast::http::field::authorization);
  return found == request.fields->end()
             ? std::string_view()
             : std::string_view(found->value().data(), found->value().size());
}

asio::awaitable<void> run_beside(asio::awaitable<void> work, asio::awaitable<void> beside) {
  using namespace asio::experimental::awaitable_operators;
  const auto ended = co_await (std::move(work) || std::move(beside));
  if (ended.index() != 0) {
    throw boost::system::system_error(asio::error::operation_aborted);
  }
}

asio::awaitable<Result<Rendered>> Proxy::Flow::render() {
  if (!wanted.known_prompt) {
    Rendered nothing;
    co_return nothing;
  }
  if (request.body.size() > proxy.options_.max_rendered_bytes) {
    co_return Error{Errc::invalid_argument, "too large"};
  }
  const Time begun = std::chrono::steady_clock::now();
  const std::string_view path = request.target.substr(0, request.target.find_first_of("?#"));
  const PromptSource source{path, request.body, authorization_of(request), request.tenant};
  auto tokens = co_await proxy.backend_.async_render(source);
  report.render_ms = since(begun);
  co_return tokens;
}

asio::awaitable<void> Proxy::Flow::refuse(const Error& error) {
  report.ending = "refused";
  report.error = error.detail;
  HttpError told{.status = 503,
                 .type = "unavailable_error",
                 .message = error.detail,
                 .offset = {},
                 .retry_after = 1};
  if (error.code == Errc::busy) {
    told.status = 429;
    told.type = "rate_limit_error";
  } else if (error.code == Errc::unsupported) {
    told.status = 501;
    told.type = "not_supported_error";
    told.retry_after = 0;
  }
  report.status = told.status;
  co_await answer.error(told);
}

asio::awaitable<void> Proxy::Flow::run() {
  co_await proxy.monitor_.verify();
  if (!proxy.monitor_.serving()) {
    const Error away{Errc::unavailable,
                     fmt::format("the backend is {}", to_string(proxy.monitor_.state()))};
    ++proxy.refused_;
    co_await refuse(away);
    co_return;
  }
  co_await proxy.monitor_.tried();
  Query query = query_for(wanted, proxy.monitor_.identity(), request.tenant);
  query.alone = alone;
  query.unnamed = query.unnamed && !alone;
  auto tokens = co_await render();
  if (tokens) {
    rendered = std::move(*tokens);
    query.tokens = rendered.tokens;
    query.surrogate = query.surrogate || rendered.surrogate;
  } else if (tokens.error().code == Errc::unavailable) {
    proxy.monitor_.poke();
    query.bypass = Reason::tokenize_failed;
  } else {
    query.bypass = reason_unrendered(tokens.error());
    report.error = tokens.error().detail;
  }
  query.from_ids = !query.bypass && !query.surrogate && wanted.adapters.empty();
  std::vector<std::uint64_t> ends;
  if (query.from_ids && body != nullptr && proxy.engine_.wants_boundaries()) {
    ends = co_await boundaries(query.tokens);
    query.boundaries = ends;
  }
  report.prompt = query.tokens.size();
  Embedding embedding;
  if (!query.bypass && proxy.engine_.wants_embedding(query.scope, query.tokens)) {
    embedding = co_await proxy.embeddings_.for_search(rendered.text, query.tokens);
    query.embedding = embedding.kind == EmbeddingKind::none ? nullptr : &embedding;
  }
  co_await deliver(query);
}

asio::awaitable<std::vector<std::uint64_t>> Proxy::Flow::boundaries(TokenSpan prompt) {
  if (wanted.endpoint != Endpoint::messages) {
    co_return co_await prompt_boundaries(proxy.backend_, *body, prompt, authorization_of(request),
                                         request.tenant);
  }
  const std::string text = proxy.backend_.chat_of_messages(*body).value_or("{}");
  const auto parsed = Body::parse(text);
  const Body* chat = std::get_if<Body>(&parsed);
  if (chat == nullptr) {
    co_return std::vector<std::uint64_t>();  // tools of its own depth, which a chat nests once more
  }
  co_return co_await prompt_boundaries(proxy.backend_, *chat, prompt, authorization_of(request),
                                       request.tenant);
}

// With a ticket. When the backend was started again before the request was sent, that means nothing
// any more, and another is taken.
asio::awaitable<void> Proxy::Flow::deliver(const Query& query) {
  const Time queued = std::chrono::steady_clock::now();
  answer.headers = "x-toki-cache: queued\r\n";
  for (;;) {
    auto admitted = co_await proxy.admission_.acquire(query);
    report.queue_ms = since(queued);
    if (!admitted) {
      answer.headers.clear();
      co_await refuse(admitted.error());
      co_return;
    }
    ticket.emplace(std::move(*admitted));
    if (ticket->next_step() == nullptr) {
      co_await send();
    } else {
      co_await run_steps_and_send();
    }
    if (!ticket->trouble().empty()) {
      report.error = ticket->trouble();
    }
    if (sent) {
      unproven = result.status == 200 && result.end == RelayResult::End::completed &&
                 ticket->wants_proof(result.facts.cached_tokens);
      if (!unproven) {  // else its client may leave while that is asked
        conclude();
      }
      co_return;
    }
    std::move(*ticket).dismiss({}, SlotContent::unknown);
    ticket.reset();
    if (unsafe) {
      ++proxy.refused_;
      answer.headers.clear();
      const Error why{Errc::unsupported,
                      "what the backend holds of others cannot be kept away from this call: it "
                      "needs a backend without a prompt cache of its own and with --slot-save-path "
                      "(let tokid start it)"};
      co_await refuse(why);
      co_return;
    }
  }
}

asio::awaitable<void> Proxy::Flow::run_steps_and_send() {
  using namespace asio::experimental::awaitable_operators;
  const auto executor = co_await asio::this_coro::executor;
  Departure departure(executor, *ticket, result.answer_begun);
  auto steps = run_to_departure(departure);
  auto sending = send_at(departure);
  try {
    co_await (std::move(steps) && std::move(sending));
  } catch (const SentInVain&) {
    sent = false;
    result = {};
  }
}

asio::awaitable<void> Proxy::Flow::run_to_departure(Departure& departure) {
  co_await run_steps(*ticket, proxy.backend_, proxy.options_.store, &departure);
  if (sent && !result.answer_begun && !ticket->current()) {
    sent_in_vain = true;
    throw SentInVain{};
  }
}

asio::awaitable<void> Proxy::Flow::send_at(Departure& departure) {
  co_await departure.wait();
  if (!ticket->current()) {
    co_return;
  }
  try {
    co_await send();
  } catch (const boost::system::system_error&) {
    if (!std::exchange(sent_in_vain, false)) {
      throw;
    }
  }
}

asio::awaitable<void> Proxy::Flow::send() {
  const auto slot = ticket->slot();
  const bool reuse = ticket->may_reuse();
  unsafe = alone && !reuse;
  if (unsafe) {
    co_return;
  }
  report.slot = slot ? std::optional(slot->index) : std::nullopt;
  report.predicted = ticket->predicted();
  report.available = ticket->available();
  const bool apart = !request.tenant.empty();  // it is told nothing that others' work decides
  report.reason = to_string(ticket->reason());
  report.source = to_string(ticket->source());
  answer.headers = fmt::format(
      "x-toki-cache: {}\r\nx-toki-reused: {}\r\nx-toki-known: {}\r\nx-toki-source: {}\r\n"
      "x-toki-slot: {}\r\nx-toki-reason: {}\r\n",
      to_string(ticket->predicted_class()), ticket->predicted(), ticket->available(), report.source,
      slot && !apart ? std::to_string(slot->index) : "any",
      to_string(apart_reason(ticket->reason(), apart)));
  std::vector<std::string> storage;
  std::vector<std::string_view> pieces{request.body};
  if (body != nullptr) {
    const auto edits = slot_edits(wanted, *body, report.slot, reuse);
    pieces = splice(*body, edits, storage);
  }
  RelayRequest relayed{.method = request.method,
                       .target = request.target,
                       .fields = request.fields,
                       .body = pieces,
                       .has_body = true,
                       .identity = true,
                       .progress_limit = proxy.options_.progress_limit,
                       .id = request.id};
  Audit* const audit = proxy.options_.audit;
  if (audit != nullptr && body != nullptr && audit->may_repeat(wanted, *body)) {
    audited.emplace(wanted.stream ? AnswerKind::sse : AnswerKind::json);
    relayed.text = audit->due() ? &*audited : nullptr;
  }
  if (!ticket->settled()) {
    old_work = (co_await proxy.backend_.async_working()).value_or({});
  }
  ticket->sent();
  sent = true;
  co_await relay_found(relayed);
}

void Proxy::Flow::conclude() {
  settle(false);
  if (audited && report.cache_class == to_string(CacheClass::hit) &&
      report.ending == to_string(Ending::completed)) {
    audited->finish();
    offer_audit(*audited);
  }
}

// While it is not known which slots work for it, that is asked beside the relay.
asio::awaitable<void> Proxy::Flow::relay_found(const RelayRequest& relayed) {
  if (ticket->settled()) {
    co_await relay(proxy.upstream_, relayed, answer, result);
    co_return;
  }
  const auto executor = co_await asio::this_coro::executor;
  auto finding = find_slots(proxy.backend_, ticket, old_work, wanted.sequences, executor);
  auto work = relay(proxy.upstream_, relayed, answer, result);
  co_await run_beside(std::move(work), std::move(finding));
}

void Proxy::Flow::offer_audit(const AnswerText& text) {
  AuditedAnswer answered{.target = std::string(request.target),
                         .body = std::string(request.body),
                         .authorization = std::string(authorization_of(request)),
                         .stream = wanted.stream,
                         .text = text.text(),
                         .prompt = report.prompt,
                         .reused = report.reused,
                         .slot = report.slot.value_or(0),
                         .source = report.source};
  proxy.options_.audit->hit(std::move(answered));
}

asio::awaitable<void> Proxy::Flow::settle_asked() {
  const auto held = co_await proxy.backend_.async_held();
  const std::uint32_t slot = ticket->slot()->index;
  settle(false, held && slot < held->size() ? std::optional((*held)[slot]) : std::nullopt);
}

void Proxy::Flow::settle(bool client_left, std::optional<std::uint64_t> held) {
  const AnswerFacts& facts = result.facts;
  Outcome outcome{.ending = client_left ? Ending::cancelled : Ending::completed};
  // The first event may only open the answer; the second is a token, so the prompt was computed.
  outcome.computed =
      result.status == 200 &&
      (client_left ? result.events > 1 && !wanted.shows_progress : result.answer_begun);
  outcome.generated_tokens = facts.generated_tokens.value_or(client_left        ? result.events
                                                             : outcome.computed ? 1
                                                                                : 0);
  outcome.truncated = facts.truncated;
  outcome.held = held;
  if (!facts.several) {
    outcome.prompt_tokens = facts.prompt_tokens;
    outcome.cached_tokens = facts.cached_tokens;
    outcome.prompt_ms = facts.prompt_ms.value_or(0);
  }
  if (!facts.truncated) {
    outcome.generated = facts.generated;
  }
  using End = RelayResult::End;
  if (client_left) {
  } else if (result.end == End::stalled) {
    outcome.ending = Ending::stalled;
  } else if (result.end != End::completed) {
    outcome.ending = Ending::failed;
    proxy.monitor_.poke();
  } else if (result.status != 200 || facts.error) {
    outcome.ending = result.status != 200 ? Ending::refused : Ending::failed;
  }
  const Account account = std::move(*ticket).finish(outcome);
  ticket.reset();
  report.status = result.status;
  report.ending = to_string(outcome.ending);
  report.cache_class = to_string(account.cache_class);
  report.reused = account.reused;
  report.generated = facts.generated_tokens.value_or(0);
  report.mismatch = account.tokenization_mismatch;
  if (account.tokenization_mismatch && rendered.from_parts) {
    proxy.monitor_.tokens_were_wrong();
  } else if (account.tokenization_mismatch && rendered.messages_shape != 0) {
    proxy.backend_.messages_were_wrong(rendered.messages_shape);
  }
  if (account.wants_embedding) {
    proxy.embeddings_.for_record(account.prompt, std::move(rendered.text));
  }
  report.fault = account.integrity_fault;
  if (account.elsewhere && outcome.ending == Ending::completed) {
    report.error = "the backend may have chosen another slot than it was prepared to";
  }
  if (account.restore_failed) {
    report.error = "the backend reused less than half of what it said it had restored";
  }
}

}  // namespace toki::http
