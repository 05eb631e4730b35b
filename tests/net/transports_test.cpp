// TCP, Unix sockets and TLS, towards clients and towards the server: the same behaviour on each.
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sys/stat.h>

#include "certificate.hpp"
#include "net_test.hpp"

namespace {

using namespace toki::test;

// A client connects over TCP to a tokid, whose backend is another tokid behind the kind of
// connection that is tried, before a scripted server. So both sides of it are tokid's.
class Chain {
 public:
  explicit Chain(const std::string& kind, const Behaviour& behaviour = {})
      : inner_(up_.url(), inner_options(kind)), outer_(backend(kind), outer_options(kind)) {
    REQUIRE(wait_until([&] { return inner_.log().find("backend is ready") != std::string::npos; }));
    REQUIRE(outer_.wait_ready());
    up_.configure([&](Behaviour& now) { now = behaviour; });
    up_.clear_log();
  }

  ScriptedUpstream& up() { return up_; }
  Tokid& outer() { return outer_; }
  int port() const { return outer_.port(); }

 private:
  std::string socket() const { return "unix:" + directory_.path() + "/inner.sock"; }
  std::vector<std::string> inner_options(const std::string& kind) const {
    if (kind == "unix") return {"--listen", "127.0.0.1:0", "--listen", socket()};
    if (kind == "tcp") return {};
    return {"--tls-cert", certificate_.file(), "--tls-key", certificate_.key()};
  }
  std::string backend(const std::string& kind) const {
    if (kind == "unix") return socket();
    return (kind == "tcp" ? "http://localhost:" : "https://localhost:") +
           std::to_string(inner_.port());
  }
  std::vector<std::string> outer_options(const std::string& kind) const {
    if (kind != "tls") return {};
    return {"--backend-ca", certificate_.file()};
  }

  TemporaryDirectory directory_;
  Certificate certificate_;
  ScriptedUpstream up_;
  Tokid inner_;
  Tokid outer_;
};

std::string any_kind() {
  return GENERATE(as<std::string>{}, "tcp", "unix", "tls");
}

}  // namespace

TEST_CASE("over each kind of connection prompts are reused, and connections kept") {
  Chain chain(any_kind());
  for (int i = 0; i < 3; ++i) {
    const Answer answer = as_answer(post_json(chain.port(), kChat, cc({M(W(50))})));
    CHECK(answer.status == 200);
    CHECK((i == 0 || answer.cache_n == 54));
    CHECK((i == 0 || answer.reused == 54));
  }
  const std::string big = cc({M(std::string(std::size_t{3} << 20, 'x'))});
  CHECK(post_json(chain.port(), kChat, big).status == 200);
  REQUIRE(chain.up().generations().size() == 4);
  CHECK(chain.up().generations()[3].body().size() > big.size());
  CHECK(chain.outer().stat("upstream_restarts_total") == 0);
}

TEST_CASE("over each kind of connection the pieces of a stream come when they are made") {
  Behaviour behaviour;
  behaviour.answer = "a b c d";
  behaviour.event_delay = milliseconds(60);
  Chain chain(any_kind(), behaviour);
  const HttpResponse response = post_json(chain.port(), kChat, cc({M("q")}, R"(,"stream":true)"));
  CHECK(response.status == 200);
  CHECK(response.whole());
  REQUIRE(response.pieces.size() >= 4);
  CHECK(ms_between(response.pieces.front().at, response.pieces.back().at) > 120);
}

TEST_CASE("over each kind of connection a client that leaves cancels its generation") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(20000);
  const bool streams = GENERATE(false, true);
  Chain chain(any_kind(), behaviour);
  RawClient client(chain.port());
  client.send_json(kChat, cc({M("q")}, streams ? R"(,"stream":true)" : ""));
  REQUIRE(chain.up().wait_generations(1));
  client.close();
  CHECK(wait_until([&] { return chain.up().generations().at(0).cancelled; }, milliseconds(3000)));
}

TEST_CASE("over each kind of connection an answer that breaks off is not whole") {
  Chain chain(any_kind());
  chain.up().on_request(on_generation([](const LoggedRequest&, Connection& connection) {
    connection.begin_stream();
    connection.send_chunk("data: {}\n\n");
    connection.close();
    return true;
  }));
  const HttpResponse response = post_json(chain.port(), kChat, cc({M("q")}, R"(,"stream":true)"));
  CHECK(response.status == 200);
  CHECK_FALSE(response.whole());
}

