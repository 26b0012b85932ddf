// lock_contention: what a shared counter costs, by who shares it. No allocator is involved.
//
// Source: SuperMalloc (Kuszmaul, ISMM 2015) section 8, Figure 5, whose rows are,
// on a machine of 16 cores:
//   Global             485.5 ns  a global lock around the increment of a global counter
//   Per-CPU             34.1 ns  sched_getcpu(), then the lock and the counter of that CPU
//   Per-CPU no getcpu   13.3 ns  the same without the call
//   Per-thread           3.1 ns  the increment of a thread-local variable, without a lock
// The paper does not say which lock, nor which CPU's counter the third row takes. The author's
// lock-overhead.cc has two threads and a test-and-set lock: --lock test-and-set.
//
// Ours: those rows and three of today, which use the area that glibc (2.35 and later) registers
// with the kernel for restartable sequences: the CPU's number read there, in place of the call,
// with that CPU's lock; and, on x86-64, without a lock an increment of the CPU's counter inside of
// a sequence, by a plain addition, or by an atomic compare-and-swap, which it takes where threads
// of other CPUs change the counter, too.
//
// The lock is a pthread mutex, a spin lock, or a test-and-set lock. Without getcpu a thread takes
// the counter of its own index. Every thread does a fixed number of increments; a row is the time
// from the common start to the last end, divided by the increments of one thread. The elapsed time
// is that of all rows. A row that does not exist here (no registered area) is left out.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define WORKLOAD_HAS_RSEQ 1
#else
#define WORKLOAD_HAS_RSEQ 0
#endif

#include "support/workload.hpp"

namespace {

class SpinLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire))
      while (taken_.load(std::memory_order_relaxed)) sched_yield();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Each attempt takes the line for writing.
class TestAndSetLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) pause();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  std::atomic<bool> taken_{false};
};

class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

// Lock and counter share a line of their own: what one takes, the other has.
template <class Lock>
struct alignas(workload::kCacheLine) Cell {
  Lock lock;
  std::uint64_t count = 0;

  void increment() {
    lock.lock();
    ++count;
    lock.unlock();
  }
};

thread_local std::uint64_t own_count = 0;

#if WORKLOAD_HAS_RSEQ
// Zero size: the kernel or the C library's settings have no restartable sequences.
bool rseq_registered() {
  return __rseq_size > 0;
}
volatile struct rseq* rseq_area() {
  return reinterpret_cast<volatile struct rseq*>(static_cast<char*>(__builtin_thread_pointer()) +
                                                 __rseq_offset);
}
std::size_t rseq_cpu() {
  return rseq_area()->cpu_id_start;
}
#else
bool rseq_registered() {
  return false;
}
std::size_t rseq_cpu() {
  return 0;
}
#endif

#if WORKLOAD_HAS_RSEQ && defined(__x86_64__)
constexpr bool kHasSequences = true;

// The sequence is from 1 to 2. A thread that the kernel stops in there goes on at 4,
// behind the signature that glibc has registered, and begins again. The zero flag says
// that it was run to its end.
#define SEQUENCE(INSTRUCTIONS, SAY_DONE)             \
  ".pushsection .data.rel.ro.sequences, \"aw?\"\n"   \
  ".balign 32\n"                                     \
  "3: .long 0, 0\n"                                  \
  ".quad 1f, 2f - 1f, 4f\n"                          \
  ".popsection\n"                                    \
  ".pushsection .text.unlikely.sequences, \"ax?\"\n" \
  ".byte 0x0f, 0xb9, 0x3d\n"                         \
  ".long 0x53053053\n"                               \
  "4: testq %%rsp, %%rsp\n"                          \
  "jmp 5f\n"                                         \
  ".popsection\n"                                    \
  "leaq 3b(%%rip), %[scratch]\n"                     \
  "movq %[scratch], 8(%[area])\n"                    \
  "1: cmpl %[cpu], 4(%[area])\n"                     \
  "jne 5f\n" INSTRUCTIONS "2: " SAY_DONE "5:\n"

// False: the thread was stopped, or is elsewhere.
bool add_in_sequence(std::size_t cpu, std::uint64_t& count) {
  bool done;
  std::uint64_t scratch;
  asm volatile(SEQUENCE("addq $1, %[count]\n", "cmpl %[cpu], %[cpu]\n")
               : "=@ccz"(done), [scratch] "=&r"(scratch), [count] "+m"(count)
               : [area] "r"(rseq_area()), [cpu] "r"(static_cast<std::uint32_t>(cpu))
               : "memory");
  return done;
}
// False also: another thread has changed the counter.
bool swap_in_sequence(std::size_t cpu, std::uint64_t& count) {
  bool done;
  std::uint64_t scratch;
  std::uint64_t seen = *const_cast<const volatile std::uint64_t*>(&count);
  asm volatile(
      SEQUENCE("lock cmpxchgq %[next], %[count]\n", "\n")
      : "=@ccz"(done), [scratch] "=&r"(scratch), [count] "+m"(count), "+a"(seen)
      : [area] "r"(rseq_area()), [cpu] "r"(static_cast<std::uint32_t>(cpu)), [next] "r"(seen + 1)
      : "memory");
  return done;
}
#undef SEQUENCE
#else
constexpr bool kHasSequences = false;
bool add_in_sequence(std::size_t, std::uint64_t&) {
  return false;
}
bool swap_in_sequence(std::size_t, std::uint64_t&) {
  return false;
}
#endif

