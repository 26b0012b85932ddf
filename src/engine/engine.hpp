// What every engine offers to api/, which builds the whole malloc family on it once for all
// engines.
//
// An engine is a type with static functions over its default heap, the one that a library has;
// two types are two heaps. (Further heaps are objects of the engine's, with the same functions.)
// Engines know blocks, not the C library's rules: they neither read nor set errno (every
// function leaves it as it was).
//
// A request goes down once: the engine's short path, its slow path, and when memory is out its
// caller's word for that, which the slow path calls last of all: OutOfMemory below.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace spanalloc {

/// The largest size anyone can have: differences of pointers into a block must fit ptrdiff_t.
inline constexpr std::size_t kMaxRequest = PTRDIFF_MAX;

/// What becomes of a request for n bytes that there is no memory for. The engine returns what it
/// returns, and holds nothing while it calls it: it may throw, and may call the engine again.
template <class P>
concept OutOfMemory = requires(std::size_t n) {
  { P::out_of_memory(n) } -> std::same_as<void*>;
};

struct ReturnNull {
  static void* out_of_memory(std::size_t) noexcept { return nullptr; }
};

/// What resize() has found and done.
struct Resized {
  void* block = nullptr;   ///< where the block is now; nullptr: as it was, and where it was
  std::size_t usable = 0;  ///< bytes that the caller could use of it before
};

/// Whether a block of `usable` bytes that shall hold n stays as it is, before its engine
/// tries to take the rest back.
template <class P>
concept LeavesAlone = requires(std::size_t n, std::size_t usable) {
  { P::leaves_alone(n, usable) } -> std::same_as<bool>;
};

struct TakeAllBack {
  static constexpr bool leaves_alone(std::size_t, std::size_t) { return false; }
};

/// What a field of the statistics holds that an engine cannot fill.
inline constexpr std::size_t kNotTold = SIZE_MAX;

/// A snapshot of an engine's books, summed without stopping the world: each field is exact at some
/// instant, together they are an estimate. docs/statistics.md says what each counts;
/// api/figures.hpp has their names. (Same layout as sp_statistics: only added to, at the end.)
struct EngineStatistics {
  std::size_t reserved_bytes = 0;      ///< address space held
  std::size_t opened_bytes = 0;        ///< readable and writable address space
  std::size_t small_bytes_carved = 0;  ///< bytes of real spans in use, with the free blocks in them
  /// Bytes of free spans; an engine that merges: of free memory
  std::size_t pooled_bytes = 0;
  std::size_t large_bytes = 0;  ///< bytes of objects above the largest class
  std::size_t large_objects = 0;
  std::size_t live_threads = 0;  ///< that use the heap
  std::size_t spans_lost_to_fork = 0;

  // Blocks of the size classes. Each is live, free, or one of which only a thread knows.
  std::size_t live_bytes = kNotTold;
  std::size_t live_blocks = kNotTold;
  std::size_t free_bytes = kNotTold;
  std::size_t free_blocks = kNotTold;
  std::size_t unsure_bytes = kNotTold;
  std::size_t unsure_blocks = kNotTold;
  // Of what is free: what threads keep for themselves,
  std::size_t kept_block_bytes = kNotTold;  ///< free blocks, part of free_bytes
  std::size_t kept_span_bytes = kNotTold;   ///< free spans, part of pooled_bytes
  // and where the rest of pooled_bytes is.
  std::size_t pool_bytes = kNotTold;   ///< free spans that wait for reuse
  std::size_t dirty_bytes = kNotTold;  ///< free, may be in memory, and goes back with time
  std::size_t clean_bytes = kNotTold;  ///< free, readable, and not in memory
  // What the kernel has had back besides.
  std::size_t purged_part_bytes = kNotTold;  ///< pages of spans in use
  std::size_t decommitted_bytes = kNotTold;  ///< addresses, too; no part of opened_bytes
  std::size_t metadata_bytes = kNotTold;     ///< readable bytes of the engine's own tables
  std::size_t resident_bytes = kNotTold;     ///< in memory, if the kernel was asked
  // Events since the start.
  std::size_t growths = kNotTold;
  std::size_t purges = kNotTold;
  std::size_t purged_bytes = kNotTold;
  std::size_t decay_epochs = kNotTold;
  std::size_t trims = kNotTold;
  // First-class heaps, which are no engine's: api/figures.hpp fills these in.
  std::size_t heaps = kNotTold;
  std::size_t heaps_taken_bytes = kNotTold;
  std::size_t heaps_kept_bytes = kNotTold;  ///< given back by heaps, and may be in memory
};

/// A size class, as far as an engine tells: its blocks are live, free, or one of which only a
/// thread knows. Equation: blocks = live + free + unsure.
struct ClassFigures {
  std::size_t block_bytes = 0;
  std::size_t span_bytes = 0;  ///< of address space, for each span
  std::size_t spans = 0;       ///< in use
  std::size_t blocks = 0;
  std::size_t carved_blocks = 0;  ///< that were ever handed out or listed
  std::size_t live_blocks = 0;
  std::size_t free_blocks = 0;
  std::size_t unsure_blocks = 0;
};

