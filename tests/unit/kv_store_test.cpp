#include <toki/kv_store.hpp>

#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "support/kv_files.hpp"

using namespace toki;
using namespace toki::test;

namespace {

namespace fs = std::filesystem;

unsigned mode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

StateShape large_rows() {
  return {.k_rows = {128, 128, 128, 128}, .v_elements = 64, .v_element_bytes = 2};
}

// A state with a second memory behind the first, which nobody understands.
std::string opaque_file(const StateShape& shape, TokenSpan tokens) {
  return state_file(shape, tokens, 2) + std::string(100, 'r') + std::to_string(tokens.back());
}

}  // namespace

TEST_CASE("what was taken is composed again, for any slot and up to any limit") {
  for (const bool transposed : {false, true}) {
    KvBench bench({.transposed = transposed});
    REQUIRE(bench.open());
    const Tokens prompt = counting(100, 700);  // three tiles, the last one short
    const auto taken = bench.take(prompt);
    REQUIRE(taken);
    CHECK(taken->tokens == prompt);
    CHECK(taken->new_tokens == 700);
    CHECK_FALSE(taken->snapshot);
    CHECK(bench.store->match(bench.scope, prompt).tokens == 700);
    for (const std::uint64_t limit : {1U, 255U, 256U, 257U, 512U, 600U, 699U, 700U, 9999U}) {
      for (const std::uint32_t slot : {0U, 3U}) {
        CHECK(bench.restored(prompt, limit, slot) ==
              static_cast<std::int64_t>(std::min<std::uint64_t>(limit, 700)));
      }
    }
    CHECK(bench.restored(joined(prompt, counting(1, 5))) == 700);
    CHECK(bench.restored(joined(TokenSpan(prompt).first(300), counting(1, 5))) == 300);
    CHECK(bench.restored(counting(1, 5)) == 0);
    CHECK(bench.restored(prompt, 0) == 0);
  }
}

TEST_CASE("a state whose cells are out of order is taken, and composed in order") {
  for (const bool transposed : {false, true}) {
    KvBench bench({.streams = 1, .transposed = transposed});
    REQUIRE(bench.open());
    const Tokens prompt = counting(100, 600);
    bench.shape.reversed = true;
    REQUIRE(bench.take(TokenSpan(prompt).first(300), false, 0));
    REQUIRE(bench.take(prompt, false, 0));
    CHECK(bench.store->stats().segments == 2);
    bench.shape.reversed = false;
    CHECK(bench.restored(prompt, 600, 0) == 600);
    CHECK(bench.restored(prompt, 450, 0) == 450);
  }
}

TEST_CASE("only what was asked for is kept of a state, where that is said") {
  for (const bool transposed : {false, true}) {
    KvBench bench({.transposed = transposed});
    REQUIRE(bench.open());
    const Tokens prompt = counting(100, 700);
    for (const std::size_t length : {320U, 512U}) {
      write_file(bench.folder.slots() / "toki-in.bin", state_file(bench.shape, prompt, 2));
      const auto taken = bench.store->take(bench.scope, TokenSpan(prompt).first(length),
                                           "toki-in.bin", false, 1, true);
      REQUIRE(taken);
      CHECK(taken->tokens.size() == length);
      CHECK(bench.store->match(bench.scope, prompt).tokens == length);
      CHECK(bench.restored(prompt) == static_cast<std::int64_t>(length));
    }
    CHECK(bench.store->stats().tokens == 512);
  }
  KvBench bench;
  REQUIRE(bench.open());
  write_file(bench.folder.slots() / "toki-in.bin", opaque_file(bench.shape, counting(100, 700)));
  const auto whole =
      bench.store->take(bench.scope, counting(100, 320), "toki-in.bin", false, 1, true);
  REQUIRE_FALSE(whole);
  CHECK(whole.error().code == Errc::unsupported);
}

