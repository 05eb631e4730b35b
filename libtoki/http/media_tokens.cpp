#include "http/media_tokens.hpp"

#include <toki/http/body_edit.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>

namespace toki::http {
namespace {

using Words = std::array<std::uint32_t, kMediaTokens>;

Tokens negative(const Words& words) {
  Tokens tokens;
  for (const std::uint32_t word : words) {
    tokens.push_back(-1 - static_cast<Token>(word & 0x7fffffffU));
  }
  return tokens;
}

// Two hashes of 128 bits that have nothing in common but the bytes.
Tokens of_bytes(std::string_view bytes) {
  Words words{};
  std::size_t at = 0;
  for (const std::uint64_t seed : {0x9e3779b97f4a7c15ULL, 0xd1b54a32d192ed03ULL}) {
    const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
    for (const std::uint64_t half : {hash.low64, hash.high64}) {
      words[at++] = static_cast<std::uint32_t>(half);
      words[at++] = static_cast<std::uint32_t>(half >> 32U);
    }
  }
  return negative(words);
}

Tokens of_nothing_known() {
  std::random_device random;
  Words words{};
  std::generate(words.begin(), words.end(), [&] { return random(); });
  return negative(words);
}

const JsonField* find(const std::vector<JsonField>& fields, std::string_view key) {
  const auto at = std::find_if(fields.begin(), fields.end(),
                               [&](const JsonField& field) { return field.key == key; });
  return at == fields.end() ? nullptr : &*at;
}

bool is_media(std::string_view type) {
  static constexpr std::array<std::string_view, 9> kTypes{
      "image_url", "input_image", "image",       "input_audio", "audio",
      "audio_url", "video",       "input_video", "video_url"};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

// Is it the medium itself, and not the name of one?
bool holds_bytes(const JsonField& text) {
  if (text.kind != JsonKind::string) {
    return false;
  }
  const std::string_view value = text.value.substr(1);
  return value.starts_with("data:") ||
         (text.key == "data" && value.size() > 1 && value.find(':') == std::string_view::npos);
}

// A part of the form {"type":"image_url","image_url":{"url":"data:..."}}, {"type":"input_audio",
// "input_audio":{"data":"...","format":"wav"}} or {"type":"input_image","image_url":"data:..."}.
// All that is said about the medium goes into the hash.
Tokens tokens_of(const std::vector<JsonField>& part, std::string_view type) {
  const JsonField* medium = find(part, type);
  medium = medium != nullptr ? medium : find(part, "image_url");
  if (medium == nullptr) {
    return of_nothing_known();
  }
  if (medium->kind != JsonKind::object) {
    return holds_bytes(*medium) ? of_bytes(medium->value) : of_nothing_known();
  }
  const auto members = children(medium->value);
  const JsonField* url = find(members, "url");
  const JsonField* data = find(members, "data");
  const JsonField* source = url != nullptr ? url : data;
  const bool one = (url == nullptr) != (data == nullptr);
  return one && holds_bytes(*source) ? of_bytes(medium->value) : of_nothing_known();
}

void add_parts(std::string_view content, std::vector<Tokens>& found) {
  Children parts(content);
  while (const JsonField* part = parts.next()) {
    if (part->kind != JsonKind::object) {
      continue;
    }
    const auto fields = children(part->value);
    const JsonField* type = find(fields, "type");
    if (type == nullptr || type->kind != JsonKind::string) {
      continue;
    }
    const std::string name = unescape(type->value);
    if (is_media(name)) {
      found.push_back(tokens_of(fields, name));
    }
  }
}

}  // namespace

std::vector<Tokens> media_tokens(std::string_view chat_body) {
  std::vector<Tokens> found;
  const auto parsed = Body::parse(chat_body);
  const Body* body = std::get_if<Body>(&parsed);
  const JsonField* messages = body != nullptr ? body->find("messages") : nullptr;
  if (messages == nullptr || messages->kind != JsonKind::array) {
    return found;
  }
  Children entries(messages->value);
  while (const JsonField* entry = entries.next()) {
    if (entry->kind != JsonKind::object) {
      continue;
    }
    const auto fields = children(entry->value);
    const JsonField* content = find(fields, "content");
    if (content != nullptr && content->kind == JsonKind::array) {
      add_parts(content->value, found);
    }
  }
  return found;
}

}  // namespace toki::http
