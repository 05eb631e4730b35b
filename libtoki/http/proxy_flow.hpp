// One generation on its way: from its prompt through the queue and its ticket's steps to the answer,
// and what is known of its slot then.
#pragma once

#include <toki/http/answer_text.hpp>
#include <toki/http/async_driver.hpp>
#include <toki/http/proxy.hpp>

#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace toki::http {

std::string_view authorization_of(const ClientRequest& request);

/// Runs both. `beside` returns only by being cancelled, when the work has ended or when both are.
boost::asio::awaitable<void> run_beside(boost::asio::awaitable<void> work,
                                        boost::asio::awaitable<void> beside);

inline double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// Lives in serve()'s frame, so whatever ends serve() ends it too; a
// ticket that is still here then is counted as cancelled and its slot keeps only what is certain.
struct Proxy::Flow {
  Proxy& proxy;
  const ClientRequest& request;
  AnswerWriter& answer;
  RequestReport& report;
  GenerationRequest wanted;
  const Body* body = nullptr;  // none: unreadable to us, passed on as it is
  std::optional<Ticket> ticket;
  bool sent = false;
  bool sent_in_vain = false;
  const bool alone = false;  // see Query::alone
  bool unsafe = false;       // and it would be told what others had computed: it is not sent
  bool unproven = false;     // it is answered, and where it ran is still to be asked
  Rendered rendered;
  std::vector<bool> old_work;  // slots that worked for others when this was sent
  RelayResult result;
  std::optional<AnswerText> audited{};  // the answer, if it may be repeated

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<void> deliver(const Query& query);
  boost::asio::awaitable<void> run_steps_and_send();
  boost::asio::awaitable<void> run_to_departure(Departure& departure);
  boost::asio::awaitable<void> send_at(Departure& departure);
  boost::asio::awaitable<Result<Rendered>> render();
  boost::asio::awaitable<void> refuse(const Error& error);
  boost::asio::awaitable<void> send();
  boost::asio::awaitable<void> relay_found(const RelayRequest& relayed);
  boost::asio::awaitable<std::vector<std::uint64_t>> boundaries(TokenSpan prompt);
  void conclude();
  boost::asio::awaitable<void> settle_asked();
  void settle(bool client_left, std::optional<std::uint64_t> held = {});
  void offer_audit(const AnswerText& text);
};

}  // namespace toki::http
