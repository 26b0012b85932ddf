#include "scheduler.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bits.hpp"
#include "process.hpp"
#include "report.hpp"
#include "thread_storage.hpp"

namespace spanalloc::simulation {

Scheduler scheduler;

namespace {

// An operation of one thread takes fewer steps than this: the longest are statistics of a heap with
// thousands of spans.
constexpr std::uint64_t kMostSteps = 100'000'000;
// So often the threads may yield in a row while nothing is written: then all of them wait for ever.
constexpr std::uint64_t kMostIdleYields = 200'000;
constexpr std::uint64_t kRareStall = 5'000;  // steps
constexpr std::uint8_t kFirstVisits = 3;
constexpr unsigned kManySignals = 4;  // in an operation

std::uint64_t read_cell(const void* cell, unsigned bytes) {
  switch (bytes) {
    case 1:
      return *static_cast<const std::uint8_t*>(cell);
    case 2:
      return *static_cast<const std::uint16_t*>(cell);
    case 4:
      return *static_cast<const std::uint32_t*>(cell);
    case 8:
      return *static_cast<const std::uint64_t*>(cell);
    default: {
      std::uint64_t value = 0;
      std::memcpy(&value, cell, bytes);
      return value;
    }
  }
}

void write_cell(void* cell, unsigned bytes, std::uint64_t value) {
  switch (bytes) {
    case 1:
      *static_cast<std::uint8_t*>(cell) = static_cast<std::uint8_t>(value);
      return;
    case 2:
      *static_cast<std::uint16_t*>(cell) = static_cast<std::uint16_t>(value);
      return;
    case 4:
      *static_cast<std::uint32_t*>(cell) = static_cast<std::uint32_t>(value);
      return;
    case 8:
      *static_cast<std::uint64_t*>(cell) = value;
      return;
    default:
      std::memcpy(cell, &value, bytes);
  }
}

bool is_release(model::Order order) {
  return order == model::Order::release || order == model::Order::acq_rel ||
         order == model::Order::seq_cst;
}

std::uint32_t hash(const void* p) {
  return static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(p) * 0x9E3779B97F4A7C15u) >>
                                    32);
}

}  // namespace

void Scheduler::begin(std::uint64_t seed) {
  // At one address in every process: variables on stacks are known by their addresses, too.
  alignas(4096) static char stacks[kMostThreads][model::Fiber::kStackBytes];
  for (unsigned t = 0; t < kMostThreads; ++t) threads_[t].fiber.use_stack(stacks[t]);
  random_ = test::Random(seed);
  lowest_ = std::uint64_t{1} << 62;
  for (unsigned& last : last_on_) last = kDirector;
  light_fuse();
}

void Scheduler::set(const Schedule& schedule) {
  schedule_ = schedule;
  for (Thread& thread : threads_) {
    thread.priority = (std::uint64_t{1} << 62) + random_.below(1'000'000);
    thread.stalled_until = 0;
  }
  lowest_ = std::uint64_t{1} << 61;
  to_switch_ = 1;
  to_signal_ = 0;
  light_fuse();
}

void Scheduler::start(unsigned number, void (*body)(unsigned)) {
  Thread& thread = threads_[number];
  SIM_CHECK(thread.state == State::none, "simulation: thread %u lives already", number);
  drain();  // who starts a thread orders what came before
  begin_thread_storage(number);
  thread.state = State::runnable;
  thread.errno_value = 0;
  thread.cpu = thread.seen_cpu = static_cast<unsigned>(random_.below(cpus_));
  thread.priority = (std::uint64_t{1} << 62) + random_.below(1'000'000);
  thread.pending = thread.locks = 0;
  thread.sequence = nullptr;
  thread.must_leave = thread.in_operation = thread.is_excused = false;
  thread.body = body;
  thread.fiber.prepare(&Scheduler::entry, number);
}

void Scheduler::entry(unsigned number) {
  Thread& thread = scheduler.threads_[number];
  thread.body(number);
  scheduler.drain();
  end_thread_storage(number);
  thread.state = State::none;
  scheduler.switch_threads();
  __builtin_unreachable();
}

void Scheduler::run() {
  signals_blocked_ = false;
  idle_yields_ = 0;
  const unsigned next = choose_next();
  if (next != kDirector) resume(next);
  drain_all();
}

void Scheduler::idle() {
  drain();
  threads_[running_].state = State::idle;
  switch_threads();
}

