// Sizes, alignments and numbers that are compiled into programs and that no tool reads from the shared
// library: templates, and values that only inline functions touch. From 1.0 on they are frozen; before, a
// change here means the next minor version (docs/abi.md).
#include <toki/toki.hpp>

#include <catch2/catch.hpp>

#include <cstddef>
#include <string>
#include <type_traits>

namespace {

template <class T, std::size_t size, std::size_t align>
constexpr bool has_layout = sizeof(T) == size && alignof(T) == align;

template <class T>
constexpr bool is_a_pointer_to_its_inside =
    has_layout<T, sizeof(void*), alignof(void*)>&& std::is_nothrow_move_constructible_v<T> &&
    !std::is_copy_constructible_v<T>;

// On 64-bit Linux with libstdc++ and the C++11 string: x86-64 and aarch64 agree.
#if defined(__LP64__) && defined(__GLIBCXX__) && _GLIBCXX_USE_CXX11_ABI
static_assert(has_layout<toki::Error, 40, 8>);
static_assert(has_layout<toki::Done, 1, 1>);
static_assert(has_layout<toki::Status, 48, 8>);
static_assert(has_layout<toki::Result<std::uint64_t>, 48, 8>);
static_assert(has_layout<toki::Result<std::string>, 48, 8>);
static_assert(has_layout<toki::Result<toki::Tokens>, 48, 8>);
static_assert(has_layout<toki::Result<toki::Ticket>, 48, 8>);
static_assert(has_layout<toki::Result<toki::Prefilled>, 48, 8>);
static_assert(has_layout<toki::Result<toki::Timed>, 48, 8>);
static_assert(has_layout<toki::Result<toki::Embedding>, 72, 8>);
static_assert(has_layout<toki::Result<toki::BackendDescription>, 168, 8>);
static_assert(has_layout<toki::Completion<toki::Done>, 8, 8>);
static_assert(has_layout<toki::Completion<toki::Tokens>, 8, 8>);
static_assert(has_layout<toki::Completion<toki::BackendDescription>, 8, 8>);
static_assert(has_layout<toki::Scope, 40, 8>);
static_assert(has_layout<toki::SlotId, 8, 4>);
static_assert(has_layout<toki::TokenSpan, 16, 8>);
static_assert(has_layout<toki::Embedding, 64, 8>);
static_assert(has_layout<toki::PromptSource, 64, 8>);
static_assert(has_layout<toki::Engine, 16, 8>);
#endif
static_assert(std::is_same_v<toki::Token, std::int32_t>);
static_assert(is_a_pointer_to_its_inside<toki::Ticket>);
static_assert(is_a_pointer_to_its_inside<toki::BlockTree>);
static_assert(is_a_pointer_to_its_inside<toki::Completion<toki::Done>>);

template <class E>
constexpr int number(E value) {
  static_assert(std::is_same_v<std::underlying_type_t<E>, std::uint8_t>);
  return static_cast<int>(value);
}

}  // namespace

TEST_CASE("numbers that programs are compiled with stay what they are") {
  CHECK(number(toki::Errc::not_found) == 1);
  CHECK(number(toki::Errc::invalid_argument) == 2);
  CHECK(number(toki::Errc::busy) == 3);
  CHECK(number(toki::Errc::timed_out) == 4);
  CHECK(number(toki::Errc::cancelled) == 5);
  CHECK(number(toki::Errc::backend) == 6);
  CHECK(number(toki::Errc::unavailable) == 7);
  CHECK(number(toki::Errc::corrupt) == 8);
  CHECK(number(toki::Errc::unsupported) == 9);
  CHECK(number(toki::Errc::no_space) == 10);
}

TEST_CASE("steps, endings and the first reasons keep their numbers") {
  CHECK(number(toki::Step::Kind::erase) == 0);
  CHECK(number(toki::Step::Kind::save) == 1);
  CHECK(number(toki::Step::Kind::restore) == 2);
  CHECK(number(toki::Step::Kind::prefill) == 3);
  CHECK(number(toki::Ending::completed) == 0);
  CHECK(number(toki::Ending::stalled) == 4);
  CHECK(number(toki::Source::copy) == 5);
  CHECK(number(toki::Reason::slot_prefix) == 0);
  CHECK(number(toki::Reason::not_cacheable) == 15);
}
