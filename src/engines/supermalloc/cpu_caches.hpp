// The two caches behind the threads': for each CPU two chains of lists a bin, and for all of them together a
// chain for each CPU (section 8). A list, or a chain, moves by its head: in constant time, however many CPUs
// there are, for the global cache is a stack of chains.
//
// A thread looks where it runs, every sixteenth time, and takes that CPU's lock for the bin, which nobody
// else is likely to want: it is held for a few instructions, and what they touch has been asked for before.
// (The paper's transactions look at that lock first of all, which it calls subscribing early; here the lock
// is taken first of all.)
//
// A fork may leave a cache half changed: then the chains in it are dropped, with the objects in them, which
// stay marked as out for good. They are counted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/supermalloc/bins.hpp"
#include "engines/supermalloc/cpu_slots.hpp"
#include "engines/supermalloc/object_list.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// Memory of chains: used again for ever, given back by destroy() only. Zero-initialisable.
class ChainPool {
 public:
  /// An empty one; nullptr when memory is out.
  Chain* make() {
    const LockGuard guard(lock_);
    // What a vanished thread has left of a block, or of the counts of it, is lost.
    if (SPANALLOC_UNLIKELY(guard.owner_died())) left_ = 0;
    if (left_ == 0) {
      auto* block = static_cast<Block*>(os::map(sizeof(Block), os::page_size()));
      if (block == nullptr) return nullptr;
      block->before = newest_;
      newest_ = block;
      left_ = kBlock;
    }
    return &newest_->chains[--left_];
  }
  /// While nobody uses a chain.
  void destroy() {
    while (newest_ != nullptr) {
      Block* const block = newest_;
      newest_ = block->before;
      os::release(block, sizeof(Block));
    }
    left_ = 0;
  }
  void enter_child() { lock_.abandon_if_owner_died(); }

 private:
  static constexpr std::size_t kBlock = 32;
  struct Block {
    Block* before;
    Chain chains[kBlock];
  };

  SpinLock lock_;
  Block* newest_ = nullptr;
  std::size_t left_ = 0;
};

/// Thread-safe; zero-initialisable; usable once started.
template <class Config>
class CpuCaches {
  using TheBins = Bins<Config>;
  static constexpr BinNumber kBins = TheBins::kCount;

  static constexpr bool chains_have_room() {
    for (const Bin& bin : TheBins::kTable) {
      if (bin.chain_lists > Chain::kMostLists) return false;
    }
    return true;
  }
  static_assert(chains_have_room());

 public:
  /// False when memory is out.
  bool start() {
    if (slots_.load_relaxed() != nullptr) return true;
    cpus_ = os::cpu_count();
    const std::size_t slots = cpus_ * kBins * sizeof(Slot);
    const std::size_t bytes = slots + kBins * stride() + CpuSlots::kBytes;
    auto* memory = static_cast<char*>(os::map(bytes, os::page_size()));
    if (memory == nullptr) return false;
    memory_bytes_ = bytes;
    shared_ = memory + slots;
    slot_of_.start(cpus_, shared_ + kBins * stride());
    slots_.store_release(reinterpret_cast<Slot*>(memory));  // release: with the rest
    return true;
  }
  bool is_started() const { return slots_.load_acquire() != nullptr; }

  /// A list of the bin, from this CPU or from all of them; an empty one: there is none.
  ObjectList take(BinNumber b) {
    Slot& slot = here(b);
    if (Chain* chain = Config::kPrefetch ? one_with_lists(slot) : nullptr) chain->prefetch_pop();
    const SlotGuard guard(*this, slot);
    if (Chain* chain = one_with_lists(slot); chain != nullptr) return chain->pop();
    if (!Config::kGlobalCache) return {};
    Shared& shared = shared_of(b);
    if (shared.count() == 0) return {};  // a hint: whoever fills one meanwhile is as if later
    if (Config::kPrefetch) prefetch(shared);
    const SharedGuard shared_guard(*this, shared);
    const std::uint32_t filled = shared.count();
    if (filled == 0) return {};
    swap(slot.chains[0], shared.chains()[filled - 1]);
    shared.filled.store_relaxed(filled - 1);
    return slot.chains[0].load_relaxed()->pop();
  }

