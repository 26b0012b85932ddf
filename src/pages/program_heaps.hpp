// Blocks of heaps that the program has made (heaps/), as malloc's functions meet them. A program
// may give such a block to free, realloc or malloc_usable_size. Engines know nothing of it: they
// ask NestedBlocks where an address is in none of their records, and that asks here.
//
// Until the first heap is made nobody is asked: calls_ is null, and NestedBlocks' bounds leave the
// heaps' addresses out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "pages/heaps_inspection.hpp"

namespace spanalloc {

/// One for each process, as malloc is. All functions: any thread, any pointer.
class ProgramHeaps {
 public:
  struct Figures {
    std::size_t heaps = 0;
    std::size_t taken_bytes = 0;  ///< what they have from the kernel, for blocks and beside them
    std::size_t kept_bytes = 0;   ///< given back by heaps, and may be in memory yet
  };
  /// Of a heap's name, with the zero at its end.
  static constexpr std::size_t kNameBytes = 64;
  /// One heap. Each figure is of some moment while the heap was there.
  struct Description {
    std::uint64_t handle = 0;     ///< the program's sp_heap*
    std::size_t limit_bytes = 0;  ///< 0: none
    std::size_t taken_bytes = 0;
    std::size_t used_bytes = 0;  ///< blocks, with what goes with them
    std::size_t used_blocks = 0;
    char name[kNameBytes];
  };
  /// The heaps that have taken most, the first one most of all.
  struct Largest {
    static constexpr std::size_t kMost = 64;
    struct Entry {
      std::uint64_t handle;
      std::size_t taken_bytes;
    };

    std::size_t count = 0;
    std::size_t unlisted = 0;        ///< heaps that there are besides,
    std::size_t unlisted_bytes = 0;  ///< and what these have taken
    Entry entries[kMost];            ///< `count` of them
  };
  struct Calls {
    HeapsInspection inspection;  ///< first: a reader outside of the process finds it here
    /// Bytes of the block at exactly p; 0: no such block.
    std::size_t (*usable_size)(const void* p);
    /// False: p lies in no memory of heaps. There it is a block's, or the process ends.
    bool (*free)(void* p);
    /// The block's new place, in its own heap. nullptr: no block, or its heap has no room; nothing
    /// has changed.
    void* (*resize)(void* p, std::size_t n);
    /// Whether p lies in memory that a heap has.
    bool (*owns)(const void* p);
    /// Gives free memory back to the kernel; true if there was any.
    bool (*trim)();
    /// Exact while nobody makes, ends or uses a heap.
    Figures (*figures)();
    void (*find_largest)(Largest& out);
    /// False: the heap of that handle has gone.
    bool (*describe)(std::uint64_t handle, Description& out);
  };

  /// Acquire: and the bounds that were widened before.
  static bool are_entered() { return calls_.load_acquire() != nullptr; }
  /// `calls` is constant. Release: what it leads to is made.
  static void enter(const Calls& calls) { calls_.store_release(&calls); }

  SPANALLOC_COLD static std::size_t usable_size(const void* p) {
    const Calls* const calls = calls_.load_acquire();
    return calls == nullptr ? 0 : calls->usable_size(p);
  }
  SPANALLOC_COLD static bool free(void* p) {
    const Calls* const calls = calls_.load_acquire();
    return calls != nullptr && calls->free(p);
  }
  SPANALLOC_COLD static void* resize(void* p, std::size_t n) {
    const Calls* const calls = calls_.load_acquire();
    return calls == nullptr ? nullptr : calls->resize(p, n);
  }
  static bool owns(const void* p) {
    const Calls* const calls = calls_.load_acquire();
    return calls != nullptr && calls->owns(p);
  }
  static bool trim() {
    const Calls* const calls = calls_.load_acquire();
    return calls != nullptr && calls->trim();
  }
  SPANALLOC_COLD static Figures figures() {
    const Calls* const calls = calls_.load_acquire();
    return calls == nullptr ? Figures{} : calls->figures();
  }
  /// `out`: as it is made.
  SPANALLOC_COLD static void find_largest(Largest& out) {
    const Calls* const calls = calls_.load_acquire();
    if (calls != nullptr) calls->find_largest(out);
  }
  /// `handle`: by find_largest(). No lock is held afterwards.
  SPANALLOC_COLD static bool describe(std::uint64_t handle, Description& out) {
    return calls_.load_acquire()->describe(handle, out);
  }

  /// Where a reader outside of the process finds a word with the address of HeapsInspection; 0:
  /// there was no heap yet.
  static constexpr const void* inspection_place() {
    static_assert(offsetof(Calls, inspection) == 0);
    return &calls_;
  }

 private:
  static inline constinit Atomic<const Calls*> calls_{nullptr};
};

}  // namespace spanalloc
