// A heap of a program's own: shards, a limit, and a name.
//
// The heap stands at the beginning of its first run, its home, with its first shard behind it: to
// make one takes a run of one slice, and touches a page or two. Its end gives back its runs, one
// after the other, and looks at no block.
//
// Its name, which the program has, is the home's address with a number in the lower 16 bits that
// each heap gets anew. So the name of a heap that was destroyed is known to be none, also where
// another heap stands now, until 65,536 more were made.
//
// A heap begins with one shard. Threads spread over shards by their identity; who finds a lock
// taken tries the others, and when that happens often the heap gets twice as many, up to the number
// of CPUs. A block is freed into the shard that it is from, whichever thread frees it.
#pragma once

#include <string.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "heaps/block.hpp"
#include "heaps/config.hpp"
#include "heaps/runs.hpp"
#include "heaps/shard.hpp"
#include "os/os.hpp"
#include "pages/program_heaps.hpp"

namespace spanalloc::heaps {

/// All functions but destroy() and reset() may be called by any thread at any time. None sets
/// errno.
class Heap {
 public:
  /// nullptr: memory is out. `limit`: bytes of runs, the home among them. `name`: for people;
  /// nullptr: none. Of a longer one the characters (UTF-8) that there is room for.
  SPANALLOC_COLD static Heap* create(std::size_t limit, const char* name = nullptr) {
    // (In a kernel call the thread may hold any of the locks that this takes.)
    if (os::in_kernel_call() || !runs.start()) return nullptr;
    const Inside inside;
    const Runs::Taken home = runs.take(1, 1);
    if (home.first == 0) return nullptr;
    auto* const heap = ::new (runs.address(home.first)) Heap;
    heap->core_.home = home.first;
    heap->core_.limit = limit;
    heap->core_.taken.store_relaxed(Runs::kSlice);
    if (name != nullptr) heap->take_name(name);
    heap->key_ = new_key();
    heap->first_.start(heap->core_, heap->key_, home.first, sizeof(Heap), home.zero);
    const std::uint64_t number = runs.next_number() % kNumbers;
    heap->core_.handle.store_relaxed(address_of(heap) | number);
    // From here on statistics see it: all of it was made.
    heap->first_.attach_home();
    return heap;
  }

  std::uint64_t name() const { return core_.handle.load_relaxed(); }
  /// The heap of that name; nullptr: there is none.
  SPANALLOC_INLINE static Heap* named(std::uint64_t name) {
    auto* const heap = pointer_to<Heap>(align_down(name, kNumbers));
    // (The record first: what begins there may be a block, with whatever the program has written.)
    return SPANALLOC_LIKELY(runs.contains(heap) && runs.is_home(slice_of(heap)) &&
                            heap->name() == name)
               ? heap
               : nullptr;
  }
  /// Whether the run is this heap's.
  bool has(Slice run) const { return runs[run].heap.load_relaxed() == core_.home; }

  // --- Blocks ------------------------------------------------------------------------------------

