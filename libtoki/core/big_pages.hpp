// BigPages: memory in pieces, for what grows to many megabytes and is read at random places. The
// first pieces come from the heap one by one, so that small things stay small. After kHeap bytes
// they are cut from extents whose memory the system is asked to give in pages of 2 MiB: one entry
// of the CPU's address cache then stands for what else takes 512.
//
// Pieces go back all at once, with the object. An extent is an address range, as long as all that
// is held already: what was not taken of it yet is not in memory, but for the rest of one big page.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace toki {

class BigPages {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  static constexpr std::size_t kHeap = std::size_t{16} << 20;

  /// At 64 bytes' alignment, contents undefined.
  void* take(std::size_t bytes);
  /// So much will be taken: when it is more than kHeap, none of it comes from the heap.
  void expect(std::size_t bytes);
  /// Memory in use, with the rest of the last big page.
  std::size_t bytes() const noexcept;

 private:
  struct Free {
    std::size_t alignment;
    void operator()(std::byte* memory) const noexcept;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory get(std::size_t bytes, std::size_t alignment);

  std::vector<Memory> held_;
  std::size_t closed_ = 0;  // bytes of all but the last extent, heap pieces among them
  std::byte* extent_ = nullptr;
  std::size_t taken_ = 0;  // of the last extent
  std::size_t size_ = 0;   // of the last extent
  std::size_t expected_ = 0;
};

}  // namespace toki
