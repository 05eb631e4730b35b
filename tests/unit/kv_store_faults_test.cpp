// The KV store when calls fail, processes die, and files are not what they were.
#include <toki/kv_store.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "store/segment_file.hpp"
#include "support/fault_vfs.hpp"
#include "support/kv_files.hpp"

using namespace toki;
using namespace toki::test;

namespace {

namespace fs = std::filesystem;

const Tokens kFirst = counting(0, 300);
const Tokens kShort = counting(4000, 20);
const Tokens kLonger = joined(kShort, counting(5000, 20));  // replaces the short one
const Tokens kBranch = joined(counting(0, 150), counting(7000, 30));
const std::vector<Tokens> kAll{kFirst, kShort, kLonger, kBranch};

void begin(KvBench& bench) {
  REQUIRE(bench.open());
  REQUIRE(bench.take(kFirst));
  REQUIRE(bench.take(kShort));
}

// All that changes files, in one go.
void change(KvBench& bench) {
  (void)bench.take(kLonger);
  (void)bench.take(kBranch);
  (void)bench.take(counting(20000, 12), true);
  (void)bench.restored(kBranch);
  for (const StoredPrompt& prompt : bench.store->prompts(9)) {
    if (prompt.tokens == kBranch.size()) {
      (void)bench.store->forget(prompt.id);
    }
  }
  bench.store->maintain();
}

// What is there is right, to the byte, and what was there before the changes still is, unless it
// gave way.
void check_nothing_is_wrong(KvBench& bench, bool gave_way = false) {
  for (const Tokens& prompt : kAll) {
    CHECK(bench.restored(prompt) >= 0);
  }
  if (gave_way) {
    return;
  }
  CHECK(bench.restored(kFirst) == 300);
  CHECK(bench.restored(kShort) == 20);
  const std::int64_t longer = bench.restored(kLonger), branch = bench.restored(kBranch);
  CHECK((longer == 20 || longer == 40));
  CHECK((branch == 150 || branch == 180));
  const std::string whole = bench.compose(counting(20000, 14));
  CHECK((whole.empty() || whole == state_file(bench.shape, counting(20000, 12), 2)));
}

void check_folder_is_clean(KvBench& bench) {
  for (const auto& entry : fs::directory_iterator(bench.folder.store())) {
    CHECK(entry.path().extension() != ".tmp");
  }
  CHECK(bench.segment_files().size() == bench.store->stats().segments);
  CHECK(bench.bytes_on_disk() == bench.store->stats().bytes);
}

}  // namespace

// B41
TEST_CASE("whichever call fails, once or from then on, the store stays right and opens right") {
  const auto kind = GENERATE(FaultFiles::Kind::once, FaultFiles::Kind::onwards);
  const int reason = GENERATE(ENOSPC, EROFS, EIO);
  long calls = 1;
  for (long at = 0; at < calls; ++at) {
    KvBench bench;
    begin(bench);
    bench.files->arm(at, kind, reason);
    change(bench);
    calls = bench.files->calls();
    bench.files->heal();
    INFO("call " << at << " of " << calls << "\n" << bench.log);
    const bool gave_way = bench.store->stats().evicted_total > 0;
    CHECK((!gave_way || reason == ENOSPC));
    check_nothing_is_wrong(bench, gave_way);
    REQUIRE(bench.open());
    check_nothing_is_wrong(bench, gave_way);
    check_folder_is_clean(bench);
  }
  CHECK(calls > 20);
}

TEST_CASE("a failing disk fails a take and says so, and the next one works") {
  KvBench bench;
  begin(bench);
  bench.files->arm(1, FaultFiles::Kind::onwards, ENOSPC);
  const auto taken = bench.take(kBranch);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == Errc::unavailable);
  CHECK_FALSE(bench.store->stats().writable);
  CHECK(bench.store->match(bench.scope, kBranch).tokens == 150);
  bench.files->heal();
  REQUIRE(bench.take(kBranch));
  CHECK(bench.store->stats().writable);
  CHECK(bench.restored(kBranch) == 180);
}

