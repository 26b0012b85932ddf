// The constant-time frontend: what malloc and free run through.
//
//   allocate ------- hit: pop the hot list of the class (thread-local)
//       | miss
//       +-> allocate_slow ---- hit: pop the hot list of a larger class (in the LAB)
//             | else
//             +-> allocate_class -> pop (last block of a list) -> refill -> hot span's reserve list,
//                   untouched blocks, remote list | else hot -> parked, and a new hot span: settle what
//                   others pointed out, own reusable spans, orphans, Heap::take_span
//
//   deallocate ----- hit: push on the hot list of the class, if the block lies in its hot span
//       | else
//       +-> deallocate_elsewhere ---- own hot span whose list is in the LAB or whose hint was lost: push
//             |    (spans of one granule)
//             |---> own parked span: push on its list, count; at its floor: an event
//             |---> deallocate_remote: another thread's span: gather while the same span is hit, then
//             |       SpanProtocol::free_remote for the run
//             | else
//             +-> deallocate_by_record: the same for spans of several granules and of one block
//                     +-> deallocate_outside_spans: null, or fatal
//
// How a free finds the hot list without looking at the span's record: `hint` maps the low byte of the page
// number (address >> 16) to a class. It is only a guess, set when a span becomes hot; the guess is believed
// if the first block of that class's hot list lies in this very page: lists hold blocks of the hot span only.
// That comparison is also the check that the pointer lies in memory of ours; one multiplication checks that
// it is a block's start. An empty list, or a hint lost to another hot span whose page number ends in the same
// byte, costs the detour over the record, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/engine.hpp"
#include "engines/virtual_span/standard/heap.hpp"
#include "engines/virtual_span/standard/thread_state.hpp"
#include "os/os.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

class Frontend {
  using Protocol = Heap::Protocol;