void Scheduler::resume_all() {
  for (Thread& thread : threads_) {
    if (thread.state == State::idle) thread.state = State::runnable;
  }
}

// The child has every store that another thread had made: the kernel marks pages read-only, then
// waits until each processor has flushed its translations, for which it completes its stores. A
// store that comes later faults. So a thread's part of the child's memory ends at one of its steps.
void Scheduler::vanish_others() {
  drain();
  for (unsigned t = 0; t < kMostThreads; ++t) {
    Thread& thread = threads_[t];
    if (t == running_ || thread.state == State::none) continue;
    while (thread.pending != 0) arrive(thread, 0);
    thread.state = State::none;
    thread.locks = 0;
  }
  for (unsigned& last : last_on_) last = kDirector;
  last_on_[threads_[running_].cpu % 64] = running_;
  alone_ = false;
}

// --- Who runs ------------------------------------------------------------------------------------

void Scheduler::light_fuse() {
  std::uint32_t next = 1 << 20;
  if (to_switch_ != 0 && to_switch_ < next) next = to_switch_;
  if (to_signal_ != 0 && to_signal_ < next) next = to_signal_;
  fuse_ = burnt_ = next;
}

// A geometric distance, nearly.
static std::uint32_t distance(test::Random& random, std::uint32_t mean) {
  if (mean <= 1) return 1;
  std::uint32_t sum = 1 + static_cast<std::uint32_t>(random.below(mean));
  while (random.one_in(3)) sum += static_cast<std::uint32_t>(random.below(mean));
  return sum;
}

void Scheduler::event() {
  const std::uint32_t passed = burnt_;
  const bool signal_is_due = to_signal_ != 0 && to_signal_ <= passed;
  const bool switch_is_due = to_switch_ <= passed;
  to_signal_ = to_signal_ > passed ? to_signal_ - passed : 0;
  to_switch_ = to_switch_ > passed ? to_switch_ - passed : 0;
  if (to_signal_ == 0 && schedule_.signal_gap != 0)
    to_signal_ = distance(random_, schedule_.signal_gap);
  if (to_switch_ == 0) to_switch_ = distance(random_, schedule_.gap);
  light_fuse();
  Thread& thread = threads_[running_];
  const std::uint64_t most = kMostSteps * (1 + thread.signals / kManySignals);  // forks cost steps
  if (thread.own_steps - thread.operation_began >= most) end_if_excused();
  SIM_CHECK(thread.own_steps - thread.operation_began < most,
            "no progress: an operation of thread %u has taken %llu steps", running_,
            static_cast<unsigned long long>(thread.own_steps - thread.operation_began));
  if (signal_is_due && handler_ != nullptr && !signals_blocked_ && takes_another(thread))
    deliver_signal();
  if (!switch_is_due || alone_) return;
  if (schedule_.policy == Policy::priorities) {
    thread.priority = --lowest_;
  } else if (schedule_.stall != 0 && random_.one_in(8)) {
    thread.stalled_until = steps_ + random_.below(schedule_.stall);
  }
  switch_threads();
}

// A child's recovery takes thousands of steps: an operation that were interrupted by a fork sooner
// than that, each time again, would never end.
bool Scheduler::takes_another(const Thread& thread) {
  return thread.signals < kManySignals ||
         random_.one_in(std::size_t{1} << min_of(thread.signals / kManySignals, 20u));
}

void Scheduler::deliver_signal() {
  ++signals_;
  ++threads_[running_].signals;
  signals_blocked_ = true;
  const int saved = errno;
  SIM_LOG("signal");
  handler_();
  SIM_LOG("signal handler returns");
  errno = saved;
  signals_blocked_ = false;
}

bool Scheduler::meets(const void* cell, bool write, const void* site) {
  Meeting& last = meetings_[hash(cell) % kMeetings];
  const auto here = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(site));
  const Meeting before = last;
  last = {cell, here, static_cast<std::uint8_t>(running_), write};
  if (before.cell != cell || before.thread == running_ || (!write && !before.write)) return false;
  const std::uint32_t pair = (before.site * 31 + here) * 0x9E3779B1u >> 16;
  std::uint8_t& seen = pairs_[pair % kPairs];
  if (seen == 0 && note_pair(pair % kPairs)) ++new_pairs_;
  if (seen != 255) ++seen;
  return schedule_.policy == Policy::rare_pairs && random_.below(2 + seen) == 0;
}