TEST_CASE("on a full disk the least worth gives way, once, for a take and for a restore") {
  KvBench bench;
  begin(bench);
  for (Token i = 0; i < 4; ++i) {
    bench.now_ms += 1000;
    REQUIRE(bench.take(counting(30000 + 1000 * i, 300)));
  }
  const std::uint64_t before = bench.bytes_on_disk();
  bench.files->full_at(before + 4000, {bench.folder.store(), bench.folder.slots()});
  SECTION("take") {
    bench.now_ms += 1000;
    REQUIRE(bench.take(counting(40000, 300)));
    CHECK(bench.store->stats().writable);
    CHECK(bench.bytes_on_disk() <= before + 4000);
    bench.files->full_at(0, {});
    CHECK(bench.restored(counting(40000, 300)) == 300);
  }
  SECTION("restore") {
    CHECK(bench.restored(kFirst) == 300);
    CHECK(bench.store->stats().failed_total == 0);
  }
  SECTION("what cannot fit fails, and only that") {
    bench.files->full_at(100, {bench.folder.store(), bench.folder.slots()});
    CHECK(bench.take(counting(40000, 300)).error().code == Errc::unavailable);
    CHECK_FALSE(bench.store->stats().writable);
    bench.files->full_at(0, {});
    REQUIRE(bench.take(counting(40000, 300)));
    CHECK(bench.store->stats().writable);
  }
  CHECK(bench.store->stats().evicted_total > 0);
  CHECK(bench.store->stats().evicted_total < 7);
}

TEST_CASE("a disk that only fails makes nothing give way") {
  KvBench bench;
  begin(bench);
  bench.files->arm(1, FaultFiles::Kind::onwards, EROFS);
  CHECK_FALSE(bench.take(kBranch));
  CHECK_FALSE(bench.store->stats().writable);
  CHECK(bench.store->stats().evicted_total == 0);
  bench.files->heal();
  REQUIRE(bench.take(kBranch));
  CHECK(bench.store->stats().writable);
  CHECK(bench.restored(kFirst) == 300);
}

// B41
TEST_CASE("whichever call of a forget fails, or ends the process, what others have stays") {
  const Tokens own = joined(counting(0, 150), counting(8000, 60));
  long calls = 0;
  for (const auto kind :
       {FaultFiles::Kind::onwards, FaultFiles::Kind::once, FaultFiles::Kind::kill}) {
    for (long at = -1; at < calls; ++at) {
      KvBench bench;
      begin(bench);
      REQUIRE(bench.take(own));
      REQUIRE(bench.take(joined(own, counting(9000, 300))));
      const auto forget = [&] { return bench.store->forget(bench.scope, kFirst, 0); };
      if (kind == FaultFiles::Kind::kill) {
        bench.store.reset();
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
          if (bench.open()) {
            bench.files->arm(at, kind, EIO);
            (void)forget();
          }
          ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
      } else {
        bench.files->arm(at, kind, EIO);
        const auto gone = forget();
        calls = std::max(calls, bench.files->calls());
        bench.files->heal();
        const std::int64_t left = bench.restored(kFirst);
        CHECK((left == 150 || (!gone && left == 300)));
        CHECK(bench.restored(joined(own, counting(9000, 300))) == 510);
      }
      INFO("call " << at << " of " << calls);
      REQUIRE(bench.open());
      const std::int64_t left = bench.restored(kFirst);
      CHECK((left == 150 || left == 300));
      CHECK(bench.restored(joined(own, counting(9000, 300))) == 510);
      check_folder_is_clean(bench);
      REQUIRE(forget());
      CHECK(bench.restored(kFirst) == 150);
    }
  }
  CHECK(calls > 10);
}

