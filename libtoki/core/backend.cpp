#include <toki/backend.hpp>

namespace toki {

Backend::~Backend() = default;

void Backend::embed(std::string_view /*text*/, Completion<Embedding> done) {
  done(Error{Errc::unsupported, "the backend has no embedding model"});
}

}  // namespace toki
