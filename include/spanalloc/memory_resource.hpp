// C++ containers on spanalloc whatever the process's malloc is: a std::pmr::memory_resource and an
// STL allocator over the functions of spanalloc.h.
//
//   std::pmr::vector<int> a(spanalloc::memory_resource());
//   std::vector<int, spanalloc::Allocator<int>> b;
//
// Sizes and alignments are bytes. Both are stateless and may be used by any thread. When memory is
// out they throw std::bad_alloc (without exceptions: abort).
//
// And memory resources over a first-class heap: HeapResource over one that is there,
// OwnHeapResource over one that begins and ends with it. Any thread may use them.
//
//   spanalloc::OwnHeapResource arena;            // all of it ends with it
//   std::pmr::vector<std::pmr::string> c(&arena);
#pragma once

#include <spanalloc/spanalloc.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory_resource>
#include <new>

namespace spanalloc {

namespace detail {

[[noreturn]] inline void* out_of_memory() {
#ifdef __cpp_exceptions
  throw std::bad_alloc{};
#else
  std::abort();
#endif
}

/// Never null. `alignment`: a power of two.
[[nodiscard]] inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  // sp_malloc aligns to 16 whatever the size.
  void* block = alignment <= 16 ? sp_malloc(bytes) : sp_aligned_alloc(alignment, bytes);
  return block != nullptr ? block : out_of_memory();
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

/// A resource over a heap that outlives it. Two are equal if their heap is one.
class HeapResource : public std::pmr::memory_resource {
 public:
  explicit HeapResource(sp_heap* heap) noexcept : heap_(heap) {}

  sp_heap* heap() const noexcept { return heap_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    // sp_heap_malloc aligns to 16 whatever the size.
    void* block = alignment <= 16 ? sp_heap_malloc(heap_, bytes)
                                  : sp_heap_aligned_alloc(heap_, alignment, bytes);
    return block != nullptr ? block : detail::out_of_memory();
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { sp_heap_free(heap_, block); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    if (this == &other) return true;
#ifdef __cpp_rtti
    const auto* resource = dynamic_cast<const HeapResource*>(&other);
    return resource != nullptr && resource->heap_ == heap_;
#else
    return false;
#endif
  }

  sp_heap* heap_;
};

/// A resource with a first-class heap. Its end, or release(), frees all that was allocated from it,
/// with no destructor run.
class OwnHeapResource final : public HeapResource {
 public:
  /// std::bad_alloc when memory is out, or the limit is below 65,536 bytes. `limit_bytes` and
  /// `name`: see sp_heap_options; 0: no limit, nullptr: no name.
  explicit OwnHeapResource(std::size_t limit_bytes = 0, const char* name = nullptr)
      : HeapResource(create(limit_bytes, name)) {}
  ~OwnHeapResource() override { sp_heap_destroy(heap()); }
  OwnHeapResource(const OwnHeapResource&) = delete;
  OwnHeapResource& operator=(const OwnHeapResource&) = delete;

  /// Frees everything; the resource may be used again. Nobody else uses it meanwhile.
  void release() noexcept { sp_heap_reset(heap()); }

 private:
  static sp_heap* create(std::size_t limit_bytes, const char* name) {
    sp_heap_options options{};
    options.limit_bytes = limit_bytes;
    options.name = name;
    sp_heap* heap = sp_heap_create(&options, sizeof options);
    if (heap == nullptr) detail::out_of_memory();
    return heap;
  }
};

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