TEST_CASE("what a take has reported is there after a restart, whichever call failed") {
  long calls = 0;
  for (long at = -1; at < calls; ++at) {
    KvBench bench;
    begin(bench);
    bench.files->arm(at, FaultFiles::Kind::onwards, EIO);
    const auto taken = bench.take(kLonger);  // the shorter one's file stays when it is not removed
    calls = std::max(calls, bench.files->calls());
    bench.files->heal();
    REQUIRE(bench.open());
    CHECK(bench.restored(kLonger) >= (taken ? 40 : 20));
    check_folder_is_clean(bench);
  }
  CHECK(calls > 5);
}

// B41
TEST_CASE("a process killed at any file call leaves the state before or after") {
  long at = 0;
  for (bool killed = true; killed; ++at) {
    KvBench bench;
    begin(bench);
    bench.store.reset();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (bench.open()) {
        bench.files->arm(at, FaultFiles::Kind::kill, EIO);
        change(bench);
      }
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    killed = WIFSIGNALED(status);
    INFO("call " << at);
    REQUIRE(bench.open());
    check_nothing_is_wrong(bench);
    check_folder_is_clean(bench);
  }
  CHECK(at > 20);
}

// B41
TEST_CASE("a process killed at any moment leaves a store that opens and is right") {
  std::mt19937 random(20);
  for (int round = 0; round < 15; ++round) {
    KvBench bench;
    begin(bench);
    bench.store.reset();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      while (bench.open()) {
        for (Token i = 0; i < 20; ++i) {
          (void)bench.take(joined(kLonger, counting(100 * i, 10)));
          change(bench);
        }
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(bench.open());
    check_nothing_is_wrong(bench);
    for (Token i = 0; i < 20; ++i) {
      CHECK(bench.restored(joined(kLonger, counting(100 * i, 10))) >= 20);
    }
    check_folder_is_clean(bench);
  }
}

// B82
TEST_CASE("a second store on a folder is refused, until the process that has it is gone") {
  KvBench bench;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const char opened = bench.open() ? 'y' : 'n';
    (void)!::write(ready[1], &opened, 1);
    for (;;) {
      ::pause();
    }
  }
  char opened = 0;
  REQUIRE(::read(ready[0], &opened, 1) == 1);
  CHECK(opened == 'y');
  CHECK(bench.open().error().code == Errc::busy);
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(bench.open());
  ::close(ready[0]);
  ::close(ready[1]);
  KvStoreOptions same = bench.options();
  CHECK(KvStore::open(same, {}).error().code == Errc::busy);
}

// B82
TEST_CASE("a folder of state files is one store's, unless another says that it only visits") {
  KvBench bench;
  begin(bench);
  write_file(bench.folder.slots() / "toki-being-restored.bin", "x");
  KvStoreOptions other = bench.options();
  other.dir = (bench.folder.slots() / "other-store").string();
  const auto refused = KvStore::open(other, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Errc::busy);
  other.owns_slot_dir = false;
  CHECK(KvStore::open(other, {}));
  CHECK(std::filesystem::exists(bench.folder.slots() / "toki-being-restored.bin"));
  bench.store.reset();
  other.owns_slot_dir = true;
  CHECK(KvStore::open(other, {}));
}

