// C++ containers on spanalloc whatever the process's malloc is: a std::pmr::memory_resource and an
// STL allocator over the functions of spanalloc.h.
//
//   std::pmr::vector<int> a(spanalloc::memory_resource());
//   std::vector<int, spanalloc::Allocator<int>> b;
//
// Sizes and alignments are bytes. Both are stateless and may be used by any thread. When memory is
// out they throw std::bad_alloc (without exceptions: abort).
#pragma once

#include <spanalloc/spanalloc.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory_resource>
#include <new>

namespace spanalloc {

namespace detail {

/// Never null. `alignment`: a power of two.
[[nodiscard]] inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  // sp_malloc aligns to 16 whatever the size.
  void* block = alignment <= 16 ? sp_malloc(bytes) : sp_aligned_alloc(alignment, bytes);
  if (block != nullptr) return block;
#ifdef __cpp_exceptions
  throw std::bad_alloc{};
#else
  std::abort();
#endif
}

class Resource final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return allocate_or_throw(bytes, alignment);
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { sp_free(block); }
  // Every instance is the same heap.
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;
};

inline Resource* the_resource() noexcept {
  // Never destroyed: containers with static storage may outlive any static object.
  alignas(Resource) static unsigned char storage[sizeof(Resource)];
  static Resource* const resource = ::new (static_cast<void*>(storage)) Resource;
  return resource;
}

inline bool Resource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  return &other == the_resource();
}

}  // namespace detail

/// The process's one resource over this heap; valid for ever.
inline std::pmr::memory_resource* memory_resource() noexcept {
  return detail::the_resource();
}

/// An STL allocator over this heap; all instances are equal.
template <class T>
class Allocator {
 public:
  using value_type = T;

  constexpr Allocator() noexcept = default;
  template <class U>
  constexpr Allocator(const Allocator<U>&) noexcept {
  }  // NOLINT(google-explicit-constructor): required

  /// Room for `count` objects; std::bad_array_new_length when that overflows,
  /// std::bad_alloc when memory is out.
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T)) {
#ifdef __cpp_exceptions
      throw std::bad_array_new_length{};
#else
      std::abort();
#endif
    }
    return static_cast<T*>(detail::allocate_or_throw(count * sizeof(T), alignof(T)));
  }

  void deallocate(T* block, std::size_t) noexcept { sp_free(block); }

  template <class U>
  friend constexpr bool operator==(const Allocator&, const Allocator<U>&) noexcept {
    return true;
  }
};

}  // namespace spanalloc
