/* System calls: what they cost, what they do to pages and to other cores, and what the program is
 * told of the machine (its clock and its CPUs). Their numbers are those of this machine, which is
 * an x86-64, too. */
#ifndef SPANALLOC_BENCH_MANYCORE_KERNEL_H
#define SPANALLOC_BENCH_MANYCORE_KERNEL_H

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#include "qemu_plugin.h"
#include "turns.h"

enum { GUEST_CLONE_THREAD = 0x10000, GUEST_CLONE_CHILD_CLEARTID = 0x200000 };
enum { FUTEX_COMMAND = 127 };
enum { POPULATE_READ = 22, POPULATE_WRITE = 23 }; /* MADV_..., which older headers lack */

/* Nanoseconds at the simulation's start: always the same, so that nothing depends on the real time.
 */
enum { START_S = 1000000 };
static const int64_t monotonic_base = START_S * 1000000000ll,
                     realtime_base = (1700000000ll + START_S) * 1000000000ll;
static int64_t map_free_at; /* when the last change to the process's mappings is done */
static uint64_t heap_end;   /* what brk said last */

static void* guest(uint64_t address) {
  return (void*)(address + (&guest_base ? guest_base : 0));
}

static int64_t nanoseconds(const struct timespec* t) {
  return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}
static int64_t now_ns(const Core* c) {
  return clock_of[c->number] / (CYCLE * cost.ghz);
}
static int64_t ticks(int64_t ns) {
  return ns * CYCLE * cost.ghz;
}

static bool is_wait(const uint64_t* args) {
  const unsigned command = (unsigned)args[1] & FUTEX_COMMAND;
  return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET;
}
static bool is_wake(const uint64_t* args) {
  const unsigned command = (unsigned)args[1] & FUTEX_COMMAND;
  return command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET;
}
/* What else futexes can do moves waiters or changes the word, which the books here do not follow.
 */
static void refuse_other_futexes(const uint64_t* args) {
  static char why[128];
  if (is_wait(args) || is_wake(args)) return;
  snprintf(why, sizeof why,
           "the program uses futex operation %u; only waiting and waking are simulated",
           (unsigned)args[1] & FUTEX_COMMAND);
  give_up(why);
}
/* The time on this core's clock when a futex wait gives up. */
static int64_t futex_deadline(const Core* c, const uint64_t* args) {
  if (!args[3]) return INT64_MAX;
  const int64_t ns = nanoseconds(guest(args[3]));
  if (((unsigned)args[1] & FUTEX_COMMAND) == FUTEX_WAIT) return clock_of[c->number] + ticks(ns);
  return ticks(ns - ((unsigned)args[1] & FUTEX_CLOCK_REALTIME ? realtime_base : monotonic_base));
}
/* The real kernel's patience is replaced: with a sleep, and with a futex wait whose time is up,
 * none; with others a day. */
static bool write_guest(uint64_t address, const void* bytes, size_t n) { /* it may be read-only */
  const struct iovec from = {(void*)bytes, n}, to = {guest(address), n};
  return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == (ssize_t)n;
}
static void replace_timeout(Core* c, uint64_t address, const struct timespec* patience) {
  if (!address) return;
  memcpy(&c->timeout, guest(address), sizeof c->timeout);
  if (write_guest(address, patience, sizeof *patience)) c->replaced_timeout = address;
}
static void restore_timeout(Core* c) {
  if (c->replaced_timeout) write_guest(c->replaced_timeout, &c->timeout, sizeof c->timeout);
  c->replaced_timeout = 0;
}
static struct timespec futex_patience(const Core* c, bool up) {
  const bool absolute = ((unsigned)c->args[1] & FUTEX_COMMAND) != FUTEX_WAIT;
  struct timespec patience = {0};
  if (!up && absolute)
    clock_gettime((unsigned)c->args[1] & FUTEX_CLOCK_REALTIME ? CLOCK_REALTIME : CLOCK_MONOTONIC,
                  &patience);
  if (!up) patience.tv_sec += 24 * 3600;
  return patience;
}
/* Nobody is left who could wake it before. */
static bool first_at(const Core* c, int64_t clock) {
  bool first = true;
  for (int i = 0; i < used_cores; i++)
    first &= i == c->number || (state_of[i] != READY && state_of[i] != DUE) ||
             (clock_of[i] > clock && !held[i]);
  return first;
}

