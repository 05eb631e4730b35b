// One suite for both drivers: the blocking one of the core and the Asio one of toki::http.
#include <toki/blocking_driver.hpp>
#include <toki/http/async_driver.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "unit/bare_store.hpp"
#include "unit/token_ranges.hpp"

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
  std::vector<std::size_t> computed;
  void prefill(SlotId, TokenSpan prompt, Completion<Prefilled> done) override {
    computed.push_back(prompt.size());
    end(std::move(done), Prefilled{.computed = prompt.size()});
  }
  std::vector<std::string> files;  // saved to, restored from
  std::uint64_t tokens = 7;        // of every state
  void save(SlotId, std::string_view name, Completion<Timed> done) override {
    files.push_back("save " + std::string(name));
    end(std::move(done), Timed{.tokens = tokens});
  }
  void restore(SlotId, std::string_view name, Completion<Timed> done) override {
    files.push_back("restore " + std::string(name));
    end(std::move(done), Timed{.tokens = tokens});
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

// Holds one state of 404 tokens that begins with those of a step, and writes down what it is told.
class OneState final : public toki::test::BareStore {
 public:
  std::vector<std::string> told;
  bool full = false;

  StoredPrefix match(const Scope&, TokenSpan prompt) const override {
    return {.tokens = prompt.size(), .read = 404};
  }
  Result<std::string> begin_save(const Step& step) override {
    told.push_back("begin_save " + std::to_string(step.tokens.size()));
    return full ? Result<std::string>(Error{Errc::busy, "full"}) : std::string("mine");
  }
  Result<Taken> end_save(const Step& step, std::string_view file, const Timed& saved) override {
    told.push_back("end_save " + std::string(file) + " " + std::to_string(saved.tokens));
    return Taken{.tokens = step.tokens, .unknown = saved.tokens - step.tokens.size()};
  }
  bool discard(std::string_view file) override {
    told.push_back("discard " + std::string(file));
    return true;
  }
  void discard_other_runs(std::string_view) override {}
  Result<Restorable> begin_restore(const Step& step) override {
    told.push_back("begin_restore " + std::to_string(step.tokens.size()));
    Tokens held = step.tokens;
    held.push_back(-1);
    return Restorable{.file = "mine", .tokens = 404, .held = held};
  }
  void end_restore(std::string_view file, const Result<Timed>& restored) override {
    told.push_back("end_restore " + std::string(file) +
                   (restored ? " " + std::to_string(restored->tokens) : " failed"));
  }
};

using Run = std::function<void(Ticket&, Backend&, StateStore*)>;
using Render = std::function<Result<Tokens>(Backend&)>;

asio::awaitable<void> run_async(Ticket& ticket, Backend& backend, http::StoreWorker* store) {
  http::AwaitedBackend awaited{backend};
  co_await http::run_steps(ticket, awaited, store);
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
      {"blocking",
       [](Ticket& ticket, Backend& backend, StateStore* store) {
         run_steps(ticket, backend, store);
       },
       [](Backend& backend) {
         return wait_for<Tokens>([&](Completion<Tokens> done) {
           backend.render({"/x", "{}", ""}, std::move(done));
         });
       }},
      {"asio",
       [](Ticket& ticket, Backend& backend, StateStore* store) {
         std::unique_ptr<http::StoreWorker> worker;
         if (store != nullptr) {
           worker = std::make_unique<http::StoreWorker>(*store);
         }
         asio::io_context io;
         asio::co_spawn(io, run_async(ticket, backend, worker.get()), asio::detached);
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

TEST_CASE("backend: what it does not override ends as unsupported") {
  class Least final : public Backend {
   public:
    void prefill(SlotId, TokenSpan, Completion<Prefilled> done) override { done(Prefilled{}); }
    void erase(SlotId, Completion<Done> done) override { done(Done{}); }
  };
  Least least;
  Backend& backend = least;
  const auto describe = [&](auto done) { backend.describe(std::move(done)); };
  const auto render = [&](auto done) { backend.render({"/x", "{}", ""}, std::move(done)); };
  const auto save = [&](auto done) { backend.save({}, "a", std::move(done)); };
  const auto restore = [&](auto done) { backend.restore({}, "a", std::move(done)); };
  const auto embed = [&](auto done) { backend.embed("text", std::move(done)); };
  CHECK(wait_for<BackendDescription>(describe).error().code == Errc::unsupported);
  CHECK(wait_for<Tokens>(render).error().code == Errc::unsupported);
  CHECK(wait_for<Timed>(save).error().code == Errc::unsupported);
  CHECK(wait_for<Timed>(restore).error().code == Errc::unsupported);
  CHECK(wait_for<Embedding>(embed).error().code == Errc::unsupported);
}

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
  driver.run(ticket, backend, nullptr);
  CHECK(backend.erased == std::vector<std::uint32_t>{0});
  CHECK(ticket.may_reuse() == (!fail && manner != Manner::dropped));
}

TEST_CASE("driver: the store names the files, and hears how each save and restore ended") {
  const Driver& driver = drivers()[GENERATE(0U, 1U)];
  const Manner manner = GENERATE(Manner::inside, Manner::other_thread, Manner::dropped);
  CAPTURE(driver.name, static_cast<int>(manner));
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = false});
  const Tokens first = range(1, 400);
  const Tokens second = range(1000, 400);
  auto before = engine.begin({.scope = {}, .tokens = first});
  before->sent();
  std::move(*before).finish(
      {.ending = Ending::completed, .computed = true, .prompt_tokens = 400, .cached_tokens = 0});
  OneState store;
  std::uint64_t stored = 0;  // of the first conversation
  engine.use_store([&](const Scope& scope, TokenSpan tokens) {
    return tokens[0] == 1 ? StoredPrefix{.tokens = stored} : store.match(scope, tokens);
  });
  engine.set_abilities({.saves = true, .cuts = true, .reads = false});
  FakeBackend backend;
  backend.manner = manner;
  backend.tokens = 404;
  auto ticket = engine.begin({.scope = {}, .tokens = second});
  REQUIRE(ticket);
  using Told = std::vector<std::string>;
  // The asynchronous one lets the store prepare the restore while the backend saves.
  const auto told = [&](const std::string& after_save, const std::string& after_restore) {
    const bool beside = std::string(driver.name) == "asio";
    Told all{"begin_save 400", beside ? "begin_restore 399" : after_save,
             beside ? after_save : "begin_restore 399", after_restore};
    std::erase(all, "");
    return all;
  };
  SECTION("both work, or fail") {
    driver.run(*ticket, backend, &store);
    if (manner == Manner::dropped) {  // it is not said of a call how it ended: the client left
      CHECK(std::count(store.told.begin(), store.told.end(), "discard mine") == 1);
      CHECK(backend.files.front() == "save mine");
      return;
    }
    CHECK(backend.files == Told{"save mine", "restore mine"});
    CHECK(store.told == told("end_save mine 404", "end_restore mine 404"));
    // The slot holds all of the state: what was asked for, one more, and four nobody knows.
    CHECK(ticket->predicted() == 399);
    CHECK(engine.slot_table()[0].known_tokens == 400);
    CHECK(engine.slot_table()[0].unknown_tail == 4);
    CHECK(engine.stats().saves_total == 1);
    CHECK(engine.stats().restores_total == 1);
  }
  SECTION("there is no store after all") {
    driver.run(*ticket, backend, nullptr);
    CHECK(backend.files.empty());
    CHECK(ticket->predicted() == 0);
    CHECK(engine.stats().saves_total == 0);
    CHECK(engine.stats().restores_total == 0);
  }
  SECTION("no room, and another number of tokens") {
    store.full = true;
    backend.tokens = 403;
    driver.run(*ticket, backend, &store);
    if (manner == Manner::dropped) {
      return;
    }
    CHECK(store.told == Told{"begin_save 400", "begin_restore 399", "end_restore mine 403"});
    CHECK(ticket->predicted() == 0);
    CHECK(backend.erased == std::vector<std::uint32_t>{0});
    CHECK(engine.stats().save_failures_total == 1);
    CHECK(engine.stats().restore_failures_total == 1);
  }
  SECTION("the backend refuses") {
    backend.fail = true;
    driver.run(*ticket, backend, &store);
    if (manner == Manner::dropped) {
      return;
    }
    CHECK(store.told == told("discard mine", "end_restore mine failed"));
  }
}

namespace {

// Ends no save before the restore behind it was asked for.
class SlowBackend final : public Backend {
 public:
  std::string how;
  std::vector<std::string> asked;
  Completion<Timed> saving{[](Result<Timed>) {}};

  void describe(Completion<BackendDescription>) override {}
  void render(const PromptSource&, Completion<Tokens>) override {}
  void prefill(SlotId, TokenSpan, Completion<Prefilled>) override {}
  void save(SlotId, std::string_view, Completion<Timed> done) override {
    asked.push_back("save");
    saving = std::move(done);
  }
  void restore(SlotId, std::string_view, Completion<Timed> done) override {
    asked.push_back("restore");
    Result<Timed> restored = Timed{.tokens = 404};
    if (how == "restore fails") {
      restored = Error{Errc::backend, "no"};
    }
    if (how == "restore first") {
      done(std::move(restored));
      saving(Timed{.tokens = 404});
    } else {
      saving(Timed{.tokens = 404});
      done(std::move(restored));
    }
  }
  void erase(SlotId, Completion<Done> done) override {
    asked.push_back("erase");
    done(Done{});
  }
};

}  // namespace

TEST_CASE("driver: what is restored behind a save is asked for before the save is done") {
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = false});
  OneState store;
  engine.use_store([&](const Scope& scope, TokenSpan tokens) {
    return tokens[0] == 1 ? StoredPrefix{} : store.match(scope, tokens);
  });
  engine.set_abilities({.saves = true, .cuts = true, .reads = false});
  const Tokens first = range(1, 400);
  const Tokens second = range(1000, 400);
  auto before = engine.begin({.scope = {}, .tokens = first});
  before->sent();
  std::move(*before).finish(
      {.ending = Ending::completed, .computed = true, .prompt_tokens = 400, .cached_tokens = 0});
  auto ticket = engine.begin({.scope = {}, .tokens = second});
  REQUIRE(ticket);
  SlowBackend backend;
  backend.how = GENERATE("in order", "restore first", "restore fails");
  CAPTURE(backend.how);
  {
    http::StoreWorker worker(store);
    asio::io_context io;
    asio::co_spawn(io, run_async(*ticket, backend, &worker), asio::detached);
    io.run();
  }
  std::vector<std::string> asked{"save", "restore"};
  if (backend.how == "restore fails") {
    asked.push_back("erase");
  }
  CHECK(backend.asked == asked);
  // What was saved behind the restore is not the conversation that was displaced.
  const bool swapped = backend.how == "restore first";
  CHECK(std::count(store.told.begin(), store.told.end(), "end_save mine 404") == (swapped ? 0 : 1));
  CHECK(engine.stats().save_failures_total == (swapped ? 1 : 0));
  CHECK(engine.stats().restores_total == (backend.how == "restore fails" ? 0 : 1));
}

