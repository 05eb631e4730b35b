// The similarity index alone: which known texts are nearest to a new one? It only nominates; whether
// two prompts share a prefix is told by their token ids.
#include <toki/embedding.hpp>
#include <toki/similarity_index.hpp>

#include <array>
#include <cstdio>
#include <string_view>

namespace {

// Feature hashing needs no model. A program with an embedding model puts that one's vectors in.
toki::Embedding embed(std::string_view text) {
  const toki::Tokens tokens(text.begin(), text.end());  // letters, for want of a tokenizer
  return toki::hash_embedding(tokens);
}

}  // namespace

int main() {
  const std::array<std::string_view, 3> known = {
      "You are a helpful assistant. Answer in one sentence.",
      "You review C++ code. Name the line, then the fault.",
      "Translate what follows into French.",
  };
  const auto index = toki::make_similarity_index(toki::kHashDimension);
  const toki::Scope scope({"my model"});
  for (std::size_t id = 0; id < known.size(); ++id) index->put(id, scope, embed(known[id]).values);

  const toki::Embedding query = embed("You review Rust code. Name the line, then the fault.");
  for (const toki::Neighbour& near : index->search(scope, query.values, 2)) {
    std::printf("%.2f  %s\n", static_cast<double>(near.cosine), known[near.id].data());
  }
}
