// A workload's own tables. They come from the kernel, not from the allocator that is measured,
// start on a page, and are backed by memory from the start: no fault of theirs falls into a
// measured part. One whose greater part is never used need not be backed; its owner says with
// written() how much of it is.
#ifndef SPANALLOC_BENCH_MAPPED_ARRAY_HPP
#define SPANALLOC_BENCH_MAPPED_ARRAY_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <type_traits>

#include "support/workload.hpp"

namespace workload {

// Made and destroyed by the main thread. `count` zeroed elements; move-only. Elements are neither
// constructed nor destroyed.
template <class T>
class MappedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  MappedArray() = default;
  explicit MappedArray(std::size_t count, bool backed = true) : count_(count) {
    if (count == 0) return;
    std::size_t bytes = 0;
    check(!__builtin_mul_overflow(count, sizeof(T), &bytes),
          "the workload's own tables are too large");
    void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | (backed ? MAP_POPULATE : 0), -1, 0);
    check(p != MAP_FAILED, "no memory for the workload's own tables");
    data_ = static_cast<T*>(p);
    if (backed)
      backed_bytes_ = pages_of(bytes);
    else
      madvise(data_, bytes, MADV_NOHUGEPAGE);  // what is not written stays unbacked
    own_bytes.add(backed_bytes_);
  }
  MappedArray(MappedArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        count_(std::exchange(other.count_, 0)),
        backed_bytes_(std::exchange(other.backed_bytes_, 0)) {}
  MappedArray& operator=(MappedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(backed_bytes_, other.backed_bytes_);
    return *this;
  }
  ~MappedArray() {
    if (data_ != nullptr) munmap(data_, count_ * sizeof(T));
    own_bytes.remove(backed_bytes_);
  }
  // In a table that is not backed from the start: the first `elements` have been
  // written, and count as backed.
  void written(std::size_t elements) {
    const std::size_t pages = pages_of(elements * sizeof(T));
    if (pages <= backed_bytes_) return;
    own_bytes.add(pages - backed_bytes_);
    backed_bytes_ = pages;
  }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* data() { return data_; }
  std::size_t size() const { return count_; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + count_; }

 private:
  static std::size_t pages_of(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }
  T* data_ = nullptr;
  std::size_t count_ = 0;
  std::size_t backed_bytes_ = 0;
};

}  // namespace workload

#endif  // SPANALLOC_BENCH_MAPPED_ARRAY_HPP
