// The two caches behind the threads': for each CPU two chains of lists a bin, and for all of them
// together a chain for each CPU (section 8). A list, or a chain, moves by its head: in constant
// time, however many CPUs there are, for the global cache is a stack of chains.
//
// A thread looks where it runs, every sixteenth time, and takes that CPU's lock for the bin, which
// nobody else is likely to want: it is held for a few instructions, and what they touch has been
// asked for before. (The paper's transactions look at that lock first of all, which it calls
// subscribing early; here the lock is taken first of all.) Or it changes its CPU's chains by
// restartable sequences (cpu_sequences.hpp).
//
// A fork may leave a cache half changed: then the chains in it are dropped, with the objects in
// them, which stay marked as out for good. They are counted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "os/rseq.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/cpu_sequences.hpp"
#include "papers/supermalloc/engine/cpu_slots.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// Memory of chains: used again for ever, given back by destroy() only. Zero-initialisable.
class ChainPool {
 public:
  /// An empty one; none when memory is out.
  Chain make() {
    const LockGuard guard(lock_);
    // What a vanished thread has left of a block, or of the counts of it, is lost.
    if (SPANALLOC_UNLIKELY(guard.owner_died())) left_ = 0;
    if (left_ == 0) {
      auto* block = static_cast<Block*>(os::map(sizeof(Block), os::page_size()));
      if (block == nullptr) return {};
      block->before = newest_;
      newest_ = block;
      left_ = kBlock;
    }
    return Chain(&newest_->rooms[--left_]);
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
    Chain::Room rooms[kBlock];
    Block* before;
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
    // A cache that all CPUs share is changed under its lock
    if (Config::kCpuCaches) sequences_.start();
    // A cache of sequences is one CPU's alone, also of a CPU that the process is allowed later:
    // there is one for each that the machine might have, unless a limit stands, which that would
    // count for. Memory of what no thread comes to is not touched.
    cpu_slots_ = sequences_.are_used() && !os::has_memory_limit()
                     ? static_cast<unsigned>(min_of(os::cpu_numbers(), CpuSlots::kCpus))
                     : cpus_;
    const std::size_t slots = slot_count() * kBins * sizeof(Slot);
    const std::size_t bytes = slots + kBins * stride() + CpuSlots::kBytes;
    auto* memory = static_cast<char*>(os::map(bytes, os::page_size()));
    if (memory == nullptr) return false;
    memory_bytes_ = bytes;
    shared_ = memory + slots;
    slot_of_.start(cpu_slots_, shared_ + kBins * stride(),
                   sequences_.are_used() ? CpuSlots::Beyond::kNone : CpuSlots::Beyond::kShare);
    slots_.store_release(reinterpret_cast<Slot*>(memory));  // release: with the rest
    return true;
  }
  bool is_started() const { return slots_.load_acquire() != nullptr; }

  /// A list of the bin, from this CPU or from all of them; an empty one: there is none.
  ObjectList take(BinNumber b) {
    return sequences_.are_used() ? take_restartably(b) : take_by_lock(b);
  }

  /// Takes a list in. False: this CPU and all of them together have enough.
  bool put(BinNumber b, ObjectList list) {
    return sequences_.are_used() ? put_restartably(b, list) : put_by_lock(b, list);
  }

