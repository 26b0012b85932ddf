// Runs the threads of one simulated process as fibres and decides every order that the machine has.
//
// The scheduler implements the functions that tests/model/model_atomic.hpp calls at each atomic
// operation. The model checker implements them by enumeration; here one random stream draws which
// thread steps next, when a buffered store becomes visible, and where a signal arrives. The same
// seed and schedule give the same run, to the last step.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>

#include "fiber.hpp"
#include "model_atomic.hpp"
#include "random.hpp"

namespace spanalloc::simulation {

/// Threads that live at once, and the director: the code outside of the simulated process, which
/// starts threads and checks the heap while all of them are idle.
inline constexpr unsigned kMostThreads = 17;
inline constexpr unsigned kDirector = kMostThreads;

/// Who runs next.
enum class Policy : std::uint8_t {
  random,      ///< any thread, after a random number of steps
  priorities,  ///< PCT (Burckhardt et al., ASPLOS 2010): the highest priority, which seldom changes
  /// As random; and where two threads meet at a variable, sooner the more rarely these two places
  /// of the code have met there
  rare_pairs,
};

/// When a store becomes visible to other threads. tests/model/README.md describes both models.
enum class Stores : std::uint8_t { at_once, tso, pso };

struct Schedule {
  Policy policy = Policy::random;
  std::uint32_t gap = 50;  ///< mean number of steps between switches, or changes of priority
  Stores stores = Stores::at_once;
  std::uint8_t late = 0;         ///< of 256: a buffered store that could arrive stays
  std::uint32_t signal_gap = 0;  ///< mean number of steps between signals; 0: none
  std::uint32_t stall = 0;  ///< longest time, in steps, for which a thread is stopped; 0: never
};

/// What a step of a run was: for its log.
enum class Step : std::uint8_t { load, store, update, failed_update, arrival };

class Scheduler {
 public:
  // --- By the director ---------------------------------------------------------------------------

  void begin(std::uint64_t seed);
  void set(const Schedule& schedule);
  /// Starts a thread, which runs `body(number)`; `ended(number)` follows in the same thread.
  void start(unsigned thread, void (*body)(unsigned));
  /// Runs until every thread is idle or has ended. Then all stores have arrived.
  void run();
  bool lives(unsigned thread) const { return threads_[thread].state != State::none; }
  /// What a signal runs, in the thread that it interrupts.
  void set_signal_handler(void (*handler)()) { handler_ = handler; }
  /// What is told of each store of the library's that arrives.
  void set_store_check(void (*check)(const void* cell)) { store_check_ = check; }

  // --- By a running thread -----------------------------------------------------------------------

  unsigned self() const { return running_; }
  bool in_thread() const { return running_ != kDirector; }
  /// Has nothing to do until resume_all().
  void idle();
  /// The director: threads that were idle go on with the next run().
  void resume_all();
  /// The thread spins or sleeps: others run.
  void yield();
  /// The others exist no more, nor their stores that have not arrived: the thread has become a
  /// fork's child.
  void vanish_others();
  /// A step that is no atomic operation: a call of the kernel's.
  void kernel_step();
  /// All of its stores arrive.
  void drain();
  /// Those to memory of a block that the program gets, which it is about to write to.
  void drain_range(const void* first, std::size_t bytes);
  /// Those of all threads.
  void drain_all();
  /// All of its own, and those of the others to memory that the kernel takes away or moves: it
  /// makes each processor forget its address first, which a store in flight does not outlive.
  void drain_range_of_all(const void* first, std::size_t bytes);
  /// Around an operation of the program's: an operation that does not end is a failure.
  void begin_operation();
  void end_operation();
  /// Until its operation ends no other thread runs, however long that takes: the others' stores
  /// have arrived. What it waits for will not come: yields count.
  void run_alone() {
    drain_all();
    alone_ = true;
  }
  bool is_alone() const { return alone_; }
  /// Whether another thread holds a lock.
  bool do_others_hold_locks() const;
  /// From here on the thread may fail, or wait for ever: that ends the run, which passes.
  void excuse(bool on) {
    threads_[running_].is_excused = on;
    any_excused_ = true;
  }
  bool is_excused() const { return threads_[running_].is_excused; }
  bool is_any_excused() const { return any_excused_; }
  std::uint64_t yields_of_operation() const { return threads_[running_].yields; }
  /// While true, the thread's operations are no steps: checks look at its own memory.
  void look(bool on) { looks_ = on; }
  unsigned cpu() const { return threads_[running_].cpu; }
  unsigned last_seen_cpu() const { return threads_[running_].seen_cpu; }
  void begin_sequence(std::jmp_buf* exit) { threads_[running_].sequence = exit; }
  void end_sequence();
  void set_cpus(unsigned cpus) { cpus_ = cpus; }
  /// Locks that it holds, by what it has written into them.
  unsigned locks_held() const { return threads_[running_].locks; }
  const void* lock_held() const { return threads_[running_].lock_cells[0]; }

