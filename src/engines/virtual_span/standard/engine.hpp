// The product's engine: the short paths of malloc and free, and what an engine offers (engines/engine.hpp).
//
//   allocate ------- hit: pop the hot list of the class (thread-local)
//       | miss: allocate_missed
//       +-> allocate_slow ---- hit: pop the hot list of a larger class (in the LAB)
//             | else
//             +-> allocate_class -> pop (last block of a list) -> refill -> hot span's reserve list,
//                   untouched blocks, remote list | else hot -> parked, and a new hot span: settle what
//                   others pointed out, own reusable spans, orphans, Heap::take_span
//
//   deallocate ----- hit: push on the hot list of the class, if the block lies in its hot span
//       | miss: deallocate_missed
//       +-> deallocate_elsewhere: spans of one granule, by the record
//             | or, for all others, deallocate_by_record (null, or fatal: deallocate_outside_spans)
//             |---> deallocate_parked, own parked span: push on its list, count; at its floor: settle_parked
//             +-> deallocate_unparked
//                   |---> own hot span whose list is empty or in the LAB, or whose hint was lost: push_hot
//                   +---> deallocate_remote: another thread's span, or another heap's: gather while the same
//                           span is hit, then SpanProtocol::free_remote for the run
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

#include "base/bits.hpp"
#include "base/poison.hpp"
#include "engines/engine.hpp"
#include "engines/virtual_span/standard/config.hpp"
#include "engines/virtual_span/standard/fork_recovery.hpp"
#include "engines/virtual_span/standard/heap.hpp"
#include "engines/virtual_span/standard/span_census.hpp"
#include "engines/virtual_span/standard/thread_state.hpp"
#include "os/os.hpp"

namespace spanalloc {

namespace standard {

template <class Config>
class Census;

/// What one thread does in one heap. Its own thread calls it, nobody else.
template <class Config>
class Frontend : public ThreadState<Config> {
  using State = ThreadState<Config>;
  using Classes = SizeClasses<Config>;
  using Heap = standard::Heap<Config>;
  using Lab = standard::Lab<Config>;
  using Inside = InsideHeap<Config>;
  using Reuse = typename Heap::Reuse;
  static constexpr std::size_t kGranule = Classes::kGranule;

 public:
  using State::exited, State::exit_round, State::head, State::heap, State::hint, State::hot_identity,
      State::is_hot_here, State::is_parked_here, State::lab, State::pages, State::run, State::start;
  using State::State;

  // --- Short paths -----------------------------------------------------------------------------------------

