// Free objects in caches: lists of them, and chains of lists. Every move from one cache to another takes a
// whole list or a whole chain, by its head (section 8).
//
// A free object's first word is its list's link, its second one says so: it is the link under a secret of the
// process. So malloc notices that a free object was written to before it follows the link, and free notices
// an object that is free already; an object in use looks free by chance of 2^-64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"

namespace spanalloc::supermalloc {

/// Even, so that it is not what would seal the end of lists.
using Secret = std::uint64_t;

struct FreeObject {
  FreeObject* next;
  std::uint64_t seal;

  bool is_sealed(Secret secret) const { return seal == (address_of(next) ^ secret); }
  /// The link as the seal has it: of a free object nobody wrote to, and of no other, that is `next`.
  std::uintptr_t link_of_seal(Secret secret) const { return seal ^ secret; }
  /// Makes it the first of the list that begins with `list`.
  void push_on(FreeObject* list, Secret secret) {
    next = list;
    seal = opaque(address_of(list)) ^ secret;  // in the register that has been stored
  }
  /// The same, for short paths: the secret is an operand of the instruction that makes the seal.
  void push_on(FreeObject* list, const SetOnce& secret) {
    next = list;
    seal = opaque(address_of(list)) ^ secret.read();
  }
};

[[noreturn]] SPANALLOC_COLD inline void name_free_already(const void* p) {
  os::fatal("memory is free already (double free, or use after free):", p);
}
[[noreturn]] SPANALLOC_COLD inline void broken_object(const FreeObject* object) {
  os::fatal("free object overwritten (written after free):", object);
}
/// The link of a free object that a program may have written to since.
inline FreeObject* next_of(const FreeObject* object, Secret secret) {
  if (SPANALLOC_UNLIKELY(!object->is_sealed(secret))) broken_object(object);
  return object->next;
}

/// Where every list ends: an object that is not sealed, so that who takes objects off a list notices its end
/// by the same comparison that notices an object that was written to.
inline constinit FreeObject end_of_list{nullptr, 1};
inline bool is_end(const FreeObject* object) {
  return object == &end_of_list;
}

/// A list by its first object. `count` of them hang together.
struct ObjectList {
  FreeObject* first = &end_of_list;
  std::uint32_t count = 0;

  bool is_empty() const { return is_end(first); }
};

/// Lists of one bin, of up to 1 MiB: what a CPU's cache and the global one hold. The lock of whoever has it
/// gives access.
struct Chain {
  // Of 1 MiB in lists of 8 KiB there would be 128; lists are whole objects, and may be just above 4 KiB.
  static constexpr std::uint32_t kMostLists = 255;

  Atomic<std::uint32_t> lists{0};  // atomic for who comes for the lock and asks for what it will touch
  ObjectList at[kMostLists];       // those behind `lists` are nothing

  std::uint32_t count() const { return lists.load_relaxed(); }
  bool is_empty() const { return count() == 0; }
  void push(ObjectList list) {
    const std::uint32_t before = count();
    SPANALLOC_ASSERT(before < kMostLists && !list.is_empty());
    at[before] = list;
    lists.store_relaxed(before + 1);
  }
  ObjectList pop() {
    SPANALLOC_ASSERT(!is_empty());
    const std::uint32_t last = count() - 1;
    lists.store_relaxed(last);
    return at[last];
  }
  /// Any time: asks for the place that push(), or pop(), uses if nobody comes first. (The count is read.)
  void prefetch_push() { prefetch_to_write(&at[count()]); }
  void prefetch_pop() {
    const std::uint32_t lists_now = count();
    prefetch_to_write(&at[lists_now - (lists_now != 0)]);
  }
  std::size_t objects() const {
    std::size_t sum = 0;
    for (std::uint32_t i = 0; i < count(); ++i) sum += at[i].count;
    return sum;
  }
};

}  // namespace spanalloc::supermalloc