void Scheduler::point(const void* cell, bool write, const void* site) {
  if (looks_) return;
  ++steps_;
  ++threads_[running_].own_steps;
  note_site(site);
  const bool is_rare = meets(cell, write, site);
  if (is_new(site)) haunt();
  if (--fuse_ == 0) {
    event();
  } else if (is_rare && !alone_) {
    // For long enough that others do much at this place.
    if (random_.one_in(2)) threads_[running_].stalled_until = steps_ + random_.below(kRareStall);
    switch_threads();
  }
}

// Of the first visits of a place in a run: what few runs come to deserves more than one step there.
bool Scheduler::is_new(const void* site) {
  std::uint8_t& visits = visits_[hash(site) % kVisited];
  if (visits == kFirstVisits) return false;
  ++visits;
  return random_.one_in(8);
}

// Sees to it that a signal comes here, to this thread or to another one while this one stands here.
void Scheduler::haunt() {
  if (alone_) return;
  if (schedule_.signal_gap != 0) {
    to_signal_ = 1;
    light_fuse();
  }
  if (random_.one_in(2)) {
    threads_[running_].stalled_until = steps_ + random_.below(kRareStall);
    switch_threads();
  }
}

void Scheduler::kernel_step() {
  if (running_ == kDirector) return;
  ++steps_;
  ++threads_[running_].own_steps;
  if (--fuse_ == 0 || random_.one_in(4)) {
    if (fuse_ == 0)
      event();
    else if (!alone_)
      switch_threads();
  }
}

unsigned Scheduler::choose_next() {
  unsigned candidates[kMostThreads];
  for (;;) {
    unsigned count = 0;
    unsigned waiting = 0;  // spinning or stalled
    unsigned best = kDirector;
    for (unsigned t = 0; t < kMostThreads; ++t) {
      const Thread& thread = threads_[t];
      if (thread.state == State::spinning ||
          (thread.state == State::runnable && thread.stalled_until > steps_)) {
        ++waiting;
      } else if (thread.state == State::runnable) {
        candidates[count++] = t;
        if (best == kDirector || thread.priority > threads_[best].priority) best = t;
      }
    }
    if (count != 0) {
      return schedule_.policy == Policy::priorities ? best : candidates[random_.below(count)];
    }
    if (waiting == 0) return kDirector;
    for (Thread& thread : threads_) {
      if (thread.state == State::spinning) thread.state = State::runnable;
      thread.stalled_until = 0;
    }
    // Nobody else can go on: whatever waits for the memory sees it.
    for (Thread& thread : threads_) {
      while (thread.pending != 0) arrive(thread, 0);
    }
    pass_time();
  }
}

void Scheduler::switch_threads() {
  const unsigned next = choose_next();
  if (next == kDirector) {
    leave_for_director();
  } else {
    resume(next);
  }
}

void Scheduler::resume(unsigned number) {
  const unsigned from = running_;
  if (number == from) return;
  ++switches_;
  threads_[from].errno_value = errno;
  Thread& to = threads_[number];
  // (Late stores of the thread that stops: some arrive while others run.)
  if (from != kDirector && threads_[from].pending != 0) let_some_arrive(threads_[from]);
  if (cpus_ > 1 && random_.one_in(64)) {
    to.cpu = static_cast<unsigned>(random_.below(cpus_));
    if (to.sequence != nullptr) to.must_leave = true;
  }
  if (const unsigned last = std::exchange(last_on_[to.cpu % 64], number);
      last != number && last != kDirector) {
    Thread& other = threads_[last];
    // A kernel that gives its CPU to another thread has drained its buffer.
    while (other.pending != 0) arrive(other, 0);
    if (other.sequence != nullptr) other.must_leave = true;
  }
  running_ = number;
  show_thread_storage(number);
  model::modelled = true;
  SIM_LOG("-- thread %u runs", number);
  errno = to.errno_value;
  model::Fiber::switch_to(threads_[from].fiber, to.fiber);
  if (std::exchange(threads_[running_].must_leave, false) &&
      threads_[running_].sequence != nullptr) {
    std::jmp_buf& exit = *threads_[running_].sequence;
    end_sequence();
    std::longjmp(exit, 1);
  }
}

void Scheduler::leave_for_director() {
  const unsigned from = running_;
  threads_[from].errno_value = errno;
  running_ = kDirector;
  show_thread_storage(kDirector);
  model::modelled = false;
  model::Fiber::switch_to(threads_[from].fiber, threads_[kDirector].fiber);
}

