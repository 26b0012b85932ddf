// A test-and-test-and-set lock for short critical sections that are mostly uncontended. One word,
// zero-initialised (it may live in memory fresh from the kernel). Most holders run a few dozen
// instructions; some open memory, which takes some microseconds. So a waiter first spins, about as
// long as that, and then gives its core away, for the kernel returns it after some tens of
// microseconds only: a real-time thread must not keep the holder from the core that it waits on.
//
// Robust against fork. A fork takes no lock, so that it waits for nobody and nobody waits for it. A
// thread that was in a critical section at that instant does not exist in the child; its lock stays
// taken there, and what the lock guards may be half changed. The word names the holder: the next
// one who wants the lock sees that the owner has died, takes the lock over, and is told so
// (kOwnerDied), as with POSIX's robust mutexes.
//
//   word = 0                                 free
//        = 1                                 abandoned: its owner has died, or left it to report a
//                                            misuse
//        = generation << 48 | thread mark    held; + 1: of a WakingLock, and somebody sleeps for it
//
// A sleeper's time-out ends as late as its thread's timer slack says, which a program may have
// made long. So what is held across system calls is a WakingLock: who frees it looks whether
// somebody sleeps, and wakes one. Who sleeps for it sleeps longer each time, up to 13 ms: hundreds
// of waiters that look every 50 microseconds would take the cores from the holder. The others are
// on paths that are counted by the instruction, and mostly held for less time.
//
// The child's first act is enter_child(): a new generation. A holder of an older generation is
// dead, unless it is the caller itself: the thread that forked goes on, and if the fork was made by
// a signal handler that interrupted it in a critical section, it still has that lock. Marks may be
// used again by threads that the child starts: before it starts one, every lock is told to
// abandon_if_owner_died().
//
// The fork of a process that never had another thread is none of this lock's business: nobody dies
// of it, and no generation begins (thread/lifecycle.cpp).
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"

namespace spanalloc {

enum class [[nodiscard]] Locked : std::uint8_t {
  kClean,      ///< what the lock guards is as its invariants say
  kOwnerDied,  ///< a fork left the last holder behind: what it guards may be half changed
};

class SpinLock {
 public:
  /// Never takes a lock whose owner has died.
  bool try_lock() noexcept { return word_.load_relaxed() == 0 && take_from(0, my_word()); }
  /// The same, but takes that of a dead owner, too. False: somebody has it.
  bool try_lock(Locked& how) noexcept {
    const std::uint64_t mine = my_word();
    const std::uint64_t seen = word_.load_relaxed();
    if ((seen != 0 && !is_dead(seen, mine)) || !take_from(seen, mine)) return false;
    how = taken(mine, seen == 0 ? Locked::kClean : Locked::kOwnerDied);
    return true;
  }
  /// A look: nobody has it, nor has left it behind.
  bool is_free() const noexcept { return word_.load_relaxed() == 0; }

  Locked lock() noexcept { return lock(false); }

  // Release: publishes everything done under the lock.
  void unlock() noexcept {
    SPANALLOC_ASSERT(is_mine());
    word_.store_release(0);
  }
  /// Held by the calling thread: for assertions. (Own marks of earlier generations count: a handler
  /// may have forked under the lock.)
  bool is_mine() const noexcept { return ((word_.load_relaxed() ^ my_word()) & kSameMask) == 0; }

  /// In a fork's child, while that has one thread: whether the lock's owner did not come along.
  bool owner_died() const noexcept { return is_dead(word_.load_relaxed(), my_word()); }
  /// Then: frees it, when what it guards has been put right;
  void reset() noexcept { word_.store_relaxed(0); }
  /// or leaves that to the next one who takes it.
  void abandon_if_owner_died() noexcept {
    if (owner_died()) word_.store_relaxed(kAbandoned);
  }

  /// By a thread that is about to leave all that it is in, and to report a misuse: frees the lock,
  /// if it is its own, as what it guards is whole;
  void unlock_if_mine() noexcept {
    if (is_mine()) unlock();
  }
  /// or has the next one who takes it put right what it guards, as after a fork.
  void abandon_if_mine() noexcept {
    if (is_mine()) word_.store_release(kAbandoned);
  }

  /// For locks that nobody can tell to abandon_if_owner_died() in the child. By a thread that does
  /// not hold it, and finds it taken: if it was a vanished thread's that had the caller's mark, the
  /// next one who takes it puts right what it guards. Whether the caller held it itself, and holds
  /// it still: then it would wait for ever.
  [[nodiscard]] bool is_mine_for_ever() noexcept {
    std::uint64_t seen = word_.load_relaxed();
    const std::uint64_t mine = my_word();
    if (seen <= kAbandoned || ((seen ^ mine) & kSameMask) != 0) return false;
    if (seen >> kGenerationShift == mine >> kGenerationShift) return true;
    // If another thread has taken it over meanwhile, that one repairs.
    (void)word_.compare_exchange_strong_acquire(seen, kAbandoned);
    return false;
  }

  // Around a fork, in the thread that forks.
  static void begin_fork() noexcept {
    os::before_fork();
    is_forking_ = true;
  }
  static void end_fork() noexcept { is_forking_ = false; }
  /// In a fork's child, before anything else there: who held a lock is dead,
  /// but for the calling thread.
  static void enter_child() noexcept {
    end_fork();
    os::enter_child();
    ++generation_;
  }
  /// For who has waited for long: handlers of other libraries that run before ours in a
  /// fork's child may allocate.
  static void look_for_fork() noexcept {
    if (is_forking_ && os::is_new_child()) enter_child();
  }
  /// Differs between a process and its forked child, but where the process
  /// never had another thread.
  static std::uint16_t generation() noexcept { return generation_; }

