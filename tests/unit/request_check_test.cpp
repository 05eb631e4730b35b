// What is refused of a request's head, and which pages of other origins may use tokid.
#include "request_check.hpp"

#include <boost/beast/http/message.hpp>
#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "cors.hpp"

using namespace tokid;
using std::chrono::milliseconds;
namespace http = boost::beast::http;

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

RequestHead head(std::string method, std::string target, const Fields& fields,
                 unsigned version = 11) {
  RequestHead made;
  made.method_string(method);
  made.target(target);
  made.version(version);
  for (const auto& [name, value] : fields) {
    made.insert(name, value);
  }
  return made;
}

unsigned status(const RequestHead& of) {
  const auto refused = refuse_head(of);
  return refused ? refused->status : 200;
}

Cors allowing(std::vector<std::string> origins) {
  return *Cors::allowing(std::move(origins));
}

unsigned status(const Cors& cors, const RequestHead& of) {
  const Cors::Verdict verdict = cors.look(of);
  return verdict.refused ? verdict.refused->status : verdict.preflight ? 204 : 200;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("heads: a usual one passes, with or without a body") {
  CHECK(status(head("GET", "/v1/models", {{"Host", "x"}})) == 200);
  CHECK(status(head("POST", "/", {{"Host", "x"}, {"Content-Length", "2"}})) == 200);
  CHECK(status(head("POST", "/", {{"Host", "x"}, {"Transfer-Encoding", "Chunked"}})) == 200);
  CHECK(status(head("POST", "/", {{"Host", "x"}, {"Expect", "100-Continue"}})) == 200);
  CHECK(status(head("GET", "/", {}, 10)) == 200);
  CHECK(status(head("POST", "/", {{"Expect", "something"}}, 10)) == 200);
}

TEST_CASE("heads: what two readers may understand differently is refused") {
  const Fields lengths = GENERATE(
      Fields{{"Content-Length", "2"}, {"Transfer-Encoding", "chunked"}},
      Fields{{"Content-Length", "2"}, {"Content-Length", "2"}}, Fields{{"Content-Length", "2, 2"}},
      Fields{{"Transfer-Encoding", "gzip, chunked"}},
      Fields{{"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "identity"}},
      Fields{{"Transfer-Encoding", "identity"}}, Fields{{"Transfer-Encoding", "xchunked"}});
  Fields all = lengths;
  all.emplace_back("Host", "x");
  CHECK(status(head("POST", "/v1/models", all)) == 400);
  CHECK(status(head("POST", "/", {{"Transfer-Encoding", "chunked"}}, 10)) == 400);
}

TEST_CASE("heads: a host too few or too many, a proxy's targets and odd expectations are refused") {
  CHECK(status(head("GET", "/", {})) == 400);
  CHECK(status(head("GET", "/", {{"Host", "a"}, {"Host", "b"}})) == 400);
  CHECK(status(head("GET", "/", {{"Host", "a"}, {"Host", "b"}}, 10)) == 400);
  CHECK(status(head("GET", "http://x/", {{"Host", "x"}})) == 400);
  CHECK(status(head("GET", "x:80", {{"Host", "x"}})) == 400);
  CHECK(status(head("OPTIONS", "*", {{"Host", "x"}})) == 400);
  CHECK(status(head("CONNECT", "x:80", {{"Host", "x"}})) == 400);
  CHECK(status(head("CONNECT", "/", {{"Host", "x"}})) == 400);
  CHECK(status(head("TRACE", "/", {{"Host", "x"}})) == 405);
  CHECK(status(head("POST", "/", {{"Host", "x"}, {"Expect", "200-ok"}})) == 417);
}

TEST_CASE("heads: compressed bodies are refused where a body is read, and pass elsewhere") {
  const auto refused = [](std::string target, std::string coding) {
    const auto error =
        refuse_coding(head("POST", std::move(target), {{"Content-Encoding", std::move(coding)}}));
    return error ? error->status : 200;
  };
  CHECK(refused("/v1/chat/completions?x", "gzip") == 415);
  CHECK(refused("/toki/lookup", "br") == 415);
  CHECK(refused("/toki/pins", "deflate") == 415);
  CHECK(refused("/v1/chat/completions", "Identity") == 200);
  CHECK(refused("/v1/embeddings", "gzip") == 200);
  // A base URL's slips reach a call that reads the body.
  CHECK(refused("//v1/chat/completions", "gzip") == 415);
  CHECK(refused("/v1/chat/completions/", "gzip") == 415);
  CHECK(refused("/v1/v1/messages?x=/", "gzip") == 415);
  CHECK(refused("//v1/embeddings/", "gzip") == 200);
  CHECK(refused("/v1/chat/completions", "identity, gzip") == 415);
  const auto twice = [](std::string first, std::string second) {
    return refuse_coding(head("POST", "/v1/chat/completions",
                              {{"Content-Encoding", std::move(first)},
                               {"Content-Encoding", std::move(second)}}))
        .has_value();
  };
  CHECK(twice("identity", "gzip"));
  CHECK(twice("gzip", "identity"));
  CHECK_FALSE(twice("identity", "identity"));
  CHECK_FALSE(refuse_coding(head("POST", "/v1/chat/completions", {})));
}

TEST_CASE("targets: slips of a base URL are understood, everything else stays as it is") {
  const auto meant = [](std::string_view method, std::string_view target) {
    return usual_target(method, target).value_or("as it is");
  };
  CHECK(meant("POST", "/v1/v1/chat/completions") == "/v1/chat/completions");
  CHECK(meant("POST", "/v1//chat/completions?a=//b") == "/v1/chat/completions?a=//b");
  CHECK(meant("POST", "//v1/chat/completions/") == "/v1/chat/completions");
  CHECK(meant("POST", "/chat/completions/") == "/chat/completions");
  CHECK(meant("GET", "/v1/models/") == "/v1/models");
  CHECK(meant("GET", "/v1//v1/models") == "/v1/models");
  for (const char* target : {"/", "//", "/v1/chat/completions", "/v1/models/x/", "//other//path/",
                             "/v1/v1/v1/models", "/toki/", "/?a=//"}) {
    INFO(target);
    CHECK(meant("POST", target) == "as it is");
  }
  CHECK(meant("GET", "/v1/chat/completions/") == "as it is");
}

TEST_CASE("bodies: silence ends one, and so does a trickle, but no steady pace") {
  CHECK(patience(milliseconds(0), 0) == milliseconds(30000));
  CHECK(patience(milliseconds(29000), 0) == milliseconds(1000));
  CHECK_FALSE(patience(milliseconds(30000), 0));
  // One byte now and then.
  CHECK_FALSE(patience(milliseconds(40000), 40));
  // A slow line that goes on.
  CHECK(patience(milliseconds(3600000), 4000000) == milliseconds(30000));
  CHECK(patience(milliseconds(100000), 64 << 20) == milliseconds(30000));
}

TEST_CASE("cors: what is no origin is refused") {
  for (const char* bad : {"", "example.org", "http://", "http://x/", "http://X", "http://u@x",
                          "http://a,http://b", "://x"}) {
    INFO(bad);
    CHECK_FALSE(Cors::allowing({bad}));
  }
  CHECK(Cors::allowing({"https://example.org:8443", "app://obsidian.md", "null", "*"}));
}

TEST_CASE("cors: without allowed origins no answer says anything to other pages") {
  const Cors off;
  const Fields page{{"Host", "127.0.0.1:9090"}, {"Origin", "https://evil.example"}};
  const Cors::Verdict reads = off.look(head("GET", "/v1/models", page));
  CHECK(reads.headers.empty());
  CHECK_FALSE(reads.refused);
  CHECK(status(off, head("POST", "/v1/chat/completions", page)) == 403);
  CHECK(status(off, head("DELETE", "/toki/entries", page)) == 403);
  Fields asks = page;
  asks.emplace_back("Access-Control-Request-Method", "POST");
  CHECK(status(off, head("OPTIONS", "/v1/chat/completions", asks)) == 403);
  CHECK(status(off, head("OPTIONS", "/v1/chat/completions", page)) == 200);
}

TEST_CASE("cors: programs and pages of the same origin need no leave") {
  const Cors off;
  const auto post = [&](Fields fields) { return status(off, head("POST", "/", fields)); };
  CHECK(post({{"Host", "x"}}) == 200);
  CHECK(post({{"Host", "127.0.0.1:9090"}, {"Origin", "http://127.0.0.1:9090"}}) == 200);
  // Behind a proxy that speaks TLS and has another name, the browser's word counts.
  CHECK(post({{"Host", "127.0.0.1:9090"},
              {"Origin", "https://ai.example"},
              {"Sec-Fetch-Site", "same-origin"}}) == 200);
  CHECK(post({{"Host", "localhost:9090"},
              {"Origin", "http://localhost:3000"},
              {"Sec-Fetch-Site", "same-site"}}) == 403);
  CHECK(post({{"Host", "x"}, {"Origin", "null"}}) == 403);
  CHECK(post({{"Host", "evil.example"},
              {"Origin", "http://evil.example"},
              {"Sec-Fetch-Site", "cross-site"}}) == 403);
}

TEST_CASE("cors: allowed pages are answered, also before they ask, and others stay outside") {
  const Cors some = allowing({"http://localhost:3000", "https://chat.example"});
  const Fields page{{"Host", "x"}, {"Origin", "http://localhost:3000"}};
  const Cors::Verdict post = some.look(head("POST", "/v1/chat/completions", page));
  CHECK_FALSE(post.refused);
  CHECK_FALSE(post.preflight);
  CHECK(has(post.headers, "Access-Control-Allow-Origin: http://localhost:3000\r\n"));
  CHECK(has(post.headers, "Vary: Origin\r\n"));
  CHECK(has(post.headers, "x-toki-cache"));
  CHECK(has(post.headers, "x-request-id"));
  CHECK_FALSE(has(post.headers, "Credentials"));
  Fields asks = page;
  asks.emplace_back("Access-Control-Request-Method", "POST");
  asks.emplace_back("Access-Control-Request-Headers", "authorization,content-type");
  const Cors::Verdict asked = some.look(head("OPTIONS", "/v1/chat/completions", asks));
  CHECK(asked.preflight);
  CHECK(has(asked.headers, "Access-Control-Allow-Headers: authorization,content-type\r\n"));
  CHECK(has(asked.headers, "POST"));
  CHECK_FALSE(has(asked.headers, "Private-Network"));
  CHECK(some.look(head("GET", "/", {{"Host", "x"}})).headers == "Vary: Origin\r\n");
  CHECK(status(some, head("POST", "/", {{"Host", "x"}, {"Origin", "https://evil.example"}})) ==
        403);
}

TEST_CASE("cors: a star is every page") {
  const Cors all = allowing({"*"});
  const Cors::Verdict verdict =
      all.look(head("POST", "/", {{"Host", "x"}, {"Origin", "https://any.example"}}));
  CHECK_FALSE(verdict.refused);
  CHECK(has(verdict.headers, "Access-Control-Allow-Origin: *\r\n"));
  CHECK_FALSE(has(verdict.headers, "Vary"));
}