  /// Any n.
  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE void* allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > kMaxInThread<Config>)) return allocate_missed<Policy>(n, *this);
    const std::size_t c = kThreadClassOf<Config>[n];  // of 0: class 0, whose list is always empty
    Block* block = head[c];
    keep_in_result_register(block);
    const std::uint64_t link = link_of(block);
    // The list's last block, no block at all, a block that was handed out already, or a link that the program
    // has overwritten.
    if (SPANALLOC_UNLIKELY(!leads_to_block(link, kGranule))) return allocate_missed<Policy>(n, *this);
    head[c] = block_behind(block, link);
    clear_link(block);
    unpoison(block, Classes::kTable[c].block_size);
    return block;
  }

  SPANALLOC_INLINE void deallocate(void* p) {
    const std::uintptr_t a = address_of(p);
    const std::size_t c = hint[(a >> Config::kGranuleBits) & 0xff];
    // Too large: p lies in another page than the list's first block, or the list is empty. Zero: p is that
    // block.
    const std::uint64_t link = address_of(head[c]) ^ a;
    if (SPANALLOC_UNLIKELY(link - 1 >= kGranule - 1)) return deallocate_missed(p, *this);
    const auto offset = static_cast<std::uint32_t>(a & (kGranule - 1));
    if (SPANALLOC_UNLIKELY(offset * start[c].magic >= start[c].limit)) {
      return deallocate_missed(p, *this);  // no block's start
    }
    Block* block = static_cast<Block*>(p);
    set_link(block, link);
    head[c] = block;
    poison(block + 1, Classes::kTable[c].block_size - sizeof(Block));
  }

  // --- What else an engine offers; see engines/engine.hpp --------------------------------------------------

  void* allocate_aligned(std::size_t n, std::size_t alignment);
  void* allocate_zeroed(std::size_t n);
  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes);
  std::size_t usable_size(const void* p);
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n);
  bool owns(const void* p);
  /// Gives back what this thread and the pools hold without need.
  bool trim();

  // --- The thread's beginning and end ----------------------------------------------------------------------

  /// Takes a LAB. False: there is none, or no memory for it.
  bool attach();
  /// The same with a LAB that was taken already. False: the thread's end cannot be watched.
  bool adopt(Lab* fresh);
  void detach();
  void thread_exit();
  /// What a thread's end calls (thread::ExitKey): `state` is a Frontend.
  static void on_thread_exit(void* state);

 private:
  friend class Census<Config>;

  // Where a miss goes. The argument comes first, in the register that the short path has got it in: so no
  // path moves it.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_missed(std::size_t n, Frontend& self) {
    return self.template allocate_slow<Policy>(n);
  }
  [[gnu::noinline]] static void deallocate_missed(void* p, Frontend& self) { deallocate_elsewhere(p, self); }

  template <class Policy>
  void* allocate_slow(std::size_t n);
  /// Blocks of class c. nullptr when memory is out.
  void* allocate_class(ClassId c);

  static void deallocate_elsewhere(void* p, Frontend& self);
  static void deallocate_by_record(void* p, Frontend& self);
  static void deallocate_parked(void* p, Frontend& self, SpanRef span, SpanWord word);
  static void deallocate_unparked(void* p, Frontend& self, SpanRef span, SpanWord word);
  static void settle_parked(void* p, Frontend& self, SpanRef span);
  void deallocate_remote(SpanRef span, SpanWord word, void* p);
  void gather(SpanRef span, SpanWord word, Block* block);
  void publish_run(SpanRef span, Block* newest, Block* oldest, std::uint32_t count);
  /// Gives back what this thread has gathered of another thread's blocks.
  void flush_run();
  void flush_run_if_any() {
    if (run.count != 0) flush_run();
  }
  void push_hot(SpanRef span, Block* block);
  SPANALLOC_COLD [[noreturn]] static void freed_twice(const void* p) { os::fatal("double free of", p); }
  /// A block is given back that has a link where the program's first word is: almost surely it is on a list.
  static bool looks_free(const Block* block) {
    return SPANALLOC_UNLIKELY(may_be_link(link_of(block), kMostSpan));
  }
  static void deallocate_suspect(void* p, Frontend& self, SpanRef span);

  /// Where an address lies; the one look-up of everything but the short paths. Relaxed: as long as the
  /// caller's block is out, what is read here (owner me or not me, class) stands still.
  struct Location {
    SpanRef span;           ///< of the granule that it lies in
    SpanWord word{};        ///< the span's, if there is one
    bool in_span = false;   ///< in a granule of a span in use
    bool is_block = false;  ///< at the start of one of its blocks that has been carved
    bool has_record() const { return span.record != nullptr; }  ///< false: in no granule that has one
    ClassId size_class() const { return span->class_id(); }
  };
  Location locate(const void* p);
  /// Whether `a` is the start of a block of the span.
  bool is_start(std::uintptr_t a, SpanRef span);
  // Of the span that a block of the class lies in: spans of several blocks are aligned.
  static Block* end_behind(const Block* b, const ClassInfo& info) {
    return end_of_list(pointer_to<char>(align_down(address_of(b), info.virtual_span)));
  }
  std::uint64_t offset_in(SpanRef span, const void* p) const {
    return address_of(p) - address_of(pages->address(span.number));
  }

  /// What somebody wanted to do with an address that is no block's, and where it lies instead: in a live
  /// block (or between blocks of one span); where a live span has never had a block; in memory that was a
  /// block's and is free; in memory that is free and was never a block's beginning; in none that the arena
  /// gives out now.
  enum class Misuse { kFree, kAskSize };
  enum class Where { kInsideBlock, kUntouched, kFreedBlock, kFreeMemory, kNoMemory };
  [[noreturn]] void bad_pointer(const void* p, Misuse misuse);
  Where where_is(const void* p);
  bool is_untouched(std::uintptr_t a, SpanRef span);
  bool is_newest_free(const void* p, const Location& at);
  static void deallocate_outside_spans(void* p);

  // The LAB of this thread; with none to be had, nullptr.
  Lab* lab_of_thread() { return SPANALLOC_LIKELY(lab != nullptr) || attach() ? lab : nullptr; }
  void detach_if_exited() {
    if (SPANALLOC_UNLIKELY(exited) && lab != nullptr) detach();
  }
  unsigned core() const { return heap->core_of(lab); }

  Block*& head_of(ClassId c) {
    const std::uint32_t i = index_of(c);
    return i < State::kLists ? head[i] : lab->head[i - State::kLists];
  }
  static GranuleCount granules_for(std::size_t bytes) {
    return {(bytes + kGranule - 1) >> Config::kGranuleBits};
  }
  // What the program may use of a block of that class in that span.
  std::size_t block_bytes(ClassId c, SpanRef span) {
    return c == Classes::kLarge ? pages->granules_of(span).count << Config::kGranuleBits
                                : Classes::info(c).block_size;
  }

  /// fill(p, zero) writes what the block at p begins with; zero: it reads as zero.
  template <class Fill>
  void* allocate_filled(std::size_t n, Fill fill);
  template <class Fill>
  void* allocate_large(std::size_t n, std::size_t alignment, Fill fill);
  template <class Fill>
  void* allocate_single(ClassId c, Fill fill);
  template <class Fill>
  void* hand_out(const FreshSpan& fresh, ClassId c, std::size_t bytes, Fill fill);
  struct LeaveUnfilled {
    void operator()(void*, bool) const {}
  };
  void* resize_single(SpanRef span, std::size_t n, GranuleCount old);
  /// Of a pointer that must be a live block's.
  Location locate_live(const void* p);
  void* allocate_listed(ClassId c);
  /// A block, and whether it reads as zero.
  struct MaybeZero {
    void* block;
    bool zero;
  };
  MaybeZero allocate_listed_page(ClassId c);
  enum class Refilled { kNothing, kBlocks, kZeroBlocks };
  Refilled refill(ClassId c);
  Refilled take_own_blocks(ClassId c, SpanRef span);
  void top_up(ClassId c);
  Block* carve(SpanRef span, ClassId c);
  HotSpan find_span(ClassId c);
  void make_hot(ClassId c, SpanRef span);
  void let_carved_blocks_pass(SpanRef span, ClassId c);
  void leave_hot(ClassId c);
  void park(SpanRef span, std::uint32_t free_blocks);
  std::uint32_t gather_free_blocks(ClassId c, SpanRef span);
  bool retire_hot_if_empty(ClassId c);
  Block* pop(Block*& list, const ClassInfo& info);
  bool is_listed(SpanRef span, const Block* block);
  [[noreturn]] static void broken_list(const Block* block);
  static ListLength length_of_own_list(Block* list, const ClassInfo& info, std::uint32_t most);
  static Block* check_length(Block* list, const ClassInfo& info, std::uint32_t expected);
};

}  // namespace standard

