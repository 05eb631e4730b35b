// What the C API (toki/toki.h) is made of: its handles, and how structs, errors and exceptions pass its
// border. Everything else is the C++ API's.
#pragma once

#include <toki/block_tree.hpp>
#include <toki/engine.hpp>
#include <toki/kv_store.hpp>
#include <toki/result.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>
#include <toki/toki.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

struct toki_scope {
  toki::Scope scope;
};
struct toki_store {
  std::shared_ptr<toki::KvStore> store;  // an engine that uses it has another
};
struct toki_engine {
  toki::Engine engine;
};
struct toki_ticket {
  toki::Ticket ticket;
};

namespace toki::c {

inline constexpr toki_status kOk = TOKI_OK;  // of the type that lambdas return beside fail()

toki_status fail(toki_error* error, toki_status status, std::string_view message) noexcept;
toki_status fail(toki_error* error, const Error& reason) noexcept;
inline toki_status wrong(toki_error* error, std::string_view message) noexcept {
  return fail(error, TOKI_ERROR_INVALID_ARGUMENT, message);
}
/// A handle, a result pointer or a list that is needed is NULL.
inline toki_status missing(toki_error* error) noexcept {
  return wrong(error, "an argument is NULL that must not be");
}
/// What the exception that is being handled means.
toki_status caught(toki_error* error) noexcept;

/// The border: runs `call`, which returns a toki_status, and lets no exception out.
template <class Call>
toki_status guarded(toki_error* error, const Call& call) noexcept {
  try {
    return call();
  } catch (...) {
    return caught(error);
  }
}

/// Handles are NULL unless a call succeeds.
template <class Handle>
toki_status cleared(Handle** out, toki_error* error) noexcept {
  if (out == nullptr) {
    return missing(error);
  }
  *out = nullptr;
  return kOk;
}

/// A handle of what `make` returns.
template <class Handle, class Make>
toki_status made(Handle** out, toki_error* error, const Make& make) noexcept {
  return guarded(error, [&] {
    *out = new Handle{make()};
    return kOk;
  });
}

toki_status read_bytes(const void* given, void* ours, std::size_t size, toki_error* error) noexcept;
toki_status check_size(std::size_t size, toki_error* error) noexcept;
void write_bytes(const void* ours, std::size_t size, void* out) noexcept;

/// A zeroed struct of the API with its size.
template <class T>
T sized() noexcept {
  static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
  T result{};
  result.size = sizeof(T);
  return result;
}

/// Takes in a struct of whatever size, see toki.h.
template <class T>
toki_status read(const T* given, T& ours, toki_error* error) noexcept {
  return given == nullptr ? missing(error) : read_bytes(given, &ours, sizeof(T), error);
}

/// What a create begins with: its handle, and the options, all of them default where none are given.
template <class Handle, class T>
toki_status options_for(Handle** out, const T* given, T& ours, toki_error* error) noexcept {
  const toki_status status = cleared(out, error);
  return status != kOk || given == nullptr ? status : read(given, ours, error);
}

/// Hands out a struct of whatever size. REQUIRES: writable(out).
template <class T>
void write(const T& ours, T* out) noexcept {
  write_bytes(&ours, sizeof(T), out);
}
template <class T>
toki_status writable(const T* out, toki_error* error) noexcept {
  return out == nullptr ? missing(error) : check_size(out->size, error);
}

/// What an option is when it may be left zero.
template <class T>
T given_or(T given, T usual) noexcept {
  return given != 0 ? given : usual;
}

inline bool is_list(const void* items, std::size_t count) noexcept {
  return items != nullptr || count == 0;
}
/// REQUIRES: is_list(tokens, count).
inline TokenSpan span_of(const toki_token* tokens, std::size_t count) noexcept {
  TOKI_CHECK(is_list(tokens, count));
  return {tokens, count};
}

/// The scope of no parts where none is given.
const Scope& scope_of(const toki_scope* scope);

toki_slot_info info_of(const SlotInfo& slot) noexcept;
toki_status check_tree(const BlockTreeOptions& options, toki_error* error) noexcept;

}  // namespace toki::c
