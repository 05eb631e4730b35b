// The query of a target, as tokid's own pages read it.
#include "query.hpp"

#include <catch2/catch.hpp>

using namespace tokid;

TEST_CASE("query: the first field of a name counts, raw") {
  CHECK(query_field("/toki/cache?id=7&stored_id=8", "id") == "7");
  CHECK(query_field("/toki/cache?stored_id=8&id=7", "id") == "7");
  CHECK(query_field("/?id=1&id=2", "id") == "1");
  CHECK(query_field("/?a=b=c%20d", "a") == "b=c%20d");
  CHECK(query_field("/?id", "id") == "");
  CHECK(query_field("/?id=", "id") == "");
  CHECK(query_field("/?&&id=3", "id") == "3");
}

TEST_CASE("query: a field that is not there is nothing") {
  for (const char* target : {"/", "/id=1", "/?", "/?ids=1", "/?i=1", "/?=1", "/?x=id=1", ""}) {
    INFO(target);
    CHECK_FALSE(query_field(target, "id"));
    CHECK(query_text(target, "id").empty());
  }
}

TEST_CASE("query: a text is unescaped") {
  CHECK(query_text("/?backend=a%2Fb&x=1", "backend") == "a/b");
  CHECK(query_text("/?backend=%26", "backend") == "&");
  CHECK(query_text("/?backend", "backend").empty());
}

TEST_CASE("query: one field of another name is one too many") {
  CHECK(query_has_only("/", {"id"}));
  CHECK(query_has_only("/?", {"id"}));
  CHECK(query_has_only("/?id=1&after", {"id", "after"}));
  CHECK_FALSE(query_has_only("/?id=1&ids=2", {"id"}));
  CHECK_FALSE(query_has_only("/?Id=1", {"id"}));
  CHECK_FALSE(query_has_only("/?=1", {"id"}));
  CHECK_FALSE(query_has_only("/?#id=1", {"id"}));
}

TEST_CASE("query: a field is taken out wherever it stands, and the rest stays as it is") {
  CHECK(without_field("/p?backend=a", "backend") == "/p");
  CHECK(without_field("/p?backend=a&id=%31&x", "backend") == "/p?id=%31&x");
  CHECK(without_field("/p?id=1&backend=a&x=y=z", "backend") == "/p?id=1&x=y=z");
  CHECK(without_field("/p?id=1&backend&backend=b", "backend") == "/p?id=1");
  CHECK(without_field("/p?backends=a", "backend") == "/p?backends=a");
  CHECK(without_field("/p", "backend") == "/p");
}
