// A workload's own tables. They come from the kernel, not from the allocator that is measured, start on a
// page, and are backed by memory from the start: no fault of theirs falls into a measured part.
#ifndef SPANALLOC_BENCH_MAPPED_ARRAY_HPP
#define SPANALLOC_BENCH_MAPPED_ARRAY_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <type_traits>

#include "support/workload.hpp"

namespace workload {

// Bytes of all such tables that are backed from the start, in whole pages: resident memory that is no
// allocator's.
inline std::size_t backed_table_bytes = 0;

// Made and destroyed by the main thread. `count` zeroed elements; move-only. Elements are neither constructed
// nor destroyed.
template <class T>
class MappedArray {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  MappedArray() = default;
  explicit MappedArray(std::size_t count, bool backed = true) : count_(count) {
    if (count == 0) return;
    std::size_t bytes = 0;
    check(!__builtin_mul_overflow(count, sizeof(T), &bytes), "the workload's own tables are too large");
    void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | (backed ? MAP_POPULATE : 0), -1, 0);
    check(p != MAP_FAILED, "no memory for the workload's own tables");
    data_ = static_cast<T*>(p);
    if (backed) backed_bytes_ = pages_of(bytes);
    backed_table_bytes += backed_bytes_;
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
    backed_table_bytes -= backed_bytes_;
  }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* data() { return data_; }
  std::size_t size() const { return count_; }

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