TEST_CASE("prompts that share a beginning have its rows on the disk once") {
  KvBench bench(large_rows());
  REQUIRE(bench.open());
  const Tokens first = counting(0, 1000);
  REQUIRE(bench.take(first));
  const std::uint64_t alone = bench.bytes_on_disk();
  const Tokens second = joined(TokenSpan(first).first(900), counting(5000, 100));
  const auto taken = bench.take(second);
  REQUIRE(taken);
  CHECK(taken->new_tokens == 100);
  CHECK(bench.bytes_on_disk() - alone == taken->new_bytes);
  CHECK(taken->new_bytes * 100 <= alone * 15);  // its own size: as long as the first one
  CHECK(bench.restored(first) == 1000);
  CHECK(bench.restored(second) == 1000);
  const KvStoreStats stats = bench.store->stats();
  CHECK(stats.tokens == 1100);
  CHECK(stats.prompt_tokens == 2000);
  CHECK(stats.bytes == bench.bytes_on_disk());
}

TEST_CASE("a state of which nothing is new writes nothing, and counts as a use") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens prompt = counting(0, 400);
  REQUIRE(bench.take(prompt));
  const std::uint64_t before = bench.bytes_on_disk();
  for (const std::size_t length : {400U, 130U}) {
    const auto taken = bench.take(TokenSpan(prompt).first(length));
    REQUIRE(taken);
    CHECK(taken->new_tokens == 0);
    CHECK(taken->new_bytes == 0);
  }
  CHECK(bench.bytes_on_disk() == before);
  CHECK(bench.store->prompts(5).at(0).use == Approx(3));
}

TEST_CASE("a prompt that grows by a few tokens does not become a chain of tiny files") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens all = counting(0, 1500);
  std::uint64_t tokens_written = 0;
  for (std::size_t length = 3; length <= all.size(); length += 3) {
    const Tokens prompt(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length));
    const auto before = bench.store->stats().tokens;
    REQUIRE(bench.take(prompt));
    CHECK(bench.store->stats().tokens == before + 3);
    tokens_written += bench.store->prompts(1).at(0).bytes;
  }
  CHECK(bench.segment_files().size() == bench.store->stats().segments);
  CHECK(bench.segment_files().size() <= 1500 / 256 + 1);
  CHECK(bench.restored(all) == 1500);
  REQUIRE(bench.open());
  CHECK(bench.restored(all) == 1500);
}

TEST_CASE("a restart finds everything again, from the catalogue or without it") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens first = counting(0, 500);
  const Tokens second = joined(TokenSpan(first).first(200), counting(900, 300));
  const Tokens third = joined(first, counting(2000, 300));
  for (const Tokens& prompt : {first, second, third}) {
    REQUIRE(bench.take(prompt));
  }
  bench.now_ms += 1000;
  CHECK(bench.restored(second) == 500);
  const auto use = bench.store->prompts(1).at(0).use;
  const auto catalogue = bench.folder.store() / "catalogue.sqlite";
  bench.store.reset();

  SECTION("as it was left") {
    REQUIRE(bench.open());
    CHECK(bench.store->prompts(1).at(0).use == Approx(use));
    CHECK(bench.store->prompts(1).at(0).last_used_ms == bench.now_ms);
    CHECK(bench.log.empty());
  }
  SECTION("without a catalogue") {
    for (const char* suffix : {"", "-wal", "-shm"}) {
      fs::remove(catalogue.string() + suffix);
    }
    REQUIRE(bench.open());
  }
  SECTION("with one that is no database") {
    write_file(catalogue, std::string(5000, 'x'));
    REQUIRE(bench.open());
    CHECK(bench.log.find("set aside") != std::string::npos);
  }
  SECTION("with one that is damaged inside") {
    std::string bytes = read_file(catalogue);
    for (std::size_t at = 200; at < bytes.size(); at += 97) {
      bytes[at] = static_cast<char>(bytes[at] ^ 0x5a);
    }
    write_file(catalogue, bytes);
    REQUIRE(bench.open());
  }
  CHECK(bench.store->stats().segments == 3);
  for (const Tokens& prompt : {first, second, third}) {
    CHECK(bench.restored(prompt) == static_cast<std::int64_t>(prompt.size()));
  }
  REQUIRE(bench.open());
  CHECK(bench.store->stats().segments == 3);
}