/// The engine over a config; its state is the default heap of that config, on a page layer of its own.
template <class Config>
class StandardEngineOf {
  using Pages = standard::PageLayer<Config>;
  using Heap = standard::Heap<Config>;
  using Frontend = standard::Frontend<Config>;
  static_assert(standard::classes_hold<Config>());
  static_assert(standard::SizeClasses<Config>::kGranule << Config::kMaxOrder <= standard::kMostSpan);

 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
    return frontend.template allocate<Policy>(n);
  }
  SPANALLOC_INLINE static void deallocate(void* p) { frontend.deallocate(p); }
  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return frontend.allocate_aligned(n, alignment);
  }
  static void* allocate_zeroed(std::size_t n) { return frontend.allocate_zeroed(n); }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return frontend.allocate_copy(n, from, bytes);
  }
  static std::size_t usable_size(const void* p) { return frontend.usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    return frontend.template resize<Policy>(p, n);
  }
  static bool owns(const void* p) { return frontend.owns(p); }
  static bool trim() { return frontend.trim(); }
  static EngineStatistics statistics() { return standard::Census<Config>(heap).statistics(); }
  static SpanCensus census() { return standard::Census<Config>(heap).take(frontend); }

  static void process_start() {
    heap.exit_key.prepare(heap.on_thread_exit);
    heap.start();
  }

  // The default heap, what it stands on, and what the calling thread keeps for it.
  static inline constinit Pages pages{&standard::ForkRecovery<Config>::enter_child};
  static inline constinit Heap heap{pages, &Frontend::on_thread_exit};
  SPANALLOC_TLS static inline constinit thread_local Frontend frontend{heap, pages};
  // Thread-local storage of ours besides: 8 bytes of inside_without_lab, 4 of sync/spin_lock.hpp, 1 of
  // os::thread_mark(). (check_library.py adds up what the linker has made of them.)
  static_assert(sizeof(Frontend) + 8 + 4 + 1 <= 1024);
};

using StandardEngine = StandardEngineOf<Standard>;

}  // namespace spanalloc

#include "engines/virtual_span/standard/census.hpp"
#include "engines/virtual_span/standard/frontend_allocate.hpp"
#include "engines/virtual_span/standard/frontend_free.hpp"
#include "engines/virtual_span/standard/frontend_misuse.hpp"
#include "engines/virtual_span/standard/frontend_resize.hpp"
#include "engines/virtual_span/standard/frontend_thread.hpp"

namespace spanalloc {
static_assert(Engine<StandardEngine>);
}
