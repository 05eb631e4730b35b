#include <toki/token_cache.hpp>

namespace toki {
struct TokenCache::Impl {};
TokenCache::TokenCache(std::size_t) {}
TokenCache::~TokenCache() = default;
TokenCache::TokenCache(TokenCache&&) noexcept = default;
TokenCache& TokenCache::operator=(TokenCache&&) noexcept = default;
void TokenCache::reset(std::vector<SpecialToken>) {}
TokenCache::Known TokenCache::find(std::string_view, bool) {
  return {};
}
void TokenCache::put(std::string_view, bool, TokenSpan) {}
std::size_t TokenCache::texts() const noexcept {
  return 0;
}
std::size_t TokenCache::bytes() const noexcept {
  return 0;
}
}  // namespace toki