TEST_CASE("a catalogue that is removed while the store runs is made again") {
  KvBench bench;
  REQUIRE(bench.open());
  REQUIRE(bench.take(counting(0, 50)));
  const auto catalogue = bench.folder.store() / "catalogue.sqlite";
  for (const char* suffix : {"", "-wal", "-shm"}) {
    fs::remove(catalogue.string() + suffix);
  }
  REQUIRE(bench.take(counting(1000, 50)));
  bench.store->maintain();
  CHECK(fs::exists(catalogue));
  // B39: the log does not grow without limit.
  CHECK(fs::file_size(catalogue.string() + "-wal") == 0);
  REQUIRE(bench.open());
  CHECK(bench.restored(counting(0, 50)) == 50);
  CHECK(bench.restored(counting(1000, 50)) == 50);
}

// B24
TEST_CASE("nothing is shared between scopes, or with a state of another layout") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens prompt = counting(0, 100);
  REQUIRE(bench.take(prompt));
  CHECK(bench.store->match(Scope{"model", "other"}, prompt).tokens == 0);
  CHECK(bench.store->match(Scope{"modeltenant", ""}, prompt).tokens == 0);

  bench.shape.k_rows = {6, 12};
  const Tokens longer = joined(prompt, counting(500, 20));
  const auto taken = bench.take(longer);
  REQUIRE(taken);
  CHECK(taken->new_tokens == 120);
  CHECK(bench.restored(longer) == 120);
  const Tokens older = joined(prompt, counting(700, 5));
  REQUIRE(bench.open());
  CHECK(bench.restored(older) == 100);  // of the layout that was used last
  CHECK(bench.restored(longer) == 120);
}

TEST_CASE("a state that is not what its slot should hold is refused, and deleted in any case") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens prompt = counting(0, 20);
  const auto file = bench.folder.slots() / "toki-in.bin";
  const std::string good = state_file(bench.shape, prompt, 0);
  const auto take = [&](const std::string& bytes, TokenSpan expected) {
    write_file(file, bytes);
    auto taken = bench.store->take(bench.scope, expected, "toki-in.bin", false, 1);
    CHECK_FALSE(fs::exists(file));
    return taken ? Errc{} : taken.error().code;
  };
  CHECK(take(good, counting(1, 20)) == Errc::corrupt);
  CHECK(take(good, counting(0, 21)) == Errc::corrupt);
  CHECK(take(good.substr(0, good.size() - 1), prompt) == Errc::corrupt);
  CHECK(take("", prompt) == Errc::corrupt);
  CHECK(take("not a state file at all", prompt) == Errc::corrupt);
  CHECK(bench.store->stats().segments == 0);
  CHECK(take(good, counting(0, 7)) == Errc{});
  CHECK(bench.store->match(bench.scope, prompt).tokens == 20);
  CHECK(bench.store->stats().failed_total == 5);
}

TEST_CASE("only plain names are files of the slot folder") {
  KvBench bench;
  REQUIRE(bench.open());
  REQUIRE(bench.take(counting(0, 9)));
  const std::string outside = state_file(bench.shape, counting(50, 9), 0);
  write_file(bench.folder.slots().parent_path() / "outside", outside);
  fs::create_symlink(bench.folder.slots().parent_path() / "outside",
                     bench.folder.slots() / "toki-link");
  for (const std::string name : {"", ".", "..", "../outside", "/etc/passwd", "a/b"}) {
    CHECK(bench.store->take(bench.scope, {}, name, false, 1).error().code ==
          Errc::invalid_argument);
    CHECK(bench.store->compose(bench.scope, counting(0, 9), 9, 0, name).error().code ==
          Errc::invalid_argument);
  }
  CHECK_FALSE(bench.store->take(bench.scope, counting(50, 9), "toki-link", false, 1));
  CHECK(read_file(bench.folder.slots().parent_path() / "outside") == outside);
  CHECK(bench.store->take(bench.scope, {}, "toki-none", false, 1).error().code == Errc::not_found);
}

