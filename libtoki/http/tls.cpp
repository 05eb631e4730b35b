#include <toki/http/tls.hpp>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "http/tls_layer.hpp"

#include <openssl/x509v3.h>

namespace toki::http {

namespace asio = boost::asio;
using boost::beast::error_code;

namespace {

constexpr std::size_t kRecord = std::size_t{16} * 1024;  // the most that one may hold
constexpr std::array<unsigned char, 9> kProtocol{8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

// The reason of the last failure, in OpenSSL's words; a system error's where it was one.
std::string reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* words = ERR_reason_error_string(code);
  std::string text = code == 0          ? "the connection was closed"
                     : words != nullptr ? words
                     : ERR_SYSTEM_ERROR(code)
                         ? std::strerror(static_cast<int>(ERR_GET_REASON(code)))
                         : "unknown error";
  ERR_clear_error();
  return text;
}

// The socket as OpenSSL's source and sink. Its own would end the process with SIGPIPE.
int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto sent =
      ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* into, int size) {
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(socket_of(bio), into, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_read(bio);
  }
  return static_cast<int>(got);
}

long bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO* new_bio(int socket) {
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "toki socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* bio = BIO_new(kMethod);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

// A client that names protocols and not this one cannot be served.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* offered, unsigned offered_size, void*) {
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_size, kProtocol.data(), kProtocol.size(),
                                          offered, offered_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

std::shared_ptr<SSL_CTX> new_context(const SSL_METHOD* method) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(method), SSL_CTX_free);
  TOKI_CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(context.get(), 1);  // one system call a record, not two
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  return context;
}

SSL_CTX* context_of(const std::shared_ptr<void>& made) {
  TOKI_CHECK(made != nullptr);
  return static_cast<SSL_CTX*>(made.get());
}

}  // namespace

Result<TlsContext> TlsContext::server(const std::string& certificate_file,
                                      const std::string& key_file) {
  ERR_clear_error();
  const auto made = new_context(TLS_server_method());
  const auto bad = [](const std::string& file) {
    return Error{Errc::invalid_argument, fmt::format("{}: {}", file, reason())};
  };
  if (SSL_CTX_use_certificate_chain_file(made.get(), certificate_file.c_str()) != 1) {
    return bad(certificate_file);
  }
  // Nobody is there to be asked for a pass phrase.
  SSL_CTX_set_default_passwd_cb(made.get(), [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_PrivateKey_file(made.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(made.get()) != 1) {
    return bad(key_file);
  }
  SSL_CTX_set_alpn_select_cb(made.get(), choose_protocol, nullptr);
  TlsContext context;
  context.made_ = made;
  return context;
}

Result<TlsContext> TlsContext::client(const std::string& ca_file) {
  ERR_clear_error();
  const auto made = new_context(TLS_client_method());
  const int trusts = ca_file.empty() ? SSL_CTX_set_default_verify_paths(made.get())
                                     : SSL_CTX_load_verify_file(made.get(), ca_file.c_str());
  if (trusts != 1) {
    return Error{Errc::invalid_argument, fmt::format("{}: {}", ca_file, reason())};
  }
  SSL_CTX_set_verify(made.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_alpn_protos(made.get(), kProtocol.data(), kProtocol.size());
  TlsContext context;
  context.made_ = made;
  return context;
}

TlsLayer::TlsLayer(const TlsContext& context, int socket)
    : ssl_(SSL_new(context_of(context.made_))) {
  TOKI_CHECK(ssl_ != nullptr);
  BIO* bio = new_bio(socket);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_accept_state(ssl_);
}

TlsLayer::TlsLayer(const TlsContext& context, int socket, const std::string& host)
    : TlsLayer(context, socket) {
  SSL_set_connect_state(ssl_);
  error_code no_address;
  asio::ip::make_address(host, no_address);
  if (no_address) {
    // SSL_set_tlsext_host_name(), which is a macro with an old cast.
    SSL_ctrl(ssl_, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
             const_cast<char*>(host.c_str()));
    SSL_set_hostflags(ssl_, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(ssl_, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_), host.c_str());
  }
}

TlsLayer::~TlsLayer() {
  SSL_free(ssl_);
}

TlsLayer::Step TlsLayer::step(int result, std::size_t bytes) {
  if (result > 0) {
    return {.bytes = bytes};
  }
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ: return {.wants = Wants::read};
    case SSL_ERROR_WANT_WRITE: return {.wants = Wants::write};
    case SSL_ERROR_ZERO_RETURN: return {.ec = asio::error::eof};
    default: break;
  }
  // Also an end that was not announced: what came before it may not be all.
  broken_ = true;
  plain_http_ = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
  const long verified = SSL_get_verify_result(ssl_);
  failure_ = reason();
  if (verified != X509_V_OK) {
    failure_ += fmt::format(" ({})", X509_verify_cert_error_string(verified));
  }
  return {.ec = asio::error::connection_reset};
}

TlsLayer::Step TlsLayer::handshake() {
  ERR_clear_error();
  return step(SSL_do_handshake(ssl_), 0);
}

TlsLayer::Step TlsLayer::read(asio::mutable_buffer into) {
  ERR_clear_error();
  std::size_t got = 0;
  const int result = SSL_read_ex(ssl_, into.data(), into.size(), &got);
  return step(result, got);
}

// Small pieces share a record, and a system call.
TlsLayer::Step TlsLayer::write(std::span<const asio::const_buffer> pieces, std::size_t sent) {
  while (!pieces.empty() && sent >= pieces.front().size()) {
    sent -= pieces.front().size();
    pieces = pieces.subspan(1);
  }
  if (pieces.empty()) {
    return {};
  }
  asio::const_buffer next = pieces.front() + sent;
  if (next.size() < kRecord && pieces.size() > 1) {
    if (record_ == nullptr) {
      record_ = std::make_unique_for_overwrite<char[]>(kRecord);
    }
    std::size_t filled = asio::buffer_copy(asio::buffer(record_.get(), kRecord), next);
    for (const auto& piece : pieces.subspan(1)) {
      filled += asio::buffer_copy(asio::buffer(record_.get() + filled, kRecord - filled), piece);
    }
    next = asio::buffer(record_.get(), filled);
  }
  ERR_clear_error();
  std::size_t written = 0;
  const int result = SSL_write_ex(ssl_, next.data(), std::min(next.size(), kRecord), &written);
  return step(result, written);
}

bool TlsLayer::peek() {
  if (broken_) {
    return false;
  }
  ERR_clear_error();
  char byte = 0;
  std::size_t got = 0;
  const int result = SSL_peek_ex(ssl_, &byte, 1, &got);
  (void)step(result, got);
  return result > 0;
}

bool TlsLayer::ended() {
  (void)peek();
  return broken_ || (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
}

bool TlsLayer::quiet() {
  return !peek() && !ended();
}

void TlsLayer::shutdown() {
  if (!broken_) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
}

}  // namespace toki::http