template <class Lock>
class Table {
 public:
  Table(workload::Record& record, std::uint64_t threads, std::uint64_t increments)
      : record_(record), threads_(threads), increments_(increments) {
    const long cpus = sysconf(_SC_NPROCESSORS_CONF);
    cells_ = std::vector<Cell<Lock>>(
        std::max<std::uint64_t>(threads, cpus > 0 ? static_cast<std::uint64_t>(cpus) : 1));
  }

  // Runs all rows; returns their time together.
  std::uint64_t run() {
    row("global_ns", [&](std::uint64_t) { cells_[0].increment(); });
    row("per_cpu_ns", [&](std::uint64_t) {
      const int cpu = sched_getcpu();
      cell_of(cpu >= 0 ? static_cast<std::size_t>(cpu) : 0).increment();
    });
    row("per_cpu_no_getcpu_ns", [&](std::uint64_t thread) { cells_[thread].increment(); });
    if (rseq_registered())
      row("per_cpu_rseq_ns", [&](std::uint64_t) { cell_of(rseq_cpu()).increment(); });
    if (kHasSequences && rseq_registered() && every_cpu_has_a_cell()) {
      sequence_row<add_in_sequence>("per_cpu_sequence_ns");
      sequence_row<swap_in_sequence>("per_cpu_sequence_swap_ns");
    }
    per_thread();
    return elapsed_;
  }

  std::uint64_t rows() const { return rows_; }

 private:
  // CPUs may be numbered beyond their count where some are absent.
  Cell<Lock>& cell_of(std::size_t cpu) {
    return cells_[cpu < cells_.size() ? cpu : cpu % cells_.size()];
  }

  // A sequence is alone with the counter of its CPU only if no other CPU has the same.
  bool every_cpu_has_a_cell() const {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
    for (std::size_t cpu = cells_.size(); cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) return false;
    }
    return true;
  }
  template <bool (*increment)(std::size_t, std::uint64_t&)>
  void sequence_row(const char* name) {
    row(name, [&](std::uint64_t) {
      for (;;) {
        const std::size_t cpu = rseq_cpu();
        if (increment(cpu, cell_of(cpu).count)) return;
      }
    });
  }

  template <class Step>
  void row(const char* name, Step step) {
    for (Cell<Lock>& cell : cells_) cell.count = 0;
    const std::uint64_t ns = workload::run_threads(threads_, [&](std::uint64_t thread) {
      for (std::uint64_t i = 0; i < increments_; ++i) step(thread);
    });
    std::uint64_t sum = 0;
    for (const Cell<Lock>& cell : cells_) sum += cell.count;
    finish(name, ns, sum);
  }

  void per_thread() {
    std::atomic<std::uint64_t> sum{0};
    const std::uint64_t ns = workload::run_threads(threads_, [&](std::uint64_t) {
      for (std::uint64_t i = 0; i < increments_; ++i) {
        own_count = own_count + 1;
        workload::touch(&own_count);  // the variable in memory is incremented, not a register
      }
      sum.fetch_add(own_count);
    });
    finish("per_thread_ns", ns, sum.load());
  }

  void finish(const char* name, std::uint64_t ns, std::uint64_t sum) {
    workload::check(sum == threads_ * increments_, "lock_contention: increments were lost");
    record_.metric(name, ns, increments_);
    elapsed_ += ns;
    ++rows_;
  }

  workload::Record& record_;
  const std::uint64_t threads_;
  const std::uint64_t increments_;
  std::vector<Cell<Lock>> cells_;
  std::uint64_t elapsed_ = 0;
  std::uint64_t rows_ = 0;
};

template <class Lock>
void measure(workload::Record& record, std::uint64_t threads, std::uint64_t increments) {
  Table<Lock> table(record, threads, increments);
  const std::uint64_t elapsed = table.run();
  record.print(table.rows() * threads * increments, elapsed);
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "lock_contention",
                            "SuperMalloc (ISMM 2015) section 8, Figure 5",
                            "the cost of a counter that is global, per CPU or per thread");
  const auto threads = options.integer("threads", 2, 1, 1024, "threads");
  const auto increments = options.integer("increments", 1'000'000, 1, 1'000'000'000,
                                          "increments by each thread in each row");
  const std::size_t lock =
      options.choice("lock", {"mutex", "spin", "test-and-set"}, "lock around a shared counter");
  options.done();

  workload::Record record(options, threads);
  if (lock == 0)
    measure<Mutex>(record, threads, increments);
  else if (lock == 1)
    measure<SpinLock>(record, threads, increments);
  else
    measure<TestAndSetLock>(record, threads, increments);
}