void Scheduler::yield() {
  if (running_ == kDirector) {
    fail("the heap waits for ever while all threads are idle");
  }
  SIM_LOG("    yields");
  Thread& thread = threads_[running_];
  ++steps_;
  ++thread.own_steps;
  ++thread.yields;
  if (idle_yields_ + 1 >= kMostIdleYields) end_if_excused();
  SIM_CHECK(++idle_yields_ < kMostIdleYields,
            "deadlock: all threads wait, and nothing has been written");
  if (alone_) {
    // Waits for a thread that is stopped: the design allows it here (who forbids it looks at
    // yields_of_operation()).
    alone_ = false;
  }
  thread.state = State::spinning;
  for (Thread& other : threads_) {
    if (other.pending != 0 && random_.one_in(4)) arrive(other, 0);
  }
  if (random_.one_in(16)) pass_time();
  switch_threads();
}

void Scheduler::begin_operation() {
  Thread& thread = threads_[running_];
  thread.operation_began = thread.own_steps;
  thread.yields = 0;
  thread.signals = 0;
  thread.in_operation = true;
}

void Scheduler::end_operation() {
  Thread& thread = threads_[running_];
  thread.in_operation = false;
  alone_ = false;
  idle_yields_ = 0;
}

void Scheduler::end_sequence() {
  Thread& thread = threads_[running_];
  thread.sequence = nullptr;
  thread.seen_cpu = thread.cpu;
}

// --- Memory --------------------------------------------------------------------------------------

void Scheduler::arrive(Thread& thread, unsigned index) {
  const Pending store = thread.buffer[index];
  --thread.pending;
  std::memmove(&thread.buffer[index], &thread.buffer[index + 1],
               (thread.pending - index) * sizeof(Pending));
  write(store.cell, store.bytes, store.value);
}

// Who waits for memory to change looks again.
void Scheduler::write(void* cell, unsigned bytes, std::uint64_t value) {
  if (store_check_ != nullptr) store_check_(cell);
  write_cell(cell, bytes, value);
  idle_yields_ = 0;
  for (Thread& other : threads_) {
    if (other.state == State::spinning) other.state = State::runnable;
  }
}

// Of two stores to one variable the older one arrives first; before a release all that is older.
bool Scheduler::may_arrive(const Thread& thread, unsigned index) const {
  if (index == 0) return true;
  if (schedule_.stores != Stores::pso || thread.buffer[index].release) return false;
  for (unsigned i = 0; i < index; ++i) {
    if (thread.buffer[i].cell == thread.buffer[index].cell) return false;
  }
  return true;
}

void Scheduler::let_some_arrive(Thread& thread) {
  for (unsigned i = 0; i < thread.pending;) {
    if (may_arrive(thread, i) && random_.below(256) >= schedule_.late) {
      arrive(thread, i);
    } else if (schedule_.stores == Stores::pso) {
      ++i;
    } else {
      return;
    }
  }
}

void Scheduler::drain() {
  Thread& thread = threads_[running_];
  while (thread.pending != 0) arrive(thread, 0);
}

void Scheduler::drain_range(const void* first, std::size_t bytes) {
  arrive_range(threads_[running_], first, bytes);
}

void Scheduler::drain_range_of_all(const void* first, std::size_t bytes) {
  drain();  // the caller's: the kernel waits for them before it tells the other processors
  for (Thread& thread : threads_) arrive_range(thread, first, bytes);
}

void Scheduler::arrive_range(Thread& thread, const void* first, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  for (unsigned i = thread.pending; i-- != 0;) {
    if (reinterpret_cast<std::uintptr_t>(thread.buffer[i].cell) - begin < bytes) {
      for (unsigned k = 0; k <= i; ++k) arrive(thread, 0);
      return;
    }
  }
}

void Scheduler::drain_all() {
  for (Thread& thread : threads_) {
    while (thread.pending != 0) arrive(thread, 0);
  }
}

std::uint64_t Scheduler::load(const void* cell, unsigned bytes, const void* site) {
  point(cell, false, site);
  Thread& thread = threads_[running_];
  for (unsigned i = thread.pending; i-- != 0;) {
    if (thread.buffer[i].cell == cell) {
      log_step(Step::load, site, cell, thread.buffer[i].value);
      return thread.buffer[i].value;
    }
  }
  const std::uint64_t value = read_cell(cell, bytes);
  log_step(Step::load, site, cell, value);
  return value;
}