/// A thread that uses the heap.
struct ThreadFigures {
  std::size_t spans = 0;  ///< that it allocates from, or has just used up
  std::size_t span_bytes = 0;
  std::size_t live_bytes = 0;    ///< in these
  std::size_t unsure_bytes = 0;  ///< in these: live or free
  std::size_t kept_block_bytes = 0;
  std::size_t kept_span_bytes = 0;
  std::uintptr_t mark = 0;  ///< os::thread_id()
};

/// What a type must offer to be an engine. All functions: any thread, any time, also before main.
template <class E>
concept Engine = requires(void* p, const void* cp, std::size_t n, std::size_t a) {
  { E::kName } -> std::convertible_to<const char*>;
  // Any n; n == 0 gives a unique block; above kMaxRequest there is no memory.
  // At least 16-byte aligned.
  { E::template allocate<ReturnNull>(n) } -> std::same_as<void*>;
  // The others return nullptr when memory is out. n + a <= kMaxRequest; a: a power of two.
  { E::allocate_aligned(n, a) } -> std::same_as<void*>;
  // The first n bytes read as zero. n <= kMaxRequest, here and below.
  { E::allocate_zeroed(n) } -> std::same_as<void*>;
  // A block of n bytes that begins with the first a <= n bytes at cp. (An engine may make the block
  // one in use only when it is complete, so that a fork meanwhile does not leave it behind.)
  { E::allocate_copy(n, cp, a) } -> std::same_as<void*>;
  // p: nullptr (ignored) or a block of this heap; anything else ends the process
  // with one line on stderr. (A library's engine names its callers: allocate()'s policy and a
  // parameter of this one may be operators, which operators.hpp says more about.)
  { E::deallocate(p) };
  // Bytes the caller may use from p (>= what was asked); same rules for p, except nullptr gives 0.
  { E::usable_size(cp) } -> std::same_as<std::size_t>;
  // p: as for usable_size(), but no nullptr. n > 0. Tries to make the block n bytes large without
  // copying its contents by hand (in place, or by remapping pages).
  { E::template resize<TakeAllBack>(p, n) } -> std::same_as<Resized>;
  // True if p points into a span in use, or is the start of a large object, of this heap.
  { E::owns(cp) } -> std::same_as<bool>;
  // Returns what can be returned to the kernel; true if anything was.
  { E::trim() } -> std::same_as<bool>;
  { E::statistics() } -> std::same_as<EngineStatistics>;
  // Once, from a constructor of the library, before or after the first allocation:
  // registers fork handlers.
  { E::process_start() };
};

/// An engine may count more than statistics(), in one go. take_inventory() gives an object with
/// `totals` (EngineStatistics), for_each_class(f(const ClassFigures&)) for classes that have
/// memory, and, where it tells of threads, for_each_thread(f(const ThreadFigures&)). f is called
/// without a lock held.
template <class E>
concept TakesInventory = requires {
  { E::take_inventory().totals } -> std::convertible_to<EngineStatistics>;
};
/// Whether an engine can ask the kernel how much of its memory is in memory: bytes.
template <class E>
concept TellsResident = requires {
  { E::resident_bytes() } -> std::same_as<std::size_t>;
};
/// An engine may have a soft limit: near it, it gives free memory back at once, keeps none, and
/// calls the program's function. All functions: any thread, any time.
template <class E>
concept HasSoftLimit =
    requires(std::size_t bytes, void (*f)(void*, std::size_t, std::size_t), void* context) {
      // Bytes; 0: no limit; kLimitOfGroup: what the process's control group has left, which can be
      // read.
      { E::set_soft_limit(bytes) };
      { E::kLimitOfGroup } -> std::convertible_to<std::size_t>;
      // How much may be held now; 0: there is no limit.
      { E::soft_limit() } -> std::same_as<std::size_t>;
      // Whether what is held is near it.
      { E::is_near_soft_limit() } -> std::same_as<bool>;
      // f(context, held, limit) is called when what is held has come near; nullptr: nothing is.
      { E::on_soft_limit(f, context) };
    };

/// An engine may tell more for malloc_info. describe(bin, folios), without a lock held, calls for
/// each bin that has memory bin(bytes of an object, bytes of a folio, committed bytes, objects in
/// caches), where 0 bytes of a folio say that it has none; then folios(free objects, such folios)
/// for each number that some of its folios have free.
template <class E>
concept DescribesBins = requires(void (*bin)(std::size_t, std::size_t, std::size_t, std::size_t),
                                 void (*folios)(std::size_t, std::size_t)) {
  { E::describe(bin, folios) };
};

}  // namespace spanalloc