// B43
TEST_CASE("a flipped bit anywhere in a segment is never composed, and goes to quarantine") {
  const bool restart = GENERATE(false, true);
  const std::size_t step = restart ? 307 : 131;
  KvBench bench;
  begin(bench);
  const Tokens tail = joined(kFirst, counting(8000, 12));
  REQUIRE(bench.take(tail));
  const fs::path path = bench.segment_files().at(0);
  const std::string good = read_file(path);
  std::size_t damaged = 0;
  for (std::size_t at = 0; at < good.size(); at += step) {
    KvBench copy;
    fs::create_directories(copy.folder.store());
    for (const auto& file : bench.segment_files()) {
      fs::copy_file(file, copy.folder.store() / file.filename());
    }
    if (!restart) {
      REQUIRE(copy.open());
    }
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write_file(copy.folder.store() / path.filename(), bad);
    if (restart) {
      REQUIRE(copy.open());
    }
    const std::int64_t tokens = copy.restored(tail);
    CHECK((tokens == 0 || tokens == 312));  // 312: a byte of padding
    CHECK(copy.restored(kShort) == 20);
    if (tokens == 0) {
      ++damaged;
      CHECK(copy.store->stats().quarantined_total >= 1);
      CHECK(copy.store->match(copy.scope, tail).tokens == 0);
      CHECK_FALSE(fs::exists(copy.folder.store() / path.filename()));
      // What was lost can be taken again.
      REQUIRE(copy.take(tail));
      CHECK(copy.restored(tail) == 312);
    }
    REQUIRE(copy.open());
    CHECK(copy.restored(kShort) == 20);
  }
  CHECK(damaged > good.size() / step / 2);
}

TEST_CASE("a damaged segment takes with it what hangs below it, and nothing else") {
  KvBench bench;
  begin(bench);
  const Tokens tail = joined(kFirst, counting(8000, 300));
  REQUIRE(bench.take(tail));
  const fs::path path = bench.segment_files().back();
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
  CHECK(bench.restored(tail, 556) == 556);  // the tiles that are wanted are whole
  CHECK(bench.restored(tail) == 300);
  CHECK(bench.restored(kFirst) == 300);
  std::size_t kept = 0;
  for (const auto& file : fs::directory_iterator(bench.folder.store() / "quarantine")) {
    kept += fs::file_size(file.path()) == bytes.size() ? 1U : 0U;
  }
  CHECK(kept == 1);
}

TEST_CASE("quarantine keeps few files, and they count within the limit") {
  KvBench bench;
  REQUIRE(bench.open());
  for (Token i = 0; i < 9; ++i) {
    bench.now_ms += 1;
    const Tokens prompt = counting(100 * i, 30);
    REQUIRE(bench.take(prompt));
    const fs::path path = bench.segment_files().back();
    std::string bytes = read_file(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(path, bytes);
    CHECK(bench.restored(prompt) == 0);
  }
  const auto files = [&] {
    return std::distance(fs::directory_iterator(bench.folder.store() / "quarantine"),
                         fs::directory_iterator());
  };
  CHECK(files() == 4);
  bench.max_bytes = 1;
  REQUIRE(bench.open());
  CHECK(files() == 0);
}

TEST_CASE("a segment cut short, gone or of another prompt is never composed") {
  for (const bool running : {true, false}) {
    for (const int how : {0, 1, 2, 3}) {
      KvBench bench;
      begin(bench);
      const Tokens tail = joined(kFirst, counting(8000, 12));
      REQUIRE(bench.take(tail));
      const fs::path path = bench.segment_files().at(0);
      if (!running) {
        bench.store.reset();
      }
      switch (how) {
        case 0: fs::resize_file(path, fs::file_size(path) - 1); break;
        case 1: fs::resize_file(path, 0); break;
        case 2: fs::remove(path); break;
        default: {
          KvBench other;
          REQUIRE(other.open());
          REQUIRE(other.take(counting(1, 300)));  // of the same size and the same id
          REQUIRE(fs::file_size(other.segment_files().at(0)) == fs::file_size(path));
          fs::copy_file(other.segment_files().at(0), path, fs::copy_options::overwrite_existing);
        }
      }
      if (!running) {
        REQUIRE(bench.open());
      }
      CHECK(bench.restored(tail) == 0);
      CHECK(bench.restored(kShort) == 20);
      REQUIRE(bench.take(tail));
      CHECK(bench.restored(tail) == 312);
      REQUIRE(bench.open());
      CHECK(bench.restored(tail) == 312);
      check_folder_is_clean(bench);
    }
  }
}

TEST_CASE("files that are not ours stay where they are") {
  KvBench bench;
  fs::create_directories(bench.folder.store() / "0000000000000007.trkv");
  for (const char* name : {"README", "x.trkv", "0000000000000001.TRKV", "00000000000000zz.trkv"}) {
    write_file(bench.folder.store() / name, "mine");
  }
  begin(bench);
  CHECK(bench.store->forget(std::nullopt));
  for (const char* name : {"README", "x.trkv", "0000000000000001.TRKV", "00000000000000zz.trkv"}) {
    CHECK(read_file(bench.folder.store() / name) == "mine");
  }
  CHECK(fs::is_directory(bench.folder.store() / "0000000000000007.trkv"));
}

TEST_CASE("a segment's header is read strictly") {
  SegmentHeader header;
  header.id = 3;
  header.scope = "scope";
  header.snapshot_bytes = 5;
  header.tokens = {1, 2, 3};
  header.tiles = {77};
  const auto plan = plan_segment(header);
  REQUIRE(plan);
  const std::string good = encode_header(header, *plan);
  REQUIRE(decode_header(std::as_bytes(std::span(good))));
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      CHECK_FALSE(decode_header(std::as_bytes(std::span(bad))));
    }
    CHECK_FALSE(decode_header(std::as_bytes(std::span(good).first(at))));
  }
  const std::string twice = good + good;
  CHECK_FALSE(decode_header(std::as_bytes(std::span(twice))));
}

