#include <toki/scope.hpp>

#include <catch2/catch.hpp>

#include <string_view>
#include <vector>

using toki::Scope;

TEST_CASE("scope: parts are framed by their length") {  // B71
  CHECK_FALSE(Scope({"org_1", "2345"}) == Scope({"org_12345", ""}));
  CHECK_FALSE(Scope({"a", "b"}) == Scope({"ab"}));
  CHECK_FALSE(Scope({""}) == Scope({}));
  CHECK_FALSE(Scope({"1:a"}) == Scope({"a"}));
  CHECK(Scope({"model", "lora"}) == Scope({"model", "lora"}));
}

TEST_CASE("scope: the seed is the same in every run and on every machine") {  // B72
  CHECK(Scope({"model"}).seed() == 0x91118fbfa5cde4eeULL);
  CHECK(Scope().bytes().empty());
}

TEST_CASE("scope: its parts can be read again, and bytes that are none have no parts") {
  const Scope scope({"model:7", "", "3:x", "alice"});
  CHECK(scope.parts() == std::vector<std::string_view>{"model:7", "", "3:x", "alice"});
  CHECK(Scope().parts().empty());
  for (const char* bytes : {"x", "3:ab", ":", "1", "-1:a", "2:abc", "99999999999999999999:a"}) {
    INFO(bytes);
    CHECK(Scope::from_bytes(bytes).parts().empty());
  }
}
