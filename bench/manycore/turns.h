/* Who runs. One core at a time has the turn, and only its thread executes the program: the one
 * whose clock is behind all others', until it is ahead of them by more than it may be. So the order
 * of events follows from the clocks and not from the real machine's scheduler, and a run can be
 * repeated.
 *
 * A thread that may block in a system call gives the turn away before (AWAY, or DUE when the end is
 * known) and asks for it afterwards. What would depend on how fast the real kernel is, is waited
 * for: a thread that goes to sleep in a futex until it does sleep, one that is woken until it is
 * back, however long a busy real machine takes for it. Only what hangs is given up, after ten
 * minutes, and counted in `expired_waits`: from then on the order may be the real machine's.
 *
 * The machine has `cpus` cores. Threads that started before run; a new one that finds all busy
 * waits, in the order of birth, until a thread ends or goes to sleep, or for `slice` cycles, after
 * which a scheduler would make room. One that wakes up does not wait: most_running says how many
 * ran at a time at the most. */
#ifndef SPANALLOC_BENCH_MANYCORE_TURNS_H
#define SPANALLOC_BENCH_MANYCORE_TURNS_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include "machine.h"

static pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER; /* state_of, holder's changes */
static _Atomic(Core*) holder; /* who has the turn; null while all are away */
static _Atomic int64_t
    others_first; /* the least clock among the cores that are ready or due, but the holder */
static _Atomic bool ended; /* the program has: nothing is simulated or counted any more */
static _Atomic long turns;
static _Atomic(Core*) expiring; /* asleep in a futex, and its time is up */
static _Atomic(Core*)
    departing; /* on its way to sleep; the next one to run sees that it gets there */
static _Atomic uint64_t waking; /* futex that the holder wakes threads from */
static _Atomic long woken;      /* those that are back from it */
static _Atomic int64_t expired_waits;
static int most_running;

/* Patience with the real kernel, and with a turn that does not end: for hangs alone. No answer may
 * hang on how busy the real machine is. */
enum { SETTLE_MS = 600000, STALL_S = 600 };

static int64_t real_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void* guest(uint64_t address);

/* --- The machine's cores: turns_lock held --- */

static int running(void) {
  int n = 0;
  for (int i = 0; i < used_cores; i++) n += state_of[i] == READY && !held[i];
  return n;
}
static void note_running(void) {
  const int n = running();
  if (n > most_running) most_running = n;
}
/* At `now` a thread has left its core, and `woken_up` others are about to come back to theirs. */
static void admit(int64_t now, int woken_up) {
  if (cost.cpus == 0) return;
  for (int busy = running() + woken_up; busy < cost.cpus; busy++) {
    int first = -1;
    for (int i = 0; i < used_cores; i++)
      if (held[i] && (first < 0 || born_at[i] < born_at[first])) first = i;
    if (first < 0) return;
    held[first] = false;
    clock_of[first] = now > born_at[first] ? now : born_at[first];
    if (clock_of[first] < atomic_load(&others_first)) atomic_store(&others_first, clock_of[first]);
  }
}

/* --- Turns --- */

