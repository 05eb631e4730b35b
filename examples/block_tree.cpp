// The tree alone: how many leading tokens of a prompt are known? Exact, and in microseconds however
// many prompts there are.
#include <toki/block_tree.hpp>

#include <cstdio>

int main() {
  toki::BlockTree tree;
  const toki::Scope scope({"my model"});  // prompts of other models share nothing with these

  toki::Tokens known(1000);
  for (std::size_t at = 0; at < known.size(); ++at) known[at] = static_cast<toki::Token>(at);
  tree.insert(scope, known);

  toki::Tokens prompt = known;
  prompt[700] = -1;  // parts there from what is known
  const toki::BlockTree::Match match = tree.match(scope, prompt);
  std::printf("%zu of %zu tokens are known\n", match.tokens, prompt.size());
  std::printf("%zu for another model\n", tree.match(toki::Scope({"another"}), prompt).tokens);
}
