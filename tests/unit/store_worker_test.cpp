// The store on a thread of its own: files that nobody wants any more.
#include <toki/http/store_worker.hpp>
#include <toki/kv_store.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <optional>
#include <stdlib.h>
#include <string>
#include <utility>

#include "support/wait.hpp"

using namespace toki;
using namespace toki::http;
using toki::test::wait_until;

namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "toki-worker-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
    fs::create_directory(path / "slots");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

boost::asio::awaitable<void> keep(boost::asio::awaitable<Result<std::uint64_t>> work,
                                  std::optional<Result<std::uint64_t>>& result) {
  result = co_await std::move(work);
}

}  // namespace

TEST_CASE(
    "store worker: a file that comes after nobody wants it any more is removed all the same") {
  Folder folder;
  const fs::path slots = folder.path / "slots";
  auto store =
      KvStore::open({.dir = (folder.path / "store").string(), .slot_dir = slots.string()}, {});
  REQUIRE(store);
  StoreWorker worker(**store);
  std::ofstream(slots / "toki-there.bin") << "state";
  worker.discard("toki-there.bin");
  worker.discard("toki-late.bin");
  CHECK(wait_until([&] { return !fs::exists(slots / "toki-there.bin"); }));
  std::ofstream(slots / "toki-other.bin") << "state";
  std::ofstream(slots / "toki-late.bin") << "state";  // the server had yet to write it
  CHECK(wait_until([&] {
    worker.discard_again();
    return !fs::exists(slots / "toki-late.bin");
  }));
  std::ofstream(slots / "toki-late.bin") << "another with the name";
  worker.discard_again();
  worker.discard("toki-other.bin");
  CHECK(wait_until([&] { return !fs::exists(slots / "toki-other.bin"); }));
  CHECK(fs::exists(slots / "toki-late.bin"));  // it was removed once, and is forgotten
}

TEST_CASE("store worker: a prompt, or everything, is forgotten on its thread, and upkeep is too") {
  Folder folder;
  auto store = KvStore::open(
      {.dir = (folder.path / "store").string(), .slot_dir = (folder.path / "slots").string()}, {});
  REQUIRE(store);
  StoreWorker worker(**store);
  boost::asio::io_context io;
  const auto run = [&](boost::asio::awaitable<Result<std::uint64_t>> work) {
    std::optional<Result<std::uint64_t>> result;
    boost::asio::co_spawn(io, keep(std::move(work), result), boost::asio::detached);
    io.run();
    io.restart();
    return result.value();
  };
  CHECK_FALSE(worker.behind());
  worker.maintain();
  const auto none = run(worker.forget(Scope({"model"}), Tokens{1, 2, 3}, 0));
  REQUIRE(none);
  CHECK(*none == 0);
  const auto all = run(worker.forget(std::nullopt));
  REQUIRE(all);
  CHECK(*all == 0);
  CHECK(run(worker.forget(std::uint64_t{7})).error().code == Errc::not_found);
}
