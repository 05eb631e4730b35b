// HTTP as nobody should speak it, against a tokid that runs: seeded sequences of right, odd and hostile
// requests, sent in pieces, pipelined, broken off. Whatever comes, tokid answers or closes in time, and
// nothing goes to the backend but what was sent as a request.
//
// TOKI_FUZZ_SECONDS (2) and TOKI_FUZZ_SEED (1): longer runs, and other ones.
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <sys/socket.h>

#include "net_test.hpp"

namespace {

using namespace toki::test;

constexpr const char* kPassed = "/tokenize";  // its bodies are passed on unchanged
constexpr std::string_view kHidden = "hidden-";

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  bool chance(std::size_t percent) { return below(100) < percent; }
  template <class T>
  const T& any(const std::vector<T>& of) {
    return of[below(of.size())];
  }

  struct Message {
    std::string wire;
    std::string id;    // of X-Id
    std::string body;  // as it must reach the backend, if it does
    std::string hidden_id;
    bool right = false;    // has to be answered with 200
    bool changed = false;  // in one byte: then the hidden one may have become a request
  };

  Message message() {
    Message made;
    made.id = "sent-" + std::to_string(++number_);
    made.body =
        R"({"content":")" + made.id + " " + std::string(below(chance(5) ? 70000 : 60), 'a') + "\"}";
    made.right = chance(40);
    made.wire = made.right ? right(made) : odd(made);
    return made;
  }

  // One that must never be taken for a request of its own: it stands in the body of another.
  std::string hidden() {
    const std::string id = std::string(kHidden) + std::to_string(++number_);
    const std::string body = R"({"content":"x"})";
    return "POST " + std::string(kPassed) + " HTTP/1.1\r\nHost: x\r\nX-Id: " + id +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  std::string noise(std::size_t most) {
    std::string bytes(below(most) + 1, ' ');
    for (char& byte : bytes) byte = static_cast<char>(below(256));
    return bytes;
  }

 private:
  static std::string head(const Message& message, const std::string& fields) {
    return "POST " + std::string(kPassed) + " HTTP/1.1\r\nHost: x\r\nX-Id: " + message.id + "\r\n" +
           fields + "\r\n";
  }

  std::string chunked(const std::string& body) {
    std::string out;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t size = std::min(body.size() - at, below(body.size()) + 1);
      char hex[20];
      std::snprintf(hex, sizeof hex, chance(50) ? "%zx" : "%04zX", size);
      out += std::string(hex) + (chance(20) ? ";a=b;c=\"d e\"" : "") + "\r\n" +
             body.substr(at, size) + "\r\n";
      at += size;
    }
    return out + (chance(30) ? "0\r\nX-Trailer: 1\r\n\r\n" : "0\r\n\r\n");
  }

  std::string right(const Message& message) {
    const std::string more = chance(30) ? "X-More: " + std::string(below(3000), 'm') + "\r\n" : "";
    return chance(50)
               ? head(message,
                      more + "Content-Length: " + std::to_string(message.body.size()) + "\r\n") +
                     message.body
               : head(message, more + "Transfer-Encoding: chunked\r\n") + chunked(message.body);
  }

  // Bodies that hide a request from one way of reading them.
  std::string odd(Message& message) {
    const std::string length = "Content-Length: ";
    const std::string secret = hidden();
    const std::string size = std::to_string(secret.size());
    const std::string both = "0\r\n\r\n" + secret;
    const std::string both_size = std::to_string(both.size());
    const std::vector<std::string> wires{
        head(message, length + both_size + "\r\nTransfer-Encoding: chunked\r\n") + both,
        head(message, "Transfer-Encoding: chunked\r\n" + length + both_size + "\r\n") + both,
        head(message, "Transfer-Encoding: identity, chunked\r\n" + length + both_size + "\r\n") +
            both,
        head(message,
             "Transfer-Encoding:\x0b"
             "chunked\r\n" +
                 length + both_size + "\r\n") +
            both,
        head(message, "Transfer-Encoding : chunked\r\n" + length + both_size + "\r\n") + both,
        head(message, "X: y\r\n Transfer-Encoding: chunked\r\n" + length + both_size + "\r\n") +
            both,
        head(message, "X: y\nTransfer-Encoding: chunked\r\n" + length + both_size + "\r\n") + both,
        head(message, "X: y\rTransfer-Encoding: chunked\r\n" + length + both_size + "\r\n") + both,
        head(message, length + size + "\r\nContent-Length: 0\r\n") + secret,
        head(message, length + "0\r\nContent-Length: " + size + "\r\n") + secret,
        head(message, length + "+" + size + "\r\n") + secret,
        head(message, length + size + ", 0\r\n") + secret,
        head(message, length + "0x" + size + "\r\n") + secret,
        head(message, "Content_Length: 0\r\n" + length + size + "\r\n") + secret,
        head(message, "Transfer-Encoding: chunked\r\n") + "fffffffffffffffff0\r\n" + secret,
        head(message, "Transfer-Encoding: chunked\r\n") + "-1\r\n" + secret,
        head(message, "Transfer-Encoding: chunked\r\n") + "0;a=\"\r\n\r\n" + secret,
        head(message, "Transfer-Encoding: chunked\r\n") + "0\n\n" + secret,
        head(message, "Expect: nonsense\r\n" + length + size + "\r\n") + secret,
        "POST http://y" + std::string(kPassed) + " HTTP/1.1\r\nHost: x\r\n" + length + size +
            "\r\n\r\n" + secret,
        "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n" + length + size + "\r\n\r\n" + secret,
        "GET " + std::string(kPassed) + "\r\n" + secret,
        "POST " + std::string(kPassed) + " HTTP/0.9\r\nHost: x\r\n" + length + size + "\r\n\r\n" +
            secret,
    };
    std::string wire = any(wires);
    message.hidden_id = std::string(kHidden) + std::to_string(number_);
    if (chance(20)) {
      message.changed = change_byte(wire);
    }
    message.body = secret;
    return wire;
  }

  // Not in a name, so that everything is still known by it.
  bool change_byte(std::string& wire) {
    const std::size_t at = below(wire.size());
    const std::size_t name = wire.rfind("X-Id: ", at);
    if (name != std::string::npos && at < name + 30) return false;
    wire[at] = static_cast<char>(below(256));
    return true;
  }

  std::mt19937 random_;
  std::uint64_t number_ = 0;
};

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? static_cast<unsigned>(std::strtoul(value, nullptr, 10)) : otherwise;
}

