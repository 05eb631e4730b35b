// PromptRecord: one known prompt, as it is remembered across restarts.
//
// Threads:   plain data.
// Ownership: values only.
// Errors:    none.
// Cost:      four bytes a token and four a value of the embedding.
#pragma once

#include <toki/embedding.hpp>
#include <toki/scope.hpp>
#include <toki/token.hpp>

#include <cstdint>

namespace toki {

/// One prompt, as it is remembered and kept across restarts.
struct PromptRecord {
  std::uint64_t id = 0;           ///< never used twice in one store
  Scope scope;                    ///< it is remembered under
  Tokens tokens;                  ///< all of it
  Embedding embedding;            ///< of it; kind none: there is none yet
  double use = 0;                 ///< decayed number of uses
  std::int64_t last_used_ms = 0;  ///< Unix time
};

}  // namespace toki
