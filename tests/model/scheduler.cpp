#include "scheduler.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "fiber.hpp"
#include "memory.hpp"

namespace spanalloc::model {

namespace {

// The fiber that builds the world and looks at it at rest
constexpr unsigned kDirector = kMaxThreads;
// How often threads that all spin are woken without any change of memory before that counts as a
// deadlock: a loop that gives up after a few rounds is not one.
constexpr unsigned kIdleRounds = 3;
constexpr std::uint64_t kDirectorLoads = 1'000'000;

/// One exploration: the tree of choices and the execution that is being run.
class Explorer final : public MemoryHost {
 public:
  Result explore(Program& program, const Options& options);

  // From inside the model:
  unsigned choose(unsigned n) override;
  void memory_changed(unsigned by) override;
  [[gnu::format(printf, 2, 3)]] void trace(const char* format, ...) override;
  void race(const char* variable, unsigned first, unsigned second) override;
  [[noreturn]] void fail(const char* message);
  void yield();
  void before_operation(const void* cell, bool write);
  void before_change();
  bool fails_spuriously();
  bool inside() const { return active_; }
  bool forks() const { return options_.forks; }
  void plant(OrderFault fault) { fault_ = fault; }
  Order order_of(const void* cell, Access access, Order order) const {
    return fault_ == nullptr ? order : fault_(cell, access, order);
  }
  unsigned self() const { return running_; }
  bool tracing() const override { return tracing_; }
  Memory& memory() { return memory_; }
  void per_thread_storage(void* address, std::size_t bytes);
  void show_storage_of(unsigned thread);
  unsigned acting() const { return shown_; }
  void run_on(unsigned thread, unsigned cpu);
  unsigned this_cpu() const { return cpus_[running_]; }
  void begin_sequence(std::jmp_buf* exit) { exits_[running_] = exit; }
  void end_sequence() {
    exits_[running_] = nullptr;
    seen_cpus_[running_] = cpus_[running_];
  }
  unsigned last_seen_cpu() const { return seen_cpus_[running_]; }

 private:
  enum class State : unsigned char { runnable, spinning, finished };
  struct Storage {
    char* address;
    std::size_t bytes;
    std::vector<char> copies[kMaxThreads + 1];
  };
  struct Choice {
    unsigned taken;
    unsigned options;
  };

  void run_execution();
  void run_director(unsigned job);
  bool next_path();
  void count_step();
  void switch_threads();
  void resume(unsigned thread);
  void enter_cpu(unsigned thread, bool may_move);
  static void thread_entry(unsigned thread);
  static void director_entry(unsigned job);