// In pieces of any size, as fast as they go.
void send_in_pieces(RawClient& client, const std::string& wire, Generator& generator) {
  for (std::size_t at = 0; at < wire.size();) {
    const std::size_t size = generator.chance(50) ? wire.size() : generator.below(200) + 1;
    if (!client.send(std::string_view(wire).substr(at, size))) return;
    at += std::min(size, wire.size() - at);
  }
}

}  // namespace

TEST_CASE("whatever bytes come, tokid answers or closes, and nothing hidden goes to the backend") {
  const unsigned seed = from_environment("TOKI_FUZZ_SEED", 1);
  const auto end = Clock::now() + std::chrono::seconds(from_environment("TOKI_FUZZ_SECONDS", 2));
  INFO("seed " << seed);
  Rig rig;
  Generator generator(seed);
  std::map<std::string, std::string> sent;   // id to body
  std::map<std::string, std::string> wires;  // id to all that its connection was sent
  std::set<std::string> loose;               // ids of which nothing is certain
  std::size_t rounds = 0;
  std::size_t answered = 0;
  while (Clock::now() < end) {
    ++rounds;
    RawClient client(rig.port(), milliseconds(20000));
    std::size_t wanted = 0;  // right ones before the first odd one: each has to be answered
    bool all_right = true;
    std::string wire;
    std::vector<std::string> ids;
    for (std::size_t count = generator.below(4) + 1; count > 0; --count) {
      Generator::Message message = generator.message();
      wire += message.wire;
      all_right = all_right && message.right;
      wanted += all_right ? 1 : 0;
      sent[message.id] = message.body;
      ids.push_back(message.id);
      if (message.changed) loose.insert({message.id, message.hidden_id});
    }
    if (generator.chance(10)) {
      wire += generator.noise(300);
      all_right = false;
    }
    const bool broken_off = generator.chance(10);
    if (broken_off) wire.resize(generator.below(wire.size()) + 1);
    for (const auto& id : ids) wires[id] = wire;
    send_in_pieces(client, wire, generator);
    if (broken_off && generator.chance(50)) {
      client.reset();
      continue;
    }
    for (std::size_t i = 0; i < wanted && !broken_off; ++i) {
      const HttpResponse response = client.read_response();
      INFO("round " << rounds << ", answer " << i << " of " << wanted << "\n"
                    << wire.substr(0, 2000));
      REQUIRE(response.status == 200);
      REQUIRE(response.whole());
      ++answered;
    }
    INFO("round " << rounds << "\n" << wire.substr(0, 2000));
    client.finish_sending();  // not before: a client that ends its sending has left
    REQUIRE(client.wait_closed(milliseconds(20000)));
    for (const auto& request : rig.up.requests()) {
      if (request.path != kPassed) continue;
      const std::string id = request.headers.get("x-id");
      const bool whole = request.body_at != Clock::time_point();  // its client may have left
      if (loose.count(id) != 0 || !whole) continue;
      INFO("id " << id << ", sent within:\n" << wires[id].substr(0, 3000));
      REQUIRE(sent.count(id) == 1);
      REQUIRE(request.body() == sent[id]);
    }
    rig.up.clear_log();
  }
  CHECK(answered > 0);
  CHECK(rig.tokid.wait_stat("connections", 1));
  CHECK(get(rig.port(), "/toki/health").status == 200);
  WARN(rounds << " connections, " << answered << " right answers, seed " << seed);
}
