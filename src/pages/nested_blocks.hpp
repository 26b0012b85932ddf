// Blocks for a thread that calls malloc in the middle of our own slow path: in a function
// that another library has put in the place of libc's mmap, munmap, mremap, madvise or
// mprotect (os/kernel_call.hpp). The thread may hold any lock of ours, and others may wait
// for it. So nothing here takes a lock, and no memory comes through those functions. Any
// thread may free these blocks later.
//
// Blocks of up to 8 KiB are cut out of chunks of 64 KiB. A chunk's blocks have one size, a power of
// two: so they have every alignment up to their size. One bit a block says whether it is out.
// Chunks are never given back: there are as many as the most such blocks that were out at once
// need. Larger blocks have a mapping each. One that is freed outside of a kernel call goes back to
// the kernel, by libc's munmap. One that is freed within is kept for the next, until malloc_trim: a
// munmap that frees one each time would never end. Chunks and mappings stand in slots.
//
// Other blocks that a thread frees in a kernel call are put off, until some thread outside of one
// leaves malloc's short path, or calls malloc_trim: that thread frees them. A stack of notes says
// which; a note is a small block of this file's.
//
// Blocks of heaps that the program has made (program_heaps.hpp) are asked for here, too: engines
// know either kind as little. Once there is such a heap, the bounds of a quick answer take its
// addresses in.
//
// Invariants:
//   (1) A slot is nobody's; busy: a thread is about to enter or to remove something; of a chunk or
//       of a mapping that is out; or of a kept mapping. Each change is one compare-and-swap, or a
//       store by the thread that has made it busy. An address is written last, with release; a
//       thread that reads it with acquire finds the chunk made and `what` set.
//   (2) A block is out exactly while its bit is set. It belongs to the thread that has set the bit,
//       or to the one that this thread gave it to.
// A fork's child finds all of it whole at every step. A vanished thread leaves behind at most a
// busy slot and a mapping, or the one block that it was about to take or to free; or a count of
// notes that is one too high for ever, which only bounds how many are freed at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/config.hpp"
#include "pages/program_heaps.hpp"

namespace spanalloc {

/// One for each process, as malloc is.
class NestedBlocks {
 public:
  /// At least n bytes (any; 0 counts as 1) at a multiple of `alignment`, a power of two, and of
  /// every power of two up to 4 KiB that does not exceed n. nullptr when memory is out.
  SPANALLOC_COLD static void* allocate(std::size_t n, std::size_t alignment) {
    if (n > SIZE_MAX / 4 || alignment > SIZE_MAX / 4) return nullptr;
    const unsigned shift = log2_ceil(max_of(max_of(n, alignment), std::size_t{1} << kLeastShift));
    return shift <= kMostShift ? allocate_small(shift, shift) : allocate_mapping(n, alignment);
  }

  /// Bytes of the block at exactly p; 0: no such block.
  static std::size_t usable_size(const void* p) {
    if (SPANALLOC_LIKELY(!may_have(p))) return 0;
    const Slot* slot = find(p);
    if (slot == nullptr) return ProgramHeaps::usable_size(p);
    if (!slot->is_chunk()) return slot->what.load_relaxed();
    const Chunk* chunk = chunk_of(p);
    return chunk->is_out(p) ? chunk->block_bytes() : 0;
  }

  /// False: p is no such block; nothing has changed.
  SPANALLOC_COLD static bool free(void* p) {
    if (!may_have(p)) return false;
    Slot* slot = find(p);
    // In a kernel call the thread may hold a lock of that heap's.
    if (slot == nullptr) return !os::in_kernel_call() && ProgramHeaps::free(p);
    if (slot->is_chunk()) return chunk_of(p)->put(p), true;
    return os::in_kernel_call() ? slot->change(address_of(p), address_of(p) | kKept)
                                : give_back(*slot, address_of(p));
  }

  /// From here on addresses in [first, end) are asked about, where heaps of the program's may be.
  SPANALLOC_COLD static void enter_heaps(std::uintptr_t first, std::uintptr_t end,
                                         const ProgramHeaps::Calls& calls) {
    // In this order: who sees that this was done finds the bounds, and so does a fork's child.
    widen(lowest_, end_, first, end);
    ProgramHeaps::enter(calls);
  }