 protected:
  static constexpr std::uint64_t kSleeper = 1;

  Locked lock(bool wakes) noexcept {
    const std::uint64_t mine = my_word();
    const std::uint64_t seen = word_.load_relaxed();
    if (SPANALLOC_LIKELY(seen == 0 && take_from(0, mine))) return taken(mine, Locked::kClean);
    return wait(seen, mine, wakes);
  }

  Atomic<std::uint64_t> word_{0};

 private:
  friend struct SpinLockTestAccess;

  static constexpr unsigned kYields = 64;
  static constexpr unsigned kMostDoublings = 8;
  static constexpr std::uint64_t kAbandoned = 1;
  static constexpr unsigned kGenerationShift = 48;  // user addresses are shorter
  static constexpr std::uint64_t kMarkMask = (std::uint64_t{1} << kGenerationShift) - 1;
  static constexpr std::uint64_t kSameMask = kMarkMask & ~kSleeper;  // (marks are even)

  static std::uint64_t my_word() noexcept {
    return std::uint64_t{generation()} << kGenerationShift |
           (address_of(os::thread_id()) & kMarkMask);
  }
  static bool is_dead(std::uint64_t holder, std::uint64_t mine) noexcept {
    if (holder <= kAbandoned) return holder == kAbandoned;
    return holder >> kGenerationShift != mine >> kGenerationShift &&
           ((holder ^ mine) & kSameMask) != 0;
  }
  // A signal handler may have forked since `mine` was made up: threads that the child starts know
  // this one by the child's generation only. (Its mark is the same.)
  Locked taken(std::uint64_t mine, Locked how) noexcept {
    if (SPANALLOC_UNLIKELY(mine >> kGenerationShift != generation()))
      word_.store_relaxed(my_word());
    return how;
  }
  // For who has seen the lock held, or lost a race for it. Out of line: what is left is short
  // enough to stand in each caller.
  [[gnu::noinline]] Locked wait(std::uint64_t seen, std::uint64_t mine, bool wakes) noexcept {
    // Who has slept says that somebody sleeps: others may, and one at a time is woken.
    std::uint64_t sleeper = 0;
    unsigned sleeps = 0;
    for (unsigned waits = 0;; ++waits) {
      if (seen != 0 && is_dead(seen, mine) && take_from(seen, mine | sleeper)) {
        return taken(mine, Locked::kOwnerDied);
      }
      if (waits < spins) {
        spin_hint();
      } else {
        if (wakes) {
          sleeper = kSleeper;
          if (sleep_for(seen, sleep_ns << min_of(sleeps / 2, kMostDoublings))) ++sleeps;
        } else if (waits < spins + kYields) {
          os::yield();
        } else {
          os::sleep_briefly();
        }
        // A signal handler may have forked while we waited: this may be the child.
        look_for_fork();
        mine = my_word();
      }
      seen = word_.load_relaxed();
      if (seen == 0 && take_from(0, mine | sleeper)) return taken(mine, Locked::kClean);
    }
  }
  // Until the holder that was seen frees the lock, or the time-out: who frees it takes our mark
  // away in the same step, or comes before it. (Relaxed would do: the kernel compares the word once
  // more before the thread sleeps.) False: somebody has changed the word meanwhile.
  bool sleep_for(std::uint64_t seen, std::uint64_t ns) noexcept {
    if (seen == 0 || ((seen & kSleeper) == 0 && !take_from(seen, seen | kSleeper))) return false;
    os::sleep_while(&word_, seen | kSleeper, ns);
    return true;
  }
  // Acquire: everything done under the lock before happens before what this holder reads. Of a dead
  // holder that is what the kernel has copied.
  bool take_from(std::uint64_t seen, std::uint64_t mine) noexcept {
    return word_.compare_exchange_strong_acquire(seen, mine);
  }

  SPANALLOC_TLS static inline constinit thread_local bool is_forking_ = false;
  // Not atomic: written in a fork's child while that has one thread. Every other thread
  // there was started later.
  static inline constinit std::uint16_t generation_ = 0;
  // Constant but for tests.
  static inline constinit unsigned spins = 512;
  static inline constinit std::uint64_t sleep_ns = 50'000;
};

/// For what is held across system calls.
class WakingLock : public SpinLock {
 public:
  Locked lock() noexcept { return SpinLock::lock(true); }
  /// Wakes one of those that sleep. In one step, so that none is missed who says so meanwhile: it
  /// may sleep for long.
  void unlock() noexcept {
    SPANALLOC_ASSERT(is_mine());
    const std::uint64_t held = word_.exchange_acq_rel(0);  // release: as in SpinLock
    if (SPANALLOC_UNLIKELY((held & kSleeper) != 0)) os::wake_one(&word_);
  }
  void unlock_if_mine() noexcept {
    if (is_mine()) unlock();
  }
};

template <class Lock>
class [[nodiscard]] LockGuard {
 public:
  explicit LockGuard(Lock& lock) noexcept : lock_(lock), locked_(lock.lock()) {}
  ~LockGuard() { lock_.unlock(); }
  /// The last holder did not come along a fork: repair what the lock guards, or
  /// know why that is not needed.
  bool owner_died() const noexcept { return locked_ == Locked::kOwnerDied; }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
  Locked locked_;
};

}  // namespace spanalloc
