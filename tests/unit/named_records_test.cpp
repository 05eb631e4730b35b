// The records of named states when calls fail, and when files are not what they were.
#include "store/named_records.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "support/kv_files.hpp"
#include "support/wait.hpp"
#include "unit/token_ranges.hpp"

using namespace toki;
using toki::test::FaultFiles;
namespace fs = std::filesystem;

namespace {

NamedState state_of(std::uint64_t id) {
  return {.id = id,
          .scope = Scope({"model", "tenant"}),
          .tokens = range(static_cast<Token>(1000 * id), 50),
          .unknown = id,
          .whole = id % 2 == 0,
          .use = 1.5,
          .last_used_ms = 1234};
}

bool same(const std::optional<NamedState>& found, const NamedState& wanted) {
  return found && found->id == wanted.id && found->scope == wanted.scope &&
         found->tokens == wanted.tokens && found->unknown == wanted.unknown &&
         found->whole == wanted.whole && found->use == wanted.use &&
         found->last_used_ms == wanted.last_used_ms;
}

struct Bench {
  test::TemporaryDirectory dir;
  FaultFiles files;

  std::string folder() const { return dir.path() + "/named"; }
  Result<NamedRecords> open() { return NamedRecords::open(files, folder(), 3); }
  std::string record(int name) const { return folder() + "/" + std::to_string(name) + ".state"; }
};

}  // namespace

TEST_CASE("named records: whichever call fails, each is as before or as written, and is whole") {
  for (const auto kind : {FaultFiles::Kind::once, FaultFiles::Kind::onwards}) {
    long calls = 0;
    for (long at = -1; at < calls; ++at) {
      Bench b;
      std::string name;
      {
        auto records = b.open();
        REQUIRE(records);
        name = records->file_of(1);
        REQUIRE(records->write(0, state_of(1)));
        REQUIRE(records->write(1, state_of(2)));
      }
      b.files.arm(at, kind, ENOSPC);
      bool written = false, removed = false;
      if (auto records = b.open()) {
        const Status replaced = records->write(1, state_of(4));
        written = replaced.has_value();
        CHECK((written || replaced.error().code == Errc::no_space));
        removed = records->remove(0).has_value();
      }
      calls = std::max(calls, b.files.calls());
      b.files.heal();
      INFO("call " << at << " of " << calls);
      auto records = b.open();
      REQUIRE(records);
      const auto all = records->read_all();
      REQUIRE(all.size() == 3);
      CHECK((removed ? !all[0].has_value() : same(all[0], state_of(1))));
      CHECK(same(all[1], written ? state_of(4) : state_of(2)));
      CHECK_FALSE(all[2]);
      // A tag that could not be read is drawn anew: what lies under the old names is not touched.
      CHECK((at >= 0 || records->file_of(1) == name));
    }
    CHECK(calls > 6);
  }
}

TEST_CASE("named records: a folder that cannot be made or read says so") {
  Bench b;
  test::write_file(b.folder(), "not a folder");
  CHECK(b.open().error().code == Errc::unavailable);
  fs::remove(b.folder());
  b.files.arm(0, FaultFiles::Kind::onwards, EIO);
  const auto failed = b.open();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Errc::unavailable);
  CHECK(failed.error().detail.find(b.dir.path()) == std::string::npos);
}

TEST_CASE("named records: one that is cut, changed, too large or no file at all is nobody's") {
  Bench b;
  {
    auto records = b.open();
    REQUIRE(records);
    REQUIRE(records->write(0, state_of(1)));
  }
  const std::string whole = test::read_file(b.record(0));
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    test::write_file(b.record(0), whole.substr(0, size));
    CHECK_FALSE(b.open()->read_all()[0]);
    CHECK_FALSE(fs::exists(b.record(0)));
  }
  for (std::size_t at = 0; at < whole.size(); at += 5) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    test::write_file(b.record(0), changed);
    CHECK_FALSE(b.open()->read_all()[0]);
  }
  test::write_file(b.record(1), whole);  // under another's name
  CHECK_FALSE(b.open()->read_all()[1]);
  test::write_file(b.record(0), whole);
  fs::resize_file(b.record(0), std::uintmax_t{1} << 40);  // a hole, read by nobody
  CHECK_FALSE(b.open()->read_all()[0]);
  fs::create_directory(b.record(2));
  CHECK_FALSE(b.open()->read_all()[2]);
  test::write_file(b.record(0), whole);
  CHECK(same(b.open()->read_all()[0], state_of(1)));
}
