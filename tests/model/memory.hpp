// What the machine's memory may do: store buffers, stale reads and happens-before.
//
// Store buffers are flushed lazily. A buffered store matters only once somebody else looks at its
// variable or overwrites it, so that is when the model asks how many of the pending stores have
// arrived by now; every execution with eager flushes is equivalent to one in which each flush is
// postponed to that moment (flushes commute with all operations on other variables). This explores
// the same behaviours with far fewer choices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "model_atomic.hpp"
#include "scheduler.hpp"

namespace spanalloc::model {

using Clock = std::array<std::uint32_t, kMaxThreads>;  // vector clock
using View = std::vector<std::uint32_t>;               // newest message known, by variable number

/// What the memory needs from the scheduler.
class MemoryHost {
 public:
  virtual unsigned choose(unsigned n) = 0;
  /// Another thread than `by` may now see something new.
  virtual void memory_changed(unsigned by) = 0;
  [[gnu::format(printf, 2, 3)]] virtual void trace(const char* format, ...) = 0;
  virtual bool tracing() const = 0;
  virtual void race(const char* variable, unsigned first, unsigned second) = 0;

 protected:
  ~MemoryHost() = default;
};

class Memory {
 public:
  explicit Memory(MemoryHost& host) : host_(host) {}

  /// Forgets every variable; the sharing learned about them with it.
  void begin_exploration(const Options& options, unsigned threads);
  void begin_execution();
  /// Names of this execution's variables: names survive executions, not explorations.
  void name(const void* cell, const char* name);

  /// Records that `thread` is about to use `cell`. True when other threads use it too (and somebody
  /// writes it): then this is a point where the order of threads matters.
  bool announce(unsigned thread, const void* cell, bool write);
  /// True once an execution has shown a variable to be shared that earlier ones took for private.
  bool learned_sharing() const { return learned_; }
  void forget_learned() { learned_ = false; }
  /// Store buffers make a plain store invisible to others until it is flushed.
  bool stores_are_visible_at_once() const { return !buffered(); }
  bool reads_own_buffer(unsigned thread, const void* cell);

  std::uint64_t load(unsigned thread, const void* cell, unsigned bytes, Order order);
  void store(unsigned thread, void* cell, unsigned bytes, std::uint64_t value, Order order);
  std::uint64_t read_for_update(unsigned thread, void* cell, unsigned bytes, Order order);
  void write_update(unsigned thread, void* cell, unsigned bytes, std::uint64_t value, Order order);
  void keep(unsigned thread, void* cell, unsigned bytes, Order order);
  void plain(unsigned thread, const void* cell, bool write);

  /// All pending stores arrive. False when there were none.
  bool drain_all();
  /// All that are pending of one thread.
  void drain(unsigned thread);
  /// A fork: of the pending stores some have arrived, as far as they may overtake each
  /// other; the others never will.
  void fork();
  /// A kernel takes a thread off its CPU, and gives it to another one, which sees
  /// all that was done there.
  void leave_cpu(unsigned thread, unsigned cpu);
  void enter_cpu(unsigned thread, unsigned cpu);
  /// A spinning thread does not read the same stale value for ever: what it read since it last spun
  /// catches up. True when that gave it something new to read.
  bool catch_up(unsigned thread);

 private:
  struct Message {  // `views`: one value in a variable's modification order
    std::uint64_t value;
    Clock clock;
    View view;
  };
  struct Variable {
    std::uint32_t number;
    const void* cell;
    const char* name = nullptr;
    std::uint8_t users = 0;    // bit per thread, over all executions
    std::uint8_t writers = 0;  // likewise
    std::uint64_t execution = 0;
    // Of this execution:
    Clock clock{};  // what an acquire load of the value in memory learns
    std::vector<Message> messages;
    std::uint32_t seq_cst_floor = 0;
    // Plain variables: epoch of the last write, clocks of the last reads
    std::uint8_t last_writer = 0;
    std::uint32_t write_epoch = 0;
    Clock read_epochs{};
    bool shared() const { return (users & (users - 1)) != 0 && writers != 0; }
  };
  struct Pending {  // a store in a buffer
    Variable* variable;
    void* cell;
    unsigned bytes;
    std::uint64_t value;
    bool release;
    Clock clock;
  };
  struct Thread {
    Clock clock{};
    std::vector<Pending> buffer;  // oldest first
    View view;                    // `views`: nothing older than this may be read
    std::vector<Variable*> read_since_spin;
  };

  bool buffered() const {
    return options_.memory == MemoryModel::tso || options_.memory == MemoryModel::pso;
  }
  bool views() const { return options_.memory == MemoryModel::views; }
  Variable& variable(const void* cell);
  Variable& find(const void* cell);
  const char* label(const Variable& variable);

  static void join(Clock& into, const Clock& from);
  static void join(View& into, const View& from);
  static std::uint32_t& at(View& view, std::uint32_t number);

  std::size_t first_pending(unsigned thread, const Variable& variable) const;
  void arrive(unsigned thread, std::size_t index);
  void arrive_with_predecessors(unsigned thread, std::size_t index);
  void settle(const Variable& variable);
  void fork_with_one_late();
  void drain_variable(unsigned thread, const Variable& variable);
  void write_memory(void* cell, unsigned bytes, std::uint64_t value, unsigned by);
  std::uint64_t load_view(Thread& thread, Variable& variable, unsigned bytes, Order order);
  void first_message(Variable& variable, unsigned bytes);
  void acquire(Thread& thread, const Clock& clock, const View* view);
  Clock release_clock(unsigned thread);

  MemoryHost& host_;
  Options options_;
  unsigned thread_count_ = 0;
  std::uint64_t execution_ = 0;
  bool learned_ = false;
  unsigned arriving_ = 0;  // bit per thread whose buffer is being flushed right now
  unsigned stale_loads_ = 0;
  // By address: open addressing over indexes into a deque, which keeps Variables in place.
  std::deque<Variable> variables_;
  std::vector<std::uint32_t> table_;  // 0: empty, otherwise 1 + index
  std::array<Thread, kMaxThreads> threads_;
  struct Cpu {  // what has been done there
    Clock clock{};
    View view;
  };
  std::array<Cpu, kMaxThreads> cpus_;
};

/// Reads and writes `bytes` bytes of real memory.
std::uint64_t read_cell(const void* cell, unsigned bytes);
void write_cell(void* cell, unsigned bytes, std::uint64_t value);

bool is_acquire(Order order);
bool is_release(Order order);
const char* name_of(Order order);

}  // namespace spanalloc::model
