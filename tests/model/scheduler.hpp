// A stateless model checker for lock-free code, in the manner of CHESS and Relacy.
//
// A model is a small program of two to four threads over shared state (a World). The explorer runs
// it again and again from the start, each time with another resolution of every choice that the
// hardware and the operating system have: which thread steps next, when a buffered store becomes
// visible, which value a load may still see. Choices are walked depth first, so that a run that
// ends without failure has seen all of them within the bounds of its Options. The threads are
// fibers of one thread, and everything goes through `Atomic<T>` of model_atomic.hpp, which is what
// production headers see when SPANALLOC_ATOMIC_BACKEND names it.
//
//   struct World {                                  // fresh for every execution; atomics inside
//                                                   it, not // on a heap
//     static constexpr unsigned kThreads = 2;
//     Atomic<int> x{0};
//     void thread(unsigned self);                   // body of thread number `self`
//     void at_rest();                               // after all threads ended and all stores
//                                                   arrived, or in // a fork's child
//                                                   (Options::forks)
//   };
//   Result result = explore<World>({.memory = MemoryModel::tso, .preemptions = 2});
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "model_atomic.hpp"

namespace spanalloc::model {

inline constexpr unsigned kMaxThreads = 4;

/// What stores and loads may do besides interleaving.
enum class MemoryModel {
  interleaving,  ///< every operation is atomic and visible at once: what no machine promises
  /// x86: one FIFO store buffer a thread; read-modify-writes and seq_cst stores drain it
  tso,
  /// One buffer a thread and location: relaxed stores overtake each other, a release store (and a
  /// read-modify-write with release) stays behind everything before it
  pso,
  /// C++ without load buffering: a load may return any value its thread has not been ordered past
  views,
};

struct Options {
  MemoryModel memory = MemoryModel::tso;
  /// Switches away from a thread that could go on. Switches at a thread's end or
  /// at a spin-wait are free.
  unsigned preemptions = 2;
  /// `views`: how many loads of an execution may return something older than the newest value.
  unsigned stale_loads = 2;
  /// How many weak compare-exchanges of an execution may fail for no reason, as
  /// LL/SC machines let them.
  unsigned spurious_failures = 0;
  /// How often in an execution a thread may go on on another CPU, in worlds
  /// that have CPUs (run_on()).
  unsigned migrations = 0;
  /// Operations in one execution before it counts as a livelock.
  unsigned max_steps = 2000;
  /// Each execution ends in a fork, taken at whatever step: the threads vanish where they stand,
  /// and at_rest() is run in the child. It finds what had reached memory; of what was in store
  /// buffers all, some or nothing.
  bool forks = false;
  /// With `forks`, for worlds of many stores: of all stores in buffers at most one is late, with
  /// those that may not overtake it; and threads change only at variables that they share, so that
  /// at most one has vanished in the middle of stores that only the child looks at.
  bool one_late = false;
  /// Gives up, with `complete == false`, after so many executions.
  std::uint64_t max_executions = 20'000'000;
};

struct Result {
  bool failed = false;
  bool complete = false;         ///< every execution within the bounds was run
  std::string message;           ///< what failed
  std::string trace;             ///< the failing execution, operation by operation
  std::uint64_t executions = 0;  ///< distinct executions explored
  std::uint64_t steps = 0;       ///< operations in all of them
  unsigned deepest = 0;          ///< most choices in one execution

  bool passed() const { return !failed && complete && executions > 1; }
};

/// What explore() runs. Use the template below.
class Program {
 public:
  virtual ~Program() = default;
  virtual unsigned threads() const = 0;
  virtual void construct() = 0;
  virtual void run(unsigned thread) = 0;
  virtual void at_rest() = 0;
};

Result explore(Program& program, const Options& options);

/// Within a model: ends this execution as a failure.
[[noreturn]] void fail(const char* message, const char* file = nullptr, int line = 0);
/// Within a model: a spin-wait. The thread sleeps until another one has changed memory.
void yield();
/// Within a model: one of 0 .. n-1, all of them in turn.
unsigned choose(unsigned n);
/// Within a model: the number of the running thread.
unsigned this_thread();
/// In a World's constructor: each thread gets a copy of these bytes, as they are now, and finds it
/// there whenever it runs: for production code with thread-local variables, which all fibers would
/// share otherwise. The constructor and at_rest() have a copy of their own.
void per_thread_storage(void* address, std::size_t bytes);
/// In a World's constructor or at_rest(): puts the copies of `thread` in place, to act for it.
void act_as(unsigned thread);
/// The running thread, or the one that a constructor or at_rest() acts for; kMaxThreads: none.
unsigned acting_thread();
/// In a World's constructor: threads run on CPUs 0 and 1, between which they may be moved;
/// those of one CPU take turns there, and what one has done there the next one sees. Without,
/// each has one of its own.
void run_on(unsigned thread, unsigned cpu);
/// Within a model: where the running thread is; and where it was at its last
/// sequence's end, or its beginning.
unsigned this_cpu();
unsigned last_seen_cpu();
/// Within a model, around a restartable sequence: until end_sequence() the thread goes on at `exit`
/// as soon as another one has run on its CPU, or it has been moved to another CPU.
void begin_sequence(std::jmp_buf& exit);
void end_sequence();
/// What an operation does to a variable.
enum class Access : std::uint8_t { load, store, update };
/// In a World's constructor: a planted fault. In this execution operations have the order that it
/// says, given theirs. (A store in order is a release, or has no order.)
using OrderFault = Order (*)(const void* cell, Access access, Order order);
void plant(OrderFault fault);
/// Whether the executions end in forks.
bool explores_forks();
/// Names a variable in traces.
void name_variable(const void* address, const char* name);
/// Adds a line to the trace.
void note(const char* text, std::uint64_t value = 0);
/// True while a failing execution is repeated for its trace.
bool tracing();

#define MODEL_CHECK(condition) \
  ((condition) ? void() : ::spanalloc::model::fail("check failed: " #condition, __FILE__, __LINE__))

template <class World>
Result explore(const Options& options) {
  // The World lives at one address in all executions: variables are known by their addresses.
  alignas(128) static std::byte storage[sizeof(World)];
  struct Runner final : Program {
    World* world = nullptr;
    unsigned threads() const override { return World::kThreads; }
    void construct() override {
      std::memset(storage, 0, sizeof(storage));
      world = ::new (static_cast<void*>(storage)) World;
    }
    void run(unsigned thread) override { world->thread(thread); }
    void at_rest() override { world->at_rest(); }
  };
  Runner runner;
  return explore(runner, options);
}

}  // namespace spanalloc::model