  /// By a thread in a kernel call: p, from here or from an engine, is freed later.
  SPANALLOC_COLD static void put_off(void* p) {
    if (p == nullptr || free(p)) return;
    // Without memory for the note the block is lost.
    if (void* note = allocate_small(kLeastShift, kOfNotes)) push(static_cast<Note*>(note), p);
  }

  /// By a thread outside of our kernel calls: frees some of the blocks that were put off, by f(p).
  template <class F>
  static void free_put_off(F&& f) {
    if constexpr (!os::kHasKernelCalls) return;
    if (SPANALLOC_LIKELY(note_of(top_.load_relaxed()) == nullptr) || os::in_kernel_call()) return;
    free_put_off(f, PagesConfig::kFreedAtOnce);
  }
  /// Frees as many as are put off now.
  template <class F>
  SPANALLOC_COLD static void free_all_put_off(F&& f) {
    if (!os::in_kernel_call()) free_put_off(f, notes_.load_relaxed());
  }

  /// Gives the kept mappings back. True: there was one.
  SPANALLOC_COLD static bool give_back_kept() {
    bool any = false;
    first_slot([&](Slot& slot) {
      if (const std::uintptr_t kept = slot.kept()) any = give_back(slot, kept | kKept) || any;
      return false;
    });
    return any;
  }

 private:
  // --- Chunks ------------------------------------------------------------------------------------

  static constexpr std::size_t kChunk = 64 * kKiB;
  static constexpr unsigned kLeastShift = 5;
  static constexpr unsigned kMostShift = 13;

  /// The first blocks lie under this header, and count as out for ever.
  struct Chunk {
    std::size_t shift;  // of a block's bytes; constant
    Atomic<std::uint64_t> out[(kChunk >> kLeastShift) / 64];

    std::size_t block_bytes() const { return std::size_t{1} << shift; }
    std::size_t offset(const void* p) const { return address_of(p) - address_of(this); }
    bool is_start(const void* p) const {
      return offset(p) >= sizeof(Chunk) && offset(p) % block_bytes() == 0;
    }
    bool is_out(const void* p) const {
      const std::size_t i = offset(p) >> shift;
      return is_start(p) && (out[i / 64].load_relaxed() & bit(i)) != 0;
    }

    /// In memory that reads as zero.
    void begin(unsigned its_shift) {
      shift = its_shift;
      for (std::size_t i = 0; i < kChunk >> kLeastShift; ++i) {
        const bool is_block = i << shift >= sizeof(Chunk) && i < kChunk >> shift;
        if (!is_block) out[i / 64].store_relaxed(out[i / 64].load_relaxed() | bit(i));
      }
    }
    /// nullptr: none is free. Acquire: the last owner's accesses to the block came before.
    void* take() {
      for (std::size_t i = 0; i < std::size(out); ++i) {
        std::uint64_t word = out[i].load_relaxed();
        while (~word != 0) {
          const std::uint64_t lowest = ~word & (word + 1);
          if (!out[i].compare_exchange_weak_acq_rel(word, word | lowest)) continue;
          return pointer_to(address_of(this) + ((i * 64 + log2_floor(lowest)) << shift));
        }
      }
      return nullptr;
    }
    void put(void* p) {
      if (!is_start(p)) os::fatal("free of a pointer that is not the start of a block:", p);
      const std::size_t i = offset(p) >> shift;
      std::uint64_t word = out[i / 64].load_relaxed();
      do {
        if ((word & bit(i)) == 0) os::fatal("double free of", p);
      } while (!out[i / 64].compare_exchange_weak_acq_rel(word, word & ~bit(i)));
    }

   private:
    static std::uint64_t bit(std::size_t i) { return std::uint64_t{1} << i % 64; }
  };
  static_assert(sizeof(Chunk) < (std::size_t{1} << kMostShift));

  // --- Slots -------------------------------------------------------------------------------------

  // Chunks of notes only: late threads may still read their links.
  static constexpr std::size_t kOfNotes = 0;
  static constexpr std::uintptr_t kNobody = 0;
  static constexpr std::uintptr_t kBusy = 1;
  static constexpr std::uintptr_t kKept = 2;

  struct Slot {
    Atomic<std::uintptr_t> address;  // kNobody, kBusy, or an address, of a kept mapping plus kKept
    // A chunk: block shift or kOfNotes; a mapping: its bytes, a page or more
    Atomic<std::size_t> what;

