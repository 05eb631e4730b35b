// Words whose exchange changes what a text says: numbers, negations, opposites. Lower case, as
// Word::folded. Lists are short on purpose: what is not here is left to the embeddings.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace toki::report {

/// "VALUE word word ...": the value stands first. "1" is weak: in many languages it is the article.
extern const std::span<const std::string_view> kNumberWords;
/// Endings of number words that are written as one word.
extern const std::span<const std::string_view> kNumberEndings;

/// A negation each.
extern const std::span<const std::string_view> kNegations;

/// "some words | other words | ...": a word of one side never means one of another.
extern const std::span<const std::string_view> kOpposites;

/// Words around which it matters what stands before and what behind.
extern const std::span<const std::string_view> kRelations;
/// Words that join things in any order.
extern const std::span<const std::string_view> kJoins;
/// Words that belong to what they stand beside.
extern const std::span<const std::string_view> kScopes;
/// Function words by which German is told, where every noun has a capital.
extern const std::span<const std::string_view> kGerman;

}  // namespace toki::report