TEST_CASE("files are for their owner only, and leftovers of a crash go at the start") {
  KvBench bench;
  write_file(bench.folder.slots() / "toki-old.bin", "half a restore");
  write_file(bench.folder.slots() / "mine.bin", "somebody's save");
  fs::create_directories(bench.folder.store());
  fs::permissions(bench.folder.store(), fs::perms(0755));
  write_file(bench.folder.store() / "000000000000002a.tmp", "half a segment");
  REQUIRE(bench.open());
  CHECK_FALSE(fs::exists(bench.folder.slots() / "toki-old.bin"));
  CHECK_FALSE(fs::exists(bench.folder.store() / "000000000000002a.tmp"));
  CHECK(fs::exists(bench.folder.slots() / "mine.bin"));
  REQUIRE(bench.take(counting(0, 30)));
  REQUIRE(bench.store->compose(bench.scope, counting(0, 30), 30, 0, "toki-out.bin"));
  CHECK(mode_of(bench.folder.slots() / "toki-out.bin") == 0600);
  CHECK(mode_of(bench.folder.store()) == 0700);
  CHECK(mode_of(bench.folder.store() / "quarantine") == 0700);
  CHECK(mode_of(bench.folder.store() / "catalogue.sqlite") == 0600);
  CHECK(mode_of(bench.segment_files().at(0)) == 0600);
}

TEST_CASE("a state that is not understood to the last byte is kept whole") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens system = counting(0, 40), chat = counting(0, 90);
  const auto take = [&](TokenSpan tokens) {
    write_file(bench.folder.slots() / "toki-in.bin", opaque_file(bench.shape, tokens));
    return bench.store->take(bench.scope, tokens.first(10), "toki-in.bin", false, 1);
  };
  const auto taken = take(system);
  REQUIRE(taken);
  CHECK(taken->snapshot);
  CHECK(taken->tokens == system);  // by its own record, not only what was expected
  REQUIRE(take(chat));
  CHECK(take(chat)->new_bytes == 0);
  CHECK(bench.store->stats().snapshots == 2);

  for (const bool again : {false, true}) {
    if (again) {
      REQUIRE(bench.open());
    }
    const Tokens longer = joined(chat, counting(700, 3));
    CHECK(bench.store->match(bench.scope, longer).tokens == 90);
    CHECK(bench.store->match(bench.scope, longer).snapshot);
    CHECK(bench.compose(longer) == opaque_file(bench.shape, chat));
    CHECK(bench.compose(chat) == opaque_file(bench.shape, chat));
    // A state cannot be cut: parting inside the second one leaves the first one.
    CHECK(bench.compose(longer, 89) == opaque_file(bench.shape, system));
    CHECK(bench.compose(counting(0, 60)) == opaque_file(bench.shape, system));
    CHECK(bench.compose(joined(counting(0, 41), counting(800, 9))) ==
          opaque_file(bench.shape, system));
    CHECK(bench.compose(counting(0, 39)).empty());
  }
}

TEST_CASE("a state can be kept whole because the caller says so") {
  KvBench bench;
  REQUIRE(bench.open());
  REQUIRE(bench.take(counting(0, 40), true));
  CHECK(bench.store->match(bench.scope, counting(0, 39)).tokens == 0);
  CHECK(bench.compose(counting(0, 50)) == state_file(bench.shape, counting(0, 40), 2));
  // Rows that reach further come before it.
  REQUIRE(bench.take(counting(0, 45)));
  CHECK(bench.restored(counting(0, 50)) == 45);
  CHECK(bench.restored(counting(0, 43)) == 43);
}