 public:
  /// Any n.
  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > kMaxInThread)) return allocate_slow<Policy>(n);
    const std::size_t c = kThreadClassOf[n];  // of 0: class 0, whose list is always empty
    ThreadState& t = thread_state;
    Block* block = t.head[c];
    keep_in_result_register(block);
    const std::uint64_t link = block->link;
    // Too large: the list's last block, no block at all, or a link that the program has overwritten. Zero: a
    // block that follows itself; an overwritten link again.
    if (SPANALLOC_UNLIKELY(link - 1 >= kGranule - 1)) return allocate_slow<Policy>(n);
    t.head[c] = pointer_to<Block>(address_of(block) ^ link);
    unpoison(block, kClassTable[c].block_size);
    return block;
  }

  SPANALLOC_INLINE static void deallocate(void* p) {
    const std::uintptr_t a = address_of(p);
    ThreadState& t = thread_state;
    const std::size_t c = t.hint[(a >> kGranuleBits) & 0xff];
    // Too large: p lies in another page than the list's first block, or the list is empty. Zero: p is that
    // block.
    const std::uint64_t link = address_of(t.head[c]) ^ a;
    if (SPANALLOC_UNLIKELY(link - 1 >= kGranule - 1)) return deallocate_elsewhere(p);
    const auto offset = static_cast<std::uint32_t>(a & (kGranule - 1));
    if (SPANALLOC_UNLIKELY(offset * t.start[c].magic >= t.start[c].limit)) {
      return deallocate_elsewhere(p);  // no block's start
    }
    Block* block = static_cast<Block*>(p);
    block->link = link;
    t.head[c] = block;
    poison(block + 1, kClassTable[c].block_size - sizeof(Block));
  }

  /// Blocks of class c. nullptr when memory is out.
  static void* allocate_class(unsigned c);
  static void* allocate_aligned(std::size_t n, std::size_t alignment);
  static void* allocate_zeroed(std::size_t n);
  /// A block of n bytes that begins with the first `bytes` (at most n) of `from`.
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes);
  static std::size_t usable_size(const void* p);
  static void* resize(void* p, std::size_t n);
  static bool owns(const void* p);
  /// Gives back what this thread and the pools hold without need.
  static bool trim();
  static void thread_exit();
  static void prepare_thread_exits() { exit_key_.prepare(&on_thread_exit); }

 private:
  friend struct Census;

  template <class Policy>
  static void* allocate_slow(std::size_t n);

  static void deallocate_elsewhere(void* p);
  static void deallocate_in_span(Span& span, std::uint32_t number, SpanWord word, void* p);
  static void deallocate_remote(Span& span, std::uint32_t number, void* p);
  static void gather(std::uint32_t number, SpanWord word, Block* block);
  static void publish_run(std::uint32_t number, Block* newest, Block* oldest, std::uint32_t count);
  /// Gives back what this thread has gathered of another thread's blocks.
  static void flush_run();
  static void deallocate_by_record(void* p);
  static void push_hot(Block*& head, Block* block, unsigned c);
  SPANALLOC_COLD [[noreturn]] static void freed_twice(const void* p) { os::fatal("double free of", p); }

  /// What somebody wanted to do with an address that is no block's, and where it lies instead: in a live
  /// block (or between blocks of one span); where a live span has never had a block; in memory that was a
  /// block's and is free; in memory that is free and was never a block's beginning; in none that the arena
  /// gives out now.
  enum class Deed { kFree, kAskSize };
  enum class Place { kInsideBlock, kUntouched, kFreedBlock, kFreeMemory, kNoMemory };
  [[noreturn]] static void bad_pointer(const void* p, Deed deed);
  static Place place_of(std::uintptr_t a);
  static bool is_untouched(std::uintptr_t a, std::uint32_t number, const Span& span);
  static bool is_newest_free(const void* p, std::uint32_t number, SpanWord word);
  static void deallocate_outside_spans(void* p);

  // The LAB of this thread; with none to be had, nullptr.
  static Lab* lab_of_thread() {
    Lab* lab = thread_state.lab;
    return SPANALLOC_LIKELY(lab != nullptr) ? lab : attach();
  }
  static Lab* attach();
  static void on_thread_exit(void* state);
  static void detach(Lab* lab);

  static Block*& head_of(Lab* lab, unsigned c) {
    return c <= kThreadClasses ? thread_state.head[c] : head_of_lab(lab, c);
  }
  static Block*& head_of_lab(Lab* lab, unsigned c) { return lab->head[c - kThreadClasses - 1]; }
  static std::size_t granules_for(std::size_t bytes) { return (bytes + kGranule - 1) >> kGranuleBits; }
  // What the program may use of a block of span `number`, of class c.
  static std::size_t block_bytes(unsigned c, std::uint32_t number) {
    return c == kLargeClass ? Heap::granules_of(number) << kGranuleBits : kClassTable[c].block_size;
  }

  /// fill(p, zero) writes what the block at p begins with; zero: it reads as zero.
  template <class Fill>
  static void* allocate_filled(std::size_t n, Fill fill);
  template <class Fill>
  static void* allocate_large(std::size_t n, std::size_t alignment, Fill fill);
  template <class Fill>
  static void* allocate_single(unsigned c, unsigned core, Fill fill);
  template <class Fill>
  static void* hand_out(std::uint32_t number, unsigned c, std::size_t bytes, Fill fill);
  static void as_it_is(void*, bool) {}
  static void* resize_single(std::uint32_t number, std::size_t n);
  static void* allocate_listed(Lab* lab, unsigned c);
  static void* allocate_listed_page(Lab* lab, unsigned c, bool& zero);
  static bool refill(Lab* lab, unsigned c, bool& zero);
  static void carve(Span& span, std::uint32_t number, unsigned c, Block*& head);
  static std::uint32_t find_span(Lab* lab, unsigned c, Block*& head);
  static void make_hot(Lab* lab, unsigned c, std::uint32_t number);
  static void let_carved_blocks_pass(Span& span, unsigned c);
  static void leave_hot(Lab* lab, unsigned c);
  static std::uint32_t gather_free_blocks(Lab* lab, unsigned c, Span& span);
  static bool retire_hot_if_empty(Lab* lab, unsigned c);
  static void check_listed(std::uint64_t link, const Block* block, unsigned c);
  /// Whether `a` is the start of a block of the span.
  static bool is_start(std::uintptr_t a, std::uint32_t number, unsigned c);

  static inline constinit thread::ExitKey exit_key_;
};

}  // namespace spanalloc::standard

#include "engines/virtual_span/standard/frontend_allocate.hpp"
#include "engines/virtual_span/standard/frontend_free.hpp"
#include "engines/virtual_span/standard/frontend_misuse.hpp"
#include "engines/virtual_span/standard/frontend_resize.hpp"
#include "engines/virtual_span/standard/frontend_thread.hpp"