  /// Takes a list in. False: this CPU and all of them together have enough.
  bool put(BinNumber b, ObjectList list) {
    Slot& slot = here(b);
    const std::uint32_t most = TheBins::of(b).chain_lists;
    if (Chain* chain = Config::kPrefetch ? one_with_room(slot, most) : nullptr) chain->prefetch_push();
    const SlotGuard guard(*this, slot);
    for (ChainPlace& place : slot.chains) {
      if (!has_chain(place)) return false;
      if (place.load_relaxed()->count() >= most) continue;
      place.load_relaxed()->push(list);
      return true;
    }
    if (!Config::kGlobalCache) return false;
    Shared& shared = shared_of(b);
    if (Config::kPrefetch) prefetch(shared);
    const SharedGuard shared_guard(*this, shared);
    const std::uint32_t filled = shared.count();
    if (filled == cpus_ || !has_chain(shared.chains()[filled])) return false;
    swap(shared.chains()[filled], slot.chains[0]);
    shared.filled.store_relaxed(filled + 1);
    slot.chains[0].load_relaxed()->push(list);
    return true;
  }

  /// f(list) for every list of the bin in any of the caches; of a cache that others fill meanwhile, for as
  /// many as it has room for.
  template <class F>
  void drain(BinNumber b, F&& f) {
    if (!is_started()) return;
    for (unsigned cpu = 0; cpu < cpus_; ++cpu) {
      for (std::uint32_t left = 2 * TheBins::of(b).chain_lists; left != 0; --left) {
        ObjectList list;
        {
          const SlotGuard guard(*this, slot(cpu, b));
          if (Chain* chain = one_with_lists(slot(cpu, b)); chain != nullptr) list = chain->pop();
        }
        if (list.is_empty()) break;
        f(list);
      }
    }
    Shared& shared = shared_of(b);
    for (std::uint32_t left = cpus_ * TheBins::of(b).chain_lists; left != 0; --left) {
      ObjectList list;
      {
        const SharedGuard guard(*this, shared);
        if (const std::uint32_t filled = shared.count(); filled != 0) {
          Chain* last = shared.chains()[filled - 1].load_relaxed();
          list = last->pop();
          if (last->is_empty()) shared.filled.store_relaxed(filled - 1);
        }
      }
      if (list.is_empty()) break;
      f(list);
    }
  }

  /// f(chain) for each chain of the bin that is not empty, under its lock.
  template <class F>
  void for_each_chain(BinNumber b, F&& f) {
    if (!is_started()) return;
    const auto tell = [&](const ChainPlace& place) {
      if (const Chain* chain = place.load_relaxed(); chain != nullptr && !chain->is_empty()) f(*chain);
    };
    for (unsigned cpu = 0; cpu < cpus_; ++cpu) {
      const SlotGuard guard(*this, slot(cpu, b));
      for (const ChainPlace& place : slot(cpu, b).chains) tell(place);
    }
    Shared& shared = shared_of(b);
    const SharedGuard guard(*this, shared);
    for (std::uint32_t i = 0; i < cpus_; ++i) tell(shared.chains()[i]);
  }

  /// Objects in chains that a fork's child has dropped.
  std::size_t lost_to_fork() const { return lost_.load_relaxed(); }

  /// For the census: whether (C1) holds of the bin's global cache; and its count.
  bool is_global_in_order(BinNumber b) {
    Shared& shared = shared_of(b);
    const SharedGuard guard(*this, shared);
    for (std::uint32_t i = 0; i < cpus_; ++i) {
      const Chain* chain = shared.chains()[i].load_relaxed();
      if ((chain != nullptr && !chain->is_empty()) != (i < shared.count())) return false;
    }
    return true;
  }
  Atomic<std::uint32_t>& filled(BinNumber b) { return shared_of(b).filled; }

  /// In a fork's child, first of all.
  void enter_child() {
    pool_.enter_child();
    slot_of_.enter_child();
    if (slots_.load_relaxed() == nullptr) return;
    for (BinNumber b = 0; b < kBins; ++b) {
      for (unsigned cpu = 0; cpu < cpus_; ++cpu) slot(cpu, b).lock.abandon_if_owner_died();
      shared_of(b).lock.abandon_if_owner_died();
    }
  }

  void destroy() {
    pool_.destroy();
    if (Slot* slots = slots_.load_relaxed(); slots != nullptr) os::release(slots, memory_bytes_);
    slots_.store_relaxed(nullptr);
  }

 private:
  // Under its lock; atomic for who comes for that and asks for what it will touch. A chain stays one.
  using ChainPlace = Atomic<Chain*>;
  // Lock and chains on lines of their own: who waits for the lock does not disturb its holder.
  struct alignas(kCacheLine) Slot {
    SpinLock lock;
    alignas(kCacheLine) ChainPlace chains[2];
  };
  // The chains of a bin that all CPUs have together stand behind it, as many as there are CPUs. (C1) The
  // first `filled` of them have lists, the others are empty or not made yet.
  struct alignas(kCacheLine) Shared {
    SpinLock lock;
    alignas(kCacheLine) Atomic<std::uint32_t> filled;  // written under the lock

