// Any bytes as a script of operations on the block tree (tests/model/block_tree_script.hpp): it
// agrees with a list of prompts, and never contradicts itself.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/block_tree_script.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string fault = toki::test::BlockTreeScript({data, size}).run();
  if (!fault.empty()) {
    std::fprintf(stderr, "%s\n", fault.c_str());
    std::abort();
  }
  return 0;
}
