// A program of the component http: reads a body without changing it.
#include <toki/http/body_edit.hpp>
#include <toki/version.hpp>

#include <cstdio>
#include <variant>

int main() {
  const auto body = toki::http::Body::parse(R"({"model":"a"})");
  std::printf("toki %s with http\n", toki::version());
  return std::holds_alternative<toki::http::Body>(body) ? 0 : 1;
}
