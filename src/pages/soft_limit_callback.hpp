// The program's function that is told when what is held comes near the soft limit.
//
// It may do what a program does: allocate, free, start threads, wait. So the thread that finds that
// memory has come near, in the middle of a call and maybe under locks, only notes it (due). The
// call is made by the next thread that begins a slow malloc and has nothing of ours in its hands
// yet.
//
//   note_near()     due, if there is a function
//   call_if_due()   takes the note away, unless a call is under way: so no call begins within
//                   another, nor beside it, and each note is one call
//
// A function and its context belong together. They stand in one of two places, and `place_` says in
// which: who sets them writes to the other place and then changes the word. So the child of a fork
// finds a whole pair, whatever step a vanished thread was at.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {

/// Thread-safe, zero-initialisable.
class SoftLimitCallback {
 public:
  using Function = void (*)(void* context, std::size_t held, std::size_t limit);

  /// From now on this one; nullptr: none. A call that another thread has begun may go on.
  SPANALLOC_COLD void set(Function function, void* context) {
    const LockGuard guard(lock_);
    const std::uint32_t other = place_.load_relaxed() ^ 1;
    functions_[other] = {function, context};
    place_.store_release(other);  // release: a fork's child that finds the word finds the pair
    if (function == nullptr) due_.store_relaxed(0);
  }
  /// True: a call is due.
  SPANALLOC_COLD bool note_near() {
    // If a signal handler has forked while this thread held the lock, the child's recovery must not
    // wait for it.
    if (lock_.is_mine()) return note_near_locked();
    const LockGuard guard(lock_);
    return note_near_locked();
  }
  /// With no lock of ours held, and by no thread that is in another call of the heap's. False: one
  /// is still due, because another call is under way.
  SPANALLOC_COLD bool call_if_due(std::size_t held, std::size_t limit) {
    Pair mine;
    {
      const LockGuard guard(lock_);
      if (due_.load_relaxed() == 0) return true;
      if (caller_ != nullptr) return false;
      due_.store_relaxed(0);
      caller_ = os::thread_id();
      mine = functions_[place_.load_relaxed()];
    }
    mine.function(mine.context, held, limit);
    const LockGuard guard(lock_);
    caller_ = nullptr;
    return due_.load_relaxed() == 0;
  }
  bool is_due() const { return due_.load_relaxed() != 0; }

  /// In a fork's child, first of all. It was the parent's memory that came near; a call that the
  /// thread is in goes on, one of a vanished thread does not.
  SPANALLOC_COLD void enter_child() {
    lock_.abandon_if_owner_died();
    due_.store_relaxed(0);
    if (caller_ != os::thread_id()) caller_ = nullptr;
  }

 private:
  friend struct SoftLimitCallbackTestAccess;  // defined by unit tests only

  struct Pair {
    Function function = nullptr;
    void* context = nullptr;
  };

  bool note_near_locked() {
    if (functions_[place_.load_relaxed()].function == nullptr) return false;
    due_.store_relaxed(1);
    return true;
  }

  SpinLock lock_;
  const void* caller_ = nullptr;  // under the lock: the thread that is in the function
  Atomic<std::uint32_t> due_{0};  // written under the lock
  Atomic<std::uint32_t> place_{0};
  Pair functions_[2];
};

}  // namespace spanalloc