  /// n bytes at a multiple of 16. None: memory is out, or the limit is reached; as for the others.
  [[gnu::noinline]] Allocated allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > HeapsConfig::kMostShared)) return allocate_large(n, 1);
    const std::size_t bytes = block_bytes(n);
    Shard* const shard = lock_any();
    const Allocated got = shard->allocate(bytes);
    shard->unlock();
    return SPANALLOC_LIKELY(got.p != nullptr) ? got : grow(*shard, bytes);
  }
  /// `alignment`: a power of two; n + alignment <= PTRDIFF_MAX.
  SPANALLOC_COLD Allocated allocate_aligned(std::size_t n, std::size_t alignment) {
    if (alignment <= kGranule) return allocate(n);
    const std::size_t roomy = n + alignment + kLeastBlock;
    if (roomy > HeapsConfig::kMostShared) return allocate_large(max_of(n, 1), alignment);
    const Allocated got = allocate(roomy);
    if (got.p == nullptr) return got;
    Shard& shard = shard_of(runs.run_at(got.p));
    shard.lock_quickly();
    void* const p = shard.align(got.p, alignment, block_bytes(n));
    shard.unlock();
    return {p, got.zero && p == got.p};
  }

  /// Of a block of any heap, in that run, or of what is none there: then it reports so.
  [[gnu::noinline]] static void free(void* p, Slice run) {
    const std::uint64_t owner = runs[run].owner.load_relaxed();
    Shard& shard = *pointer_to<Shard>(owner & ~Run::kKinds);
    if (SPANALLOC_UNLIKELY((owner & Run::kLarge) != 0)) return free_large(shard, p, run);
    check_place(p, run);
    shard.lock_quickly();
    const Slice empty = shard.free(Block::of(p), run);
    shard.unlock();
    if (SPANALLOC_UNLIKELY(empty != 0)) shard.core().give_detached(empty);
  }

  /// Bytes of the block at exactly p; 0: none is there.
  static std::size_t usable_size(const void* p, Slice run) {
    // (Another thread may just have given back what the caller only asks about.)
    const std::uint64_t owner = runs[run].owner.load_relaxed();
    if (owner == 0 || !may_be_block(p, run)) return 0;
    return pointer_to<Shard>(owner & ~Run::kKinds)->usable_size(p, run);
  }

  /// Makes the block n bytes large in its own heap. nullptr: no room; it is as it was.
  SPANALLOC_COLD static void* resize(void* p, Slice run, std::size_t n) {
    const std::uint64_t owner = runs[run].owner.load_relaxed();
    const bool is_large = (owner & Run::kLarge) != 0;
    if (!is_large) check_place(p, run);
    Shard& shard = shard_of(run);
    // A block of the other kind is another one.
    if (is_large == (n > HeapsConfig::kMostShared) &&
        (is_large ? resize_large(shard, p, run, n) : resize_shared(shard, p, run, n)))
      return p;
    const std::size_t usable = usable_size(p, run);
    if (usable == 0) os::fatal("pointer is not the start of a live block of its heap:", p);
    Heap& heap = *pointer_to<Heap>(address_of(&shard.core()));
    const Allocated moved = heap.allocate(n);
    if (moved.p == nullptr) {
      // A block can always be made smaller: at worst it stays as it is.
      if (n <= usable) return p;
      // What the heap has given up for that may make room where the block stands.
      return is_large && resize_large(shard, p, run, n) ? p : nullptr;
    }
    memcpy(moved.p, p, min_of(usable, n));
    free(p, run);
    return moved.p;
  }

  // --- All of it ---------------------------------------------------------------------------------

  /// Frees all blocks. Nobody else uses the heap meanwhile. Takes time in proportion to its runs.
  SPANALLOC_COLD void reset() {
    {
      const Inside inside;
      give_other_shards();
      // The headers of blocks that are no more are none under another key.
      key_ = new_key();
      were_refused_.store_relaxed(false);
      first_.lock();
      first_.give_all_but_home();
      first_.restart(key_);
      first_.unlock();
      give_strays();
    }
    runs.keep_bound();
  }

  /// Gives all back. Nobody else uses the heap, or any block of it. Takes time in proportion to its
  /// runs.
  SPANALLOC_COLD void destroy() {
    {
      const Inside inside;
      core_.handle.store_release(0);  // first: a fork's child goes on (Runs::recover())
      give_other_shards();
      first_.lock();
      first_.give_all_but_home();
      first_.unlock();
      give_strays();
      const Slice home = core_.home;
      runs.clear_home(home);
      runs.give(home);
    }
    runs.keep_bound();
  }

  /// Calls visit(p, bytes) for each block in use, with a lock of the heap held.
  template <class Visit>
  SPANALLOC_COLD void visit(Visit visit) {
    for_each_shard([&](Shard& shard) {
      shard.lock();
      shard.visit(visit);
      shard.unlock();
    });
  }

  struct Use {
    std::size_t limit = 0;
    std::size_t taken = 0;   ///< bytes of runs
    std::size_t blocks = 0;  ///< in use
    std::size_t bytes = 0;   ///< of them, with what goes with them
  };
  SPANALLOC_COLD Use use() {
    Use all{core_.limit, core_.taken.load_relaxed()};
    for_each_shard([&](Shard& shard) {
      shard.lock();
      const Shard::Use use = shard.use();
      shard.unlock();
      all.blocks += use.blocks;
      all.bytes += use.bytes;
    });
    return all;
  }

  /// The same, and more, of the heap in that home, if one is there: others may destroy it at any
  /// time. Takes no lock of a shard: the caller may be a visitor, which holds one. False: none is.
  SPANALLOC_COLD static bool describe(Slice home, ProgramHeaps::Description& out) {
    const Inside inside;
    LockGuard guard(runs.homes_lock());
    if (!runs.has_heap(home)) return false;
    Heap& heap = *pointer_to<Heap>(address_of(runs.address(home)));
    out.handle = heap.name();
    if (out.handle == 0) return false;
    const std::size_t limit = heap.core_.limit;
    out.limit_bytes = limit == SIZE_MAX ? 0 : limit;
    out.taken_bytes = heap.core_.taken.load_relaxed();
    memcpy(out.name, heap.name_, sizeof out.name);
    out.used_bytes = out.used_blocks = 0;
    heap.for_each_shard([&](Shard& shard) {
      const Shard::Use use = shard.use();
      out.used_blocks += use.blocks;
      out.used_bytes += use.bytes;
    });
    return true;
  }
  /// The same by the name that the program has; of a heap that there was.
  SPANALLOC_COLD static bool describe_named(std::uint64_t name, ProgramHeaps::Description& out) {
    return describe(slice_of(pointer_to<Heap>(name)), out) && out.handle == name;
  }
  /// Takes time in proportion to all runs.
  SPANALLOC_COLD static void find_largest(ProgramHeaps::Largest& out) {
    runs.for_runs([&](Slice run, std::uint64_t) {
      ProgramHeaps::Description heap;
      if (runs.is_home(run) && describe(run, heap)) enter(out, heap.handle, heap.taken_bytes);
    });
  }

  unsigned shards() const { return mask_.load_relaxed() + 1; }

 private:
  friend struct spanalloc::HeapsInspectionAccess;

  static constexpr std::uint64_t kNumbers = std::uint64_t{1} << HeapsConfig::kSliceBits;

  Heap() = default;

  void take_name(const char* name) {
    std::size_t length = 0;
    while (length < sizeof name_ && name[length] != 0) ++length;
    if (length == sizeof name_) {
      --length;
      // No part of a character: its other bytes are up to three, of this kind.
      for (unsigned i = 0; i < 3 && (name[length] & 0xC0) == 0x80; ++i) --length;
    }
    memcpy(name_, name, length);  // (zeroes follow)
  }

  // In order of size. Most heaps are as large as the others: a new one goes behind these.
  static void enter(ProgramHeaps::Largest& to, std::uint64_t handle, std::size_t bytes) {
    std::size_t at = to.count;
    if (at == to.kMost) {
      const std::size_t least = to.entries[at - 1].taken_bytes;
      ++to.unlisted;
      to.unlisted_bytes += min_of(least, bytes);
      if (bytes <= least) return;
      --at;
    } else {
      ++to.count;
    }
    for (; at != 0 && to.entries[at - 1].taken_bytes < bytes; --at)
      to.entries[at] = to.entries[at - 1];
    to.entries[at] = {handle, bytes};
  }

  static Key new_key() { return {os::random_bits(), os::random_bits()}; }
  static Slice slice_of(const Heap* heap) { return static_cast<Slice>(runs.slice_of(heap)); }
  static Shard& shard_of(Slice run) {
    return *pointer_to<Shard>(runs[run].owner.load_relaxed() & ~Run::kKinds);
  }
  // Before the run's first payload no header may be read: the slice before may be anybody's.
  static bool may_be_block(const void* p, Slice run) {
    return address_of(p) % kGranule == 0 &&
           (address_of(p) - address_of(runs.address(run)) >= kGranule ||
            (runs[run].owner.load_relaxed() & Run::kLarge) != 0);
  }
  SPANALLOC_INLINE static void check_place(const void* p, Slice run) {
    if (SPANALLOC_UNLIKELY(!may_be_block(p, run)))
      os::fatal("pointer is not the start of a live block of its heap:", p);
  }

  // --- Shards ------------------------------------------------------------------------------------

  // Where the calling thread's shard is: a hash of its identity, by multiplication.
  static unsigned place_of_thread() {
    return static_cast<unsigned>(address_of(os::thread_id()) * 0x9E3779B97F4A7C15 >> 40);
  }
  /// The shard of a place; nullptr: none was made yet.
  Shard* shard_at(unsigned place) {
    return place == 0 ? &first_ : shards_[place].load_acquire();  // acquire: what it leads to
  }

  SPANALLOC_INLINE Shard* lock_any() {
    const unsigned mask = mask_.load_relaxed();
    Shard* const own = SPANALLOC_LIKELY(mask == 0) ? &first_ : shard_at(place_of_thread() & mask);
    if (SPANALLOC_LIKELY(own != nullptr && own->try_lock())) return own;
    return lock_another();
  }
  SPANALLOC_COLD Shard* lock_another() {
    const unsigned mask = mask_.load_relaxed();
    const unsigned place = place_of_thread() & mask;
    Shard* own = shard_at(place);
    if (own == nullptr) {
      if (!were_refused_.load_relaxed()) own = make_shard(place);
      if (own == nullptr) own = &first_;
      if (own->try_lock()) return own;
    }
    if (times_taken_.fetch_add_relaxed(1) % HeapsConfig::kTakenToGrow ==
        HeapsConfig::kTakenToGrow - 1) {
      were_refused_.store_relaxed(false);  // there may be memory by now
      double_shards(mask);
    }
    for (unsigned i = 1; i <= mask; ++i) {
      Shard* const other = shard_at((place + i) & mask);
      if (other != nullptr && other->try_lock()) return other;
    }
    own->lock();
    return own;
  }
  void double_shards(unsigned mask) {
    if (mask + 1 >= min_of(os::cpu_count(), HeapsConfig::kMostShards)) return;
    // Homes of shards stay until the heap ends: an eighth of its limit at most.
    if (2 * (mask + 1) > core_.limit / (8 * Runs::kSlice)) return;
    // (No order is needed: a shard of the new places is made by who first wants it. Who loses the
    // race has more.)
    (void)mask_.compare_exchange_strong_acq_rel(mask, 2 * mask + 1);
  }
  // nullptr: there is no memory for it. (It is not tried again: it may take system calls, while
  // other shards may have what is asked for.)
  SPANALLOC_COLD Shard* make_shard(unsigned place) {
    const Inside inside;
    const Runs::Taken home = core_.take_run(1);
    if (home.first == 0) {
      if (!os::in_kernel_call()) were_refused_.store_relaxed(true);
      return nullptr;
    }
    auto* const shard = ::new (runs.address(home.first)) Shard;
    shard->start(core_, key_, home.first, sizeof(Shard), home.zero);
    shard->attach_home();
    Shard* none = nullptr;
    // Release: what it leads to. Of two threads one is first.
    if (shards_[place].compare_exchange_strong_acq_rel(none, shard)) return shard;
    runs.clear_owner(home.first);
    core_.give_run(home.first);
    return none;
  }
  template <class F>
  void for_each_shard(F&& f) {
    for (unsigned place = 0; place < HeapsConfig::kMostShards; ++place) {
      if (Shard* const shard = shard_at(place)) f(*shard);
    }
  }

  // --- What is rare ------------------------------------------------------------------------------

  SPANALLOC_COLD Allocated grow(Shard& shard, std::size_t bytes) {
    {
      const Inside inside;
      if (const Allocated got = shard.grow_and_allocate(bytes); got.p != nullptr) return got;
    }
    // What the others have free is not lost to a thread that happens to use this one.
    Allocated got;
    for_each_shard([&](Shard& other) {
      if (got.p != nullptr) return;
      other.lock_quickly();
      got = other.allocate(bytes);
      other.unlock();
    });
    if (got.p != nullptr || bytes > core_.limit) return got;
    give_unused();
    const Inside inside;
    return shard.grow_and_allocate(bytes);
  }
  SPANALLOC_COLD Allocated allocate_large(std::size_t n, std::size_t alignment) {
    Shard* const shard = lock_any();
    shard->unlock();
    {
      const Inside inside;
      if (const Allocated got = shard->allocate_large(n, alignment); got.p != nullptr) return got;
    }
    if (n > core_.limit || n > runs.bytes()) return {};
    give_unused();
    const Inside inside;
    return shard->allocate_large(n, alignment);
  }
  // A large block's run gets other slices of the arena: a handler's fork must not recover that
  // meanwhile.
  SPANALLOC_COLD static bool resize_large(Shard& shard, void* p, Slice run, std::size_t n) {
    bool done = false;
    {
      const Inside inside;
      shard.lock_quickly();
      done = shard.resize_large(p, run, n);
      shard.unlock();
    }
    if (done) runs.keep_bound();
    return done;
  }
  // No run is taken or given back: the block, the free one behind it and the top all lie in a run
  // that the shard has and keeps, so a recovery finds its owner and leaves it alone. (As with
  // blocks that are allocated and freed.)
  static bool resize_shared(Shard& shard, void* p, Slice run, std::size_t n) {
    shard.lock_quickly();
    const bool done = shard.resize(Block::of(p), run, block_bytes(n));
    shard.unlock();
    return done;
  }
  // Gives back the runs that shards keep.
  SPANALLOC_COLD void give_unused() {
    if (os::in_kernel_call()) return;
    for_each_shard([&](Shard& shard) {
      for (Slice run = 1; run != 0;) {
        const Inside inside;
        shard.lock();
        run = shard.detach_unused();
        shard.unlock();
        if (run == 0) break;
        core_.give_detached(run);
      }
    });
  }
  SPANALLOC_COLD static void free_large(Shard& shard, void* p, Slice run) {
    // To give memory back may be what the thread is just doing.
    if (os::in_kernel_call()) return NestedBlocks::put_off(p);
    HeapCore& core = shard.core();
    shard.lock_quickly();
    (void)shard.free_large(p, run);
    shard.unlock();
    core.give_detached(run);
  }

  // Nobody else uses the heap. The home of a shard goes last, and with it the shard.
  SPANALLOC_COLD void give_other_shards() {
    if (mask_.load_relaxed() == 0) return;
    for (unsigned place = 1; place < HeapsConfig::kMostShards; ++place) {
      Shard* const shard = shards_[place].load_relaxed();
      if (shard == nullptr) continue;
      (void)runs.homes_lock().lock();
      shards_[place].store_relaxed(nullptr);  // from here on statistics do not read it
      runs.homes_lock().unlock();
      shard->lock();
      shard->give_all_but_home();
      shard->unlock();
      const Slice home = shard->home();
      runs.clear_owner(home);
      core_.give_run(home);
    }
  }
  // All but the home was given back. In a fork's child: runs of a shard that a vanished thread was
  // making, or of a reset that it had begun, are in no list; and what it had booked for a run that
  // was on its way stays booked.
  SPANALLOC_COLD void give_strays() {
    if (SPANALLOC_LIKELY(core_.taken.load_relaxed() == Runs::kSlice)) return;
    runs.for_runs([&](Slice run, std::uint64_t owner) {
      if (owner == 0 || run == core_.home || !has(run)) return;
      runs.clear_owner(run);
      core_.give_run(run);
    });
    core_.taken.store_relaxed(Runs::kSlice);
  }

  HeapCore core_;                             // first: its first word is the name
  char name_[ProgramHeaps::kNameBytes] = {};  // constant
  Key key_;                                   // constant from one reset to the next
  Atomic<unsigned> mask_{0};          // of places: one less than there may be shards; only grows
  Atomic<bool> were_refused_{false};  // shards, for want of memory
  Atomic<std::uint32_t> times_taken_{0};             // a lock was
  Atomic<Shard*> shards_[HeapsConfig::kMostShards];  // but for the first; nullptr: not made yet
  Shard first_;
};
static_assert(sizeof(Heap) <= 4096, "a heap and its first blocks share a page or two");

}  // namespace spanalloc::heaps