namespace {

// Ends the restore only when it is told to.
class HeldBackend final : public Backend {
 public:
  Completion<Timed> restoring{[](Result<Timed>) {}};
  bool asked = false;

  void describe(Completion<BackendDescription>) override {}
  void render(const PromptSource&, Completion<Tokens>) override {}
  void prefill(SlotId, TokenSpan, Completion<Prefilled>) override {}
  void save(SlotId, std::string_view, Completion<Timed>) override {}
  void restore(SlotId, std::string_view, Completion<Timed> done) override {
    asked = true;
    restoring = std::move(done);
  }
  void erase(SlotId, Completion<Done> done) override { done(Done{}); }
};

asio::awaitable<void> run_until(Ticket& ticket, Backend& backend, http::StoreWorker& store,
                                http::Departure& departure) {
  http::AwaitedBackend awaited{backend};
  co_await http::run_steps(ticket, awaited, &store, &departure);
}

}  // namespace

TEST_CASE(
    "driver: a request departs while the restore before it is under way, or when it is done") {
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed({.slots = 1, .slots_used = {false}, .own_cache = false});
  OneState store;
  engine.use_store(
      [&](const Scope& scope, TokenSpan tokens) { return store.match(scope, tokens); });
  const bool cuts = GENERATE(true, false);
  engine.set_abilities({.saves = true, .cuts = cuts, .reads = false});
  const Tokens prompt = range(1000, 400);
  auto ticket = engine.begin({.scope = {}, .tokens = prompt});
  REQUIRE(ticket);
  HeldBackend backend;
  http::StoreWorker worker(store);
  asio::io_context io;
  bool answered = false;
  bool departed = false;
  http::Departure departure(io.get_executor(), *ticket, answered);
  asio::co_spawn(io, run_until(*ticket, backend, worker, departure), asio::detached);
  asio::co_spawn(io, departure.wait(), [&](const std::exception_ptr&) { departed = true; });
  const auto until = [&](const bool& condition) {
    while (!condition && io.run_one_for(std::chrono::seconds(30)) > 0) {
    }
    return condition;
  };
  REQUIRE(until(backend.asked));
  if (cuts) {
    CHECK(until(departed));
    ticket->sent();
  } else {
    CHECK_FALSE(departed);
  }
  answered = cuts && GENERATE(true, false);
  CAPTURE(cuts, answered);
  std::exchange(backend.restoring, Completion<Timed>([](auto) {}))(Timed{.tokens = 404});
  io.run();
  CHECK(departed);
  CHECK(engine.stats().restores_total == 1);
  if (cuts) {
    const auto before = ticket->apart();
    // Nothing of it was reused, so it came upon the answer if that had begun.
    const Account account = std::move(*ticket).finish(
        {.ending = Ending::completed, .computed = true, .prompt_tokens = 400, .cached_tokens = 0});
    CHECK(account.restore_failed == !answered);
    CHECK(engine.begin({.scope = {}, .tokens = prompt})->apart() == (answered ? 2 : 1) * before);
  }
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

TEST_CASE("driver: a pin is computed, or waits where the backend cannot") {
  const Driver& driver = drivers()[GENERATE(0U, 1U)];
  const Manner manner = GENERATE(Manner::inside, Manner::other_thread, Manner::dropped);
  const bool fail = GENERATE(false, true);
  CAPTURE(driver.name, static_cast<int>(manner), fail);
  Engine engine({}, &std::chrono::steady_clock::now);
  engine.backend_changed(
      {.slots = 3, .slots_used = std::vector<bool>(3, false), .context = 8192, .own_cache = false});
  engine.serve_pins({Scope()});
  REQUIRE(engine.pin(Scope(), range(1, 400)));
  FakeBackend backend;
  backend.manner = manner;
  backend.fail = fail;
  auto ticket = engine.begin_chore();
  REQUIRE(ticket);
  driver.run(*ticket, backend, nullptr);
  std::move(*ticket).dismiss({}, SlotContent::unknown);
  CHECK(backend.computed == std::vector<std::size_t>{400});
  const bool works = !fail && manner != Manner::dropped;
  CHECK(engine.pins()[0].state == (works ? PinState::held : PinState::waiting));
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