    std::uint32_t count() const { return filled.load_relaxed(); }
    ChainPlace* chains() { return reinterpret_cast<ChainPlace*>(this + 1); }
  };

  class [[nodiscard]] SlotGuard {
   public:
    SlotGuard(CpuCaches& caches, Slot& slot) : guard_(slot.lock) {
      if (SPANALLOC_LIKELY(!guard_.owner_died())) return;
      for (ChainPlace& place : slot.chains) caches.drop(place);
    }

   private:
    LockGuard guard_;
  };
  class [[nodiscard]] SharedGuard {
   public:
    SharedGuard(CpuCaches& caches, Shared& shared) : guard_(shared.lock) {
      if (SPANALLOC_LIKELY(!guard_.owner_died())) return;
      for (std::uint32_t i = 0; i < caches.cpus_; ++i) caches.drop(shared.chains()[i]);
      shared.filled.store_relaxed(0);
    }

   private:
    LockGuard guard_;
  };

  // In a fork's child. (A chain that was changing places may be in both, and counted twice.)
  SPANALLOC_COLD void drop(ChainPlace& place) {
    if (const Chain* chain = place.load_relaxed(); chain != nullptr)
      lost_.fetch_add_relaxed(chain->objects());
    place.store_relaxed(nullptr);
  }

  // Of a CPU's two chains the one that a list comes from, and the one that it goes to; nullptr: none. Without
  // the lock a guess.
  static Chain* one_with_lists(const Slot& slot) {
    for (const ChainPlace& place : slot.chains) {
      if (Chain* chain = place.load_relaxed(); chain != nullptr && !chain->is_empty()) return chain;
    }
    return nullptr;
  }
  static Chain* one_with_room(const Slot& slot, std::uint32_t most) {
    for (const ChainPlace& place : slot.chains) {
      if (Chain* chain = place.load_relaxed(); chain != nullptr && chain->count() < most) return chain;
    }
    return nullptr;
  }

  // The last chain that has lists and the place behind it: one of them changes places with a CPU's.
  void prefetch(Shared& shared) {
    const std::uint32_t filled = shared.count();
    prefetch_to_write(&shared.filled);
    for (std::uint32_t i = filled == 0 ? 0 : filled - 1; i <= filled && i < cpus_; ++i) {
      prefetch_to_write(&shared.chains()[i]);
      Chain* chain = shared.chains()[i].load_relaxed();
      if (chain != nullptr) chain->is_empty() ? chain->prefetch_push() : chain->prefetch_pop();
    }
  }

  // Whether there is a chain, or one can be made.
  bool has_chain(ChainPlace& place) {
    if (SPANALLOC_LIKELY(place.load_relaxed() != nullptr)) return true;
    Chain* made = pool_.make();
    place.store_relaxed(made);
    return made != nullptr;
  }
  // (A fork's child may find the chain of `from` in both, rather than in none.)
  static void swap(ChainPlace& to, ChainPlace& from) {
    Chain* const before = to.load_relaxed();
    to.store_relaxed(from.load_relaxed());
    from.store_release(before);
  }

  Slot& slot(unsigned cpu, BinNumber b) { return slots_.load_relaxed()[cpu * kBins + b]; }
  Slot& here(BinNumber b) { return slot(Config::kCpuCaches ? slot_of_.of(cpu()) : 0, b); }
  // Where the calling thread runs, or ran shortly before: a lock keeps whatever it takes together.
  static unsigned cpu() {
    // (0, or what a signal handler in between has made less than that.)
    if (seen_.uses_left - 1 >= kUsesOfACpu) seen_ = {os::current_cpu(), kUsesOfACpu};
    --seen_.uses_left;
    return seen_.cpu;
  }
  std::size_t stride() const { return sizeof(Shared) + align_up(cpus_ * sizeof(ChainPlace), kCacheLine); }
  Shared& shared_of(BinNumber b) { return *reinterpret_cast<Shared*>(shared_ + b * stride()); }

  // To ask the kernel costs as much as the rest, and threads seldom move: the paper asks each 16th time.
  static constexpr std::uint32_t kUsesOfACpu = 16;
  struct SeenCpu {
    unsigned cpu = 0;
    std::uint32_t uses_left = 0;
  };
  SPANALLOC_TLS static inline constinit thread_local SeenCpu seen_{};

  Atomic<Slot*> slots_{nullptr};  // constant once started, with the four below
  char* shared_ = nullptr;
  unsigned cpus_ = 0;
  std::size_t memory_bytes_ = 0;
  CpuSlots slot_of_;
  ChainPool pool_;
  Atomic<std::size_t> lost_{0};
};

}  // namespace spanalloc::supermalloc
