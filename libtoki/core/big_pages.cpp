#include "core/big_pages.hpp"

#include <toki/result.hpp>

#include <algorithm>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>  // advice about memory; no input or output
#endif

namespace toki {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + BigPages::kPage - 1) / BigPages::kPage * BigPages::kPage;
}

void ask_for_big_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);  // where it is refused, small pages serve as well
#endif
}

}  // namespace

void BigPages::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete (memory, std::align_val_t{alignment});
}

BigPages::Memory BigPages::get(std::size_t bytes, std::size_t alignment) {
  return {static_cast<std::byte*>(::operator new (bytes, std::align_val_t{alignment})),
          Free{alignment}};
}

void* BigPages::take(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  bytes = (bytes + kLine - 1) / kLine * kLine;
  expected_ -= std::min(expected_, bytes);
  if (extent_ == nullptr && closed_ + bytes + expected_ <= kHeap) {
    held_.push_back(get(bytes, kLine));
    closed_ += bytes;
    return held_.back().get();
  }
  if (taken_ + bytes > size_) {
    closed_ += whole_pages(taken_);
    taken_ = 0;
    size_ = whole_pages(std::max({bytes + expected_, closed_, kHeap}));
    held_.push_back(get(size_, kPage));
    extent_ = held_.back().get();
    ask_for_big_pages(extent_, size_);
  }
  taken_ += bytes;
  return extent_ + (taken_ - bytes);
}

void BigPages::expect(std::size_t bytes) {
  expected_ = bytes;
}

std::size_t BigPages::bytes() const noexcept {
  return closed_ + whole_pages(taken_);
}

}  // namespace toki
