#include "http/special_texts.hpp"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using toki::http::kMaxSpecialTexts;
using toki::http::special_texts;

namespace {

std::vector<std::string> of(std::string source) {
  const std::vector<std::string> sources{std::move(source)};
  return special_texts(sources);
}

}  // namespace

TEST_CASE("special texts: tags and capital words in brackets, each once, in their order") {
  CHECK(of("{{ '<|im_start|>' + role + '\\n' }}x<|im_end|></s><|im_start|>[INST] [/INST]") ==
        std::vector<std::string>{"<|im_start|>", "<|im_end|>", "</s>", "[INST]", "[/INST]"});
  CHECK(of("<\uff5cbegin\u2581of\uff5c>[gMASK]<sop>") ==
        std::vector<std::string>{"<\uff5cbegin\u2581of\uff5c>", "[gMASK]", "<sop>"});
}

TEST_CASE("special texts: what is no text of a special token is left out") {
  CHECK(of("{% if a < b and c > d %} messages[0]['role'] tools[i] x[1:] <> [] [A] <a 'b'> <\"x\">")
            .empty());
  CHECK(of("<a\\n> <a\nb> <unclosed [UNCLOSED").empty());
  CHECK(of("<" + std::string(62, 'x') + ">").size() == 1);
  CHECK(of("<" + std::string(63, 'x') + ">").empty());
  CHECK(of("a << <b>") == std::vector<std::string>{"<b>"});
}

TEST_CASE("special texts: there is a most") {
  std::string source;
  for (int i = 0; i < 200; ++i) {
    source += "<t" + std::to_string(i) + ">";
  }
  CHECK(of(source).size() == kMaxSpecialTexts);
}