    /// The address of what is out, or of what is kept; 0: none.
    std::uintptr_t out() const {
      const std::uintptr_t a = address.load_acquire();
      return a > kBusy && (a & kKept) == 0 ? a : 0;
    }
    std::uintptr_t kept() const {
      const std::uintptr_t a = address.load_acquire();
      return (a & kKept) != 0 ? a - kKept : 0;
    }
    bool is_chunk() const { return what.load_relaxed() <= kMostShift; }
    /// False: another thread was first.
    bool change(std::uintptr_t from, std::uintptr_t to) {
      return address.compare_exchange_strong_acq_rel(from, to);
    }
  };

  struct Slots {
    Slot slots[254];
    Atomic<Slots*> next;
  };

  /// Calls f(Slot&) for each slot until it returns true. Returns that slot, or nullptr.
  template <class F>
  static Slot* first_slot(F&& f) {
    for (Slots* some = &first_slots_; some != nullptr; some = some->next.load_acquire()) {
      for (Slot& slot : some->slots) {
        if (f(slot)) return &slot;
      }
    }
    return nullptr;
  }

  static Chunk* chunk_of(const void* p) {
    return pointer_to<Chunk>(align_down(address_of(p), kChunk));
  }
  // The slot of the chunk that p lies in, or of the mapping that is out and begins at p.
  static Slot* find(const void* p) {
    const std::uintptr_t address = address_of(p);
    if (address >= end_of_slots_.load_relaxed() || address < lowest_slot_.load_relaxed())
      return nullptr;
    return first_slot([p](const Slot& slot) {
      const std::uintptr_t out = slot.out();
      return out == address_of(slot.is_chunk() ? chunk_of(p) : p);
    });
  }

  // A busy slot, for the caller. nullptr when memory is out.
  static Slot* take_slot() {
    for (;;) {
      Slot* taken = first_slot([](Slot& slot) {
        return slot.address.load_relaxed() == kNobody && slot.change(kNobody, kBusy);
      });
      if (taken != nullptr || !add_slots()) return taken;
    }
  }
  // Adds slots behind the last ones. A thread that loses the race for that place
  // tries behind the winner's.
  static bool add_slots() {
    auto* fresh = static_cast<Slots*>(os::map_unheard(sizeof(Slots), 1));
    if (fresh == nullptr) return false;
    Slots* last = &first_slots_;
    for (Slots* none = nullptr; !last->next.compare_exchange_strong_acq_rel(none, fresh);
         none = nullptr) {
      last = none;
    }
    return true;
  }

  // Maps memory, makes a block in it (begin(memory)) before others see it, and enters it into a
  // slot. Returns the block; nullptr when memory is out.
  template <class Begin>
  static void* enter(std::size_t bytes, std::size_t alignment, std::size_t what, Begin begin) {
    Slot* slot = take_slot();
    if (slot == nullptr) return nullptr;
    void* memory = os::map_unheard(bytes, alignment);
    if (memory == nullptr) {
      slot->address.store_release(kNobody);
      return nullptr;
    }
    void* block = begin(memory);
    const std::uintptr_t first = address_of(memory);
    // The bounds first: a thread that has a block has seen them.
    widen(lowest_slot_, end_of_slots_, first, first + bytes);
    widen(lowest_, end_, first, first + bytes);
    slot->what.store_relaxed(what);
    slot->address.store_release(first);
    return block;
  }
  static void widen(Atomic<std::uintptr_t>& lowest, Atomic<std::uintptr_t>& end_of,
                    std::uintptr_t first, std::uintptr_t behind) {
    for (std::uintptr_t low = lowest.load_relaxed(); first < low;) {
      if (lowest.compare_exchange_weak_relaxed(low, first)) break;
    }
    for (std::uintptr_t end = end_of.load_relaxed(); behind > end;) {
      if (end_of.compare_exchange_weak_relaxed(end, behind)) break;
    }
  }
  // A quick answer, mostly false for other memory.
  static bool may_have(const void* p) {
    const std::uintptr_t address = address_of(p);
    return address < end_.load_relaxed() && address >= lowest_.load_relaxed();
  }

  // --- Blocks ------------------------------------------------------------------------------------

  // From a chunk whose slot says `what`.
  static void* allocate_small(unsigned shift, std::size_t what) {
    void* block = nullptr;
    first_slot([&](const Slot& slot) {
      const std::uintptr_t chunk = slot.out();
      if (chunk != 0 && slot.what.load_relaxed() == what) block = pointer_to<Chunk>(chunk)->take();
      return block != nullptr;
    });
    if (block != nullptr) return block;
    return enter(kChunk, kChunk, what, [shift](void* memory) {
      auto* chunk = static_cast<Chunk*>(memory);
      chunk->begin(shift);
      return chunk->take();
    });
  }