TEST_CASE("a state whose token record is not understood has the tokens that were expected") {
  KvBench bench;
  REQUIRE(bench.open());
  std::string file = state_file(bench.shape, counting(0, 12), 0);
  file[4] = 99;  // a version that does not exist yet
  write_file(bench.folder.slots() / "toki-in.bin", file);
  const auto taken = bench.store->take(bench.scope, counting(0, 12), "toki-in.bin", false, 1);
  REQUIRE(taken);
  CHECK(taken->snapshot);
  CHECK(bench.compose(counting(0, 20)) == file);
}

TEST_CASE("forgetting a prompt leaves what others share with it") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens system = counting(0, 300);
  const Tokens first = joined(system, counting(1000, 300));
  const Tokens second = joined(system, counting(2000, 300));
  REQUIRE(bench.take(system));
  REQUIRE(bench.take(first));
  bench.now_ms += 5;
  REQUIRE(bench.take(second));
  auto prompts = bench.store->prompts(10);
  REQUIRE(prompts.size() == 2);
  CHECK(prompts[0].tokens == 600);
  CHECK(bench.store->forget(prompts[0].id).value_or(0) == 1);
  CHECK(bench.restored(second) == 300);
  CHECK(bench.restored(first) == 600);
  CHECK(bench.store->forget(prompts[0].id).error().code == Errc::not_found);
  CHECK(bench.store->forget(prompts[1].id).value_or(0) == 2);
  CHECK(bench.store->stats().segments == 0);
  CHECK(bench.segment_files().empty());
  REQUIRE(bench.open());
  CHECK(bench.store->match(bench.scope, first).tokens == 0);
}

TEST_CASE(
    "forgetting what parts inside a prompt leaves that prompt, and everything is everything") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens first = counting(0, 600);
  const Tokens second = joined(counting(0, 100), counting(2000, 300));
  REQUIRE(bench.take(first));
  bench.now_ms += 5;
  REQUIRE(bench.take(second));
  const auto prompts = bench.store->prompts(10);
  REQUIRE(prompts.size() == 2);
  CHECK(bench.store->forget(prompts[1].id).error().code == Errc::busy);
  CHECK(bench.store->forget(prompts[0].id).value_or(0) == 1);
  CHECK(bench.restored(first) == 600);
  REQUIRE(bench.take(counting(0, 30), true));
  CHECK(bench.store->forget(std::nullopt).value_or(0) == 2);
  CHECK(bench.store->match(bench.scope, first).tokens == 0);
  CHECK(bench.segment_files().empty());
}

TEST_CASE("forgetting a prompt by its tokens cuts it out of what others hang on") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens first = counting(0, 600);
  const Tokens second = joined(counting(0, 100), counting(2000, 300));
  const Tokens third = joined(second, counting(3000, 300));
  const Tokens answer = joined(first, counting(9000, 300));
  for (const Tokens& prompt : {first, second, third, answer}) {
    REQUIRE(bench.take(prompt));
  }
  REQUIRE(bench.take(joined(first, counting(1, 3)), true));
  SECTION("what another remembered prompt begins with stays, too") {
    CHECK(bench.store->forget(bench.scope, first, 350).value_or(0) == 3);
    CHECK(bench.restored(answer) == 350);
    CHECK(bench.restored(third) == 700);
  }
  SECTION("nothing else is left of it, in no file") {
    CHECK(bench.store->forget(bench.scope, first, 0).value_or(0) == 3);
    CHECK(bench.restored(answer) == 100);
    CHECK(bench.restored(third) == 700);
    CHECK(bench.store->stats().snapshots == 0);
    const Tokens gone(first.begin() + 300, first.begin() + 308);
    const std::string trace(reinterpret_cast<const char*>(gone.data()), 4 * gone.size());
    for (const auto& file : std::filesystem::recursive_directory_iterator(bench.folder.store())) {
      if (file.is_regular_file()) {
        CHECK(read_file(file.path()).find(trace) == std::string::npos);
      }
    }
  }
  SECTION("the one that hangs on it is forgotten alone") {
    CHECK(bench.store->forget(bench.scope, third, 0).value_or(0) == 2);
    CHECK(bench.restored(third) == 100);
    CHECK(bench.restored(answer) == 900);
  }
  const auto left = bench.restored(third);
  REQUIRE(bench.open());
  CHECK(bench.restored(third) == left);
  REQUIRE(bench.take(first));
  CHECK(bench.restored(first) == 600);
}