  Program* program_ = nullptr;
  Options options_;
  Memory memory_{*this};
  std::vector<Choice> path_;
  std::size_t depth_ = 0;
  bool active_ = false;
  bool failed_ = false;
  bool tracing_ = false;
  std::string message_;
  std::string trace_;
  // Of the running execution:
  OrderFault fault_ = nullptr;
  unsigned running_ = kDirector;
  unsigned preemptions_ = 0;
  unsigned spurious_ = 0;
  unsigned steps_ = 0;
  unsigned idle_rounds_ = 0;
  bool fresh_ =
      // The running thread was just chosen: to ask again before its first step is no new choice
      false;
  std::uint64_t total_steps_ = 0;
  State states_[kMaxThreads] = {};
  std::vector<Storage> storages_;
  unsigned shown_ = kDirector;  // whose copies are in place
  // Where threads run, and who ran last on each CPU, if worlds have CPUs.
  bool has_cpus_ = false;
  unsigned migrations_ = 0;
  unsigned cpus_[kMaxThreads + 1] = {};
  unsigned seen_cpus_[kMaxThreads + 1] = {};
  unsigned last_on_[kMaxThreads] = {};
  std::jmp_buf* exits_[kMaxThreads + 1] = {};  // of the sequences that threads are in
  bool must_leave_[kMaxThreads] = {};          // theirs, as soon as they go on
  Fiber scheduler_;
  Fiber fibers_[kMaxThreads + 1];
};

Explorer explorer;

constexpr unsigned kConstruct = 0;
constexpr unsigned kAtRest = 1;

Result Explorer::explore(Program& program, const Options& options) {
  program_ = &program;
  options_ = options;
  const unsigned threads = program.threads();
  if (threads < 1 || threads > kMaxThreads) std::abort();
  memory_.begin_exploration(options, threads);
  path_.clear();
  total_steps_ = 0;
  Result result;
  active_ = true;
  do {
    run_execution();
    if (memory_.learned_sharing()) {
      // Until now a variable was taken for private and its operations were no
      // scheduling points: start again.
      memory_.forget_learned();
      path_.clear();
      total_steps_ = 0;
      result = {};
      continue;
    }
    ++result.executions;
    if (depth_ > result.deepest) result.deepest = static_cast<unsigned>(depth_);
    if (failed_) {
      result.failed = true;
      result.message = message_;
      // The same choices again, this time written down.
      tracing_ = true;
      trace_.clear();
      path_.resize(depth_);
      run_execution();
      tracing_ = false;
      result.trace = trace_;
      break;
    }
    if (!next_path()) result.complete = true;
  } while (!result.complete && result.executions < options.max_executions);
  active_ = false;
  result.steps = total_steps_;
  return result;
}

// Advances to the next leaf of the choice tree; false when that was the last one.
bool Explorer::next_path() {
  if (path_.empty() && depth_ == 0) return false;
  path_.resize(depth_);
  while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().taken;
  return true;
}

void Explorer::run_execution() {
  memory_.begin_execution();
  depth_ = 0;
  failed_ = false;
  preemptions_ = spurious_ = steps_ = idle_rounds_ = migrations_ = 0;
  has_cpus_ = false;
  for (unsigned t = 0; t < kMaxThreads; ++t) {
    cpus_[t] = seen_cpus_[t] = t;
    last_on_[t] = kDirector;
    exits_[t] = nullptr;
    must_leave_[t] = false;
  }
  storages_.clear();
  shown_ = kDirector;
  fault_ = nullptr;
  run_director(kConstruct);
  if (failed_) return;
  const unsigned threads = program_->threads();
  for (unsigned t = 0; t < threads; ++t) {
    states_[t] = State::runnable;
    fibers_[t].prepare(&Explorer::thread_entry, t);
  }
  running_ = choose(threads);
  fresh_ = true;
  trace("---- T%u runs", running_);
  show_storage_of(running_);
  enter_cpu(running_, false);
  modelled = true;
  Fiber::switch_to(scheduler_, fibers_[running_]);
  modelled = false;
  running_ = kDirector;
  total_steps_ += steps_;
  if (failed_) return;
  if (options_.forks) {
    trace("---- fork");
    memory_.fork();
  } else {
    memory_.drain_all();
    trace("---- at rest");
  }
  run_director(kAtRest);
}

void Explorer::run_director(unsigned job) {
  running_ = kDirector;
  show_storage_of(kDirector);
  fibers_[kDirector].prepare(&Explorer::director_entry, job);
  loads_left = kDirectorLoads;
  Fiber::switch_to(scheduler_, fibers_[kDirector]);
  loads_left = UINT64_MAX;
}

void Explorer::director_entry(unsigned job) {
  if (job == kConstruct) {
    explorer.program_->construct();
  } else {
    explorer.program_->at_rest();
  }
  Fiber::switch_to(explorer.fibers_[kDirector], explorer.scheduler_);
}

void Explorer::thread_entry(unsigned thread) {
  explorer.program_->run(thread);
  explorer.trace("T%u  ends", thread);
  explorer.states_[thread] = State::finished;
  explorer.switch_threads();
}

// The running thread cannot or should not go on: any other one does, which is no preemption.
void Explorer::switch_threads() {
  const unsigned threads = program_->threads();
  for (;;) {
    unsigned candidates[kMaxThreads];
    unsigned count = 0;
    unsigned spinning = 0;
    for (unsigned t = 0; t < threads; ++t) {
      if (states_[t] == State::runnable) candidates[count++] = t;
      if (states_[t] == State::spinning) ++spinning;
    }
    if (count != 0) {
      resume(candidates[choose(count)]);
      return;
    }
    if (spinning == 0) {
      Fiber::switch_to(fibers_[running_], scheduler_);  // all ended
      return;
    }
    // Everybody waits. Buffered stores arrive in finite time; if none is left,
    // nothing will ever change.
    if (!memory_.drain_all() && ++idle_rounds_ > kIdleRounds)
      fail("deadlock: every thread left spins for ever");
    for (unsigned t = 0; t < threads; ++t) {
      if (states_[t] == State::spinning) states_[t] = State::runnable;
    }
  }
}

void Explorer::resume(unsigned thread) {
  const unsigned from = running_;
  fresh_ = true;
  if (thread == from) return;
  running_ = thread;
  show_storage_of(thread);
  trace("---- T%u runs", thread);
  enter_cpu(thread, true);
  Fiber::switch_to(fibers_[from], fibers_[thread]);
  if (std::exchange(must_leave_[from], false)) {
    trace("T%u  leaves its sequence", from);
    std::jmp_buf& exit = *exits_[from];
    end_sequence();
    std::longjmp(exit, 1);
  }
}

void Explorer::run_on(unsigned thread, unsigned cpu) {
  has_cpus_ = true;
  cpus_[thread] = seen_cpus_[thread] = cpu;
}

// A thread that goes on has the CPU from who was there last, whose sequence ends; so
// does its own if it moves.
void Explorer::enter_cpu(unsigned thread, bool may_move) {
  if (!has_cpus_) return;
  if (may_move && migrations_ != options_.migrations && choose(2) != 0) {
    ++migrations_;
    const unsigned to = cpus_[thread] == 0 ? 1 : 0;
    trace("     ~ T%u moves to CPU %u", thread, to);
    // (Where another thread has run since it has left already.)
    if (last_on_[cpus_[thread]] == thread) {
      last_on_[cpus_[thread]] = kDirector;
      memory_.leave_cpu(thread, cpus_[thread]);
    }
    cpus_[thread] = to;
    must_leave_[thread] = exits_[thread] != nullptr;
  }
  const unsigned last = std::exchange(last_on_[cpus_[thread]], thread);
  if (last == thread) return;
  if (last != kDirector) {
    memory_.leave_cpu(last, cpus_[thread]);
    if (exits_[last] != nullptr) must_leave_[last] = true;
  }
  memory_.enter_cpu(thread, cpus_[thread]);
}

void Explorer::per_thread_storage(void* address, std::size_t bytes) {
  Storage& storage = storages_.emplace_back();
  storage.address = static_cast<char*>(address);
  storage.bytes = bytes;
  for (auto& copy : storage.copies) copy.assign(storage.address, storage.address + bytes);
}

void Explorer::show_storage_of(unsigned thread) {
  if (thread == shown_) return;
  for (Storage& storage : storages_) {
    std::memcpy(storage.copies[shown_].data(), storage.address, storage.bytes);
    std::memcpy(storage.address, storage.copies[thread].data(), storage.bytes);
  }
  shown_ = thread;
}

void Explorer::count_step() {
  if (++steps_ > options_.max_steps) fail("livelock: too many steps in one execution");
}

void Explorer::before_operation(const void* cell, bool write) {
  count_step();
  if (!memory_.announce(running_, cell, write)) return;
  if (std::exchange(fresh_, false) || preemptions_ == options_.preemptions) return;
  unsigned candidates[kMaxThreads] = {running_};
  unsigned count = 1;
  for (unsigned t = 0; t < program_->threads(); ++t) {
    if (t != running_ && states_[t] == State::runnable) candidates[count++] = t;
  }
  if (count == 1) return;
  const unsigned next = candidates[choose(count)];
  if (next == running_) return;
  ++preemptions_;
  resume(next);
  fresh_ = false;  // back again, and this operation is its step
}

// What a fork's child finds differs only by what has been written, so that forks before each write
// and after the last one are forks at every step.
void Explorer::before_change() {
  if (!options_.forks || choose(2) == 0) return;
  // All fibers are abandoned where they stand.
  Fiber::switch_to(fibers_[running_], scheduler_);
  std::abort();
}

void Explorer::yield() {
  count_step();
  if (memory_.catch_up(running_)) return;  // it has something new to look at
  states_[running_] = State::spinning;
  trace("T%u  spins", running_);
  switch_threads();
}

bool Explorer::fails_spuriously() {
  if (spurious_ == options_.spurious_failures || choose(2) == 0) return false;
  ++spurious_;
  trace("     ~ the next weak compare-exchange fails spuriously");
  return true;
}

unsigned Explorer::choose(unsigned n) {
  if (n <= 1) return 0;
  if (depth_ == path_.size()) path_.push_back({0, n});
  if (path_[depth_].options != n) {
    std::fprintf(stderr, "model: the world is not deterministic (%u options became %u)\n",
                 path_[depth_].options, n);
    std::abort();
  }
  return path_[depth_++].taken;
}

void Explorer::memory_changed(unsigned by) {
  idle_rounds_ = 0;
  for (unsigned t = 0; t < program_->threads(); ++t) {
    if (t != by && states_[t] == State::spinning) states_[t] = State::runnable;
  }
}

void Explorer::race(const char* variable, unsigned first, unsigned second) {
  char text[160];
  std::snprintf(text, sizeof(text), "data race on %s between T%u and T%u", variable, first, second);
  fail(text);
}

void Explorer::fail(const char* message) {
  failed_ = true;
  message_ = message;
  trace("FAILED: %s", message);
  // This fiber is abandoned where it stands.
  Fiber::switch_to(fibers_[running_], scheduler_);
  std::abort();
}

void Explorer::trace(const char* format, ...) {
  if (!tracing_) return;
  char line[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  trace_ += line;
  trace_ += '\n';
}

}  // namespace

Result explore(Program& program, const Options& options) {
  return explorer.explore(program, options);
}

void fail(const char* message, const char* file, int line) {
  if (!explorer.inside()) {
    std::fprintf(stderr, "model: %s outside an exploration\n", message);
    std::abort();
  }
  char text[320];
  if (file != nullptr) {
    std::snprintf(text, sizeof(text), "%s:%d: %s", file, line, message);
    message = text;
  }
  explorer.fail(message);
}

void yield() {
  if (modelled) {
    explorer.yield();
  } else {
    fail("a wait that nobody can end: all threads are done");
  }
}

void endless_loop() {
  fail("livelock: a constructor or at_rest() reads for ever");
}

unsigned choose(unsigned n) {
  return explorer.choose(n);
}
unsigned this_thread() {
  return explorer.self();
}
void per_thread_storage(void* address, std::size_t bytes) {
  explorer.per_thread_storage(address, bytes);
}
void act_as(unsigned thread) {
  explorer.show_storage_of(thread);
}
unsigned acting_thread() {
  return explorer.acting();
}
void run_on(unsigned thread, unsigned cpu) {
  explorer.run_on(thread, cpu);
}
unsigned this_cpu() {
  return explorer.this_cpu();
}
unsigned last_seen_cpu() {
  return explorer.last_seen_cpu();
}
void begin_sequence(std::jmp_buf& exit) {
  explorer.begin_sequence(&exit);
}
void end_sequence() {
  explorer.end_sequence();
}
void plant(OrderFault fault) {
  explorer.plant(fault);
}
bool explores_forks() {
  return explorer.forks();
}
void name_variable(const void* address, const char* name) {
  explorer.memory().name(address, name);
}
void note(const char* text, std::uint64_t value) {
  explorer.trace("T%u  %s %llu", explorer.self(), text, static_cast<unsigned long long>(value));
}
bool tracing() {
  return explorer.tracing();
}

std::uint64_t atomic_load(const void* cell, unsigned bytes, Order order) {
  order = explorer.order_of(cell, Access::load, order);
  if (!explorer.memory().reads_own_buffer(explorer.self(), cell))
    explorer.before_operation(cell, false);
  return explorer.memory().load(explorer.self(), cell, bytes, order);
}

void atomic_store(void* cell, unsigned bytes, std::uint64_t value, Order order) {
  order = explorer.order_of(cell, Access::store, order);
  Memory& memory = explorer.memory();
  if (memory.stores_are_visible_at_once() || order == Order::seq_cst) {
    explorer.before_operation(cell, true);
  } else {
    memory.announce(explorer.self(), cell, true);
  }
  explorer.before_change();
  memory.store(explorer.self(), cell, bytes, value, order);
}

std::uint64_t atomic_read_for_update(void* cell, unsigned bytes, Order order) {
  order = explorer.order_of(cell, Access::update, order);
  explorer.before_operation(cell, true);
  explorer.before_change();
  return explorer.memory().read_for_update(explorer.self(), cell, bytes, order);
}

void atomic_write_update(void* cell, unsigned bytes, std::uint64_t value, Order order) {
  order = explorer.order_of(cell, Access::update, order);
  explorer.memory().write_update(explorer.self(), cell, bytes, value, order);
}

void atomic_keep(void* cell, unsigned bytes, Order order) {
  order = explorer.order_of(cell, Access::update, order);
  explorer.memory().keep(explorer.self(), cell, bytes, order);
}

bool fails_spuriously() {
  return explorer.fails_spuriously();
}

void store_in_order(const void* cell) {
  explorer.before_change();
  const bool is_ordered = is_release(explorer.order_of(cell, Access::store, Order::release));
  if (explorer.forks() && is_ordered) explorer.memory().drain(explorer.self());
}

void plain_access(const void* cell, bool write) {
  if (write) explorer.before_change();  // a fork finds what a lock guards half changed
  explorer.memory().plain(explorer.self(), cell, write);
}

}  // namespace spanalloc::model
