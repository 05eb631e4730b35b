// A store of states for tests that only look at saves and restores: the rest does nothing.
#pragma once

#include <toki/state_store.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace toki::test {

struct BareStore : StateStore {
  void doubt(const Scope&, TokenSpan) override {}
  Result<std::uint64_t> forget(std::optional<std::uint64_t>) override { return std::uint64_t{0}; }
  Result<std::uint64_t> forget(const Scope&, TokenSpan, std::uint64_t) override {
    return std::uint64_t{0};
  }
  void maintain() override {}
  std::vector<StoredPrompt> prompts(std::size_t) const override { return {}; }
  HeldPrompt held(const Scope&, TokenSpan) const override { return {}; }
  std::pair<Scope, Tokens> prompt(std::uint64_t) const override { return {}; }
  void add_to(Stats&) const override {}
};

}  // namespace toki::test
