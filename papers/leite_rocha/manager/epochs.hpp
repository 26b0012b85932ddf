// Epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004, section 5.2.3), for
// structures whose readers may stand on elements that others have just unlinked.
//
// A thread announces the global epoch for the length of an operation (Guard). An element
// that was unlinked is retired into the limbo list of the global epoch read *after* the
// unlinking. The epoch advances from e to e + 1 only when every announced epoch is e; then
// the list of e - 1 is given back.
//
// Why that is safe: who can still reach an element found it before it was unlinked, so announced an
// epoch not above the one g that the retiring thread read. Its list is given back by an advance to
// g + 2, which needs every announcement to be g + 1: that reader is gone. And nobody adds to a list
// that is being given back: an active thread's epoch a keeps the global one at a + 1 at most, so
// that lists a to a + 1 are added to, while a thread that gives back list e - 1 after having
// advanced to e + 1 is itself active in e or e + 1, so the epoch is at most e + 2; with four lists
// e - 1 is then none of those added to (e + 3 would be the first).
//
// A thread that stalls inside an operation stops the epoch: from then on nothing that is retired is
// given back until it goes on. Only who owns the elements bounds what that may keep: node_pool.hpp
// has so many nodes, and each block that is added takes two.
//
// Announcements stand in kSlots slots, taken for one operation at a time; more threads than that
// inside operations at once wait for a slot.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc {

template <unsigned kSlots>
class Epochs {
 public:
  static constexpr unsigned kLists = 4;

  /// An operation of the calling thread: while it lives, nothing that it can reach is given back.
  class Guard {
   public:
    Guard(Epochs& epochs, unsigned start)
        : epochs_(epochs), slot_(epochs.announce(start % kSlots)) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    // Release: everything that this thread did with the elements lies before
    // whoever sees the slot empty.
    ~Guard() { epochs_.slots_[slot_].announced.store_release(0); }

   private:
    Epochs& epochs_;
    unsigned slot_;
  };

  /// Number of the list for an element that the caller, inside a Guard, has just unlinked.
  unsigned list_to_retire_into() const {
    return static_cast<unsigned>(epoch_.load_seq_cst() % kLists);
  }

  /// Advances the epoch if every announcement allows it. Returns the list that the caller, inside a
  /// Guard, is to give back, or kLists.
  unsigned try_advance() {
    std::uint64_t epoch = epoch_.load_seq_cst();
    for (const Slot& slot : slots_) {
      // Sequentially consistent, like the announcement: either this scan sees it, or the announcing
      // thread's check of the epoch, which follows its store, sees that the epoch has moved on.
      const std::uint64_t announced = slot.announced.load_seq_cst();
      if (announced != 0 && announced != epoch) return kLists;
    }
    if (!epoch_.compare_exchange_strong_seq_cst(epoch, epoch + 1)) return kLists;
    return static_cast<unsigned>((epoch - 1) % kLists);
  }

  /// In a fork's child: the announcements of threads that are gone end.
  void reset_after_fork() {
    for (Slot& slot : slots_) slot.announced.store_relaxed(0);
  }

 private:
  struct alignas(kCacheLine) Slot {
    // Shared: 0, or the epoch of the operation that has taken the slot
    Atomic<std::uint64_t> announced;
  };

  unsigned announce(unsigned slot) {
    for (;; slot = (slot + 1) % kSlots) {
      std::uint64_t epoch = epoch_.load_seq_cst();
      std::uint64_t empty = 0;
      if (!slots_[slot].announced.compare_exchange_strong_seq_cst(empty, epoch)) {
        spin_hint();
        continue;
      }
      // The epoch may have moved on before the announcement could be seen:
      // announce again until it has not.
      for (std::uint64_t now = epoch_.load_seq_cst(); now != epoch; now = epoch_.load_seq_cst()) {
        epoch = now;
        slots_[slot].announced.store_seq_cst(epoch);
      }
      return slot;
    }
  }

  // Shared; starts high enough that epoch - 1 is no underflow, never 0
  Atomic<std::uint64_t> epoch_{kLists};
  Slot slots_[kSlots];
};

}  // namespace spanalloc
