#include <toki/http/answer_text.hpp>
#include <toki/http/answer_watch.hpp>
#include <toki/http/async_driver.hpp>
#include <toki/http/audit.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include "http/idle_looks.hpp"

namespace toki::http {

namespace asio = boost::asio;
using Time = std::chrono::steady_clock::time_point;

namespace {

constexpr Millis kLook{250};
constexpr std::chrono::minutes kAnswerLimit{30};

bool is_zero(const JsonField* field) {
  double value = 1;
  if (field == nullptr || field->kind != JsonKind::number) {
    return false;
  }
  const char* end = field->value.data() + field->value.size();
  const auto [ptr, ec] = std::from_chars(field->value.data(), end, value);
  return ec == std::errc{} && ptr == end && value == 0.0;
}

// llama-server takes -1, and the same in 32 bits, for "any".
bool is_seed(const JsonField* field) {
  constexpr std::int64_t kAny = 0xFFFFFFFF;
  const auto seed = field == nullptr ? std::nullopt : as_integer(*field);
  return seed && *seed >= 0 && *seed < kAny;
}

}  // namespace

// The spare slot. However an audit ends, the slot is given back, as unknown once it was worked in.
struct Audit::Lease {
  explicit Lease(Ticket t) : ticket(std::move(t)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    const auto slot = ticket.slot();
    const std::array<std::uint32_t, 1> touched{slot ? slot->index : 0};
    const bool worked = sent && slot;
    std::move(ticket).dismiss(std::span<const std::uint32_t>(touched).first(worked ? 1 : 0),
                              SlotContent::unknown);
  }
  Ticket ticket;
  bool sent = false;
};

Audit::Client::Client(Audit* audit) : audit_(audit) {
  if (audit_ != nullptr) {
    ++audit_->clients_;
    audit_->interrupt_.cancel();
  }
}

Audit::Client::~Client() {
  if (audit_ != nullptr) {
    --audit_->clients_;
  }
}

Audit::Audit(const asio::any_io_executor& executor, const AuditSetup& setup,
             const AuditOptions& options, LogSink log)
    : setup_(setup),
      options_(options),
      log_(std::move(log)),
      look_(executor),
      interrupt_(executor, Time::max()) {}

bool Audit::may_repeat(const GenerationRequest& request, const Body& body) const {
  const bool understood = request.endpoint == Endpoint::chat ||
                          request.endpoint == Endpoint::completions ||
                          request.endpoint == Endpoint::completion;
  return understood && !request.bypass && request.sequences == 1 && !request.shifts &&
         body.text().size() <= kMaxBodyBytes &&
         (is_zero(body.find("temperature")) || is_seed(body.find("seed")));
}

void Audit::hit(AuditedAnswer answer) {
  ++hits_;
  if (hits_ < options_.every) {
    return;
  }
  hits_ = 0;
  if (!answer.text) {
    drop("its answer is too long, or of an unknown shape");
  } else if (waiting_.size() >= kMaxWaiting) {
    drop("too many wait");
  } else {
    waiting_.push_back({.answer = std::move(answer), .since = std::chrono::steady_clock::now()});
  }
}

void Audit::drop(std::string_view why) {
  ++dropped_;
  if (log_) {
    log_(LogLevel::debug, fmt::format("audit dropped: {}", why));
  }
}

void Audit::drop_old() {
  while (!waiting_.empty() && std::chrono::steady_clock::now() - waiting_.front().since > kMaxAge) {
    waiting_.pop_front();
    drop("no slot was to be had in time");
  }
}

asio::awaitable<void> Audit::run() {
  IdleLooks looks;
  for (;;) {
    look_.expires_after(kLook);
    co_await look_.async_wait(asio::use_awaitable);
    drop_old();
    const bool idle = looks.idle(setup_.engine);
    if (idle && clients_ == 0 && setup_.monitor.serving() && !waiting_.empty()) {
      co_await next();
    }
  }
}

// Returns when a client comes.
asio::awaitable<void> Audit::client_came() {
  while (clients_ == 0) {
    interrupt_.expires_at(Time::max());
    (void)co_await interrupt_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

// The oldest request that waits. One that a client interrupts is tried again, some times.
asio::awaitable<void> Audit::next() {
  using namespace asio::experimental::awaitable_operators;
  auto spare = setup_.engine.begin_spare();
  if (!spare) {
    co_return;
  }
  Job job = std::move(waiting_.front());
  waiting_.pop_front();
  std::optional<Reply> reply;
  bool interrupted = false;
  {
    Lease lease(std::move(*spare));
    co_await run_steps(lease.ticket, setup_.backend, setup_.store);
    const bool saved = lease.ticket.trouble().empty() && lease.ticket.current();
    if (saved && clients_ == 0) {
      lease.sent = true;
      const auto ended =
          co_await (repeat(job.answer, lease.ticket.slot()->index, reply) || client_came());
      interrupted = ended.index() != 0;
    } else {
      interrupted = clients_ > 0;
    }
  }
  if (interrupted && ++job.tries < kMaxTries) {
    waiting_.push_front(std::move(job));
  } else if (!reply || reply->status != 200) {
    drop(interrupted ? "clients came" : "the backend gave no answer");
  } else {
    co_await judge(job.answer, *reply);
  }
}

asio::awaitable<void> Audit::repeat(const AuditedAnswer& answer, std::uint32_t slot,
                                    std::optional<Reply>& reply) {
  const auto parsed = Body::parse(answer.body);
  const Body* body = std::get_if<Body>(&parsed);
  if (body == nullptr) {
    co_return;
  }
  const std::vector<BodyEdit> edits{{"id_slot", std::to_string(slot)}, {"cache_prompt", "false"}};
  std::vector<std::string> storage;
  const std::vector<std::string_view> pieces = splice(*body, edits, storage);
  auto got = co_await setup_.upstream.call("POST", answer.target, pieces, answer.authorization,
                                           kAnswerLimit);
  if (got) {
    reply = std::move(*got);
  }
}

asio::awaitable<void> Audit::judge(const AuditedAnswer& answer, const Reply& reply) {
  const AnswerKind kind = answer.stream ? AnswerKind::sse : AnswerKind::json;
  AnswerWatch watch(kind);
  watch.feed(reply.body);
  watch.finish();
  AnswerText text(kind);
  text.feed(reply.body);
  text.finish();
  const auto cold = text.text();
  if (!cold || watch.facts().error) {
    drop("its answer is too long, or of an unknown shape");
    co_return;
  }
  if (watch.facts().cached_tokens.value_or(0) > 0) {
    drop("the backend reused its cache although it was told not to");
    co_return;
  }
  Comparison found = compare(*answer.text, *cold);
  if (found.undecided) {
    co_await weigh(found, *answer.text, *cold);
  }
  report(answer, found);
}

asio::awaitable<void> Audit::weigh(Comparison& found, std::string_view a, std::string_view b) {
  if (setup_.embedder == nullptr) {
    decide(found, nullptr, nullptr);
    co_return;
  }
  const std::string quoted_a = quote(a);
  const std::string quoted_b = quote(b);
  const auto of_a = co_await setup_.embedder->async_embed(quoted_a);
  const auto of_b = co_await setup_.embedder->async_embed(quoted_b);
  decide(found, of_a ? &*of_a : nullptr, of_b ? &*of_b : nullptr, options_.same_meaning);
}

void Audit::report(const AuditedAnswer& answer, const Comparison& found) {
  counts_.add(found);
  if (!log_ || found.kind == Divergence::identical) {
    return;
  }
  const auto level = found.kind == Divergence::substantive ? LogLevel::warn : LogLevel::info;
  log_(level,
       fmt::format("audit class={} reason={} path={} slot={} source={} prompt={} reused={} "
                   "parts_at_character={} parts_at_word={} words={} words_cold={} "
                   "words_changed={} cosine={:.4f}",
                   to_string(found.kind), to_string(found.reason),
                   answer.target.substr(0, answer.target.find('?')), answer.slot, answer.source,
                   answer.prompt, answer.reused, found.parting.characters, found.parting.words,
                   found.words_a, found.words_b, found.words_changed, found.cosine));
}

void Audit::add_to(Stats& stats) const noexcept {
  stats.audits_total = counts_.pairs();
  stats.audit_identical_total = counts_.count(Divergence::identical);
  stats.audit_whitespace_total = counts_.count(Divergence::whitespace_only);
  stats.audit_noise_total = counts_.count(Divergence::restore_noise);
  stats.audit_substantive_total = counts_.count(Divergence::substantive);
  stats.audits_dropped_total = dropped_;
}

}  // namespace toki::http