void Scheduler::store(void* cell, unsigned bytes, std::uint64_t value, model::Order order,
                      const void* site) {
  point(cell, true, site);
  log_step(Step::store, site, cell, value);
  forget_lock(cell, value);
  Thread& thread = threads_[running_];
  if (schedule_.stores == Stores::at_once || order == model::Order::seq_cst) {
    drain();
    write(cell, bytes, value);
    return;
  }
  if (thread.pending == kMostPending) arrive(thread, 0);
  thread.buffer[thread.pending++] = {cell, value, static_cast<std::uint8_t>(bytes),
                                     is_release(order)};
  ++late_stores_;
  let_some_arrive(thread);
}

std::uint64_t Scheduler::read_for_update(void* cell, unsigned bytes, model::Order order,
                                         const void* site) {
  point(cell, true, site);
  if (schedule_.stores != Stores::pso || is_release(order)) {
    drain();
  } else {
    drain_range(cell, bytes);
  }
  const std::uint64_t value = read_cell(cell, bytes);
  log_step(Step::update, site, cell, value);
  return value;
}

void Scheduler::write_update(void* cell, unsigned bytes, std::uint64_t value) {
  note_lock(cell, value);
  write(cell, bytes, value);
  log_step(Step::store, nullptr, cell, value);
}

void Scheduler::keep(void* cell) {
  log_step(Step::failed_update, nullptr, cell, 0);
}

bool Scheduler::fails_spuriously() {
  return random_.one_in(64);
}

bool Scheduler::do_others_hold_locks() const {
  for (unsigned t = 0; t < kMostThreads; ++t) {
    if (t != running_ && threads_[t].state != State::none && threads_[t].locks != 0) return true;
  }
  return false;
}

// --- Locks ---------------------------------------------------------------------------------------

// A lock's word holds its holder's mark (sync/spin_lock.hpp). It is taken by an update, and freed
// by a store or an update.
void Scheduler::note_lock(const void* cell, std::uint64_t value) {
  Thread& thread = threads_[running_];
  forget_lock(cell, value);
  if (!is_mark_of(running_, value)) return;
  for (unsigned i = 0; i < thread.locks; ++i) {
    if (thread.lock_cells[i] == cell) return;
  }
  if (thread.locks < kMostLocks) thread.lock_cells[thread.locks++] = cell;
}

void Scheduler::forget_lock(const void* cell, std::uint64_t value) {
  Thread& thread = threads_[running_];
  for (unsigned i = 0; i < thread.locks; ++i) {
    if (thread.lock_cells[i] != cell || is_mark_of(running_, value)) continue;
    thread.lock_cells[i] = thread.lock_cells[--thread.locks];
    return;
  }
}

}  // namespace spanalloc::simulation

// --- What model_atomic.hpp and model_sequence.hpp call -------------------------------------------

namespace spanalloc::model {

using simulation::scheduler;

std::uint64_t atomic_load(const void* cell, unsigned bytes, Order) {
  return scheduler.load(cell, bytes, __builtin_return_address(0));
}
void atomic_store(void* cell, unsigned bytes, std::uint64_t value, Order order) {
  scheduler.store(cell, bytes, value, order, __builtin_return_address(0));
}
std::uint64_t atomic_read_for_update(void* cell, unsigned bytes, Order order) {
  return scheduler.read_for_update(cell, bytes, order, __builtin_return_address(0));
}
void atomic_write_update(void* cell, unsigned bytes, std::uint64_t value, Order) {
  scheduler.write_update(cell, bytes, value);
}
void atomic_keep(void* cell, unsigned, Order) {
  scheduler.keep(cell);
}
bool fails_spuriously() {
  return scheduler.fails_spuriously();
}
void plain_access(const void*, bool) {}
void store_in_order(const void*) {
  scheduler.drain();
}
void yield() {
  scheduler.yield();
}
void endless_loop() {
  simulation::fail("the heap reads for ever while all threads are idle");
}
unsigned this_cpu() {
  return scheduler.cpu();
}
unsigned last_seen_cpu() {
  return scheduler.last_seen_cpu();
}
void begin_sequence(std::jmp_buf& exit) {
  scheduler.begin_sequence(&exit);
}
void end_sequence() {
  scheduler.end_sequence();
}

}  // namespace spanalloc::model
