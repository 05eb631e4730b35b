// The C API: what all of it shares, and what belongs to no handle.
#include "c_api.hpp"

#include <toki/embedding.hpp>
#include <toki/stats.hpp>
#include <toki/version.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <vector>

namespace toki::c {
namespace {

constexpr std::size_t kMostBytes = 4096;  // of a struct; more is no size but garbage

// Whole characters only.
std::size_t cut_utf8(std::string_view text, std::size_t most) noexcept {
  std::size_t size = std::min(text.size(), most);
  while (size < text.size() && size > 0 &&
         (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) {
    --size;
  }
  return size;
}

}  // namespace

toki_status fail(toki_error* error, toki_status status, std::string_view message) noexcept {
  if (error != nullptr) {
    error->status = status;
    const std::size_t size = cut_utf8(message, sizeof(error->message) - 1);
    std::memcpy(error->message, message.data(), size);
    error->message[size] = 0;
  }
  return status;
}

toki_status fail(toki_error* error, const Error& reason) noexcept {
  return fail(error, static_cast<toki_status>(reason.code), reason.detail);
}

toki_status caught(toki_error* error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail(error, TOKI_ERROR_NO_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return fail(error, TOKI_ERROR_NO_MEMORY, "larger than any memory");
  } catch (const std::exception& reason) {
    return fail(error, TOKI_ERROR_INTERNAL, reason.what());
  } catch (...) {
    return fail(error, TOKI_ERROR_INTERNAL, "an exception of unknown type");
  }
}

toki_status check_size(std::size_t size, toki_error* error) noexcept {
  return size >= sizeof(std::size_t) && size <= kMostBytes
             ? kOk
             : wrong(error, "a struct's size is not set; use toki_init()");
}

toki_status read_bytes(const void* given, void* ours, std::size_t size,
                       toki_error* error) noexcept {
  std::size_t theirs = 0;
  std::memcpy(&theirs, given, sizeof(theirs));
  if (const toki_status status = check_size(theirs, error)) {
    return status;
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (theirs > size &&
      std::any_of(bytes + size, bytes + theirs, [](auto byte) { return byte != 0; })) {
    return fail(error, TOKI_ERROR_UNSUPPORTED,
                "a struct has a member set that this version of toki does not know");
  }
  std::memcpy(ours, given, std::min(theirs, size));
  return kOk;
}

void write_bytes(const void* ours, std::size_t size, void* out) noexcept {
  constexpr std::size_t kHead = sizeof(std::size_t);
  std::size_t theirs = 0;
  std::memcpy(&theirs, out, kHead);
  auto* bytes = static_cast<unsigned char*>(out);
  const std::size_t both = std::min(theirs, size);
  std::memcpy(bytes + kHead, static_cast<const unsigned char*>(ours) + kHead, both - kHead);
  std::memset(bytes + both, 0, theirs - both);
}

const Scope& scope_of(const toki_scope* scope) {
  static const Scope none;
  return scope != nullptr ? scope->scope : none;
}

toki_slot_info info_of(const SlotInfo& slot) noexcept {
  auto info = sized<toki_slot_info>();
  info.known_tokens = slot.known_tokens;
  info.unknown_tail = slot.unknown_tail;
  info.last_used = slot.last_used;
  info.used_ago_ms = slot.used_ago.count();
  info.pin = slot.pin;
  info.content = static_cast<toki_content>(slot.content);
  info.leased = slot.leased;
  info.fenced = slot.fenced;
  return info;
}

}  // namespace toki::c

using namespace toki;
using namespace toki::c;

namespace {

// The name of one of the values 0 to `last`. (to_string() gives literals: they end with a zero.)
template <class Enum>
const char* name_of(std::int32_t value, Enum last) noexcept {
  return value >= 0 && value <= static_cast<std::int32_t>(last)
             ? to_string(static_cast<Enum>(value)).data()
             : "unknown";
}

}  // namespace

const char* toki_version() {
  return toki::version();
}

const char* toki_status_name(toki_status status) {
  switch (status) {
    case TOKI_OK: return "ok";
    case TOKI_ERROR_NO_MEMORY: return "no_memory";
    case TOKI_ERROR_INTERNAL: return "internal";
    default: return status > 0 ? name_of(status, Errc::no_space) : "unknown";
  }
}

const char* toki_class_name(toki_class value) {
  return name_of(value, CacheClass::unreported);
}
const char* toki_reason_name(toki_reason value) {
  return name_of(value, Reason::not_cacheable);
}
const char* toki_source_name(toki_source value) {
  return name_of(value, Source::copy);
}

void toki_struct_init(void* object, size_t size) {
  TOKI_CHECK(object != nullptr && size >= sizeof(size));
  std::memset(object, 0, size);
  std::memcpy(object, &size, sizeof(size));
}

toki_status toki_scope_create(const char* const* parts, size_t count, toki_scope** scope,
                              toki_error* error) {
  if (const toki_status status = cleared(scope, error)) {
    return status;
  }
  if (!is_list(parts, count) || std::count(parts, parts + count, nullptr) > 0) {
    return missing(error);
  }
  return made(scope, error, [&] {
    return Scope::from_parts(std::vector<std::string_view>(parts, parts + count));
  });
}

void toki_scope_free(toki_scope* scope) {
  delete scope;
}

toki_status toki_embedding_hash(const toki_token* tokens, size_t count, float* values,
                                size_t dimension, toki_error* error) {
  if (!is_list(tokens, count) || values == nullptr) {
    return missing(error);
  }
  if (dimension == 0 || dimension > kMaxDimension) {
    return wrong(error, "an embedding has 1 to 65,536 values");
  }
  return guarded(error, [&] {
    const Embedding embedding = hash_embedding(span_of(tokens, count), dimension);
    std::copy(embedding.values.begin(), embedding.values.end(), values);
    return kOk;
  });
}