/* How long a sleep takes from now on. */
static int64_t sleep_ticks(const Core* c, int64_t number, const uint64_t* args) {
  const uint64_t wanted = number == SYS_nanosleep ? args[0] : args[2];
  if (!wanted) return 0;
  const int64_t ns = nanoseconds(guest(wanted));
  if (number == SYS_nanosleep || !(args[1] & TIMER_ABSTIME)) return ticks(ns);
  const int64_t left = ticks(ns - (args[0] == CLOCK_REALTIME ? realtime_base : monotonic_base)) -
                       clock_of[c->number];
  return left > 0 ? left : 0;
}

/* Also a file below /proc; what is neither may have nothing to read yet, or no room. */
static bool is_file(uint64_t descriptor) {
  struct stat s;
  return fstat((int)descriptor, &s) == 0 && S_ISREG(s.st_mode);
}

/* Calls that end by themselves: the turn is kept. All others may wait for something. */
/* clang-format off */
#define EACH_THAT_ENDS(X) \
  X(mmap) X(mprotect) X(munmap) X(brk) X(sched_yield) X(mremap) X(madvise) X(clone) X(clone3) \
  X(exit) X(gettimeofday) X(sched_getaffinity) X(clock_gettime) X(getcpu) X(close) X(fstat) \
  X(lseek) X(rt_sigaction) X(rt_sigprocmask) X(ioctl) X(pread64) X(access) X(getpid) X(uname) \
  X(getrlimit) X(getrusage) X(sysinfo) X(getuid) X(sigaltstack) X(prctl) X(arch_prctl) X(gettid) \
  X(time) X(sched_setaffinity) X(set_tid_address) X(clock_getres) X(tgkill) X(openat) \
  X(newfstatat) X(set_robust_list) X(get_robust_list) X(prlimit64) X(getrandom) X(membarrier) \
  X(rseq)
/* clang-format on */
static const bool always_ends[CALLS] = {
#define X(name) [SYS_##name] = true,
    EACH_THAT_ENDS(X)
#undef X
};
static bool ends_by_itself(int64_t number, const uint64_t* args) {
  if (number == SYS_read || number == SYS_write) return is_file(args[0]);
  if (number == SYS_futex) return is_wake(args);
  return number >= 0 && number < CALLS && always_ends[number];
}

/* Other cores forget a mapping: each that runs this process is interrupted. */
static void shoot_down(Core* c) {
  pthread_mutex_lock(&turns_lock);
  int64_t told = 0, first = INT64_MAX;
  for (int i = 0; i < used_cores; i++) {
    if (i == c->number || (state_of[i] != READY && state_of[i] != DUE)) continue;
    if (state_of[i] == READY && !held[i]) {
      clock_of[i] += cost.interrupt * CYCLE;
      told++;
    }
    if (clock_of[i] < first) first = clock_of[i];
  }
  atomic_store(&others_first, first);
  pthread_mutex_unlock(&turns_lock);
  if (!told) return;
  counts.shootdowns++;
  counts.interrupts += told;
  clock_of[c->number] += (cost.shootdown + told * cost.interrupt / 10) * CYCLE;
}

/* A change to the mappings waits for the one before it. */
static void change_mappings(Core* c) {
  int64_t* clock = &clock_of[c->number];
  if (*clock < map_free_at) *clock = map_free_at;
  *clock += cost.map * CYCLE;
  map_free_at = *clock;
}
static void pages_gone(Core* c, int64_t n) {
  if (n == 0) return;
  clock_of[c->number] += n * cost.page * CYCLE;
  shoot_down(c);
}

/* The kernel provides the pages at once: as if the caller had touched them, without its
 * instructions. */
