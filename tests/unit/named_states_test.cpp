// States under fixed names: which name a save gets, what serves which prompt, what is believed after
// failures and restarts.
#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/named_states.hpp>

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "support/wait.hpp"
#include "unit/token_ranges.hpp"

using namespace toki;
namespace fs = std::filesystem;

namespace {

const Scope kScope({"model"});
const Tokens kA = range(1, 100);
const Tokens kB = range(2000, 100);
const Tokens kC = range(4000, 100);

struct Bench {
  test::TemporaryDirectory dir;
  std::int64_t now = 1000000;
  std::size_t names = 2;
  std::unique_ptr<NamedStates> states;

  explicit Bench(std::size_t most = 2) : names(most) { open(); }
  void open() {
    states.reset();
    auto opened = NamedStates::open(
        {.dir = dir.path() + "/named", .names = names, .now_ms = [this] { return now; }}, {});
    REQUIRE(opened);
    states = std::move(*opened);
  }
  static Step step(Step::Kind kind, const Tokens& tokens, bool whole = false,
                   const Scope& scope = kScope) {
    Step made{.kind = kind, .scope = scope, .tokens = tokens, .whole = whole};
    return made;
  }
  // Saves a slot that holds the tokens and `unknown` more; the name it got.
  std::string save(const Tokens& tokens, std::uint64_t unknown = 0, bool whole = false) {
    const Step made = step(Step::Kind::save, tokens, whole);
    const auto file = states->begin_save(made);
    REQUIRE(file);
    REQUIRE(states->end_save(made, *file, {.tokens = tokens.size() + unknown}));
    now += 1000;
    return *file;
  }
  Result<Restorable> restore(const Tokens& tokens) {
    auto state = states->begin_restore(step(Step::Kind::restore, tokens));
    if (state) {
      states->end_restore(state->file, Timed{.tokens = state->tokens});
      now += 1000;
    }
    return state;
  }
  void use(const Tokens& tokens) { REQUIRE(restore(tokens)); }
  std::uint64_t match(const Tokens& tokens) { return states->match(kScope, tokens).tokens; }
  double stat(std::uint64_t Stats::*which) const {
    Stats all;
    states->add_to(all);
    return static_cast<double>(all.*which);
  }
};

}  // namespace

TEST_CASE("named: what was saved is restored whole, and serves every prompt that begins alike") {
  Bench b;
  const std::string file = b.save(kA, 7);
  CHECK(b.match(kA) == 100);
  CHECK(b.states->match(kScope, kA).beyond == 7);
  CHECK(b.states->match(kScope, kA + range(700, 5)).tokens == 100);
  CHECK(b.states->match(kScope, kA + range(700, 5)).beyond == 0);
  const Tokens parting = range(1, 40) + range(800, 60);
  CHECK(b.match(parting) == 40);
  CHECK(b.states->match(kScope, parting).read == 107);
  const auto state = b.restore(range(1, 40));
  REQUIRE(state);
  CHECK(state->file == file);
  CHECK(state->tokens == 107);
  CHECK(state->held == kA);
  CHECK(b.states->match(Scope({"another model"}), kA).tokens == 0);
}

TEST_CASE(
    "named: a state of a backend that cannot rewind only serves prompts that want all of it") {
  Bench b;
  b.save(kA, 0, true);
  CHECK(b.match(range(1, 99)) == 0);
  CHECK(b.match(kA) == 100);
  CHECK(b.states->match(kScope, kA + kB).snapshot);
  CHECK(b.restore(range(1, 99)).error().code == Errc::not_found);
  const Step step = Bench::step(Step::Kind::save, kB, true);
  const auto file = b.states->begin_save(step);
  CHECK(b.states->end_save(step, *file, {.tokens = 101}).error().code == Errc::corrupt);
  CHECK(b.match(kB) == 0);
}

TEST_CASE("named: an older state of the conversation gives way first, even where a name is free") {
  Bench b(3);
  const std::string first = b.save(kA);
  CHECK(b.save(kB) != first);
  CHECK(b.save(kA + range(700, 50), 3) == first);
  CHECK(b.match(kA + range(700, 50)) == 150);
  CHECK(b.stat(&Stats::named_states) == 2);
  CHECK(b.stat(&Stats::named_tokens) == 253);
}