  /// f(list) for every list of the bin in any of the caches; of a cache that others fill meanwhile,
  /// for as many as it has room for.
  template <class F>
  void drain(BinNumber b, F&& f) {
    if (!is_started()) return;
    for_each_slot(b, [&](Slot& slot) {
      for (std::uint32_t left = 2 * TheBins::of(b).chain_lists; left != 0 && !is_empty(slot);
           --left) {
        ObjectList list;
        {
          const SlotGuard guard(*this, slot);
          if (ChainPlace* place = one_with_lists(slot); place != nullptr) list = place->pop();
        }
        if (list.is_empty()) break;
        f(list);
      }
    });
    Shared& shared = shared_of(b);
    for (std::uint32_t left = cpus_ * TheBins::of(b).chain_lists; left != 0; --left) {
      ObjectList list;
      {
        const SharedGuard guard(*this, shared);
        if (const std::uint32_t filled = shared.count(); filled != 0) {
          ChainPlace& last = shared.chains()[filled - 1];
          list = last.pop();
          if (last.get().is_empty()) shared.filled.store_relaxed(filled - 1);
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
      if (const Chain chain = place.get(); !chain.is_empty()) f(chain);
    };
    for_each_slot(b, [&](Slot& slot) {
      if (is_empty(slot)) return;
      const SlotGuard guard(*this, slot);
      for (const ChainPlace& place : slot.chains) tell(place);
    });
    Shared& shared = shared_of(b);
    const SharedGuard guard(*this, shared);
    for (std::uint32_t i = 0; i < cpus_; ++i) tell(shared.chains()[i]);
  }

  /// Objects in chains that a fork's child has dropped.
  std::size_t lost_to_fork() const { return lost_.load_relaxed(); }

  /// Whether a CPU's chains are changed by restartable sequences. Constant once started.
  bool uses_sequences() const { return sequences_.are_used(); }

  /// For the census: whether (C1) holds of the bin's global cache; and its count.
  bool is_global_in_order(BinNumber b) {
    Shared& shared = shared_of(b);
    const SharedGuard guard(*this, shared);
    for (std::uint32_t i = 0; i < cpus_; ++i) {
      if (shared.chains()[i].get().is_empty() != (i >= shared.count())) return false;
    }
    return true;
  }
  Atomic<std::uint32_t>& filled(BinNumber b) { return shared_of(b).filled; }
  ChainPlace& first_chain(BinNumber b) { return slot(0, b).chains[0]; }

  /// In a fork's child, first of all.
  void enter_child() {
    pool_.enter_child();
    slot_of_.enter_child();
    if (slots_.load_relaxed() == nullptr) return;
    for (BinNumber b = 0; b < kBins; ++b) {
      for_each_slot(b, [](Slot& slot) { slot.lock.abandon_if_owner_died(); });
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
  // The chains change under the lock; those of a CPU with sequences by these, too, and under the
  // lock when they are closed.
  struct alignas(kCacheLine) Slot {
    SpinLock lock;
    alignas(kCacheLine) ChainPlace chains[2];
  };
  // The chains of a bin that all CPUs have together stand behind it, as many as there are CPUs.
  // (C1) The first `filled` of them have lists, the others are empty or not made yet.
  struct alignas(kCacheLine) Shared {
    SpinLock lock;
    alignas(kCacheLine) Atomic<std::uint32_t> filled;  // written under the lock

    std::uint32_t count() const { return filled.load_relaxed(); }
    ChainPlace* chains() { return reinterpret_cast<ChainPlace*>(this + 1); }
  };

  enum DoesNotWait : std::uint8_t { kDoesNotWait };
  class [[nodiscard]] SlotGuard {
   public:
    SlotGuard(CpuCaches& caches, Slot& slot) : slot_(slot) { begin(caches, slot.lock.lock()); }
    /// Does without, if somebody has the lock.
    SlotGuard(CpuCaches& caches, Slot& slot, DoesNotWait) : slot_(slot) {
      if (Locked how{}; slot.lock.try_lock(how)) begin(caches, how);
    }
    ~SlotGuard() {
      if (closes_) {
        for (ChainPlace& place : slot_.chains) place.open();
      }
      if (has_lock_) slot_.lock.unlock();
    }
    SlotGuard(const SlotGuard&) = delete;
    SlotGuard& operator=(const SlotGuard&) = delete;

    bool has_lock() const { return has_lock_; }

   private:
    void begin(CpuCaches& caches, Locked how) {
      has_lock_ = true;
      closes_ = caches.is_a_cpus(slot_);
      if (closes_) {
        for (ChainPlace& place : slot_.chains) place.close();
      }
      if (SPANALLOC_LIKELY(how == Locked::kClean)) return;
      for (ChainPlace& place : slot_.chains) caches.drop(place);
    }

    Slot& slot_;
    bool has_lock_ = false;
    bool closes_ = false;
  };
  // The same where no sequences are used: nobody changes a chain without the
  // lock, so none is closed.
  class [[nodiscard]] LockedSlot {
   public:
    LockedSlot(CpuCaches& caches, Slot& slot) : guard_(slot.lock) {
      SPANALLOC_ASSERT(!caches.uses_sequences());
      if (SPANALLOC_LIKELY(!guard_.owner_died())) return;
      for (ChainPlace& place : slot.chains) caches.drop(place);
    }

   private:
    LockGuard<SpinLock> guard_;
  };
  class [[nodiscard]] SharedGuard {
   public:
    SharedGuard(CpuCaches& caches, Shared& shared) : guard_(shared.lock) {
      if (SPANALLOC_LIKELY(!guard_.owner_died())) return;
      for (std::uint32_t i = 0; i < caches.cpus_; ++i) caches.drop(shared.chains()[i]);
      shared.filled.store_relaxed(0);
    }

   private:
    LockGuard<SpinLock> guard_;
  };

  // In a fork's child. (A chain that was changing places may be in both, and counted twice.)
  SPANALLOC_COLD void drop(ChainPlace& place) {
    const Chain chain = place.get();
    lost_.fetch_add_relaxed(chain.objects());
    place.set(Chain().closed_if(chain.is_closed()));
  }

  // Without sequences.
  ObjectList take_by_lock(BinNumber b) {
    Slot& slot = here(b);
    if (ChainPlace* place = Config::kPrefetch ? one_with_lists(slot) : nullptr)
      place->prefetch_pop();
    const LockedSlot guard(*this, slot);
    return take_locked(slot, b);
  }
  bool put_by_lock(BinNumber b, ObjectList list) {
    Slot& slot = here(b);
    if (ChainPlace* place = Config::kPrefetch ? one_with_room(slot, b) : nullptr)
      place->prefetch_push();
    const LockedSlot guard(*this, slot);
    return put_locked(slot, b, list);
  }

  ObjectList take_locked(Slot& slot, BinNumber b) {
    ChainPlace* place = one_with_lists(slot);
    return SPANALLOC_LIKELY(place != nullptr) ? place->pop() : take_from_all(slot, b);
  }
  bool put_locked(Slot& slot, BinNumber b, ObjectList list) {
    ChainPlace* place = one_with_room(slot, b);
    if (SPANALLOC_UNLIKELY(place == nullptr)) return put_elsewhere(slot, b, list);
    place->push(list);
    return true;
  }
  // The slot has no list.
  [[gnu::noinline]] ObjectList take_from_all(Slot& slot, BinNumber b) {
    if (!Config::kGlobalCache) return {};
    Shared& shared = shared_of(b);
    if (shared.count() == 0) return {};  // a hint: whoever fills one meanwhile is as if later
    if (Config::kPrefetch) prefetch(shared);
    const SharedGuard shared_guard(*this, shared);
    const std::uint32_t filled = shared.count();
    if (filled == 0) return {};
    swap(slot.chains[0], shared.chains()[filled - 1]);
    shared.filled.store_relaxed(filled - 1);
    return slot.chains[0].pop();
  }
  // The slot's chains are full, or not made yet.
  [[gnu::noinline]] bool put_elsewhere(Slot& slot, BinNumber b, ObjectList list) {
    for (ChainPlace& place : slot.chains) {
      if (!place.get().is_none()) continue;
      if (!has_chain(place)) return false;
      place.push(list);
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
    slot.chains[0].push(list);
    return true;
  }

  // With sequences. What one of them does not do, for want of a list or of room, is done under the
  // lock, by a thread that is on the slot's CPU when the chains are closed (S2). Nobody waits for
  // that lock: who has it may have lost this very CPU. Who does not get it in several tries, or is
  // interrupted too often, as by a debugger that stops at each instruction, or has no CPU with a
  // slot, takes the one that is no CPU's. What comes there is found when nothing else is left.
  [[gnu::noinline]] ObjectList take_restartably(BinNumber b) {
    volatile os::SequenceArea& area = os::sequence_area();
    for (unsigned tries = kTries; tries != 0; --tries) {
      const unsigned cpu = os::sequence_cpu(area);
      Slot& slot = this->slot(slot_of_.of(cpu), b);
      if (!is_a_cpus(slot)) break;
      ChainPlace* place = one_with_lists(slot);
      if (place == nullptr && shared_of(b).count() == 0) break;  // a hint, as above
      if (const Chain seen = place == nullptr ? Chain() : place->get_in_order();
          !seen.is_empty() && !seen.is_closed()) {
        if (const ObjectList list = CpuSequences::pop(area, cpu, *place, seen); !list.is_empty())
          return list;
        continue;
      }
      const SlotGuard guard(*this, slot, kDoesNotWait);
      if (!guard.has_lock() || os::sequence_cpu(area) != cpu) continue;
      if (const ObjectList list = take_locked(slot, b); !list.is_empty()) return list;
      break;
    }
    if (one_with_lists(nobodys(b)) == nullptr && shared_of(b).count() == 0) return {};
    const SlotGuard guard(*this, nobodys(b));
    return take_locked(nobodys(b), b);
  }
  [[gnu::noinline]] bool put_restartably(BinNumber b, ObjectList list) {
    volatile os::SequenceArea& area = os::sequence_area();
    for (unsigned tries = kTries; tries != 0; --tries) {
      const unsigned cpu = os::sequence_cpu(area);
      Slot& slot = this->slot(slot_of_.of(cpu), b);
      if (!is_a_cpus(slot)) break;
      ChainPlace* place = one_with_room(slot, b);
      if (const Chain seen = place == nullptr ? Chain() : place->get_in_order();
          !seen.is_none() && !seen.is_closed() && seen.count() < TheBins::of(b).chain_lists) {
        if (CpuSequences::push(area, cpu, *place, seen, list)) return true;
        continue;
      }
      const SlotGuard guard(*this, slot, kDoesNotWait);
      if (guard.has_lock() && os::sequence_cpu(area) == cpu) return put_locked(slot, b, list);
    }
    const SlotGuard guard(*this, nobodys(b));
    return put_locked(nobodys(b), b, list);
  }

  // Of a CPU's two chains the one that a list comes from, and the one that it goes to; nullptr:
  // none. Without the lock a guess.
  static ChainPlace* one_with_lists(Slot& slot) {
    for (ChainPlace& place : slot.chains) {
      if (!place.get().is_empty()) return &place;
    }
    return nullptr;
  }
  // A guess, too: what comes meanwhile is as if later. (What a vanished thread has left
  // behind is to be dropped.)
  static bool is_empty(Slot& slot) {
    return slot.lock.is_free() && one_with_lists(slot) == nullptr;
  }
  static ChainPlace* one_with_room(Slot& slot, BinNumber b) {
    for (ChainPlace& place : slot.chains) {
      if (const Chain chain = place.get();
          !chain.is_none() && chain.count() < TheBins::of(b).chain_lists) {
        return &place;
      }
    }
    return nullptr;
  }

  // The last chain that has lists and the place behind it: one of them changes places with a CPU's.
  void prefetch(Shared& shared) {
    const std::uint32_t filled = shared.count();
    prefetch_to_write(&shared.filled);
    for (std::uint32_t i = filled == 0 ? 0 : filled - 1; i <= filled && i < cpus_; ++i) {
      const ChainPlace& place = shared.chains()[i];
      prefetch_to_write(&shared.chains()[i]);
      place.get().is_empty() ? place.prefetch_push() : place.prefetch_pop();
    }
  }

  // Whether there is a chain, or one can be made.
  bool has_chain(ChainPlace& place) {
    const Chain before = place.get();
    if (SPANALLOC_LIKELY(!before.is_none())) return true;
    const Chain made = pool_.make();
    place.set(made.closed_if(before.is_closed()));
    return !made.is_none();
  }
  // (A fork's child may find the chain of `from` in both, rather than in none.)
  // What is closed stays closed.
  static void swap(ChainPlace& to, ChainPlace& from) {
    const Chain before = to.get();
    const Chain after = from.get();
    to.set(after.closed_if(before.is_closed()));
    from.set_in_order(before.closed_if(after.is_closed()));
  }

  // With sequences there is one more, behind the CPUs', which is no CPU's: it
  // has nothing but its lock.
  unsigned slot_count() const { return cpu_slots_ + (sequences_.are_used() ? 1 : 0); }
  Slot& slot(unsigned i, BinNumber b) { return slots_.load_relaxed()[i * kBins + b]; }
  Slot& nobodys(BinNumber b) { return slot(cpu_slots_, b); }
  bool is_a_cpus(const Slot& slot) const {
    return sequences_.are_used() && &slot < slots_.load_relaxed() + cpu_slots_ * kBins;
  }
  // Those that may have been used. (One that is given to a CPU meanwhile is used as if later.)
  template <class F>
  void for_each_slot(BinNumber b, F&& f) {
    const unsigned given = slot_of_.given();
    for (unsigned i = 0; i < given; ++i) f(slot(i, b));
    if (sequences_.are_used()) f(nobodys(b));
  }
  Slot& here(BinNumber b) { return slot(Config::kCpuCaches ? slot_of_.of(cpu()) : 0, b); }
  // Where the calling thread runs, or ran shortly before: a lock keeps whatever it takes together.
  static unsigned cpu() {
    // (0, or what a signal handler in between has made less than that.)
    if (seen_.uses_left - 1 >= kUsesOfACpu) seen_ = {os::current_cpu(), kUsesOfACpu};
    --seen_.uses_left;
    return seen_.cpu;
  }
  std::size_t stride() const {
    return sizeof(Shared) + align_up(cpus_ * sizeof(ChainPlace), kCacheLine);
  }
  Shared& shared_of(BinNumber b) { return *reinterpret_cast<Shared*>(shared_ + b * stride()); }

  // To ask the kernel costs as much as the rest, and threads seldom move: the
  // paper asks each 16th time.
  static constexpr std::uint32_t kUsesOfACpu = 16;
  static constexpr unsigned kTries = 4;
  struct SeenCpu {
    unsigned cpu = 0;
    std::uint32_t uses_left = 0;
  };
  SPANALLOC_TLS static inline constinit thread_local SeenCpu seen_{};

  Atomic<Slot*> slots_{nullptr};  // constant once started, with the six below
  char* shared_ = nullptr;
  CpuSequences sequences_;
  unsigned cpus_ = 0;       // as many chains has the global cache
  unsigned cpu_slots_ = 0;  // of the CPUs'
  std::size_t memory_bytes_ = 0;
  CpuSlots slot_of_;
  ChainPool pool_;
  Atomic<std::size_t> lost_{0};
};

}  // namespace spanalloc::supermalloc
