#include <toki/scope.hpp>

#include <catch2/catch.hpp>

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