  // --- The operations of model_atomic.hpp --------------------------------------------------------

  std::uint64_t load(const void* cell, unsigned bytes, const void* site);
  void store(void* cell, unsigned bytes, std::uint64_t value, model::Order order, const void* site);
  std::uint64_t read_for_update(void* cell, unsigned bytes, model::Order order, const void* site);
  void write_update(void* cell, unsigned bytes, std::uint64_t value);
  void keep(void* cell);
  bool fails_spuriously();

  // --- Counts ------------------------------------------------------------------------------------

  std::uint64_t steps() const { return steps_; }
  std::uint64_t switches() const { return switches_; }
  std::uint64_t signals() const { return signals_; }
  std::uint64_t late_stores() const { return late_stores_; }
  std::uint64_t new_pairs() const { return new_pairs_; }

 private:
  enum class State : std::uint8_t { none, runnable, spinning, idle };
  struct Pending {
    void* cell;
    std::uint64_t value;
    std::uint8_t bytes;
    bool release;
  };
  static constexpr unsigned kMostPending = 12;
  static constexpr unsigned kMostLocks = 8;
  struct Thread {
    model::Fiber fiber;
    State state = State::none;
    int errno_value = 0;
    unsigned cpu = 0;
    unsigned seen_cpu = 0;
    std::uint64_t priority = 0;
    std::uint64_t stalled_until = 0;
    std::uint64_t operation_began = 0;  // in steps of its own
    std::uint64_t own_steps = 0;
    std::uint64_t yields = 0;
    unsigned signals = 0;  // in the operation
    bool in_operation = false;
    bool is_excused = false;
    std::jmp_buf* sequence = nullptr;
    bool must_leave = false;
    void (*body)(unsigned) = nullptr;
    unsigned pending = 0;
    Pending buffer[kMostPending];
    unsigned locks = 0;
    const void* lock_cells[kMostLocks];
  };
  struct Meeting {  // the last access to a variable
    const void* cell;
    std::uint32_t site;
    std::uint8_t thread;
    bool write;
  };
  static constexpr std::size_t kMeetings = 1 << 13;
  static constexpr std::size_t kPairs = 1 << 16;
  static constexpr std::size_t kVisited = 1 << 14;

  static void entry(unsigned thread);
  void point(const void* cell, bool write, const void* site);
  void event();
  bool is_new(const void* site);
  void haunt();
  void light_fuse();
  bool meets(const void* cell, bool write, const void* site);
  void switch_threads();
  unsigned choose_next();
  void resume(unsigned thread);
  void leave_for_director();
  bool takes_another(const Thread& thread);
  void deliver_signal();
  void arrive(Thread& thread, unsigned index);
  void arrive_range(Thread& thread, const void* first, std::size_t bytes);
  void write(void* cell, unsigned bytes, std::uint64_t value);
  void let_some_arrive(Thread& thread);
  bool may_arrive(const Thread& thread, unsigned index) const;
  void note_lock(const void* cell, std::uint64_t value);
  void forget_lock(const void* cell, std::uint64_t value);

  test::Random random_{0};
  Schedule schedule_;
  Thread threads_[kMostThreads + 1];
  unsigned running_ = kDirector;
  std::uint32_t fuse_ = 1;
  std::uint32_t to_switch_ = 1;
  std::uint32_t to_signal_ = 0;
  std::uint32_t burnt_ = 0;
  std::uint64_t lowest_ = 0;
  bool alone_ = false;
  bool looks_ = false;
  bool any_excused_ = false;
  bool signals_blocked_ = false;
  void (*handler_)() = nullptr;
  void (*store_check_)(const void*) = nullptr;
  unsigned cpus_ = 1;
  unsigned last_on_[64] = {};
  std::uint64_t steps_ = 0, switches_ = 0, signals_ = 0, late_stores_ = 0, new_pairs_ = 0;
  std::uint64_t idle_yields_ = 0;  // since anything was written or an operation ended
  Meeting meetings_[kMeetings] = {};
  std::uint8_t pairs_[kPairs] = {};
  std::uint8_t visits_[kVisited] = {};
};

extern Scheduler scheduler;

/// Ends the run as a failure; if the thread is excused, as one that has passed.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);

#define SIM_CHECK(condition, ...) \
  ((condition) ? void() : ::spanalloc::simulation::fail(__VA_ARGS__))

}  // namespace spanalloc::simulation
