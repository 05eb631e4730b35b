// A key and a certificate for "localhost" and 127.0.0.1 that is its own authority, made by openssl
// for this test and gone after it.
//
// Threads:   a value.
// Ownership: owns its folder.
// Errors:    throws std::runtime_error where openssl fails.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "wait.hpp"

namespace toki::test {

class Certificate {
 public:
  Certificate() { make(); }

  std::string file() const { return directory_.path() + "/certificate.pem"; }
  std::string key() const { return directory_.path() + "/key.pem"; }
  /// Another one in the same files, as when it is renewed.
  void make() const {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout '" +
        key() + ".new' -out '" + file() + ".new' >/dev/null 2>&1";
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("openssl req failed");
    }
    std::filesystem::rename(key() + ".new", key());
    std::filesystem::rename(file() + ".new", file());
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace toki::test