TEST_CASE("named: where nothing is free the state that is worth least gives way") {
  Bench b(2);
  const std::string first = b.save(kA);
  b.save(kB);
  SECTION("the one not used") {
    b.use(kB);
    CHECK(b.save(kC) == first);
    CHECK(b.match(kA) == 0);
    CHECK(b.match(kB) == 100);
  }
  SECTION("the shorter one") {
    b.save(kB + range(700, 100));
    CHECK(b.save(kC) == first);
  }
  SECTION("the one not used for long") {
    b.use(kA);
    b.now += std::int64_t{4} * 24 * 3600 * 1000;
    b.use(kB);
    CHECK(b.save(kC) == first);
  }
}

TEST_CASE("named: what is being restored, or is needed next, is not written over") {
  Bench b(2);
  const std::string first = b.save(kA);
  const std::string second = b.save(kB);
  b.use(kB);
  Step step = Bench::step(Step::Kind::save, kC);
  SECTION("restored") {
    const auto state = b.states->begin_restore(Bench::step(Step::Kind::restore, kA));
    REQUIRE(state);
    CHECK(*b.states->begin_save(step) == second);
    CHECK(b.states->begin_save(step).error().code == Errc::busy);
    b.states->end_restore(state->file, Timed{.tokens = state->tokens});
    CHECK(*b.states->begin_save(step) == first);
  }
  SECTION("needed") {
    step.needed = range(1, 60);
    CHECK(*b.states->begin_save(step) == second);
  }
  SECTION("its own older state") {
    const auto state = b.states->begin_restore(Bench::step(Step::Kind::restore, kA));
    CHECK(*b.states->begin_save(Bench::step(Step::Kind::save, kA + kC)) == second);
  }
}

TEST_CASE("named: without rewinding a shared beginning outlives the conversations behind it") {
  Bench b(4);
  const std::string shared = b.save(kA, 0, true);
  const std::string turn = b.save(kA + kB, 0, true);
  CHECK(turn != shared);
  CHECK(b.save(kA + kB + kC, 0, true) == turn);
  CHECK(b.match(kA + kC) == 100);
  CHECK(b.save(kA + kC, 0, true) != turn);
  CHECK(b.match(kA + range(9000, 10)) == 100);
}

TEST_CASE("named: a save that failed, or was not heard of again, leaves its name empty") {
  Bench b(1);
  b.save(kA);
  const Step step = Bench::step(Step::Kind::save, kB);
  const auto file = b.states->begin_save(step);
  REQUIRE(file);
  CHECK(b.match(kA) == 0);
  CHECK(b.match(kB) == 0);
  SECTION("failed") {
    b.states->discard(*file);
    CHECK(b.match(kA) == 0);
    CHECK(b.save(kC) == *file);
  }
  SECTION("fewer tokens than the slot should hold") {
    CHECK(b.states->end_save(step, *file, {.tokens = 99}).error().code == Errc::corrupt);
    CHECK(b.match(kB) == 0);
  }
  SECTION("the program ended") {
    b.open();
    CHECK(b.match(kA) == 0);
    CHECK(b.match(kB) == 0);
    CHECK(b.save(kC) == *file);
  }
  CHECK(b.states->end_save(step, "toki_other_0.bin", {.tokens = 100}).error().code ==
        Errc::not_found);
}

TEST_CASE("named: a state that the backend will not restore is forgotten, another failure is not") {
  Bench b(2);
  b.save(kA);
  const auto state = b.states->begin_restore(Bench::step(Step::Kind::restore, kA));
  REQUIRE(state);
  bool kept = false;
  SECTION("the file is gone") {
    b.states->end_restore(state->file, Error{Errc::backend, "400"});
  }
  SECTION("somebody else's file") {
    b.states->end_restore(state->file, Timed{.tokens = 12});
  }
  SECTION("the client left") {
    b.states->end_restore(state->file, Error{Errc::cancelled, ""});
    kept = true;
  }
  SECTION("the backend is away") {
    b.states->end_restore(state->file, Error{Errc::unavailable, ""});
    kept = true;
  }
  CHECK(b.match(kA) == (kept ? 100 : 0));
  CHECK(b.stat(&Stats::named_dropped_total) == (kept ? 0 : 1));
  b.open();
  CHECK(b.match(kA) == (kept ? 100 : 0));
}