TEST_CASE("a Unix socket is its owner's alone, and gone with the tokid that made it") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/tokid.sock";
  ScriptedUpstream up;
  Tokid tokid(up.url(), {"--listen", "127.0.0.1:0", "--listen", "unix:" + path});
  REQUIRE(tokid.wait_ready());
  CHECK_THAT(tokid.process().out(), Catch::Contains("tokid listening on unix:" + path));
  struct stat file {};
  REQUIRE(::lstat(path.c_str(), &file) == 0);
  CHECK(S_ISSOCK(file.st_mode));
  CHECK((file.st_mode & 0777) == 0600);
  SECTION("a second tokid cannot have it") {
    TemporaryDirectory data;
    Process second(tokid_path(),
                   {"--listen", "unix:" + path, "--backend", up.url(), "--data-dir", data.path()});
    CHECK(second.wait_exit() == 1);
    CHECK_THAT(second.err(), Catch::Contains("address in use"));
    CHECK(std::filesystem::exists(path));
  }
  SECTION("it goes at the end") {
    tokid.process().signal(SIGTERM);
    CHECK(tokid.process().wait_exit() == 0);
    CHECK_FALSE(std::filesystem::exists(path));
  }
  SECTION("what a killed one left is replaced") {
    tokid.process().kill();
    REQUIRE(std::filesystem::exists(path));
    Tokid next(up.url(), {"--listen", "127.0.0.1:0", "--listen", "unix:" + path});
    CHECK(next.wait_ready());
  }
  SECTION("one that took its place stays") {
    std::filesystem::remove(path);
    std::ofstream(path) << "mine";
    tokid.process().signal(SIGTERM);
    CHECK(tokid.process().wait_exit() == 0);
    CHECK(std::filesystem::exists(path));
  }
}

TEST_CASE("a Unix socket can be its group's, whatever the umask says") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/tokid.sock";
  const mode_t before = ::umask(0077);
  ScriptedUpstream up;
  const Tokid tokid(
      up.url(), {"--listen", "127.0.0.1:0", "--listen", "unix:" + path, "--socket-mode", "0660"});
  ::umask(before);
  struct stat file {};
  REQUIRE(::lstat(path.c_str(), &file) == 0);
  CHECK((file.st_mode & 0777) == 0660);
}

TEST_CASE("a file that is no socket is never replaced") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  std::ofstream(path) << "mine";
  Process process(tokid_path(), {"--listen", "unix:" + path, "--data-dir", directory.path()});
  CHECK(process.wait_exit() == 1);
  CHECK_THAT(process.err(), Catch::Contains("no socket"));
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "mine");
}

TEST_CASE("a client that forgets the s of https is told so") {
  const Certificate certificate;
  ScriptedUpstream up;
  Tokid tokid(up.url(), {"--tls-cert", certificate.file(), "--tls-key", certificate.key()});
  CHECK_THAT(tokid.process().out(), Catch::Contains("tokid listening on https://127.0.0.1:"));
  const HttpResponse response = get(tokid.port(), "/toki/health");
  check_error(response, 400, "invalid_request_error");
  CHECK_THAT(response.body, Catch::Contains("https://"));
}

TEST_CASE("handshakes that do not come hold up nobody") {
  const Certificate certificate;
  ScriptedUpstream up;
  Tokid server(up.url(), {"--tls-cert", certificate.file(), "--tls-key", certificate.key()});
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(std::make_unique<RawClient>(server.port()));
    silent.back()->send("\x16");
  }
  Tokid client("https://127.0.0.1:" + std::to_string(server.port()),
               {"--backend-ca", certificate.file()});
  CHECK(client.wait_ready());
}

TEST_CASE("SIGHUP takes a renewed certificate, and keeps the old one when the new one is bad") {
  const Certificate certificate;
  ScriptedUpstream up;
  Tokid server(up.url(), {"--tls-cert", certificate.file(), "--tls-key", certificate.key()});
  const auto trusts = [&](const std::string& ca) {
    const std::string command = "echo Q | openssl s_client -verify_return_error -CAfile '" + ca +
                                "' -connect 127.0.0.1:" + std::to_string(server.port()) +
                                " >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  };
  const auto reload = [&](const std::string& logged, std::size_t times) {
    server.process().signal(SIGHUP);
    return wait_until([&] { return occurrences(server.log(), logged) == times; });
  };
  const std::string old = certificate.file() + ".old";
  std::filesystem::copy_file(certificate.file(), old);
  CHECK(trusts(old));
  certificate.make();
  REQUIRE(reload("settings read again", 1));
  CHECK(trusts(certificate.file()));
  CHECK_FALSE(trusts(old));
  const std::string renewed = certificate.file() + ".renewed";
  std::filesystem::copy_file(certificate.file(), renewed);
  std::filesystem::copy_file(old, certificate.file(),
                             std::filesystem::copy_options::overwrite_existing);
  REQUIRE(reload("the old settings stay", 1));
  CHECK(trusts(renewed));
}

TEST_CASE("a backend whose certificate nobody vouches for gets no request") {
  const Certificate certificate;
  ScriptedUpstream up;
  Tokid server(up.url(), {"--tls-cert", certificate.file(), "--tls-key", certificate.key()});
  Tokid client("https://127.0.0.1:" + std::to_string(server.port()));
  const HttpResponse response = get(client.port(), "/v1/models");
  check_error(response, 502, "upstream_error");
  CHECK_THAT(response.body, Catch::Contains("certificate verify failed"));
  CHECK(wait_until(
      [&] { return client.log().find("certificate verify failed") != std::string::npos; }));
  CHECK(occurrences(client.log(), "cannot speak TLS") == 1);
  CHECK(client.health_status() == 503);
}
