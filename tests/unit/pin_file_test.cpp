#include <toki/pin_file.hpp>

#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace toki;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / "toki-pins-XXXXXX";
  Folder() {
    std::string name = path.string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path); }
  std::string file() const { return (path / "pins").string(); }
};

std::vector<PinRecord> some() {
  return {{.id = 7, .scope = Scope({"m", ""}), .tokens = {1, 2, -3}, .by_hand = true},
          {.id = 1ULL << 50, .scope = Scope({"n"}), .tokens = {9}, .by_hand = false}};
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("pin file: what was written is read again, and nothing where there is no file") {
  const Folder folder;
  CHECK(PinFile(folder.file()).read()->empty());
  REQUIRE(PinFile(folder.file()).write(some()));
  const auto pins = PinFile(folder.file()).read();
  REQUIRE(pins);
  REQUIRE(pins->size() == 2);
  CHECK((*pins)[0].id == 7);
  CHECK((*pins)[0].scope == Scope({"m", ""}));
  CHECK((*pins)[0].tokens == Tokens{1, 2, -3});
  CHECK((*pins)[0].by_hand);
  CHECK_FALSE((*pins)[1].by_hand);
  CHECK((fs::status(folder.file()).permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  REQUIRE(PinFile(folder.file()).write({}));
  CHECK(PinFile(folder.file()).read()->empty());
}

TEST_CASE("pin file: one that was cut or changed anywhere is set aside, never read in part") {
  const Folder folder;
  REQUIRE(PinFile(folder.file()).write(some()));
  const std::string whole = bytes_of(folder.file());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const bool cut : {true, false}) {
      std::string bytes = whole;
      cut ? bytes.resize(i) : static_cast<void>(bytes[i] = static_cast<char>(bytes[i] ^ 4));
      std::ofstream(folder.file(), std::ios::binary | std::ios::trunc) << bytes;
      const auto pins = PinFile(folder.file()).read();
      REQUIRE_FALSE(pins);
      CHECK(pins.error().code == Errc::corrupt);
      CHECK_FALSE(fs::exists(folder.file()));
      CHECK(bytes_of(folder.file() + ".bad") == bytes);
    }
  }
}

TEST_CASE("pin file: a write that fails leaves the last one") {
  const Folder folder;
  REQUIRE(PinFile(folder.file()).write(some()));
  fs::create_directory(folder.file() + ".new");
  CHECK_FALSE(PinFile(folder.file()).write({}));
  CHECK(PinFile(folder.file()).read()->size() == 2);
}

TEST_CASE("pin file: what is no file, or more than a file of pins can be, is never read") {
  const Folder folder;
  fs::create_directory(folder.file());
  CHECK(PinFile(folder.file()).read().error().code == Errc::corrupt);
  CHECK(fs::is_directory(folder.file() + ".bad"));
  fs::remove(folder.file() + ".bad");
  std::ofstream(folder.file()) << "TOKI";
  fs::resize_file(folder.file(), std::uintmax_t{1} << 40);  // a hole
  CHECK(PinFile(folder.file()).read().error().code == Errc::corrupt);
  CHECK_FALSE(fs::exists(folder.file()));
  fs::remove(folder.file() + ".bad");
  fs::create_directories(folder.file() + ".bad/full");
  std::ofstream(folder.file() + ".bad/full/of") << "it";
  std::ofstream(folder.file()) << "TOKI";
  const auto stuck = PinFile(folder.file()).read();  // which cannot be moved either
  CHECK(stuck.error().code == Errc::corrupt);
  CHECK(stuck.error().detail.find("moved") == std::string::npos);
}

TEST_CASE("pin file: where the last one is a folder, or there is no folder, a write fails") {
  const Folder folder;
  fs::create_directories(folder.file() + "/full");
  CHECK_FALSE(PinFile(folder.file()).write(some()));
  CHECK_FALSE(PinFile(folder.file() + "-none/pins").write(some()));
}