TEST_CASE("named: what was restored and not reused is not believed again") {
  Bench b(2);
  b.save(kA);
  SECTION("all of it was wanted") {
    b.states->doubt(kScope, kA + kB);
    CHECK(b.match(kA + kB) == 0);
    CHECK(b.stat(&Stats::named_dropped_total) == 1);
  }
  SECTION("a beginning was wanted: it may still serve whole") {
    b.states->doubt(kScope, range(1, 50) + kB);
    CHECK(b.match(range(1, 50) + kB) == 0);
    CHECK(b.match(kA + kB) == 100);
    b.open();
    CHECK(b.match(range(1, 50) + kB) == 0);
    CHECK(b.match(kA + kB) == 100);
  }
  SECTION("of another prompt") {
    b.states->doubt(kScope, kB);
    CHECK(b.match(kA) == 100);
  }
}

TEST_CASE("named: names and what lies there survive restarts; uses do, too") {
  Bench b(2);
  const std::string first = b.save(kA, 5);
  const std::string second = b.save(kB);
  b.use(kA);
  b.open();
  CHECK(b.match(kA) == 100);
  CHECK(b.states->match(kScope, kA).beyond == 5);
  CHECK(b.restore(kB)->file == second);
  b.use(kA);
  CHECK(b.save(kC) == second);
  b.names = 1;
  b.open();
  CHECK(b.match(kA) == (first.ends_with("_0.bin") ? 100 : 0));
  b.names = 2;
  b.open();
  CHECK(b.stat(&Stats::named_states) == 1);
}

TEST_CASE("named: two folders have different names, and a folder has one owner") {
  Bench one;
  Bench two;
  CHECK(one.save(kA) != two.save(kA));
  const auto again = NamedStates::open({.dir = one.dir.path() + "/named"}, {});
  CHECK(again.error().code == Errc::busy);
}

TEST_CASE("named: records that are not whole are removed, and read by their owner only") {
  Bench b(2);
  b.save(kA);
  b.save(kB);
  const fs::path dir = b.dir.path() + "/named";
  CHECK((fs::status(dir / "0.state").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  b.states.reset();
  SECTION("cut off") {
    fs::resize_file(dir / "0.state", 90);
  }
  SECTION("one bit") {
    std::fstream file(dir / "0.state", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file.put('x');
  }
  SECTION("of another name") {
    fs::copy_file(dir / "1.state", dir / "0.state", fs::copy_options::overwrite_existing);
  }
  SECTION("of other names") {
    std::ofstream(dir / "tag") << "0123456789abcdef";
    fs::remove(dir / "1.state");
  }
  b.open();
  CHECK(b.match(kA) == 0);
  CHECK_FALSE(fs::exists(dir / "0.state"));
}

TEST_CASE("named: one is forgotten by its id, or all of them") {
  Bench b(3);
  b.save(kA);
  b.save(kB);
  b.save(kC);
  const auto prompts = b.states->prompts(10);
  REQUIRE(prompts.size() == 3);
  CHECK(b.states->prompts(1).size() == 1);
  CHECK(*b.states->forget(prompts[0].id) == 1);
  CHECK(b.match(kC) == 0);
  CHECK(b.states->forget(prompts[0].id).error().code == Errc::not_found);
  CHECK(*b.states->forget({}) == 2);
  b.open();
  CHECK(b.stat(&Stats::named_states) == 0);
}

TEST_CASE("named: a prompt is forgotten with what goes on from it, and not what others share") {
  Bench b(4);
  const Tokens parting = range(1, 60) + range(900, 40);
  b.save(kA + range(300, 20));
  b.save(parting);
  b.save(kB, 3);
  CHECK(b.states->held(kScope, kA).tokens == 100);
  CHECK(*b.states->forget(kScope, kA, 120) == 0);
  CHECK(*b.states->forget(Scope({"another model"}), kA, 0) == 0);
  CHECK(*b.states->forget(kScope, kA, 60) == 1);
  b.open();
  CHECK(b.match(kA) == 60);
  CHECK(b.match(parting) == 100);
  CHECK(b.match(kB) == 100);
  const auto stored = b.states->prompts(1);
  REQUIRE(stored.size() == 1);
  CHECK(b.states->prompt(stored[0].id) == std::pair(kScope, kB));
  CHECK(b.states->prompt(4711).second.empty());
}
