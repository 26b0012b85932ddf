// The two caches behind the threads': for each CPU two chains of lists a bin, and for all of them together a
// chain for each CPU (section 8). A list, or a chain, moves by its head.
//
// A thread looks where it runs and takes that CPU's lock for the bin, which nobody else is likely to want: it
// is held for a few instructions, and what they touch has been asked for before. (The paper's transactions
// look at that lock first of all, which it calls subscribing early; here the lock is taken first of all.)
//
// A fork may leave a cache half changed: then the chains in it are dropped, with the objects in them, which
// stay marked as out for good.
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
    const SlotGuard guard(slot);
    for (Chain* chain : slot.chains) {
      if (chain != nullptr && !chain->is_empty()) return chain->pop();
    }
    Shared& shared = shared_of(b);
    if (shared.filled.load_relaxed() == 0) return {};  // a hint: whoever fills one meanwhile is as if later
    const SharedGuard shared_guard(shared, chains_of(b), cpus_);
    for (std::size_t i = 0; i < cpus_; ++i) {
      Chain*& chain = chains_of(b)[i];
      if (chain == nullptr || chain->is_empty()) continue;
      swap(slot.chains[0], chain);
      shared.filled.store_relaxed(shared.filled.load_relaxed() - 1);
      return slot.chains[0]->pop();
    }
    return {};
  }

  /// Takes a list in. False: this CPU and all of them together have enough.
  bool put(BinNumber b, ObjectList list) {
    Slot& slot = here(b);
    const std::uint32_t most = TheBins::of(b).chain_lists;
    const SlotGuard guard(slot);
    for (Chain*& chain : slot.chains) {
      if (chain == nullptr && (chain = pool_.make()) == nullptr) return false;
      if (chain->lists >= most) continue;
      chain->push(list);
      return true;
    }
    Shared& shared = shared_of(b);
    const SharedGuard shared_guard(shared, chains_of(b), cpus_);
    for (std::size_t i = 0; i < cpus_; ++i) {
      Chain*& chain = chains_of(b)[i];
      if (chain == nullptr && (chain = pool_.make()) == nullptr) return false;
      if (!chain->is_empty()) continue;
      swap(slot.chains[0], chain);
      shared.filled.store_relaxed(shared.filled.load_relaxed() + 1);
      slot.chains[0]->push(list);
      return true;
    }
    return false;
  }

  /// f(list) for every list of the bin in any of the caches, which are empty then.
  template <class F>
  void drain(BinNumber b, F&& f) {
    if (!is_started()) return;
    const auto take_one = [&](Chain* chain) {
      return chain == nullptr || chain->is_empty() ? ObjectList{} : chain->pop();
    };
    for (unsigned cpu = 0; cpu < cpus_; ++cpu) {
      for (unsigned i = 0; i < 2; ++i) {
        for (;;) {
          ObjectList list;
          {
            const SlotGuard guard(slot(cpu, b));
            list = take_one(slot(cpu, b).chains[i]);
          }
          if (list.is_empty()) break;
          f(list);
        }
      }
    }
    for (std::size_t i = 0; i < cpus_; ++i) {
      for (;;) {
        ObjectList list;
        {
          Shared& shared = shared_of(b);
          const SharedGuard guard(shared, chains_of(b), cpus_);
          Chain* chain = chains_of(b)[i];
          list = take_one(chain);
          if (!list.is_empty() && chain->is_empty())
            shared.filled.store_relaxed(shared.filled.load_relaxed() - 1);
        }
        if (list.is_empty()) break;
        f(list);
      }
    }
  }

  /// f(chain) for each chain of the bin that is not empty, under its lock.
  template <class F>
  void for_each_chain(BinNumber b, F&& f) {
    if (!is_started()) return;
    for (unsigned cpu = 0; cpu < cpus_; ++cpu) {
      const SlotGuard guard(slot(cpu, b));
      for (const Chain* chain : slot(cpu, b).chains) {
        if (chain != nullptr && !chain->is_empty()) f(*chain);
      }
    }
    const SharedGuard guard(shared_of(b), chains_of(b), cpus_);
    for (std::size_t i = 0; i < cpus_; ++i) {
      const Chain* chain = chains_of(b)[i];
      if (chain != nullptr && !chain->is_empty()) f(*chain);
    }
  }

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
  // Lock and chains on lines of their own: who waits for the lock does not disturb its holder.
  struct alignas(kCacheLine) Slot {
    SpinLock lock;
    alignas(kCacheLine) Chain* chains[2];
  };
  // The chains of a bin that all CPUs have together stand behind it.
  struct alignas(kCacheLine) Shared {
    SpinLock lock;
    alignas(kCacheLine) Atomic<std::uint32_t> filled;  // chains that are not empty; written under the lock
  };

  class [[nodiscard]] SlotGuard {
   public:
    explicit SlotGuard(Slot& slot) : guard_(prefetched(slot).lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) slot.chains[0] = slot.chains[1] = nullptr;
    }

   private:
    static Slot& prefetched(Slot& slot) {
      if (Config::kPrefetch) prefetch_to_write(&slot.chains);
      return slot;
    }
    LockGuard guard_;
  };
  class [[nodiscard]] SharedGuard {
   public:
    SharedGuard(Shared& shared, Chain** chains, std::size_t count) : guard_(prefetched(shared, chains).lock) {
      if (SPANALLOC_LIKELY(!guard_.owner_died())) return;
      for (std::size_t i = 0; i < count; ++i) chains[i] = nullptr;
      shared.filled.store_relaxed(0);
    }

   private:
    static Shared& prefetched(Shared& shared, Chain** chains) {
      if (Config::kPrefetch) {
        prefetch_to_write(&shared.filled);
        prefetch_to_write(chains);
      }
      return shared;
    }
    LockGuard guard_;
  };

  static void swap(Chain*& a, Chain*& b) {
    Chain* const before = a;
    a = b;
    b = before;
  }

  Slot& slot(unsigned cpu, BinNumber b) { return slots_.load_relaxed()[cpu * kBins + b]; }
  Slot& here(BinNumber b) { return slot(slot_of_.of(os::current_cpu()), b); }
  std::size_t stride() const { return sizeof(Shared) + align_up(cpus_ * sizeof(Chain*), kCacheLine); }
  Shared& shared_of(BinNumber b) { return *reinterpret_cast<Shared*>(shared_ + b * stride()); }
  Chain** chains_of(BinNumber b) {
    return reinterpret_cast<Chain**>(shared_ + b * stride() + sizeof(Shared));
  }

  Atomic<Slot*> slots_{nullptr};  // constant once started, with the four below
  char* shared_ = nullptr;
  unsigned cpus_ = 0;
  std::size_t memory_bytes_ = 0;
  CpuSlots slot_of_;
  ChainPool pool_;
};

}  // namespace spanalloc::supermalloc