static void populate(Core* c, uint64_t start, uint64_t length) {
  for (uint64_t i = start >> PAGE_BITS; i < (start + length + (1 << PAGE_BITS) - 1) >> PAGE_BITS;
       i++) {
    Page* page = make_page(i);
    if (!page->present) fault_in(c, page);
  }
}

static void apply_mapping_call(Core* c, int64_t number, int64_t result) {
  const uint64_t* a = c->args;
  const bool failed = result < 0 && result > -4096;
  switch (number) {
    case SYS_mmap:
      change_mappings(c);
      if (!failed && (a[3] & MAP_FIXED)) pages_gone(c, present_pages((uint64_t)result, a[1], true));
      if (!failed && (a[3] & MAP_POPULATE)) populate(c, (uint64_t)result, a[1]);
      break;
    case SYS_munmap:
      change_mappings(c);
      if (!failed) pages_gone(c, present_pages(a[0], a[1], true));
      break;
    case SYS_mprotect:
      change_mappings(c);
      if (!failed && a[2] != (PROT_READ | PROT_WRITE) && present_pages(a[0], a[1], false))
        shoot_down(c); /* rights taken away */
      break;
    case SYS_mremap:
      change_mappings(c);
      if (failed) break;
      if ((uint64_t)result != a[0])
        pages_gone(c, move_pages(a[0], (uint64_t)result, a[1] < a[2] ? a[1] : a[2]));
      if (a[2] < a[1]) pages_gone(c, present_pages(a[0] + a[2], a[1] - a[2], true));
      break;
    case SYS_brk:
      change_mappings(c);
      if ((uint64_t)result < heap_end)
        pages_gone(c, present_pages((uint64_t)result, heap_end - (uint64_t)result, true));
      heap_end = (uint64_t)result;
      break;
    case SYS_madvise:
      if (clock_of[c->number] < map_free_at) clock_of[c->number] = map_free_at;
      if (failed) break;
      if (a[2] == MADV_DONTNEED) pages_gone(c, present_pages(a[0], a[1], true));
      if (a[2] == MADV_FREE && present_pages(a[0], a[1], false)) shoot_down(c);
      if (a[2] == POPULATE_READ || a[2] == POPULATE_WRITE) populate(c, a[0], a[1]);
      break;
    default:
      break;
  }
}

/* The machine's clock and CPUs in place of the real one's. */
static void answer(const Core* c, int64_t number, int64_t result) {
  const uint64_t* a = c->args;
  if (number == SYS_clock_gettime && result == 0) {
    const int clock = (int)a[0];
    const bool real = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!real && clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_RAW &&
        clock != CLOCK_MONOTONIC_COARSE && clock != CLOCK_BOOTTIME)
      return;
    struct timespec* t = guest(a[1]);
    const int64_t ns = now_ns(c) + (real ? realtime_base : monotonic_base);
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
  } else if (number == SYS_gettimeofday && result == 0 && a[0]) {
    struct timeval* t = guest(a[0]);
    const int64_t us = (now_ns(c) + realtime_base) / 1000;
    t->tv_sec = us / 1000000;
    t->tv_usec = us % 1000000;
  } else if (number == SYS_getcpu && result == 0) {
    if (a[0]) *(unsigned*)guest(a[0]) = (unsigned)c->number;
    if (a[1]) *(unsigned*)guest(a[1]) = 0;
  } else if (number == SYS_sched_getaffinity && result > 0 && cost.cpus) {
    unsigned char* mask = guest(a[2]);
    for (int64_t i = 0; i < result; i++) {
      const int64_t left = cost.cpus - 8 * i;
      mask[i] = left >= 8 ? 255 : left > 0 ? (unsigned char)((1 << left) - 1) : 0;
    }
  }
}

static __thread Core* calling; /* the core whose system call starts a thread */

/* Answered by the vDSO on a real machine. */
static bool is_in_vdso(int64_t number) {
  return number == SYS_clock_gettime || number == SYS_gettimeofday || number == SYS_getcpu;
}

