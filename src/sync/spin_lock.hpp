// A test-and-test-and-set lock for short critical sections that are mostly uncontended. One word,
// zero-initialised (it may live in memory fresh from the kernel). Most holders run a few dozen instructions;
// some open memory, and fork holds every lock while the kernel copies page tables. So a waiter first spins,
// then yields, then sleeps: a real-time thread must not keep the holder from the core that it waits on.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "os/os.hpp"

namespace spanalloc {

class SpinLock {
 public:
  bool try_lock() noexcept {
    std::uint32_t expected = 0;
    // Acquire: everything done under the lock before happens before what this holder reads.
    return word_.load_relaxed() == 0 && word_.compare_exchange_strong_acquire(expected, 1);
  }

  /// False: the calling thread has the lock already, because it is forking (see begin_fork); then the caller
  /// must not unlock.
  bool lock() noexcept {
    for (unsigned spins = 0; !try_lock(); ++spins) {
      if (spins == 0 && forking_.load_relaxed() == os::thread_mark()) return false;
      if (spins < 64) {
        spin_hint();
      } else if (spins < 128) {
        os::yield();
      } else {
        os::sleep_briefly();
      }
    }
    return true;
  }

  // Release: publishes everything done under the lock.
  void unlock() noexcept { word_.store_release(0); }

  /// In a fork's child, where the holder may not exist any more.
  void reset_after_fork() noexcept { word_.store_relaxed(0); }

  /// Between a fork's handlers the forking thread holds every lock of a heap. Handlers of other libraries may
  /// run meanwhile, in it, and allocate: nobody else can be in the heap, so it may pass. Relaxed: a thread
  /// compares with its own mark only.
  static void begin_fork() noexcept { forking_.store_relaxed(os::thread_mark()); }
  static void end_fork() noexcept { forking_.store_relaxed(nullptr); }

 private:
  static inline constinit Atomic<const void*> forking_{nullptr};
  Atomic<std::uint32_t> word_{0};
};

class [[nodiscard]] LockGuard {
 public:
  explicit LockGuard(SpinLock& lock) noexcept : lock_(lock), mine_(lock.lock()) {}
  ~LockGuard() {
    if (mine_) lock_.unlock();
  }
  /// False: the calling thread had the lock already, because it is forking.
  bool is_mine() const noexcept { return mine_; }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  SpinLock& lock_;
  bool mine_;
};

}  // namespace spanalloc
