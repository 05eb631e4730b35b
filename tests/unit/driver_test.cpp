// One suite for both drivers: the blocking one of the core and the Asio one of toki::http.
#include <toki/blocking_driver.hpp>
#include <toki/http/async_driver.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

using namespace toki;
namespace asio = boost::asio;

namespace {

// How a backend may end a call.
enum class Manner { inside, other_thread, dropped };

class FakeBackend final : public Backend {
 public:
  Manner manner = Manner::other_thread;
  bool fail = false;
  std::vector<std::uint32_t> erased;
  std::vector<std::thread> threads;

  ~FakeBackend() override {
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  void describe(Completion<BackendDescription> done) override {
    end(std::move(done), BackendDescription{.slots = 3});
  }
  void render(const PromptSource&, Completion<Tokens> done) override {
    end(std::move(done), Tokens{1, 2, 3});
  }
  void prefill(SlotId, TokenSpan prompt, Completion<Prefilled> done) override {
    end(std::move(done), Prefilled{.computed = prompt.size()});
  }
  void save(SlotId, std::string_view, Completion<Timed> done) override {
    end(std::move(done), Timed{.tokens = 7});
  }
  void restore(SlotId, std::string_view, Completion<Timed> done) override {
    end(std::move(done), Timed{.tokens = 7});
  }
  void erase(SlotId slot, Completion<Done> done) override {
    erased.push_back(slot.index);
    end(std::move(done), Done{});
  }

 private:
  template <class T>
  void end(Completion<T> done, T value) {
    Result<T> result = fail ? Result<T>(Error{Errc::backend, "no"}) : Result<T>(std::move(value));
    if (manner == Manner::inside) {
      done(std::move(result));
    } else if (manner == Manner::other_thread) {
      threads.emplace_back([done = std::move(done), result = std::move(result)]() mutable {
        done(std::move(result));
      });
    }
  }
};

using Run = std::function<void(Ticket&, Backend&)>;
using Render = std::function<Result<Tokens>(Backend&)>;

asio::awaitable<void> run_async(Ticket& ticket, Backend& backend) {
  http::AwaitedBackend awaited{backend};
  co_await http::run_steps(ticket, awaited);
}

asio::awaitable<void> render_async(Backend& backend, std::optional<Result<Tokens>>& out) {
  auto start = [&backend](Completion<Tokens> done) {
    backend.render({"/x", "{}", ""}, std::move(done));
  };
  out = co_await http::await<Tokens>(start);
}

struct Driver {
  const char* name;
  Run run;
  Render render;
};

const std::vector<Driver>& drivers() {
  static const std::vector<Driver> all{
      {"blocking", [](Ticket& ticket, Backend& backend) { run_steps(ticket, backend); },
       [](Backend& backend) {
         return wait_for<Tokens>([&](Completion<Tokens> done) {
           backend.render({"/x", "{}", ""}, std::move(done));
         });
       }},
      {"asio",
       [](Ticket& ticket, Backend& backend) {
         asio::io_context io;
         asio::co_spawn(io, run_async(ticket, backend), asio::detached);
         io.run();
       },
       [](Backend& backend) {
         asio::io_context io;
         std::optional<Result<Tokens>> out;
         asio::co_spawn(io, render_async(backend, out), asio::detached);
         io.run();
         return std::move(*out);
       }}};
  return all;
}

// An engine whose only slot has to be erased first.
Ticket faulty_ticket(Engine& engine) {
  engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = false});
  const Tokens prompt{1, 2, 3, 4, 5};
  auto ticket = engine.begin({.scope = {}, .tokens = prompt});
  ticket->sent();
  std::move(*ticket).finish(
      {.ending = Ending::completed, .computed = true, .prompt_tokens = 5, .cached_tokens = 400});
  return std::move(*engine.begin({.scope = {}, .tokens = prompt}));
}

}  // namespace

TEST_CASE("driver: steps run in order and their end reaches the ticket") {
  const Driver& driver = drivers()[GENERATE(0U, 1U)];
  const Manner manner = GENERATE(Manner::inside, Manner::other_thread, Manner::dropped);
  const bool fail = GENERATE(false, true);
  CAPTURE(driver.name, static_cast<int>(manner), fail);
  Engine engine({}, &std::chrono::steady_clock::now);
  FakeBackend backend;
  backend.manner = manner;
  backend.fail = fail;
  Ticket ticket = faulty_ticket(engine);
  driver.run(ticket, backend);
  CHECK(backend.erased == std::vector<std::uint32_t>{0});
  CHECK(ticket.may_reuse() == (!fail && manner != Manner::dropped));
}

TEST_CASE(
    "driver: a call ends with the backend's value, its error, or cancelled when it was dropped") {
  const Driver& driver = drivers()[GENERATE(0U, 1U)];
  CAPTURE(driver.name);
  FakeBackend backend;
  CHECK(*driver.render(backend) == Tokens{1, 2, 3});
  backend.fail = true;
  CHECK(driver.render(backend).error().code == Errc::backend);
  backend.manner = Manner::dropped;
  CHECK(driver.render(backend).error().code == Errc::cancelled);
}

TEST_CASE("driver: a backend that says nothing about embeddings has none") {
  FakeBackend backend;
  const auto made = wait_for<Embedding>([&](auto done) { backend.embed("a", std::move(done)); });
  CHECK(made.error().code == Errc::unsupported);
}

TEST_CASE("completion: moving one over another drops the other") {
  std::vector<Errc> ended;
  const auto note = [&](Result<int> result) {
    ended.push_back(result ? Errc::busy : result.error().code);
  };
  Completion<int> a(note);
  Completion<int> b(note);
  a = std::move(b);
  CHECK(ended == std::vector{Errc::cancelled});
  a(1);
  CHECK(ended == std::vector{Errc::cancelled, Errc::busy});
}