static void enter_kernel(Core* c, int64_t number) {
  if (number >= 0 && number < CALLS) counts.calls[number]++;
  if (is_in_vdso(number)) {
    clock_of[c->number] += cost.vdso * CYCLE;
    return;
  }
  counts.syscalls++;
  c->child = NULL;
  clock_of[c->number] += cost.syscall * CYCLE;
  calling = c;
  if (number == SYS_fork || number == SYS_vfork ||
      (number == SYS_clone && !(c->args[0] & GUEST_CLONE_THREAD)))
    give_up("the program starts another process; only threads are simulated");
  if (number == SYS_futex) refuse_other_futexes(c->args);
  if (number == SYS_futex && is_wake(c->args)) {
    atomic_store(&woken, 0);
    atomic_store(&waking, c->args[0]);
  }
  if (ends_by_itself(number, c->args)) return;
  c->asleep_since = clock_of[c->number];
  if (number == SYS_nanosleep ||
      number == SYS_clock_nanosleep) { /* only the simulated core sleeps */
    clock_of[c->number] += sleep_ticks(c, number, c->args) + cost.wakeup * CYCLE;
    replace_timeout(c, number == SYS_nanosleep ? c->args[0] : c->args[2], &(struct timespec){0});
    leave(c, DUE);
    return;
  }
  if (number == SYS_futex && is_wait(c->args)) {
    clock_of[c->number] +=
        cost.wait * CYCLE; /* come_back() undoes this and the count where it is refused */
    counts.waits++;
    c->asleep_since = clock_of[c->number];
    c->deadline = futex_deadline(c, c->args);
    c->waiting_on = c->args[0];
    if (c->deadline != INT64_MAX) {
      const bool up = first_at(c, c->deadline);
      const struct timespec patience = futex_patience(c, up);
      replace_timeout(c, c->args[3], &patience);
      if (c->deadline > clock_of[c->number]) clock_of[c->number] = c->deadline;
      if (up) c->waiting_on = 0;
      c->alone = up;
      leave(c, DUE);
      return;
    }
  }
  leave(c, AWAY);
}

static void return_from_kernel(Core* c, int64_t number, int64_t result) {
  calling = NULL;
  if (!ends_by_itself(number, c->args)) {
    restore_timeout(c);
    if (number != SYS_futex)
      come_back(c, OTHERWISE);
    else
      come_back(c, result == 0 ? WOKEN : result == -EAGAIN ? REFUSED : OTHERWISE);
    return;
  }
  if (number == SYS_futex) {
    if (result > 0) {
      settle_woken(result);
      counts.wakes += result;
      clock_of[c->number] += result * cost.wake * CYCLE;
    }
    atomic_store(&waking, 0);
  }
  if (number == SYS_clone && result > 0) clock_of[c->number] += cost.clone * CYCLE;
  if (number == SYS_clone && result < 0 && c->child) { /* refused after all: nobody runs there */
    pthread_mutex_lock(&turns_lock);
    state_of[c->child->number] = FREE;
    held[c->child->number] = false;
    pthread_mutex_unlock(&turns_lock);
  }
  apply_mapping_call(c, number, result);
  answer(c, number, result);
}

/* The thread has ended; qemu wakes whoever joins it, after this. */
static void thread_ended(Core* c) {
  const int64_t now = clock_of[c->number];
  int woken_up = 0;
  pthread_mutex_lock(&turns_lock);
  for (int i = 0; i < used_cores && c->clear_at_exit; i++) {
    if (cores[i]->waiting_on != c->clear_at_exit) continue;
    clock_of[i] = now + (cost.wakeup + late(cost.wakeup, i, now)) * CYCLE;
    state_of[i] = DUE;
    cores[i]->waiting_on = 0;
    counts.wakes++;
    woken_up++;
  }
  c->clear_at_exit = 0;
  state_of[c->number] = FREE;
  admit(now, woken_up);
  if (atomic_load(&holder) == c) hand_out();
  pthread_mutex_unlock(&turns_lock);
  expire();
}

#endif
