// KvStore as drivers see it: what each step of a ticket means to it.
#include <toki/backend.hpp>
#include <toki/engine.hpp>
#include <toki/kv_store.hpp>

namespace toki {

Result<std::string> KvStore::begin_save(const Step& step) {
  return step.file;
}

Result<Taken> KvStore::end_save(const Step& step, std::string_view file, const Timed&) {
  return take(step.scope, step.tokens, file, step.whole, step.token_ms, step.only);
}

Result<Restorable> KvStore::begin_restore(const Step& step) {
  const auto composed =
      compose(step.scope, step.tokens, step.tokens.size(), step.slot.index, step.file);
  if (!composed) {
    return composed.error();
  }
  return Restorable{.file = step.file, .tokens = *composed};
}

void KvStore::end_restore(std::string_view file, const Result<Timed>&) {
  discard(file);
}

void KvStore::doubt(const Scope&, TokenSpan) {}

}  // namespace toki
