// Which of the CPUs' caches a CPU has. The numbers of the CPUs that a process may run on need not
// begin with 0 nor follow each other, so they are no places in a table of as many: those that
// threads are met on get the slots in turn.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::supermalloc {

/// Thread-safe; zero-initialisable; usable once started.
class CpuSlots {
 public:
  /// The most that Linux is built for; of larger numbers some share.
  static constexpr unsigned kCpus = 8192;

  /// What it needs of memory: zero, of which only what is used is touched.
  static constexpr std::size_t kBytes = kCpus * sizeof(std::uint16_t);

  /// Of CPUs beyond as many as there are slots: whether they share those, or have none. (As many as
  /// the kernel might ever have are not beyond.)
  enum class Beyond : std::uint8_t { kShare, kNone };
  /// So many slots, fewer than UINT16_MAX.
  void start(unsigned count, void* memory, Beyond beyond = Beyond::kShare) {
    count_ = count;
    beyond_ = beyond;
    slot_ = static_cast<Atomic<std::uint16_t>*>(memory);
  }

  /// The CPU's slot. The first `count` CPUs have one each; where there are more, as many share
  /// each, or they have none, which is the number `count`.
  unsigned of(unsigned cpu) {
    if (beyond_ == Beyond::kNone && cpu >= kCpus) return count_;
    const unsigned known = slot_[cpu % kCpus].load_relaxed();
    return SPANALLOC_LIKELY(known != 0) ? known - 1 : assign(cpu % kCpus);
  }

  /// No slot of this number or beyond is any CPU's yet.
  unsigned given() const { return beyond_ == Beyond::kNone ? next_.load_relaxed() : count_; }

  /// In a fork's child, first of all. (Of a vanished thread's assignment the slot may be nobody's.)
  void enter_child() { lock_.abandon_if_owner_died(); }

 private:
  SPANALLOC_COLD unsigned assign(unsigned cpu) {
    const LockGuard guard(lock_);
    if (const unsigned known = slot_[cpu].load_relaxed(); known != 0) return known - 1;
    const unsigned slot = next_.load_relaxed();
    if (beyond_ == Beyond::kShare) {
      next_.store_relaxed(slot + 1 == count_ ? 0 : slot + 1);
    } else if (slot != count_) {
      next_.store_relaxed(slot + 1);
    }
    // Release: a fork's child does not assign again what it finds assigned.
    slot_[cpu].store_release(static_cast<std::uint16_t>(slot + 1));
    return slot;
  }

  unsigned count_ = 0;              // constant once started
  Beyond beyond_ = Beyond::kShare;  // likewise
  SpinLock lock_;                   // taken alone
  Atomic<unsigned> next_{0};        // written under the lock
  // By the CPU's number, a slot's and one; 0: no thread was met there yet. Each written once, under
  // the lock, and read at any time: any slot would do. The pointer is constant once started.
  Atomic<std::uint16_t>* slot_ = nullptr;
};

}  // namespace spanalloc::supermalloc