// B41
TEST_CASE("whichever call of the catalogue fails, nothing is lost and no take fails") {
  FaultVfs& vfs = FaultVfs::get();
  for (const bool onwards : {false, true}) {
    long calls = 0;
    for (long at = -1; at < calls; at += 3) {
      KvBench bench;
      vfs.heal();
      KvStoreSetup setup{.files = bench.files, .vfs = kFaultVfs, .now_ms = [] { return 5; }};
      const auto open = [&] {
        bench.store.reset();
        auto opened = setup.open(bench.options(), {});
        REQUIRE(opened);
        bench.store = std::move(*opened);
      };
      if (at >= 0) {
        vfs.fail(at, onwards);
      }
      open();
      REQUIRE(bench.take(kFirst));
      REQUIRE(bench.take(kShort));
      REQUIRE(bench.take(kLonger));
      bench.store->maintain();
      REQUIRE(bench.take(kBranch));
      CHECK(bench.restored(kBranch) == 180);
      calls = at < 0 ? vfs.calls() : calls;
      vfs.heal();
      INFO("call " << at << " of " << calls);
      open();
      CHECK(bench.restored(kFirst) == 300);
      CHECK(bench.restored(kLonger) == 40);
      CHECK(bench.restored(kBranch) == 180);
      bench.store->maintain();
      open();
      CHECK(bench.restored(kLonger) == 40);
      check_folder_is_clean(bench);
    }
    CHECK(calls > 20);
  }
  vfs.heal();
}

// A snapshot cannot be put together from parts: it comes whole or not at all.
TEST_CASE("whichever call of restoring a snapshot fails, it comes whole or not, and comes later") {
  const Tokens whole = counting(20000, 12);
  for (const auto kind : {FaultFiles::Kind::once, FaultFiles::Kind::onwards}) {
    long calls = 0;
    for (long at = -1; at < calls; ++at) {
      KvBench bench;
      begin(bench);
      REQUIRE(bench.take(whole, true));
      bench.files->arm(at, kind, EIO);
      const std::string got = bench.compose(whole);
      calls = std::max(calls, bench.files->calls());
      bench.files->heal();
      INFO("call " << at << " of " << calls);
      CHECK((got.empty() || got == state_file(bench.shape, whole, 2)));
      CHECK((at >= 0 || !got.empty()));
      CHECK(bench.compose(whole) == state_file(bench.shape, whole, 2));
      CHECK(bench.restored(kFirst) == 300);
    }
    CHECK(calls > 4);
  }
}