TEST_CASE("forgetting by tokens agrees with a list of prompts") {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t limit) { return static_cast<Token>(random() % limit); };
    KvBench bench;
    REQUIRE(bench.open());
    std::vector<Tokens> twin;
    const auto common = [](const std::vector<Tokens>& prompts, const Tokens& prompt) {
      std::size_t best = 0;
      for (const Tokens& one : prompts) {
        best = std::max(best, common_prefix(one, prompt));
      }
      return best;
    };
    for (int step = 0; step < 40; ++step) {
      bench.now_ms += 1;
      INFO("seed " << seed << " step " << step);
      if (twin.empty() || below(3) > 0) {
        Tokens prompt;
        if (!twin.empty() && below(4) > 0) {
          prompt = twin[random() % twin.size()];
          prompt.resize(1 + random() % prompt.size());
        }
        const Tokens more = counting(100 * below(50), 1 + static_cast<std::size_t>(below(300)));
        prompt.insert(prompt.end(), more.begin(), more.end());
        REQUIRE(bench.take(prompt));
        twin.push_back(prompt);
      } else {
        const Tokens chosen = twin[random() % twin.size()];
        const auto own = [&](const Tokens& one) {
          return common_prefix(one, chosen) == std::min(one.size(), chosen.size());
        };
        const std::uint64_t shared = random() % chosen.size();
        std::erase_if(twin, own);
        const std::size_t keep = std::max(common(twin, chosen), static_cast<std::size_t>(shared));
        twin.push_back(Tokens(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(keep)));
        std::erase_if(twin, [](const Tokens& one) { return one.empty(); });
        REQUIRE(bench.store->forget(bench.scope, chosen, shared));
        CHECK(bench.restored(chosen) == static_cast<std::int64_t>(keep));
      }
      if (below(8) == 0) {
        REQUIRE(bench.open());
      }
      for (const Tokens& one : twin) {
        CHECK(bench.restored(one) == static_cast<std::int64_t>(one.size()));
      }
      CHECK(bench.segment_files().size() == bench.store->stats().segments);
    }
  }
}

TEST_CASE(
    "state files of other runs are removed, those of this one, of a trial and others' are not") {
  KvBench bench;
  REQUIRE(bench.open());
  const std::vector<std::string> stay{
      "toki-17-3.bin", "toki-unfinished-toki-17-4.bin", "toki-trial-5-1.bin", "mine.bin", "toki-",
      "toki-notes"};
  const std::vector<std::string> go{"toki-16-3.bin", "toki-170-1.bin",
                                    "toki-unfinished-toki-16-4.bin"};
  for (const auto* names : {&stay, &go}) {
    for (const std::string& name : *names) {
      write_file(bench.folder.slots() / name, "x");
    }
  }
  bench.store->discard_other_runs("toki-17-");
  for (const std::string& name : stay) {
    CHECK(std::filesystem::exists(bench.folder.slots() / name));
  }
  for (const std::string& name : go) {
    CHECK_FALSE(std::filesystem::exists(bench.folder.slots() / name));
  }
}

