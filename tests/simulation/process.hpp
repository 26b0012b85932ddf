// The simulated process: its threads' marks, keys and ends, its fork handlers, its options.
#pragma once

#include <cstdint>

#include "random.hpp"

namespace spanalloc::simulation {

/// What the process is started with.
struct ProcessPlan {
  unsigned cpus = 4;
  std::uint64_t decay_ms = UINT64_MAX;  ///< SPANALLOC_DECAY_MS; UINT64_MAX: not set
  std::uint64_t arena_bits = 0;         ///< SPANALLOC_ARENA_BITS; 0: not set
  bool sequences = true;
  bool background = false;
  std::uint64_t limit_at_start = 0;  ///< RLIMIT_AS as it stood then; 0: none
};

class Process {
 public:
  void begin(std::uint64_t seed, const ProcessPlan& plan);
  const ProcessPlan& plan() const { return plan_; }

  // --- Threads -----------------------------------------------------------------------------------

  /// As pthread_exit does: runs the destructors of the thread's keys, in up to four rounds.
  /// `between(round)` runs before each.
  void run_destructors(void (*between)(unsigned));
  void begin_thread(unsigned thread);

  // --- Forks -------------------------------------------------------------------------------------

  /// As fork() does, in the calling thread. True: this is the child, and there is no other thread
  /// any more. False: this is the parent, which goes on; its child is not simulated.
  bool fork(bool as_child);
  std::uint64_t forks() const { return forks_; }
  bool is_new_child() const { return is_new_child_; }
  void enter_child() { is_new_child_ = false; }
  bool is_child() const { return is_child_; }

  std::uint64_t random_bits() { return random_.next(); }

 private:
  test::Random random_{0};
  ProcessPlan plan_;
  std::uint64_t forks_ = 0;
  bool is_new_child_ = false;
  bool is_child_ = false;
};

extern Process process;

/// The mark of a thread: os::thread_id().
const void* mark_of(unsigned thread);
/// Whether the word of a lock says that the thread holds it.
bool is_mark_of(unsigned thread, std::uint64_t word);
/// The clock goes on while all threads wait.
void pass_time();

}  // namespace spanalloc::simulation