static void hand_out(
    void) { /* turns_lock held; the caller has the turn, or nobody. Then: expire() */
  int first = -1;
  int64_t second = INT64_MAX;
  for (int i = 0; i < used_cores; i++) {
    if (state_of[i] != READY && state_of[i] != DUE) continue;
    if (first < 0 || clock_of[i] < clock_of[first]) {
      if (first >= 0) second = clock_of[first];
      first = i;
    } else if (clock_of[i] < second) {
      second = clock_of[i];
    }
  }
  if (first < 0 || state_of[first] == DUE) { /* one that is due takes the turn when it is back */
    atomic_store(&holder, NULL);
    if (first >= 0 && cores[first]->waiting_on) atomic_store(&expiring, cores[first]);
    return;
  }
  Core* next = cores[first];
  if (held[first]) { /* for as long as a new thread waits at most */
    held[first] = false;
    note_running();
  }
  atomic_store(&others_first, second);
  if (atomic_load(&holder) == next) return;
  atomic_fetch_add(&turns, 1);
  atomic_store(&holder, next);
  atomic_fetch_add(&next->go, 1);
  syscall(SYS_futex, &next->go, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static bool asleep(Core* c) {
  char text[256];
  const ssize_t n = pread(c->stat_fd, text, sizeof text - 1, 0);
  if (n <= 0) return true;
  text[n] = 0;
  const char* state = strrchr(text, ')');
  return !state || state[1] == 0 || state[2] == 'S';
}
/* The wait is to be given up: the program has ended, or the limit is over. */
static bool patience_ends(int64_t limit) {
  if (atomic_load(&ended)) return true;
  if (real_ms() < limit) return false;
  atomic_fetch_add(&expired_waits, 1);
  return true;
}
static void settle_departing(void) {
  Core* c = atomic_exchange(&departing, NULL);
  if (!c) return;
  const int64_t limit = real_ms() + SETTLE_MS;
  while (c->waiting_on && !asleep(c) && !patience_ends(limit)) sched_yield();
}

/* Real futexes do not know simulated time: whose time is up is woken, as may happen for no reason
 * on any system. Others that sleep on the same word may come first. */
static void expire(void) {
  Core* c = atomic_load(&expiring);
  if (!c) return;
  const int64_t limit = real_ms() + SETTLE_MS;
  while (atomic_load(&expiring) == c && !patience_ends(limit)) {
    syscall(SYS_futex, guest(c->waiting_on), FUTEX_WAKE | (c->args[1] & FUTEX_PRIVATE_FLAG), 1,
            NULL, NULL, 0);
    for (int i = 0; i < 1000 && atomic_load(&expiring) == c; i++) sched_yield();
  }
}

/* Another core's clock, as it happens to be. */
static int64_t clock_seen(const Core* c) {
  return __atomic_load_n(&clock_of[c->number], __ATOMIC_RELAXED);
}
__attribute__((noinline, cold)) static void await_turn(Core* c) {
  for (;;) {
    const uint32_t seen = atomic_load(&c->go);
    if (atomic_load(&ended)) return;
    if (atomic_load(&holder) == c) break;
    const long turn = atomic_load(&turns);
    const Core* running_now = atomic_load(&holder);
    const int64_t its_clock = running_now ? clock_seen(running_now) : 0;
    const struct timespec patience = {.tv_sec = STALL_S};
    if (syscall(SYS_futex, &c->go, FUTEX_WAIT_PRIVATE, seen, &patience, NULL, 0) != 0 &&
        errno == ETIMEDOUT && turn == atomic_load(&turns) && running_now &&
        atomic_load(&holder) == running_now && its_clock == clock_seen(running_now) &&
        !atomic_load(&ended))
      give_up(
          "no core has moved for ten minutes: the program waits for something in a way that is not "
          "simulated");
  }
  settle_departing();
}
/* Called first by everything that runs in the program's threads; false: the program has ended. */
static inline bool take_turn(Core* c) {
  if (__builtin_expect(atomic_load_explicit(&holder, memory_order_acquire) != c, 0)) await_turn(c);
  return !atomic_load_explicit(&ended, memory_order_relaxed);
}
__attribute__((noinline)) static void pass_turn(Core* c) {
  pthread_mutex_lock(&turns_lock);
  hand_out();
  pthread_mutex_unlock(&turns_lock);
  expire();
  if (atomic_load(&holder) != c) await_turn(c);
}
/* Lets the others come up until this core is ahead of none by more than `cycles`. */
static inline bool may_go(const Core* c, int64_t cycles) {
  const int64_t others = atomic_load_explicit(&others_first, memory_order_relaxed);
  return clock_of[c->number] - cycles * CYCLE <= others;
}
static inline void keep_within(Core* c, int64_t cycles) {
  while (__builtin_expect(!may_go(c, cycles), 0) && !atomic_load(&ended)) pass_turn(c);
}

/* For a system call that may wait; its caller has set asleep_since. */
static void leave(Core* c, enum State state) {
  if (c->stat_fd < 0 || c->thread != (int)syscall(SYS_gettid)) {
    if (c->stat_fd >= 0) close(c->stat_fd);
    c->thread = (int)syscall(SYS_gettid);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", c->thread);
    c->stat_fd = open(path, O_RDONLY | O_CLOEXEC);
  }
  pthread_mutex_lock(&turns_lock);
  state_of[c->number] = (uint8_t)state;
  if (c->waiting_on) atomic_store(&departing, c);
  admit(c->asleep_since, 0);
  hand_out();
  pthread_mutex_unlock(&turns_lock);
  expire();
}
/* Back from a system call that left. */
enum Return {
  WOKEN,   /* out of a futex */
  REFUSED, /* by a futex whose word had changed before */
  OTHERWISE
};
static void come_back(Core* c, enum Return how) {
  pthread_mutex_lock(&turns_lock);
  int64_t *clock = &clock_of[c->number], least = 0;
  Core *first = atomic_load(&holder), *expired = atomic_load(&expiring);
  const bool woke = how == WOKEN, refused = how == REFUSED && (c->waiting_on || c->alone);
  if (c == expired) atomic_store(&expiring, NULL);
  /* The waker counts also one whose time was up when it was woken; settle_woken() waits for all of
   * them. */
  if (woke && c->args[0] == atomic_load(&waking)) atomic_fetch_add(&woken, 1);
  if (refused) { /* it has not slept */
    *clock = c->asleep_since - cost.wait * CYCLE;
  } else if (c->waiting_on) {
    if (woke && c != expired) *clock = c->asleep_since;
    if (woke && first) {
      const int64_t now = clock_of[first->number];
      least = now + (cost.wakeup + late(cost.wakeup, c->number, now)) * CYCLE;
    }
    if (woke && !first && expired) least = clock_of[expired->number];
  } else if (state_of[c->number] == AWAY &&
             first) { /* some time has passed: nobody can say how much */
    least = INT64_MAX;
    for (int i = 0; i < used_cores; i++)
      if (state_of[i] == READY && clock_of[i] < least) least = clock_of[i];
  }
  if (least != INT64_MAX && *clock < least) *clock = least;
  state_of[c->number] = READY;
  c->waiting_on = 0;
  c->alone = false;
  note_running();
  if (!first)
    hand_out();
  else if (*clock < atomic_load(&others_first))
    atomic_store(&others_first, *clock);
  pthread_mutex_unlock(&turns_lock);
  expire();
  if (take_turn(c) && refused) counts.waits--; /* counts are the holder's */
}
/* The holder waits until `n` threads are back from the futex that it has woken them from. */
static void settle_woken(long n) {
  const int64_t limit = real_ms() + SETTLE_MS;
  while (atomic_load(&woken) < n && !patience_ends(limit)) sched_yield();
  atomic_store(&waking, 0);
}
/* A thread begins on the free core with the lowest number, at `clock` or as soon as the machine has
 * room. */
static Core* occupy_core(int64_t clock) {
  pthread_mutex_lock(&turns_lock);
  int number = 0;
  while (number < used_cores && state_of[number] != FREE) number++;
  if (number == MAX_CORES) give_up("more threads at a time than the machine has cores");
  if (!cores[number]) {
    cores[number] = zeroed(1, sizeof(Core));
    cores[number]->number = number;
    cores[number]->stat_fd = -1;
  }
  if (number >= used_cores) used_cores = number + 1;
  if (clock > clock_of[number]) clock_of[number] = clock;
  born_at[number] = clock_of[number];
  held[number] = cost.cpus > 0 && running() >= cost.cpus;
  if (held[number]) clock_of[number] += cost.slice * CYCLE;
  state_of[number] = READY;
  note_running();
  if (clock_of[number] < atomic_load(&others_first)) atomic_store(&others_first, clock_of[number]);
  pthread_mutex_unlock(&turns_lock);
  return cores[number];
}
static void end_all(void) {
  atomic_store(&ended, true);
  pthread_mutex_lock(&turns_lock);
  for (int i = 0; i < used_cores; i++) {
    atomic_fetch_add(&cores[i]->go, 1);
    syscall(SYS_futex, &cores[i]->go, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  }
  pthread_mutex_unlock(&turns_lock);
}

#endif