TEST_CASE("what is held of a prompt says its share of the bytes, and a stored prompt its tokens") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens first = counting(0, 600);
  const Tokens second = joined(counting(0, 300), counting(2000, 300));
  REQUIRE(bench.take(first));
  REQUIRE(bench.take(second));
  const HeldPrompt held = bench.store->held(bench.scope, joined(second, counting(1, 9)));
  CHECK(held.tokens == 600);
  CHECK_FALSE(held.snapshot);
  CHECK(held.bytes < bench.store->stats().bytes);
  CHECK(held.bytes > bench.store->stats().bytes / 2);
  CHECK(bench.store->held(Scope({"other"}), second).tokens == 0);
  for (const StoredPrompt& stored : bench.store->prompts(9)) {
    const auto [scope, tokens] = bench.store->prompt(stored.id);
    CHECK(scope == bench.scope);
    CHECK((tokens == first || tokens == second));
  }
  CHECK(bench.store->prompt(99).second.empty());
}

TEST_CASE("the limit of bytes holds after every take, and the least worth goes first") {
  KvBench bench(large_rows());
  bench.max_bytes = 1'000'000;
  REQUIRE(bench.open());
  const Tokens hot = counting(0, 300);
  REQUIRE(bench.take(hot));
  for (Token i = 1; i <= 20; ++i) {
    bench.now_ms += 1000;
    CHECK(bench.restored(hot) == 300);
    REQUIRE(bench.take(counting(1000 * i, 200)));
    CHECK(bench.bytes_on_disk() <= bench.max_bytes);
    CHECK(bench.restored(counting(1000 * i, 200)) == 200);
  }
  CHECK(bench.store->stats().evicted_total > 10);
  CHECK(bench.restored(hot) == 300);
  CHECK(bench.restored(counting(1000, 200)) == 0);

  // A smaller limit holds from the start on.
  bench.max_bytes = 500'000;
  REQUIRE(bench.open());
  CHECK(bench.bytes_on_disk() <= bench.max_bytes);
  CHECK(bench.restored(hot) == 300);
}

TEST_CASE("what does not fit changes nothing") {
  KvBench bench(large_rows());
  bench.max_bytes = 1'000'000;
  REQUIRE(bench.open());
  const Tokens chat = counting(0, 500), other = counting(50000, 200);
  REQUIRE(bench.take(chat));
  REQUIRE(bench.take(other));
  const auto before = bench.segment_files();
  CHECK(bench.take(counting(9000, 2000)).error().code == Errc::unavailable);
  // Its own beginning is not evicted for what hangs on it.
  CHECK(bench.take(joined(chat, counting(9000, 800))).error().code == Errc::unavailable);
  CHECK(bench.segment_files() == before);
  CHECK(bench.restored(chat) == 500);
  CHECK(bench.restored(other) == 200);
  REQUIRE(bench.take(joined(chat, counting(9000, 300))));
  CHECK(bench.restored(other) == 0);
  CHECK(bench.bytes_on_disk() <= bench.max_bytes);
}

TEST_CASE("matches go on while states are taken, composed and forgotten") {
  KvBench bench;
  REQUIRE(bench.open());
  const Tokens base = counting(0, 300);
  REQUIRE(bench.take(base));
  std::atomic<bool> stop = false;
  std::atomic<bool> wrong = false;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      const Tokens prompt = joined(base, counting(1000, 400));
      while (!stop) {
        const auto tokens = bench.store->match(bench.scope, prompt).tokens;
        wrong = wrong || (tokens != 0 && tokens < 300) || tokens > 620;
        wrong = wrong || bench.store->stats().segments > 4 || bench.store->prompts(9).size() > 3;
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    const Tokens prompt = joined(base, counting(1000, 300 + static_cast<std::size_t>(round)));
    REQUIRE(bench.take(prompt));
    REQUIRE(bench.restored(prompt) == static_cast<std::int64_t>(prompt.size()));
    REQUIRE(bench.take(joined(base, counting(2000, 5))));
    for (const StoredPrompt& stored : bench.store->prompts(10)) {
      if (stored.tokens > 300) {
        (void)bench.store->forget(stored.id);
      }
    }
    REQUIRE(bench.take(base));
    bench.store->maintain();
  }
  stop = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  CHECK_FALSE(wrong);
}
