// The exact rules of toki/divergence.hpp: what can be told from the words alone.
#pragma once

#include <toki/divergence.hpp>

#include <optional>
#include <vector>

#include "report/word_diff.hpp"
#include "report/words.hpp"

namespace toki::report {

struct Texts {
  std::string_view a, b;
  const std::vector<Word>& words_a;
  const std::vector<Word>& words_b;
  const WordDiff& diff;
};

/// The first rule that finds the difference substantive; none: they find nothing.
std::optional<DivergenceReason> substantive_by_rule(const Texts& texts);

}  // namespace toki::report
