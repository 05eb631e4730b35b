// TlsContext: what TLS connections need from files: a server's certificate and key, or whom a client
// trusts.
//
// Threads:   may be shared by connections of one thread.
// Ownership: a handle; connections keep what they began with, so it can be replaced at any time.
// Errors:    values that name the file: Errc::invalid_argument.
// Cost:      making one reads the files; copying one is a pointer.
#pragma once

#include <toki/export.hpp>
#include <toki/result.hpp>

#include <memory>
#include <string>

namespace toki::http {

/// Certificates and whom to trust, for any number of streams. Cheap to copy: copies share it.
class TOKI_EXPORT TlsContext {
 public:
  /// None: nothing can be done with it.
  TlsContext() = default;

  /// PEM files: the certificate with what links it to its authority behind it, and its key without
  /// a pass phrase.
  static Result<TlsContext> server(const std::string& certificate_file,
                                   const std::string& key_file);
  /// Trusts the authorities in `ca_file` (PEM), or the system's where it is empty.
  static Result<TlsContext> client(const std::string& ca_file);

  /// Something can be done with it.
  explicit operator bool() const noexcept { return made_ != nullptr; }

 private:
  friend class TlsLayer;
  std::shared_ptr<void> made_;
};

}  // namespace toki::http