  static void* allocate_mapping(std::size_t n, std::size_t alignment) {
    const std::size_t bytes = align_up(max_of(n, 1), os::page_size());
    if (void* p = take_kept(bytes, alignment)) return p;
    return enter(bytes, alignment, bytes, [](void* memory) { return memory; });
  }

  // (When the slot is taken it may have another mapping already: so the size is checked again.)
  static void* take_kept(std::size_t bytes, std::size_t alignment) {
    const auto fits = [=](const Slot& slot) {
      const std::size_t has = slot.what.load_relaxed();
      return has >= bytes && has <= 2 * bytes;
    };
    void* taken = nullptr;
    first_slot([&](Slot& slot) {
      const std::uintptr_t kept = slot.kept();
      if (kept == 0 || kept % alignment != 0 || !fits(slot) || !slot.change(kept | kKept, kBusy))
        return false;
      if (fits(slot)) taken = pointer_to(kept);
      slot.address.store_release(taken != nullptr ? kept : kept | kKept);
      return taken != nullptr;
    });
    return taken;
  }
  // Gives back the mapping whose slot says `address`: out, or kept. False: another thread was
  // first. The slot is nobody's only once the mapping is gone: until then no other can have its
  // address.
  static bool give_back(Slot& slot, std::uintptr_t address) {
    if (!slot.change(address, kBusy)) return false;
    os::release(pointer_to(address & ~kKept), slot.what.load_relaxed());
    slot.address.store_release(kNobody);
    return true;
  }

  // --- What was put off: a stack of notes --------------------------------------------------------
  // Their memory is never anything else (sync/treiber_stack.hpp says more).

  /// One block that was put off.
  struct Note {
    Atomic<Note*> next;
    void* block;
  };
  static_assert(sizeof(Note) <= std::size_t{1} << kLeastShift);

  // Addresses have 48 bits; a note's last five bits are 0
  static constexpr unsigned kTagShift = 64 - 21;
  static_assert(kTagShift + kLeastShift >= 48);
  static Note* note_of(std::uint64_t word) {
    return pointer_to<Note>(word << (64 - kTagShift) >> (64 - kTagShift) << kLeastShift);
  }
  static std::uint64_t advance(std::uint64_t old_top, const Note* note) {
    return ((old_top >> kTagShift) + 1) << kTagShift | address_of(note) >> kLeastShift;
  }

  static void push(Note* note, void* block) {
    note->block = block;
    notes_.fetch_add_relaxed(1);
    std::uint64_t top = top_.load_relaxed();
    do {
      note->next.store_relaxed(note_of(top));
      // Release: the next owner sees the note, and the program's last writes to the block.
    } while (!top_.compare_exchange_weak_acq_rel(top, advance(top, note)));
  }
  // Frees so many, or all that there are: others may put off more meanwhile.
  template <class F>
  static void free_put_off(F&& f, std::size_t at_most) {
    for (; at_most != 0; --at_most) {
      void* p = pop();
      if (p == nullptr) return;
      f(p);
    }
  }
  static void* pop() {
    std::uint64_t top = top_.load_acquire();  // acquire: the note
    while (Note* note = note_of(top)) {
      // If others have taken that note off meanwhile, this is another one's link:
      // then the tag has changed.
      if (!top_.compare_exchange_weak_acq_rel(top, advance(top, note->next.load_relaxed())))
        continue;
      notes_.fetch_sub_relaxed(1);
      void* block = note->block;
      (void)free(note);
      return block;
    }
    return nullptr;
  }

  static inline constinit Slots first_slots_{};
  // All slots' memory, and that of the program's heaps
  static inline constinit Atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  static inline constinit Atomic<std::uintptr_t> end_{0};
  // The slots' alone: without it every question about a heap would look through them
  static inline constinit Atomic<std::uintptr_t> lowest_slot_{UINTPTR_MAX};
  static inline constinit Atomic<std::uintptr_t> end_of_slots_{0};
  static inline constinit Atomic<std::uint64_t> top_{0};  // {tag:21, note's address >> 5}
  static inline constinit Atomic<std::size_t> notes_{0};  // at least as many as there are
};

}  // namespace spanalloc
