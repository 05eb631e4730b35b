// IndexStore against restarts, locks, faults, damage and kill -9. Foreign processes are forked
// before the store starts its thread.
#include <toki/index_store.hpp>

#include <SQLiteCpp/SQLiteCpp.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "support/fault_vfs.hpp"
#include "support/wait.hpp"

#include <sqlite3.h>

using namespace toki;
using std::chrono::milliseconds;
using toki::test::FaultVfs;
using toki::test::kFaultVfs;
using toki::test::TemporaryDirectory;
using toki::test::wait_until;
namespace fs = std::filesystem;

namespace {

constexpr milliseconds kLong{20000};  // a condition that never comes fails the test after this

/// The record of this id and version: always the same.
PromptRecord record_of(std::uint64_t id, std::uint64_t version = 0, std::size_t longest = 300) {
  std::mt19937_64 random(id * 1000003 + version);
  PromptRecord record;
  record.id = id;
  record.scope = Scope({"model", std::to_string(random() % 3)});
  record.tokens.resize(random() % longest);
  for (Token& token : record.tokens) token = static_cast<Token>(random());
  record.embedding.kind = static_cast<EmbeddingKind>(random() % 3);
  if (record.embedding.kind != EmbeddingKind::none) {
    record.embedding.values.resize(16);
    for (float& value : record.embedding.values) value = static_cast<float>(random() % 999) / 7;
    if (record.embedding.kind == EmbeddingKind::model) record.embedding.model = "model 7";
  }
  record.use = static_cast<double>(random() % 1000) / 3;
  record.last_used_ms = static_cast<std::int64_t>(random() % 1000000);
  return record;
}

template <class Value>
std::vector<std::uint32_t> bits(const std::vector<Value>& values) {
  std::vector<std::uint32_t> result;
  for (const Value value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

bool same(const PromptRecord& a, const PromptRecord& b) {
  return a.id == b.id && a.scope == b.scope && a.tokens == b.tokens &&
         a.embedding.kind == b.embedding.kind && a.embedding.model == b.embedding.model &&
         bits(a.embedding.values) == bits(b.embedding.values) && a.use == b.use &&
         a.last_used_ms == b.last_used_ms;
}

using Twin = std::map<std::uint64_t, PromptRecord>;

bool same(const std::vector<PromptRecord>& loaded, const Twin& twin) {
  return loaded.size() == twin.size() &&
         std::all_of(loaded.begin(), loaded.end(), [&](const PromptRecord& record) {
           const auto it = twin.find(record.id);
           return it != twin.end() && same(it->second, record);
         });
}

/// A store, what it loaded and what it logged.
class Store {
 public:
  explicit Store(IndexStoreOptions options)
      : store_(
            std::move(options),
            [this](LogLevel level, std::string_view line) {
              const std::lock_guard lock(mutex_);
              lines_.emplace_back((level == LogLevel::warn ? "warn: " : "") + std::string(line));
            },
            [this](std::vector<PromptRecord> records) {
              const std::lock_guard lock(mutex_);
              ++times_loaded_;
              loaded_ = std::move(records);
            }) {}

  IndexStore* operator->() { return &store_; }
  bool has_loaded() const {
    const std::lock_guard lock(mutex_);
    return times_loaded_ == 1;
  }
  std::vector<PromptRecord> loaded() const {
    REQUIRE(wait_until([&] { return has_loaded(); }, kLong, milliseconds(1)));
    const std::lock_guard lock(mutex_);
    return *loaded_;
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::size_t warnings() const {
    const auto all = lines();
    return static_cast<std::size_t>(std::count_if(
        all.begin(), all.end(), [](const auto& line) { return line.starts_with("warn"); }));
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::vector<PromptRecord>> loaded_;
  int times_loaded_ = 0;
  std::vector<std::string> lines_;
  IndexStore store_;  // last: its thread uses what is above
};

struct Folder : TemporaryDirectory {
  std::string file() const { return path() + "/prompts.db"; }
  IndexStoreOptions options() const {
    IndexStoreOptions options;
    options.path = file();
    options.retry = milliseconds(1);
    FaultVfs::get().heal();
    options.vfs = kFaultVfs;
    return options;
  }
  std::vector<std::string> aside() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path())) {
      const std::string name = entry.path().string();
      if (name.find(".aside-") != std::string::npos && !name.ends_with("-wal") &&
          !name.ends_with("-shm")) {
        names.push_back(name);
      }
    }
    return names;
  }
};

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void set_content(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// What a new store finds.
std::vector<PromptRecord> reload(const Folder& folder) {
  return Store(folder.options()).loaded();
}

/// Writes the records of the ids 1 to `count`.
Twin fill(const Folder& folder, std::uint64_t count) {
  Twin twin;
  Store store(folder.options());
  for (std::uint64_t id = 1; id <= count; ++id) {
    twin[id] = record_of(id);
    REQUIRE(store->put(twin[id]));
  }
  REQUIRE(store->flush(kLong));
  return twin;
}

/// The store takes a record, and finds it again.
void check_usable(const Folder& folder) {
  constexpr std::uint64_t kId = 1000000;
  {
    Store store(folder.options());
    REQUIRE(store->put(record_of(kId)));
    REQUIRE(store->flush(kLong));
  }
  const auto loaded = reload(folder);
  REQUIRE(std::any_of(loaded.begin(), loaded.end(),
                      [&](const auto& record) { return same(record, record_of(kId)); }));
}

/// Every record is whole: it equals the one that was written.
void check_whole(const std::vector<PromptRecord>& loaded, const Twin& twin) {
  for (const PromptRecord& record : loaded) {
    const auto it = twin.find(record.id);
    REQUIRE(it != twin.end());
    REQUIRE(same(it->second, record));
  }
}

/// A child process that runs `work` and is killed at the end.
class Child {
 public:
  template <class Work>
  explicit Child(Work work) {
    int to_child[2];
    int from_child[2];
    REQUIRE(::pipe(to_child) == 0);
    REQUIRE(::pipe(from_child) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(to_child[1]);
      ::close(from_child[0]);
      int code = 1;
      try {
        code = work(to_child[0], from_child[1]);
      } catch (...) {
        code = 99;
      }
      ::_exit(code);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    in_ = test::Fd(to_child[1]);
    out_ = test::Fd(from_child[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }

  /// The next byte that the child wrote; -1 at its end.
  int read() const {
    unsigned char byte = 0;
    return ::read(out_.get(), &byte, 1) == 1 ? byte : -1;
  }
  void tell() const { REQUIRE(::write(in_.get(), "x", 1) == 1); }
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  pid_t pid_ = 0;
  test::Fd in_;
  test::Fd out_;
};

void say(int fd, char byte) {
  if (::write(fd, &byte, 1) != 1) ::_exit(98);
}
void await_word(int fd) {
  char byte = 0;
  if (::read(fd, &byte, 1) != 1) ::_exit(97);
}

/// A foreign process that runs `begin` on the database, says so, and lets go when told.
auto holding(const std::string& path, const std::string& begin) {
  return [path, begin](int in, int out) {
    SQLite::Database database(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    database.exec(begin);
    say(out, '!');
    await_word(in);
    database.exec("COMMIT");
    say(out, '!');
    await_word(in);
    return 0;
  };
}

}  // namespace

TEST_CASE("index store: what was put is there after a restart, to the last bit") {
  const Folder folder;
  Twin twin;
  for (std::uint64_t id = 1; id <= 50; ++id) twin[id] = record_of(id);
  for (const std::uint64_t id : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    twin[id] = record_of(id);
  }
  twin[100] = {.id = 100};  // nothing in it
  twin[101] = record_of(101);
  twin[101].scope = Scope::from_bytes(std::string("\0\xff\n", 3));
  twin[101].embedding = {
      EmbeddingKind::model,
      {-0.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::denorm_min()}};
  twin[101].tokens = {std::numeric_limits<Token>::min(), -1, std::numeric_limits<Token>::max()};
  twin[101].last_used_ms = std::numeric_limits<std::int64_t>::min();
  twin[102] = record_of(102, 0, 100000);
  twin[102].tokens.resize(200000, 7);
  {
    Store store(folder.options());
    CHECK(store.loaded().empty());
    for (const auto& [id, record] : twin) CHECK(store->put(record));
    CHECK(store->flush(kLong));
    CHECK(store->stats().open);
    CHECK(store->stats().written == twin.size());
    CHECK(store->stats().queued == 0);
  }
  for (const char* vfs : {kFaultVfs, ""}) {
    auto options = folder.options();
    options.vfs = vfs;
    Store store(options);
    CHECK(same(store.loaded(), twin));
    CHECK(store->stats().loaded == twin.size());
    CHECK(store->stats().bytes > 200000 * 4);
    CHECK(store.lines().empty());
  }
}

TEST_CASE("index store: it agrees with a map over random writes, evictions and restarts") {
  const Folder folder;
  std::mt19937 random(7);
  auto options = folder.options();
  options.max_prompts = 20;
  Twin twin;
  std::int64_t now = 1000;
  for (int run = 0; run < 12; ++run) {
    Store store(options);
    const auto loaded = store.loaded();
    REQUIRE(same(loaded, twin));
    REQUIRE(std::is_sorted(loaded.begin(), loaded.end(), [](const auto& a, const auto& b) {
      return a.last_used_ms > b.last_used_ms;
    }));
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t id = random() % 40;
      now += static_cast<std::int64_t>(1 + random() % 5);
      switch (random() % 4) {
        case 0:
        case 1: {
          twin[id] = record_of(id, random());
          twin[id].last_used_ms = now;
          REQUIRE(store->put(twin[id]));
          break;
        }
        case 2: {
          const double use = static_cast<double>(random()) / 3;
          if (const auto it = twin.find(id); it != twin.end()) {
            it->second.use = use;
            it->second.last_used_ms = now;
          }
          REQUIRE(store->use(id, use, now));
          break;
        }
        case 3: {
          twin.erase(id);
          REQUIRE(store->remove(id));
          break;
        }
      }
      REQUIRE(store->flush(kLong));
      if (twin.size() > options.max_prompts) {
        twin.erase(std::min_element(twin.begin(), twin.end(), [](const auto& a, const auto& b) {
          return a.second.last_used_ms < b.second.last_used_ms;
        }));
      }
    }
  }
  CHECK(twin.size() == options.max_prompts);
}

TEST_CASE("index store: a lower number of prompts keeps those used last") {
  const Folder folder;
  const Twin twin = fill(folder, 30);
  auto options = folder.options();
  options.max_prompts = 10;
  {
    Store store(options);
    const auto loaded = store.loaded();
    REQUIRE(loaded.size() == 10);
    check_whole(loaded, twin);
    for (const auto& [id, record] : twin) {
      const bool kept = std::any_of(loaded.begin(), loaded.end(),
                                    [id = id](const auto& other) { return other.id == id; });
      CHECK((kept || record.last_used_ms <= loaded.back().last_used_ms));
    }
    REQUIRE(store->use(loaded.front().id, 1, 2000000));
  }
  CHECK(reload(folder).size() == 10);
}

TEST_CASE("index store: a record longer than any prompt and a use that is no number") {
  const Folder folder;
  Store store(folder.options());
  PromptRecord record = record_of(1);
  record.embedding.values.resize((std::size_t{1} << 16) + 1);
  CHECK_FALSE(store->put(record));
  CHECK(store->stats().dropped == 1);
  record = record_of(1);
  record.use = std::numeric_limits<double>::quiet_NaN();
  CHECK(store->put(record));
  CHECK(store->use(1, -0.0, 5));
  CHECK(store->flush(kLong));
  CHECK(store->stats().set_aside == 0);
}

TEST_CASE("index store: writes to one prompt that still wait are one write") {
  const Folder folder;
  fill(folder, 4);
  Store store(folder.options());
  store.loaded();
  SQLite::Database foreign(folder.file(), SQLite::OPEN_READWRITE);
  foreign.exec("BEGIN IMMEDIATE");
  // One write that the thread has taken, so that the others wait behind it.
  REQUIRE(store->remove(4));
  REQUIRE(wait_until([&] { return !store->stats().open; }, kLong));
  for (int i = 1; i <= 5; ++i) CHECK(store->use(1, i, i));
  CHECK(store->put(record_of(2, 1)));
  CHECK(store->use(2, 0.25, 77));
  CHECK(store->put(record_of(9)));
  CHECK(store->remove(9));
  CHECK(store->use(9, 1, 1));
  CHECK(store->remove(3));
  CHECK(store->put(record_of(3, 5)));
  CHECK(store->stats().queued == 5);
  foreign.exec("COMMIT");
  REQUIRE(store->flush(kLong));
  CHECK(store->stats().written == 5);
  CHECK(store->stats().dropped == 0);

  Twin twin{{1, record_of(1)}, {2, record_of(2, 1)}, {3, record_of(3, 5)}};
  twin[1].use = 5;
  twin[1].last_used_ms = 5;
  twin[2].use = 0.25;
  twin[2].last_used_ms = 77;
  CHECK(same(reload(folder), twin));
}

TEST_CASE(
    "index store: what is cleared is gone, from its files too, and what comes later is kept") {
  const Folder folder;
  const auto trace = [](const PromptRecord& record) {
    return std::string(reinterpret_cast<const char*>(record.tokens.data()), 40);
  };
  const auto anywhere = [&](const std::string& bytes) {
    return (content(folder.file()) + content(folder.file() + "-wal")).find(bytes) !=
           std::string::npos;
  };
  std::vector<PromptRecord> records;
  for (std::uint64_t id = 1; id <= 40; ++id) {
    records.push_back(record_of(id));
    records.back().tokens.resize(2000, static_cast<Token>(id * 7919));
    records.back().tokens[0] = static_cast<Token>(id);
  }
  Store store(folder.options());
  for (const PromptRecord& record : records) {
    REQUIRE(store->put(record));
  }
  REQUIRE(store->flush(kLong));
  REQUIRE(anywhere(trace(records[3])));
  SECTION("one") {
    REQUIRE(store->remove(records[3].id));
    store->wipe();
    REQUIRE(store->flush(kLong));
    CHECK_FALSE(anywhere(trace(records[3])));
    CHECK(anywhere(trace(records[4])));
  }
  SECTION("all, also what still waits") {
    SQLite::Database foreign(folder.file(), SQLite::OPEN_READWRITE);
    foreign.exec("BEGIN EXCLUSIVE");
    REQUIRE(store->put(record_of(100)));
    store->clear();
    REQUIRE(store->put(record_of(101)));
    CHECK(store->stats().queued > 0);
    foreign.exec("COMMIT");
    REQUIRE(store->flush(kLong));
    CHECK(store->stats().queued == 0);
    for (const PromptRecord& record : records) {
      CHECK_FALSE(anywhere(trace(record)));
    }
    CHECK(same(reload(folder), Twin{{101, record_of(101)}}));
  }
}

TEST_CASE("index store: what is cleared before it could be read is never given to anybody") {
  const Folder folder;
  fill(folder, 20);
  const Child foreign(holding(folder.file(),
                              "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM prompts "
                              "WHERE id=1"));
  REQUIRE(foreign.read() == '!');
  Store store(folder.options());
  store->clear();
  CHECK_FALSE(store.has_loaded());
  foreign.tell();
  REQUIRE(foreign.read() == '!');
  foreign.tell();
  CHECK(store->flush(kLong));
  CHECK(store.loaded().empty());
  CHECK(reload(folder).empty());
}

TEST_CASE("index store: a full queue drops what is new and counts it") {
  const Folder folder;
  fill(folder, 1);
  auto options = folder.options();
  options.queue_length = 4;
  Store store(options);
  store.loaded();
  SQLite::Database foreign(folder.file(), SQLite::OPEN_READWRITE);
  foreign.exec("BEGIN EXCLUSIVE");
  for (std::uint64_t id = 10; id < 14; ++id) CHECK(store->put(record_of(id)));
  CHECK_FALSE(store->put(record_of(14)));
  CHECK_FALSE(store->use(1, 1, 1));
  CHECK_FALSE(store->remove(1));
  CHECK(store->stats().dropped == 3);
  CHECK(store->stats().queued == 4);
  CHECK_FALSE(store->flush(milliseconds(1)));
  foreign.exec("COMMIT");
  CHECK(store->flush(kLong));
  CHECK(store->stats().written == 4);
  CHECK(reload(folder).size() == 5);
}

TEST_CASE("index store: another process that locks the database only delays what is written") {
  const Folder folder;
  const Twin twin = fill(folder, 5);
  const Child foreign(holding(folder.file(), "BEGIN EXCLUSIVE"));
  REQUIRE(foreign.read() == '!');
  Store store(folder.options());
  CHECK(same(store.loaded(), twin));
  CHECK(store->put(record_of(6)));
  CHECK_FALSE(store->flush(milliseconds(20)));
  CHECK(store->stats().queued == 1);
  foreign.tell();
  CHECK(store->flush(kLong));
  CHECK(store->stats().dropped == 0);
  CHECK(reload(folder).size() == 6);
}

TEST_CASE("index store: a database that cannot even be read while locked is loaded late") {
  const Folder folder;
  const Twin twin = fill(folder, 5);
  const Child foreign(holding(folder.file(),
                              "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM prompts "
                              "WHERE id=1"));
  REQUIRE(foreign.read() == '!');

  SECTION("within the patience") {
    Store store(folder.options());
    CHECK(store->put(record_of(6)));
    CHECK_FALSE(store->flush(milliseconds(20)));
    CHECK_FALSE(store.has_loaded());
    foreign.tell();
    REQUIRE(foreign.read() == '!');
    foreign.tell();  // it ends: its locking mode keeps the lock until then
    CHECK(store.loaded().size() == 4);
    check_whole(store.loaded(), twin);
    CHECK(store->flush(kLong));
  }
  SECTION("after it: nothing is loaded, the writes till then are lost, later ones are not") {
    auto options = folder.options();
    options.patience = milliseconds(50);
    Store store(options);
    CHECK(store->put(record_of(6)));
    CHECK_FALSE(store->flush(kLong));
    CHECK(store.loaded().empty());
    CHECK(store->stats().dropped == 1);
    foreign.tell();
    REQUIRE(foreign.read() == '!');
    foreign.tell();
    REQUIRE(wait_until([&] { return store->stats().open; }, kLong));
    CHECK(store->put(record_of(7)));
    CHECK(store->flush(kLong));
    CHECK(reload(folder).size() == 5);
    CHECK(store->stats().set_aside == 0);
  }
}

TEST_CASE("index store: its end does not wait for a lock") {
  const Folder folder;
  fill(folder, 2);
  {
    SQLite::Database foreign(folder.file(), SQLite::OPEN_READWRITE);
    foreign.exec("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM prompts WHERE id=1");
    Store store(folder.options());  // never opens
    CHECK(store->put(record_of(6)));
    Store idle(folder.options());
  }
  {
    Store store(folder.options());
    CHECK(store.loaded().size() == 2);
    SQLite::Database foreign(folder.file(), SQLite::OPEN_READWRITE);
    foreign.exec("BEGIN IMMEDIATE");
    std::optional<Store> other(std::in_place, folder.options());
    CHECK((*other)->put(record_of(6)));
    other.reset();
  }
  CHECK(reload(folder).size() == 2);
}

TEST_CASE("index store: its end writes what is queued") {
  const Folder folder;
  Twin twin;
  {
    Store store(folder.options());
    for (std::uint64_t id = 0; id < 1000; ++id) {
      twin[id] = record_of(id);
      REQUIRE(store->put(twin[id]));
    }
  }
  CHECK(same(reload(folder), twin));
  CHECK_FALSE(fs::exists(folder.file() + "-wal"));
}

TEST_CASE("index store: files are private whatever the umask is") {
  for (const mode_t mask : {0000U, 0777U}) {
    const Folder folder;
    if (mask == 0) set_content(folder.file(), "");  // an empty file lies there
    const mode_t before = ::umask(mask);
    {
      Store store(folder.options());
      store->put(record_of(1));
      CHECK(store->flush(kLong));
      for (const char* suffix : {"", "-wal", "-shm"}) {
        struct stat status {};
        REQUIRE(::stat((folder.file() + suffix).c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0600);
      }
    }
    ::umask(before);
  }
}

TEST_CASE("index store: two that make one database at the same time share it") {
  for (int round = 0; round < 20; ++round) {
    const Folder folder;
    {
      Store one(folder.options());
      Store two(folder.options());
      CHECK(one->put(record_of(1)));
      CHECK(two->put(record_of(2)));
      REQUIRE(one->flush(kLong));
      REQUIRE(two->flush(kLong));
      CHECK(one->stats().set_aside + two->stats().set_aside == 0);
    }
    REQUIRE(reload(folder).size() == 2);
  }
}

TEST_CASE("index store: what is not its database is set aside unchanged") {
  const Folder folder;
  std::string before;
  SECTION("another version of ours") {
    fill(folder, 3);
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version=99");
    before = content(folder.file());
  }
  SECTION("another application's") {
    fill(folder, 3);
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE).exec("PRAGMA application_id=99");
    before = content(folder.file());
  }
  SECTION("a database without an application") {
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
        .exec("CREATE TABLE mine(a); INSERT INTO mine VALUES(1)");
    before = content(folder.file());
  }
  SECTION("no database") {
    before = "Dear diary, " + std::string(5000, 'x');
    set_content(folder.file(), before);
  }
  SECTION("another table of the same name") {
    fill(folder, 3);
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE)
        .exec("DROP TABLE prompts; CREATE TABLE prompts(id INTEGER PRIMARY KEY)");
    before = content(folder.file());
  }
  {
    Store store(folder.options());
    CHECK(store.loaded().empty());
    CHECK(store->put(record_of(7)));
    CHECK(store->flush(kLong));
    CHECK(store->stats().set_aside == 1);
    CHECK(store.warnings() == 1);
    CHECK(store.lines().size() == 1);
  }
  REQUIRE(folder.aside().size() == 1);
  CHECK(content(folder.aside().front()) == before);
  CHECK(same(reload(folder), {{7, record_of(7)}}));
}

TEST_CASE("index store: the log of another application's database goes along with it") {
  const Folder folder;
  const Child foreign([path = folder.file()](int in, int out) {
    SQLite::Database database(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    database.exec("PRAGMA journal_mode=WAL; CREATE TABLE mine(a); INSERT INTO mine VALUES(42)");
    say(out, '!');
    await_word(in);  // killed here: what it wrote is in the log only
    return 0;
  });
  REQUIRE(foreign.read() == '!');
  const_cast<Child&>(foreign).kill();
  REQUIRE(fs::file_size(folder.file() + "-wal") > 0);
  check_usable(folder);
  REQUIRE(folder.aside().size() == 1);
  SQLite::Database aside(folder.aside().front());
  CHECK(aside.execAndGet("SELECT a FROM mine").getInt() == 42);
}

TEST_CASE("index store: few files are kept aside, and those of others are never deleted") {
  const Folder folder;
  for (int i = 0; i < 6; ++i) {
    fill(folder, 1);
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version=99");
    check_usable(folder);
    CHECK(folder.aside().size() == std::min<std::size_t>(static_cast<std::size_t>(i) + 1, 3));
  }
  for (int i = 0; i < 8; ++i) {
    set_content(folder.file(), "not a database " + std::string(2000, 'x'));
    check_usable(folder);
  }
  CHECK(folder.aside().size() == 11);
  set_content(folder.file(), "one too many " + std::string(2000, 'x'));
  auto options = folder.options();
  options.patience = milliseconds(20);
  Store store(options);
  CHECK(store.loaded().empty());
  CHECK(store->put(record_of(1)));
  CHECK_FALSE(store->flush(kLong));
  CHECK(store->stats().dropped == 1);
  CHECK_FALSE(store->stats().open);
  CHECK(store.warnings() == 1);
  CHECK(content(folder.file()).starts_with("one too many"));
}

TEST_CASE("index store: a fault that passes costs what was written meanwhile, and is said once") {
  const Folder folder;
  auto options = folder.options();
  options.patience = milliseconds(20);
  std::function<void()> begin;
  std::function<void()> end;
  SECTION("no folder") {
    options.path = folder.path() + "/later/prompts.db";
    begin = [] {};
    end = [&] { fs::create_directory(folder.path() + "/later"); };
  }
  SECTION("a directory in its place, which is left alone") {
    begin = [&] { fs::create_directory(folder.file()); };
    end = [&] { fs::remove(folder.file()); };
  }
  SECTION("a full disk") {
    begin = [] { FaultVfs::get().fill_disk(); };
    end = [] { FaultVfs::get().heal(); };
  }
  SECTION("a broken disk") {
    begin = [] { FaultVfs::get().fail(0, true); };
    end = [] { FaultVfs::get().heal(); };
  }
  begin();
  {
    Store store(options);
    CHECK(store.loaded().empty());
    for (std::uint64_t id = 1; id <= 3; ++id) {
      REQUIRE(store->put(record_of(id)));
      REQUIRE_FALSE(store->flush(kLong));
    }
    CHECK(store->stats().dropped == 3);
    CHECK(store.warnings() == 1);
    end();
    REQUIRE(wait_until([&] { return store.lines().size() == 2; }, kLong));
    CHECK(store.lines().back().find("works again; 3 writes were lost") != std::string::npos);
    CHECK(store->put(record_of(6)));
    CHECK(store->flush(kLong));
    CHECK(store.warnings() == 1);
    CHECK(store->stats().set_aside == 0);
  }
  CHECK(same(Store(options).loaded(), {{6, record_of(6)}}));
}

TEST_CASE("index store: a full disk in the midst loses nothing that was written before") {
  const Folder folder;
  const Twin twin = fill(folder, 20);
  {
    Store store(folder.options());
    CHECK(same(store.loaded(), twin));
    FaultVfs::get().fill_disk();
    CHECK(store->put(record_of(21)));
    REQUIRE(wait_until([&] { return store.warnings() == 1; }, kLong));
    FaultVfs::get().heal();
    CHECK(store->flush(kLong));  // it has waited
    CHECK(store->stats().dropped == 0);
  }
  CHECK(reload(folder).size() == 21);
}

TEST_CASE("index store: a folder that may not be written") {
  const Folder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
  Child child([&](int, int) {
    if (::getuid() == 0 && ::setuid(65534) != 0) return 2;  // root may write anywhere
    auto options = folder.options();
    options.patience = milliseconds(20);
    Store store(options);
    const bool empty = wait_until([&] { return store.has_loaded(); }, kLong);
    const bool lost = store->put(record_of(1)) && !store->flush(kLong);
    return empty && lost && store.warnings() == 1 && store->stats().dropped == 1 ? 0 : 3;
  });
  const int code = child.wait();
  if (code == 2) {
    WARN("SKIPPED: root that cannot become another user");
    return;
  }
  CHECK(code == 0);
  ::chmod(folder.path().c_str(), 0755);
}

TEST_CASE("index store: a database file that may not be written") {
  const Folder folder;
  fill(folder, 3);
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  REQUIRE(::chmod(folder.file().c_str(), 0444) == 0);
  Child child([&](int, int) {
    if (::getuid() == 0 && ::setuid(65534) != 0) return 2;
    auto options = folder.options();
    options.patience = milliseconds(20);
    Store store(options);
    const bool lost = store->put(record_of(4)) && !store->flush(kLong);
    return lost && store->stats().set_aside == 0 ? 0 : 3;
  });
  const int code = child.wait();
  if (code == 2) {
    WARN("SKIPPED: root that cannot become another user");
    return;
  }
  CHECK(code == 0);
  CHECK(reload(folder).size() == 3);
}

TEST_CASE("index store: a file that is deleted while it is open is begun anew") {
  const Folder folder;
  auto options = folder.options();
  options.maintenance = milliseconds(5);
  Store store(options);
  CHECK(store->put(record_of(1)));
  CHECK(store->flush(kLong));
  fs::remove(folder.file());
  REQUIRE(wait_until([&] { return fs::exists(folder.file()) && store->stats().open; }, kLong));
  CHECK(store->put(record_of(2)));
  CHECK(store->flush(kLong));
  CHECK(same(reload(folder), {{2, record_of(2)}}));
}

TEST_CASE("index store: a link to the database is as good as the database") {
  const Folder folder;
  fs::create_directory(folder.path() + "/real");
  fs::create_symlink("real", folder.path() + "/folder");
  auto options = folder.options();
  options.path = folder.path() + "/real/prompts.db";
  CHECK(Store(options).loaded().empty());
  fs::create_symlink("prompts.db", folder.path() + "/real/link.db");
  options.path = folder.path() + "/folder/link.db";
  SQLite::Database(options.path, SQLite::OPEN_READWRITE).exec("PRAGMA user_version=99");
  Store store(options);
  CHECK(store->put(record_of(1)));
  CHECK(store->flush(kLong));
  CHECK(store->stats().set_aside == 1);
  CHECK(store->stats().log_bytes > 0);
  CHECK(fs::is_symlink(options.path));
}

TEST_CASE("index store: a damaged row is skipped, deleted and counted; the others stay") {
  const Folder folder;
  Twin twin = fill(folder, 10);
  const auto spoil = [&](std::uint64_t id, const std::string& change) {
    SQLite::Database(folder.file(), SQLite::OPEN_READWRITE)
        .exec("UPDATE prompts SET " + change + " WHERE id=" + std::to_string(id));
    twin.erase(id);
  };
  spoil(1, "tokens=x'01020304'");
  spoil(2, "tokens=x'0102'");
  spoil(3, "last_used=last_used+1");
  spoil(4, "use=use+1");
  spoil(5, "kind=77");
  spoil(6, "scope=x''");
  spoil(7, "embedding=x'00000000'");
  spoil(8, "id=88");
  {
    Store store(folder.options());
    CHECK(same(store.loaded(), twin));
    CHECK(store->stats().damaged == 8);
    CHECK(store.warnings() == 1);
    CHECK(store->put(record_of(20)));
    CHECK(store->flush(kLong));
    CHECK(store->stats().set_aside == 0);
  }
  Store store(folder.options());
  CHECK(store.loaded().size() == 3);
  CHECK(store->stats().damaged == 0);
}

TEST_CASE("index store: a file cut at any length gives no wrong record and is usable afterwards") {
  const Folder folder;
  const Twin twin = fill(folder, 40);
  const std::string whole = content(folder.file());
  std::vector<std::size_t> lengths{
      0, 1, 15, 16, 99, 100, 4095, 4096, 4097, 8192, whole.size() - 4096, whole.size() - 1};
  std::mt19937 random(3);
  for (int i = 0; i < 30; ++i) lengths.push_back(random() % whole.size());
  for (const std::size_t length : lengths) {
    CAPTURE(length);
    const Folder cut;
    set_content(cut.file(), whole.substr(0, length));
    check_whole(reload(cut), twin);
    check_usable(cut);
  }
}

TEST_CASE("index store: flipped bytes give no wrong record, and it is usable afterwards") {
  const Folder folder;
  const Twin twin = fill(folder, 40);
  const std::string whole = content(folder.file());
  std::mt19937 random(11);
  std::size_t damaged = 0;
  std::size_t aside = 0;
  for (int i = 0; i < 300; ++i) {
    // The header and the schema are small: some rounds aim at them.
    const std::size_t range = i % 3 == 0 ? 100 : i % 3 == 1 ? 4096 : whole.size();
    std::string bytes = whole;
    for (auto flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % range] ^= static_cast<char>(1U << random() % 8);
    }
    CAPTURE(i);
    const Folder broken;
    set_content(broken.file(), bytes);
    {
      Store store(broken.options());
      check_whole(store.loaded(), twin);
      REQUIRE(store->put(record_of(500)));
      REQUIRE(store->use(3, 9, 9));
      REQUIRE(store->remove(4));
      REQUIRE(store->flush(kLong));
      damaged += store->stats().damaged;
      aside += store->stats().set_aside;
    }
    check_usable(broken);
  }
  CHECK(damaged > 10);
  CHECK(aside > 30);
}

TEST_CASE("index store: what can be read of a damaged database goes into the new one") {
  const Folder folder;
  const Twin twin = fill(folder, 40);
  std::string bytes = content(folder.file());
  std::size_t leaf = 0;  // the last page of the table; no row is longer than a page
  for (std::size_t page = 4096; page < bytes.size(); page += 4096) {
    if (bytes[page] == '\x0d') leaf = page;
  }
  REQUIRE(leaf != 0);
  bytes[leaf] = '\x77';
  set_content(folder.file(), bytes);
  std::vector<PromptRecord> loaded;
  {
    Store store(folder.options());
    loaded = store.loaded();
    CHECK(loaded.size() > 10);
    CHECK(loaded.size() < 40);
    check_whole(loaded, twin);
    REQUIRE(wait_until([&] { return store->stats().written == loaded.size(); }, kLong));
    CHECK(store->stats().set_aside == 1);
    CHECK(store.warnings() == 1);
  }
  Twin carried;
  for (const PromptRecord& record : loaded) carried[record.id] = record;
  CHECK(same(reload(folder), carried));
}

TEST_CASE("index store: a damaged log gives no wrong record, and it is usable afterwards") {
  std::string main;
  std::string log;
  std::map<std::uint64_t, std::vector<PromptRecord>> versions;
  {
    const Folder folder;
    Store store(folder.options());
    for (std::uint64_t id = 1; id <= 30; ++id) {
      for (std::uint64_t version = 0; version < 2; ++version) {
        versions[id].push_back(record_of(id, version));
        REQUIRE(store->put(versions[id].back()));
        REQUIRE(store->flush(kLong));
      }
    }
    main = content(folder.file());
    log = content(folder.file() + "-wal");
  }
  REQUIRE(log.size() > 100000);
  std::mt19937 random(13);
  std::size_t partial = 0;
  for (int i = 0; i < 100; ++i) {
    std::string bytes = log;
    if (i % 2 == 0) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1U << random() % 8);
    } else {
      bytes.resize(random() % bytes.size());
    }
    CAPTURE(i);
    const Folder broken;
    set_content(broken.file(), main);
    set_content(broken.file() + "-wal", bytes);
    const auto loaded = reload(broken);
    partial += !loaded.empty() && loaded.size() < versions.size() ? 1U : 0U;
    for (const PromptRecord& record : loaded) {
      const auto& known = versions[record.id];
      REQUIRE(std::any_of(known.begin(), known.end(),
                          [&](const auto& version) { return same(version, record); }));
    }
    check_usable(broken);
  }
  CHECK(partial > 10);
}

TEST_CASE("index store: after kill -9 at any moment there are whole records, and all flushed") {
  std::mt19937 random(17);
  const Folder folder;
  for (int round = 0; round < 40; ++round) {
    Child writer([&](int, int out) {
      auto options = folder.options();
      options.max_log_bytes = 64 << 10;  // the log is started over often
      options.maintenance = milliseconds(1);
      IndexStore store(options, {}, {});
      for (std::uint64_t id = 1;; ++id) {
        PromptRecord record = record_of(id % 100);
        record.last_used_ms = static_cast<std::int64_t>(id);
        store.put(record);
        if (id % 3 == 0) store.use((id + 50) % 100, static_cast<double>(id), -5);
        if (id % 16 == 0) say(out, store.flush(kLong) ? 'y' : 'n');
      }
      return 0;
    });
    std::uint64_t flushed = 0;
    for (auto words = random() % 30; words > 0; --words) {
      REQUIRE(writer.read() == 'y');
      flushed += 16;
    }
    writer.kill();
    Store store(folder.options());
    const auto loaded = store.loaded();
    REQUIRE(loaded.size() <= 100);
    REQUIRE(store->stats().damaged == 0);
    REQUIRE(store->stats().set_aside == 0);
    for (const PromptRecord& record : loaded) {
      PromptRecord expected = record_of(record.id);
      expected.use = record.use;
      expected.last_used_ms = record.last_used_ms;
      REQUIRE(same(expected, record));
    }
    for (std::uint64_t id = 1; id <= flushed; ++id) {
      REQUIRE(std::any_of(loaded.begin(), loaded.end(),
                          [&](const auto& record) { return record.id == id % 100; }));
    }
  }
}

TEST_CASE("index store: after a fault of any file operation there are whole records") {
  const Folder origin;
  const Twin before = fill(origin, 6);
  const std::string main = content(origin.file());
  Twin after = before;
  after[20] = record_of(20, 0, 5000);
  after[2] = record_of(2, 1);
  after[3].use = 5;
  after[3].last_used_ms = 5;
  after.erase(4);
  const bool onwards = GENERATE(false, true);
  const bool made_new = GENERATE(false, true);
  long number = 0;
  for (bool more = true; more; ++number) {
    CAPTURE(onwards, made_new, number);
    const Folder folder;
    if (!made_new) set_content(folder.file(), main);
    auto options = folder.options();
    options.max_log_bytes = 16 << 10;
    bool written = false;
    FaultVfs::get().fail(number, onwards);
    {
      Store store(options);
      REQUIRE(wait_until([&] { return store.has_loaded(); }, kLong));
      REQUIRE(store->put(after[20]));
      REQUIRE(store->put(after[2]));
      REQUIRE(store->use(3, 5, 5));
      REQUIRE(store->remove(4));
      written = store->flush(onwards ? milliseconds(5) : kLong);
      REQUIRE((written || onwards));
      REQUIRE(store->stats().set_aside == 0);
    }
    more = FaultVfs::get().calls() > number;
    FaultVfs::get().heal();
    const auto loaded = reload(folder);
    for (const PromptRecord& record : loaded) {
      REQUIRE((same(record, before.contains(record.id) ? before.at(record.id) : record) ||
               same(record, after[record.id])));
    }
    if (written) {
      REQUIRE(loaded.size() == (made_new ? 2 : 6));
      check_whole(loaded, after);
    }
    check_usable(folder);
  }
  CHECK(number > 30);
}

TEST_CASE("index store: a reader that holds a snapshot stops the log from growing without bound") {
  const Folder folder;
  fill(folder, 1);
  Child reader(holding(folder.file(), "BEGIN; SELECT count(*) FROM prompts"));
  REQUIRE(reader.read() == '!');
  auto options = folder.options();
  options.max_log_bytes = 1 << 20;
  options.maintenance = milliseconds(20);
  options.patience = milliseconds(100);
  Store store(options);
  std::uint64_t id = 1;
  const auto blocked = [&] {  // what it had accepted was lost, not only what it refused
    return !store->put(record_of(++id)) && !store->flush(kLong);
  };
  REQUIRE(wait_until(blocked, kLong, milliseconds(0)));
  CHECK(fs::file_size(folder.file() + "-wal") > options.max_log_bytes);
  CHECK(fs::file_size(folder.file() + "-wal") < options.max_log_bytes + (5 << 20));
  reader.tell();
  REQUIRE(reader.read() == '!');
  REQUIRE(wait_until([&] { return fs::file_size(folder.file() + "-wal") <= (1 << 20); }, kLong));
  REQUIRE(wait_until([&] { return store->stats().open; }, kLong));
  REQUIRE(wait_until([&] { return store->put(record_of(1, 7)); }, kLong));
  CHECK(store->flush(kLong));
  CHECK(store->stats().log_bytes <= options.max_log_bytes);
}

TEST_CASE("index store: after 200,000 records beside a reader the log is within its limit") {
  const Folder folder;
  fill(folder, 1);
  Child reader(holding(folder.file(), "BEGIN; SELECT count(*) FROM prompts"));
  REQUIRE(reader.read() == '!');
  auto options = folder.options();
  options.vfs.clear();
  options.maintenance = milliseconds(100);
  options.max_prompts = 300000;
  Store store(options);
  bool reading = true;
  for (std::uint64_t id = 1; id <= 200000; ++id) {
    PromptRecord record;
    record.id = id;
    record.tokens = {static_cast<Token>(id), 2, 3, 4, 5, 6, 7, 8};
    record.last_used_ms = static_cast<std::int64_t>(id);
    while (!store->put(record)) {
      store->flush(milliseconds(10));
      if (reading && (id > 100000 || store->stats().log_bytes > options.max_log_bytes)) {
        reader.tell();
        reading = false;
      }
    }
  }
  if (reading) reader.tell();
  REQUIRE(store->flush(kLong));
  REQUIRE(wait_until([&] { return store->stats().log_bytes <= options.max_log_bytes; }, kLong));
  CHECK(fs::file_size(folder.file() + "-wal") <= options.max_log_bytes);
  CHECK(store->stats().written == 200000);
}
