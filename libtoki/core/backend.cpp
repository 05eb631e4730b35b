#include <toki/backend.hpp>

namespace toki {

Backend::~Backend() = default;

void Backend::describe(Completion<BackendDescription> done) {
  done(Error{Errc::unsupported, "the backend does not describe itself"});
}

void Backend::render(const PromptSource& /*source*/, Completion<Tokens> done) {
  done(Error{Errc::unsupported, "the backend does not tokenize"});
}

void Backend::save(SlotId /*slot*/, std::string_view /*name*/, Completion<Timed> done) {
  done(Error{Errc::unsupported, "the backend does not save states"});
}

void Backend::restore(SlotId /*slot*/, std::string_view /*name*/, Completion<Timed> done) {
  done(Error{Errc::unsupported, "the backend does not restore states"});
}

void Backend::embed(std::string_view /*text*/, Completion<Embedding> done) {
  done(Error{Errc::unsupported, "the backend has no embedding model"});
}

}  // namespace toki
