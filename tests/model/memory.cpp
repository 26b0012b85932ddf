#include "memory.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace spanalloc::model {

namespace {
// A user of every variable: what a fork's child finds depends on all of them.
constexpr std::uint8_t kForker = 1u << kMaxThreads;
}  // namespace

std::uint64_t read_cell(const void* cell, unsigned bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, cell, bytes);
  return value;
}
void write_cell(void* cell, unsigned bytes, std::uint64_t value) {
  std::memcpy(cell, &value, bytes);
}

bool is_acquire(Order order) {
  return order == Order::acquire || order == Order::acq_rel || order == Order::seq_cst;
}
bool is_release(Order order) {
  return order == Order::release || order == Order::acq_rel || order == Order::seq_cst;
}
const char* name_of(Order order) {
  constexpr const char* kNames[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
  return kNames[static_cast<unsigned>(order)];
}

void Memory::begin_exploration(const Options& options, unsigned threads) {
  options_ = options;
  thread_count_ = threads;
  learned_ = false;
  variables_.clear();
  table_.assign(1024, 0);
}

void Memory::begin_execution() {
  ++execution_;
  arriving_ = 0;
  stale_loads_ = 0;
  for (unsigned t = 0; t < kMaxThreads; ++t) {
    threads_[t].clock = {};
    threads_[t].clock[t] = 1;
    threads_[t].buffer.clear();
    threads_[t].view.clear();
    threads_[t].read_since_spin.clear();
    cpus_[t] = {};
  }
}

Memory::Variable& Memory::find(const void* cell) {
  const auto address = reinterpret_cast<std::uintptr_t>(cell);
  std::size_t slot = (address * 0x9e3779b97f4a7c15u >> 40) & (table_.size() - 1);
  for (; table_[slot] != 0; slot = (slot + 1) & (table_.size() - 1)) {
    Variable& known = variables_[table_[slot] - 1];
    if (known.cell == cell) return known;
  }
  Variable& fresh = variables_.emplace_back();
  fresh.number = static_cast<std::uint32_t>(variables_.size() - 1);
  fresh.cell = cell;
  table_[slot] = fresh.number + 1;
  if (variables_.size() * 2 > table_.size()) {
    table_.assign(table_.size() * 2, 0);
    for (const Variable& v : variables_) {
      slot = (reinterpret_cast<std::uintptr_t>(v.cell) * 0x9e3779b97f4a7c15u >> 40) &
             (table_.size() - 1);
      while (table_[slot] != 0) slot = (slot + 1) & (table_.size() - 1);
      table_[slot] = v.number + 1;
    }
  }
  return fresh;
}

Memory::Variable& Memory::variable(const void* cell) {
  Variable& variable = find(cell);
  if (variable.execution != execution_) {
    variable.execution = execution_;
    variable.clock = {};
    variable.messages.clear();
    variable.seq_cst_floor = 0;
    variable.last_writer = 0;
    variable.write_epoch = 0;
    variable.read_epochs = {};
  }
  return variable;
}

void Memory::name(const void* cell, const char* name) {
  variable(cell).name = name;
}

const char* Memory::label(const Variable& variable) {
  if (variable.name != nullptr) return variable.name;
  static char text[32];
  std::snprintf(text, sizeof(text), "variable#%u", variable.number);
  return text;
}

bool Memory::announce(unsigned thread, const void* cell, bool write) {
  Variable& v = variable(cell);
  const bool was_shared = v.shared();
  const auto bit = static_cast<std::uint8_t>(1u << thread);
  v.users |= bit;
  if (options_.forks && !options_.one_late) v.users |= kForker;
  if (write) v.writers |= bit;
  if (!was_shared && v.shared()) learned_ = true;
  return v.shared();
}

void Memory::join(Clock& into, const Clock& from) {
  for (unsigned t = 0; t < kMaxThreads; ++t) into[t] = std::max(into[t], from[t]);
}

void Memory::join(View& into, const View& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::uint32_t& Memory::at(View& view, std::uint32_t number) {
  if (view.size() <= number) view.resize(number + 1);
  return view[number];
}

void Memory::acquire(Thread& thread, const Clock& clock, const View* view) {
  join(thread.clock, clock);
  if (view != nullptr) join(thread.view, *view);
}

// What a release by `thread` publishes; later work of the thread is not part of it.
Clock Memory::release_clock(unsigned thread) {
  const Clock published = threads_[thread].clock;
  ++threads_[thread].clock[thread];
  return published;
}

// --- store buffers -------------------------------------------------------------------------------

std::size_t Memory::first_pending(unsigned thread, const Variable& v) const {
  const auto& buffer = threads_[thread].buffer;
  const auto found = std::find_if(buffer.begin(), buffer.end(),
                                  [&](const Pending& p) { return p.variable == &v; });
  return static_cast<std::size_t>(found - buffer.begin());
}

bool Memory::reads_own_buffer(unsigned thread, const void* cell) {
  return buffered() && first_pending(thread, variable(cell)) != threads_[thread].buffer.size();
}

void Memory::write_memory(void* cell, unsigned bytes, std::uint64_t value, unsigned by) {
  write_cell(cell, bytes, value);
  host_.memory_changed(by);
}

void Memory::arrive(unsigned thread, std::size_t index) {
  auto& buffer = threads_[thread].buffer;
  const Pending pending = buffer[index];
  buffer.erase(buffer.begin() + static_cast<std::ptrdiff_t>(index));
  if (host_.tracing())
    host_.trace("     ~ store of T%u arrives: %s = 0x%" PRIx64, thread, label(*pending.variable),
                pending.value);
  pending.variable->clock = pending.clock;
  write_memory(pending.cell, pending.bytes, pending.value, thread);
}

// A store leaves its buffer only after those it may not overtake. `index` is the
// first one to its variable.
void Memory::arrive_with_predecessors(unsigned thread, std::size_t index) {
  const unsigned bit = 1u << thread;
  arriving_ |= bit;
  auto& buffer = threads_[thread].buffer;
  if (options_.memory == MemoryModel::tso || buffer[index].release) {
    for (; index != 0; --index) {
      settle(*buffer[0].variable);
      arrive(thread, 0);
    }
  }
  arrive(thread, index);
  arriving_ &= ~bit;
}

// Asks which of the stores pending to this variable have arrived by now. A thread whose buffer is
// being flushed is left alone: its next store in line is what the caller is about to let arrive.
void Memory::settle(const Variable& v) {
  for (;;) {
    std::array<unsigned, kMaxThreads> candidates{};
    unsigned count = 0;
    for (unsigned t = 0; t < thread_count_; ++t) {
      const bool busy = (arriving_ >> t & 1) != 0;
      if (!busy && first_pending(t, v) != threads_[t].buffer.size()) candidates[count++] = t;
    }
    if (count == 0) return;
    const unsigned choice = host_.choose(count + 1);
    if (choice == 0) return;
    const unsigned t = candidates[choice - 1];
    arrive_with_predecessors(t, first_pending(t, v));
  }
}

void Memory::drain(unsigned thread) {
  auto& buffer = threads_[thread].buffer;
  arriving_ |= 1u << thread;
  while (!buffer.empty()) {
    settle(*buffer[0].variable);
    arrive(thread, 0);
  }
  arriving_ &= ~(1u << thread);
}

void Memory::drain_variable(unsigned thread, const Variable& v) {
  auto& buffer = threads_[thread].buffer;
  for (std::size_t index = first_pending(thread, v); index != buffer.size();
       index = first_pending(thread, v)) {
    arriving_ |= 1u << thread;
    settle(v);
    arriving_ &= ~(1u << thread);
    arrive_with_predecessors(thread, index);
  }
}

bool Memory::drain_all() {
  bool any = false;
  for (unsigned t = 0; t < thread_count_; ++t) {
    any |= !threads_[t].buffer.empty();
    drain(t);
  }
  return any;
}

void Memory::leave_cpu(unsigned thread, unsigned cpu) {
  drain(thread);
  join(cpus_[cpu].clock, release_clock(thread));
  join(cpus_[cpu].view, threads_[thread].view);
}
void Memory::enter_cpu(unsigned thread, unsigned cpu) {
  acquire(threads_[thread], cpus_[cpu].clock, &cpus_[cpu].view);
}

void Memory::fork() {
  if (options_.one_late) return fork_with_one_late();
  for (unsigned t = 0; t < thread_count_; ++t) {
    auto& buffer = threads_[t].buffer;
    for (;;) {
      // The first store to each variable may be next; in a FIFO only the first of all.
      std::vector<std::size_t> next;
      for (std::size_t i = 0; i < buffer.size(); ++i) {
        if (options_.memory == MemoryModel::tso && i != 0) break;
        if (first_pending(t, *buffer[i].variable) == i) next.push_back(i);
      }
      const unsigned choice = host_.choose(static_cast<unsigned>(next.size()) + 1);
      if (choice == 0) break;
      arrive_with_predecessors(t, next[choice - 1]);
    }
    buffer.clear();
  }
}

// In a FIFO what is behind the late store is late as well; else what is stored to its variable, and
// all from the first release on.
void Memory::fork_with_one_late() {
  std::size_t pending = 0;
  for (unsigned t = 0; t < thread_count_; ++t) pending += threads_[t].buffer.size();
  std::size_t late = host_.choose(static_cast<unsigned>(pending) + 1);  // from 1 on; 0: none is
  for (unsigned t = 0; t < thread_count_; ++t) {
    auto& buffer = threads_[t].buffer;
    const std::size_t count = buffer.size();
    if (late != 0 && late <= count) {
      const Variable* const variable = buffer[late - 1].variable;
      std::size_t first_behind = late;
      while (options_.memory == MemoryModel::pso && first_behind < buffer.size() &&
             !buffer[first_behind].release) {
        ++first_behind;
      }
      buffer.resize(first_behind);
      for (std::size_t i = buffer.size(); i-- >= late;) {
        if (buffer[i].variable == variable)
          buffer.erase(buffer.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    late = late > count ? late - count : 0;
    while (!buffer.empty()) arrive(t, 0);
  }
}

// --- views ---------------------------------------------------------------------------------------

void Memory::first_message(Variable& v, unsigned bytes) {
  if (v.messages.empty()) v.messages.push_back({read_cell(v.cell, bytes), {}, {}});
}

std::uint64_t Memory::load_view(Thread& thread, Variable& v, unsigned bytes, Order order) {
  first_message(v, bytes);
  const auto newest = static_cast<std::uint32_t>(v.messages.size() - 1);
  std::uint32_t& floor = at(thread.view, v.number);
  if (order == Order::seq_cst) floor = std::max(floor, v.seq_cst_floor);
  std::uint32_t age = 0;
  if (newest != floor && stale_loads_ < options_.stale_loads)
    age = host_.choose(newest - floor + 1);
  if (age != 0) {
    ++stale_loads_;
    if (host_.tracing()) host_.trace("     ~ the next load sees a value %u stores old", age);
  }
  floor = newest - age;
  thread.read_since_spin.push_back(&v);
  const Message& message = v.messages[newest - age];
  const std::uint64_t value = message.value;
  if (is_acquire(order)) acquire(thread, message.clock, &message.view);
  return value;
}

bool Memory::catch_up(unsigned thread) {
  Thread& self = threads_[thread];
  bool moved = false;
  for (Variable* v : self.read_since_spin) {
    std::uint32_t& floor = at(self.view, v->number);
    const auto newest = static_cast<std::uint32_t>(v->messages.size() - 1);
    moved |= floor != newest;
    floor = newest;
  }
  self.read_since_spin.clear();
  return moved;
}

// --- operations ----------------------------------------------------------------------------------

std::uint64_t Memory::load(unsigned thread, const void* cell, unsigned bytes, Order order) {
  Variable& v = variable(cell);
  Thread& self = threads_[thread];
  std::uint64_t value = 0;
  if (views()) {
    value = load_view(self, v, bytes, order);
  } else if (reads_own_buffer(thread, cell)) {
    const auto own = std::find_if(self.buffer.rbegin(), self.buffer.rend(),
                                  [&](const Pending& p) { return p.variable == &v; });
    value = own->value;
  } else {
    settle(v);  // this thread has none of its own
    value = read_cell(cell, bytes);
    if (is_acquire(order)) acquire(self, v.clock, nullptr);
  }
  if (host_.tracing())
    host_.trace("T%u  load %s of %s = 0x%" PRIx64, thread, name_of(order), label(v), value);
  return value;
}

void Memory::store(unsigned thread, void* cell, unsigned bytes, std::uint64_t value, Order order) {
  Variable& v = variable(cell);
  Thread& self = threads_[thread];
  if (host_.tracing())
    host_.trace("T%u  store %s to %s = 0x%" PRIx64, thread, name_of(order), label(v), value);
  const Clock clock = is_release(order) ? release_clock(thread) : Clock{};
  if (buffered()) {
    self.buffer.push_back({&v, cell, bytes, value, is_release(order), clock});
    if (order == Order::seq_cst) drain(thread);
    return;
  }
  if (views()) {
    first_message(v, bytes);
    const auto stamp = static_cast<std::uint32_t>(v.messages.size());
    at(self.view, v.number) = stamp;
    View view;
    if (is_release(order)) view = self.view;
    at(view, v.number) = stamp;
    v.messages.push_back({value, clock, std::move(view)});
    if (order == Order::seq_cst) v.seq_cst_floor = stamp;
  }
  v.clock = clock;
  write_memory(cell, bytes, value, thread);
}

std::uint64_t Memory::read_for_update(unsigned thread, void* cell, unsigned bytes, Order order) {
  Variable& v = variable(cell);
  if (buffered()) {
    if (options_.memory == MemoryModel::tso || is_release(order)) {
      drain(thread);
    } else {
      drain_variable(thread, v);
    }
    settle(v);  // this thread's own have arrived
  } else if (views()) {
    // A read-modify-write acts on the newest value, as every machine does it: its cache line is
    // here.
    first_message(v, bytes);
    at(threads_[thread].view, v.number) = static_cast<std::uint32_t>(v.messages.size() - 1);
  }
  return read_cell(cell, bytes);
}

void Memory::write_update(unsigned thread, void* cell, unsigned bytes, std::uint64_t value,
                          Order order) {
  Variable& v = variable(cell);
  Thread& self = threads_[thread];
  if (host_.tracing())
    host_.trace("T%u  update %s of %s: 0x%" PRIx64 " -> 0x%" PRIx64, thread, name_of(order),
                label(v), read_cell(cell, bytes), value);
  // What a reader learns from this value includes what it would have learned from the one before:
  // the release sequence goes on through read-modify-writes.
  const Clock before = v.clock;
  View view;
  if (views()) {
    view = v.messages.back().view;
    if (is_acquire(order)) join(self.view, view);
  }
  if (is_acquire(order)) join(self.clock, before);
  if (is_release(order)) join(v.clock, release_clock(thread));
  if (views()) {
    const auto stamp = static_cast<std::uint32_t>(v.messages.size());
    at(self.view, v.number) = stamp;
    if (is_release(order)) join(view, self.view);
    at(view, v.number) = stamp;
    v.messages.push_back({value, v.clock, std::move(view)});
    if (order == Order::seq_cst) v.seq_cst_floor = stamp;
  }
  write_memory(cell, bytes, value, thread);
}

void Memory::keep(unsigned thread, void* cell, unsigned bytes, Order order) {
  Variable& v = variable(cell);
  if (host_.tracing())
    host_.trace("T%u  update %s of %s fails at 0x%" PRIx64, thread, name_of(order), label(v),
                read_cell(cell, bytes));
  if (is_acquire(order))
    acquire(threads_[thread], v.clock, views() ? &v.messages.back().view : nullptr);
  if (views()) threads_[thread].read_since_spin.push_back(&v);
}

void Memory::plain(unsigned thread, const void* cell, bool write) {
  Variable& v = variable(cell);
  const Clock& now = threads_[thread].clock;
  if (v.write_epoch > now[v.last_writer]) host_.race(label(v), v.last_writer, thread);
  if (write) {
    for (unsigned t = 0; t < kMaxThreads; ++t) {
      if (v.read_epochs[t] > now[t]) host_.race(label(v), t, thread);
    }
    v.last_writer = static_cast<std::uint8_t>(thread);
    v.write_epoch = now[thread];
  } else {
    v.read_epochs[thread] = now[thread];
  }
}

}  // namespace spanalloc::model
