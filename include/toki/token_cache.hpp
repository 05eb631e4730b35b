// TokenCache: tokens of texts that were tokenized before, so that only what is new in a prompt has
// to be tokenized again.
//
// Threads:   one at a time.
// Ownership: copies the texts and tokens it is given.
// Errors:    none; what does not fit the budget is forgotten, longest unused first.
// Cost:      find: one pass over the text (hash and comparison) and a search for boundaries, about
//            0.5 us per 4 KiB, ten times that where each eighth byte looks like the beginning of a
//            special token; put: twice as much and a copy. Memory: the text, four bytes a token and
//            about 90 a boundary.
//
// Exact: a part of a text is only reused up to a *boundary*: the place where the text of a special
// token begins. Tokenizers take special tokens out of a text before anything else and never merge
// across them, so tokens(a + b) is tokens(a) + tokens(b) there. Texts are compared byte by byte.
// Whether it is true of a tokenizer is for the caller to try, and to check afterwards. A text whose
// special tokens are not, in order, those among its tokens is only remembered as a whole. Of one
// text the first 8,192 boundaries are used.
//
// Texts that begin alike share nothing in memory, but one that goes on from all of a known text
// takes its place: a growing conversation is held once. What is lost is that shorter text as a
// whole; its boundaries are those of the longer one.
#pragma once

#include <toki/export.hpp>
#include <toki/token.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace toki {

/// A special token: its text becomes exactly this token wherever it stands.
struct SpecialToken {
  std::string text;  ///< as the tokenizer knows it, unescaped
  Token id = 0;      ///< that stands for it
};

/// Texts and their tokens, so that only what is new in a prompt is tokenized. The least recently
/// used texts go first.
class TOKI_EXPORT TokenCache {
 public:
  /// Leading part of a text whose tokens are known.
  struct Known {
    std::size_t bytes = 0;  ///< all of the text, or up to a boundary; 0: nothing is known
    Tokens tokens;          ///< of those bytes
  };

  /// `max_bytes` 0: remembers nothing.
  explicit TokenCache(std::size_t max_bytes);
  ~TokenCache();
  /// The source may only be destroyed or assigned to.
  TokenCache(TokenCache&&) noexcept;
  /// The source may only be destroyed or assigned to.
  TokenCache& operator=(TokenCache&&) noexcept;

  /// Forgets everything and takes these as boundaries; none: only whole texts are found.
  void reset(std::vector<SpecialToken> specials);
  void clear();  ///< forgets the texts alone

  /// `start_token`: the tokenizer puts its start token in front; the two are kept apart, and so are
  /// the texts of each tenant: nothing of one is known to another. An empty text is never known.
  Known find(std::string_view text, bool start_token, std::string_view tenant = {});
  /// Remembers the tokens of a whole text.
  void put(std::string_view text, bool start_token, TokenSpan tokens, std::string_view tenant = {});

  /// Remembered now.
  std::size_t texts() const noexcept;
  std::size_t bytes() const noexcept;  ///< memory held

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace toki
