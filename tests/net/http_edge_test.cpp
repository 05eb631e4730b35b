// Odd, old and hostile HTTP, and browsers.
#include "net_test.hpp"

namespace {

using namespace toki::test;

const std::string kPost = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n";
const std::string kChunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";

std::string chunk(const std::string& text, const std::string& extension = "") {
  char size[20];
  std::snprintf(size, sizeof size, "%zx", text.size());
  return size + extension + "\r\n" + text + "\r\n";
}

}  // namespace

TEST_CASE("what two readers may understand differently is refused at once, and goes nowhere") {
  Rig rig;
  const std::string get = "GET /v1/models HTTP/1.1\r\nHost: x\r\n";
  struct Case {
    std::string wire;
    int status;
  };
  const Case one = GENERATE_COPY(values<Case>(
      {{kPost + "X-A: 1\r\n 2\r\nContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "X-A: 1\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "X-A:\r\n \r\nContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "X-A: 1\nContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "X-A: 1\rContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "Content-Length : 2\r\n\r\n{}", 400},
       {kPost + std::string("X-A: \0\r\nContent-Length: 2\r\n\r\n{}", 31), 400},
       {kPost + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
       {kPost + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400},
       {kPost + "Transfer-Encoding: \x0b"
                "chunked\r\n\r\n0\r\n\r\n",
        400},
       {kPost + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
       {"GET /v1/models HTTP/1.1\nHost: x\n\n", 400},
       {"GET http://x/v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 400},
       {"GET x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
       {"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
       {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
       {"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405},
       {"GET /v1/models HTTP/1.1\r\n\r\n", 400},
       {get + "Host: y\r\n\r\n", 400},
       {"GET /v1/models HTTP/2.0\r\nHost: x\r\n\r\n", 400},
       {kPost + "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417},
       {kPost + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415},
       {kChunked + "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n", 400},
       {kChunked + "ffffffffffffffff\r\n{}\r\n0\r\n\r\n", 413},
       {kChunked + "-2\r\n{}\r\n0\r\n\r\n", 400},
       {kChunked + "0x2\r\n{}\r\n0\r\n\r\n", 400},
       {kChunked + "2\n{}\n0\n\n", 400},
       {kChunked + chunk("{}", ";a=\"b") + "0\r\n\r\n", 400},
       {kChunked + chunk("{}", ";a=\"\\\"") + "0\r\n\r\n", 400},
       {kChunked + chunk(cc({M("q")})) + "0\r\nContent-Length: 2\r\n\r\n", 400},
       {kChunked + chunk(cc({M("q")})) + "0\r\nTransfer-Encoding: chunked\r\n\r\n", 400}}));
  INFO(one.wire);
  RawClient client(rig.port(), milliseconds(5000));
  client.send(one.wire);
  const std::string type = "invalid_request_error";
  check_error(client.read_response(), one.status, type);
  CHECK(client.wait_closed(milliseconds(5000)));
  for (const auto& request : rig.up.requests()) {
    CHECK((request.path == "/health" || request.path == "/props"));
  }
}

TEST_CASE("chunks with extensions and trailers are read, and the connection goes on") {
  Rig rig;
  RawClient client(rig.port(), milliseconds(5000));
  const std::string body = cc({M("q")});
  const std::string half = body.substr(0, 10);
  const std::string rest = body.substr(10);
  for (int i = 0; i < 2; ++i) {
    client.send(kChunked + chunk(half, ";a=\"a b\"") + chunk(rest, "; a = b ;c;d=\"\\\"\"") +
                "0;z=\"z\"\r\nX-Trailer: 1\r\n\r\n");
    CHECK(client.read_response().status == 200);
  }
  const auto log = rig.up.generations();
  REQUIRE(log.size() == 2);
  CHECK(forwarding_fault(body, log[1].body()) == "");
}

TEST_CASE("a chunked body of any slicing keeps its extensions apart from its bytes") {
  Rig rig;
  RawClient client(rig.port(), milliseconds(20000));
  const std::string body = cc({M("q")});
  const std::string wire = kChunked + chunk(body, ";a=\"a;b\\\"\"") + "0\r\nX-T: 1\r\n\r\n";
  client.send_slowly(wire, 3, milliseconds(0));
  CHECK(client.read_response().status == 200);
  REQUIRE(rig.up.generations().size() == 1);
  CHECK(forwarding_fault(body, rig.up.generations()[0].body()) == "");
}

TEST_CASE("a chunk's extension may have 4 KiB, however it comes") {
  Rig rig;
  const std::string body = cc({M("q")});
  const int more = GENERATE(0, 1, 5000);
  const std::size_t piece = GENERATE(as<std::size_t>{}, 1000, 100000);
  const std::string extension = ";a=" + std::string(4096 - 3 + static_cast<std::size_t>(more), 'x');
  const std::string last = "0\r\n\r\n";
  const std::string wire = GENERATE(true, false) ? kChunked + chunk(body, extension) + last
                                                 : kChunked + chunk(body.substr(0, 9)) +
                                                       chunk(body.substr(9), extension) + last;
  INFO(more << " more, in pieces of " << piece);
  RawClient client(rig.port(), milliseconds(5000));
  client.send_slowly(wire, piece, milliseconds(0));
  CHECK(client.read_response().status == (more == 0 ? 200 : 400));
  CHECK(rig.up.generations().size() == (more == 0 ? 1U : 0U));
}

TEST_CASE("empty lines before a request are left out, as some clients end a body with one") {
  Rig rig;
  RawClient client(rig.port(), milliseconds(5000));
  const std::string body = cc({M("q")});
  const std::string post =
      kPost + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  client.send(post + "\r\n" + post + "\r\n\r\n" + post);
  for (int i = 0; i < 3; ++i) {
    CHECK(client.read_response().status == 200);
  }
  CHECK(rig.up.generations().size() == 3);
  SECTION("but nothing else is") {
    client.send(GENERATE(as<std::string>{}, "\n", "\r\n\n", "\r\r\n", " \r\n") + post);
    CHECK(client.read_response().status == 400);
    CHECK(rig.up.generations().size() == 3);
  }
  SECTION("and a connection of which no more comes ends") {
    client.send("\r\n");
    client.finish_sending();
    CHECK(client.wait_closed(milliseconds(5000)));
  }
}

TEST_CASE(
    "a trailer without content before it, byte by byte, is read, and the connection goes on") {
  Rig rig;
  RawClient client(rig.port(), milliseconds(20000));
  client.send(kChunked);
  client.send_slowly("0\r\nX: y\r\n\r\n", 1, milliseconds(2));
  CHECK(client.read_response().status == 400);
  const std::string body = cc({M("q")});
  client.send(kChunked + chunk(body) + "0\r\n\r\n");
  CHECK(client.read_response().status == 200);
}

TEST_CASE("an HTTP/1.0 client keeps its connection where it asks for it") {
  Rig rig;
  RawClient client(rig.port(), milliseconds(5000));
  const std::string body = cc({M("q")});
  const std::string post =
      "POST /v1/chat/completions HTTP/1.0\r\nConnection: keep-alive\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  for (int i = 0; i < 2; ++i) {
    client.send(post);
    const HttpResponse response = client.read_response();
    CHECK(response.status == 200);
    CHECK(response.header("connection") == "keep-alive");
  }
}

TEST_CASE("usual slips of a base URL reach the call that was meant") {
  Rig rig;
  for (const char* path : {"/v1/v1/chat/completions", "/v1//chat/completions",
                           "/v1/chat/completions/", "//chat/completions"}) {
    const Answer answer = as_answer(post_json(rig.port(), path, cc({M("q")})));
    INFO(path);
    CHECK(answer.status == 200);
    CHECK_FALSE(answer.cache.empty());
  }
  CHECK(get(rig.port(), "/v1/v1/models/").json()["data"].items().size() == 1);
  CHECK(rig.up.requests_to("POST", "/v1/chat/completions").size() == 3);
}

TEST_CASE("what tokid's own pages do not answer is an error in the usual shape") {
  Rig rig;
  check_error(get(rig.port(), "/toki/nope"), 404, "invalid_request_error");
  check_error(get(rig.port(), "/toki/stats/"), 404, "invalid_request_error");
  const HttpResponse wrong = request(rig.port(), "PUT", "/toki/stats", "{}");
  check_error(wrong, 405, "invalid_request_error");
  CHECK(wrong.header("allow") == "GET, HEAD");
  check_error(get(rig.port(), "/toki/flush"), 405, "invalid_request_error");
}

// B62
TEST_CASE("a generation is asked for uncompressed, whatever its client would take") {
  Rig rig;
  Headers headers;
  headers.add("Accept-Encoding", "gzip, br");
  const HttpResponse answer = post_json(rig.port(), kChat, cc({M("q")}), headers);
  CHECK(answer.status == 200);
  CHECK(answer.header("content-encoding").empty());
  REQUIRE(rig.up.generations().size() == 1);
  const std::string asked = rig.up.generations()[0].headers.get("accept-encoding");
  CHECK((asked.empty() || asked == "identity"));
}

// B50
TEST_CASE("pages of other origins get nothing unless they are allowed, whatever the backend says") {
  Rig rig;
  rig.up.on_request([](const LoggedRequest& request, Connection& connection) {
    if (request.path != "/v1/models") return false;
    return connection.respond(200, "{}",
                              {{"Access-Control-Allow-Origin", "https://evil.example"},
                               {"Access-Control-Allow-Credentials", "true"}});
  });
  const Headers evil{{"Origin", "https://evil.example"}};
  const HttpResponse read = get(rig.port(), "/v1/models", evil);
  CHECK(read.status == 200);
  CHECK_FALSE(read.headers.has("access-control-allow-origin"));
  CHECK_FALSE(read.headers.has("access-control-allow-credentials"));
  check_error(post_json(rig.port(), kChat, cc({M("q")}), evil), 403, "permission_error");
  Headers asks = evil;
  asks.add("Access-Control-Request-Method", "POST");
  check_error(request(rig.port(), "OPTIONS", kChat, "", asks), 403, "permission_error");
  CHECK(rig.up.generations().empty());
  CHECK(rig.up.requests_to("OPTIONS", kChat).empty());
}

TEST_CASE("an allowed page reads answers, streams and errors, and its browser may ask before") {
  const std::string origin = "http://localhost:3000";
  Rig rig({}, {"--cors-origin", origin});
  const Headers page{{"Origin", origin}};
  const auto allowed = [&](const HttpResponse& response) {
    CHECK(response.headers.count("access-control-allow-origin") == 1);
    CHECK(response.header("access-control-allow-origin") == origin);
    CHECK(response.header("vary") == "Origin");
  };
  Headers asks = page;
  asks.add("Access-Control-Request-Method", "POST");
  asks.add("Access-Control-Request-Headers", "authorization, content-type");
  RawClient client(rig.port(), milliseconds(5000));
  client.send_request("OPTIONS", kChat, "", asks);
  const HttpResponse preflight = client.read_response();
  CHECK(preflight.status == 204);
  CHECK(preflight.header("access-control-allow-headers") == "authorization, content-type");
  allowed(preflight);
  client.send_json(kChat, cc({M("q")}), page);
  const HttpResponse chat = client.read_response();
  CHECK(chat.status == 200);
  CHECK_THAT(chat.header("access-control-expose-headers"), Catch::Contains("x-toki-cache"));
  allowed(chat);
  const HttpResponse stream = post_json(rig.port(), kChat, cc({M("q")}, R"(,"stream":true)"), page);
  CHECK(stream.whole());
  allowed(stream);
  allowed(get(rig.port(), "/v1/models", page));
  allowed(get(rig.port(), "/toki/health", page));
  allowed(post_json(rig.port(), kChat, "{", page));
  allowed(get(rig.port(), "/toki/nope", page));
  RawClient big(rig.port(), milliseconds(5000));
  big.send(kPost + "Origin: " + origin + "\r\nContent-Length: 99999999999\r\n\r\n");
  const HttpResponse refused = big.read_response();
  CHECK(refused.status == 413);
  allowed(refused);
  CHECK(rig.up.requests_to("OPTIONS", kChat).empty());
}

TEST_CASE("a stream that had only comments carries what pages need as well") {
  Behaviour behaviour;
  behaviour.answer_delay = milliseconds(300);
  Rig rig(behaviour, {"--cors-origin", "*", "--keepalive-grace-ms", "50"});
  const HttpResponse response = post_json(rig.port(), kChat, cc({M("q")}, R"(,"stream":true)"),
                                          {{"Origin", "https://any.example"}});
  CHECK(response.whole());
  CHECK(response.header("access-control-allow-origin") == "*");
}
