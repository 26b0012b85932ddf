// fork from signal handlers that interrupt malloc and free, in one thread and in many. Parent and
// child both return from the handler into the call that was interrupted, and go on. Nothing may
// wait for a lock that the interrupted call holds, or that a thread holds which waits for it. A
// process that hangs dies of its alarm.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

constexpr unsigned kThreads = 4;
constexpr int kSignal = SIGUSR1;

// Blocks wander between threads through these: half of all frees are of another thread's blocks.
std::atomic<void*> mailbox[256];

std::atomic<int> forks_left{0};
std::atomic<int> children_alive{0};
std::atomic<bool> stop{false};
// The child's only thread is the one that forked; it must not be mistaken for the parent's.
std::atomic<bool> in_child{false};
std::atomic<bool> interrupted{false};
thread_local unsigned steps_in_child = 0;

void fork_in_handler(int) {
  const int saved = errno;
  if (!in_child && forks_left.fetch_sub(1) > 0) {
    const pid_t child = fork();
    if (child == 0) {
      in_child = true;
      alarm(harness::kSecondsToHang);
    } else if (child > 0) {
      children_alive.fetch_add(1);
    } else {
      forks_left.fetch_add(1);
    }
  }
  interrupted = true;
  errno = saved;
}

void handle_signals() {
  struct sigaction action{};
  action.sa_handler = fork_in_handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(kSignal, &action, nullptr) == 0, "sigaction: %s", strerror(errno));
}

// What most programs ask for, and what brings every lock and every list of the heap into play.
std::size_t a_size(harness::Random& random) {
  switch (random.below(16)) {
    case 0:
      return 40'000 + random.below(300'000);  // a block of its own
    case 1:
      return 1'000'000 + random.below(4'000'000);
    case 2:
    case 3:
      return 2'000 + random.below(30'000);
    default:
      return 1 + random.below(800);
  }
}

struct Parcel {
  void* block = nullptr;
  std::size_t size = 0;
};

class Churn {
 public:
  explicit Churn(std::uint64_t seed) : random_(seed) {}
  void step() {
    Parcel& slot = slots_[random_.below(kSlots)];
    if (slot.block != nullptr && random_.below(6) == 0) {
      const std::size_t size = a_size(random_);
      void* moved = realloc(slot.block, size);
      CHECK(moved != nullptr, "realloc to %zu refused", size);
      slot = {moved, size};
      write(slot);
    } else if (slot.block != nullptr) {
      drop(slot);
    } else {
      slot.size = a_size(random_);
      slot.block = random_.below(4) == 0 ? calloc(1, slot.size) : malloc(slot.size);
      CHECK(slot.block != nullptr, "%zu bytes refused", slot.size);
      write(slot);
    }
    free(mailbox[random_.below(std::size(mailbox))].exchange(malloc(1 + random_.below(3000))));
    // Holds a lock for long.
    if (random_.below(64) == 0) malloc_trim(0);
  }
  void end() {
    for (Parcel& slot : slots_) drop(slot);
  }

 private:
  static constexpr std::size_t kSlots = 60;
  static std::size_t checked(const Parcel& slot) { return slot.size < 4096 ? slot.size : 4096; }
  static void write(const Parcel& slot) { harness::fill(slot.block, checked(slot)); }
  static void drop(Parcel& slot) {
    if (slot.block == nullptr) return;
    CHECK(harness::intact(slot.block, checked(slot)), "block %p of %zu bytes overwritten",
          slot.block, slot.size);
    free(slot.block);
    slot.block = nullptr;
  }
  harness::Random random_;
  Parcel slots_[kSlots];
};

// The child's thread is in here as the parent's is: its interrupted call is over, its heap must
// work, and hold what the parent's held.
void churn_until_stopped(std::uint64_t seed) {
  Churn churn(seed);
  while (!stop.load(std::memory_order_relaxed)) {
    churn.step();
    if (!in_child.load(std::memory_order_relaxed)) continue;
    if (++steps_in_child == 50) {
      std::thread other([] {
        Churn more(99);
        for (int i = 0; i < 100; ++i) more.step();
        more.end();
      });
      other.join();
      malloc_trim(0);
    }
    if (steps_in_child < 150) continue;
    churn.end();
    for (auto& slot : mailbox) free(slot.exchange(nullptr));
    _exit(0);
  }
  churn.end();
}

void reap(int expected) {
  for (int i = 0; i < expected; ++i) {
    int status = 0;
    pid_t child = 0;
    while ((child = wait(&status)) < 0) {
      if (in_child) _exit(0);  // it is the child that returns to this place
      CHECK(errno == EINTR, "wait: %s", strerror(errno));
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with %s %d",
          WIFEXITED(status) ? "exit code" : "signal",
          WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  }
}

int forks_wanted() {
  return harness::is_full_run() ? 2000 : 150;
}

void block_signal(bool blocked) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, kSignal);
  pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &signals, nullptr);
}

// One thread: the timer finds it in malloc or free nearly always. It goes by the thread's own time,
// and is set again when the work goes on after a fork: however busy the machine is and however long
// the fork takes, each fork comes at another place.
void one_thread(const Arguments&) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  handle_signals();
  forks_left = forks_wanted();
  timer_t timer{};
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = kSignal;
  CHECK(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0, "timer_create: %s",
        strerror(errno));
  const itimerspec soon{{0, 0}, {0, 700'000}};
  Churn churn(1);
  int reaped = 0;
  interrupted = true;
  while (forks_left.load() > 0) {
    if (interrupted.exchange(false)) {
      // (Timers are not inherited.)
      CHECK(timer_settime(timer, 0, &soon, nullptr) == 0 || in_child, "timer_settime: %s",
            strerror(errno));
    }
    churn.step();
    if (in_child) {
      for (int i = 0; i < 150; ++i) churn.step();
      churn.end();
      _exit(0);
    }
    if (children_alive.load() - reaped > 20) reap(1), ++reaped;
  }
  timer_delete(timer);
  if (in_child) _exit(0);
  reap(children_alive.load() - reaped);
}

// A process that never had another thread leaves nobody behind. This one leaves somebody, who holds
// nothing: the child must find out, as its call goes on, that nothing is to be put right.
void beside_a_resting_thread(const Arguments& arguments) {
  block_signal(true);
  std::thread([] {
    for (;;) pause();
  }).detach();
  block_signal(false);
  one_thread(arguments);
}

// Many threads, each of which is interrupted, at once with others. What one waits for may be held
// by a thread that waits for what the interrupted one holds.
void many_threads(const Arguments&) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  handle_signals();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(churn_until_stopped, t + 1);
  forks_left = forks_wanted();
  harness::Random random(7);
  int reaped = 0;
  while (forks_left.load() > 0) {
    pthread_kill(threads[random.below(kThreads)].native_handle(), kSignal);
    usleep(static_cast<useconds_t>(random.below(600)));
    while (children_alive.load() - reaped > 8) reap(1), ++reaped;
  }
  stop = true;  // who is in a handler, in fork, comes out of it before it ends
  for (auto& thread : threads) thread.join();
  reap(children_alive.load() - reaped);
  for (auto& slot : mailbox) free(slot.exchange(nullptr));
}

// The same while threads begin and end. Only those that work are interrupted: a thread that waits
// for another one's end would wait for ever in the child.
void threads_that_end(const Arguments&) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  block_signal(true);
  handle_signals();
  forks_left = forks_wanted();
  int reaped = 0;
  for (std::uint64_t round = 0; forks_left.load() > 0; ++round) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([round, t] {
        for (int life = 0; life < 5; ++life) {
          std::thread([=] {
            block_signal(false);
            Churn churn(round * 100 + t);
            for (int i = 0; i < 30; ++i) churn.step();
            churn.end();
            if (in_child) {
              for (auto& slot : mailbox) free(slot.exchange(nullptr));
              _exit(0);
            }
            raise(kSignal);  // the child's only thread ends next, and with it the child
          }).join();
        }
      });
    }
    for (unsigned i = 0; i < 20; ++i) {
      kill(getpid(), kSignal);  // to any thread that takes it
      usleep(200);
    }
    for (auto& thread : threads) thread.join();
    while (children_alive.load() - reaped > 8) reap(1), ++reaped;
  }
  reap(children_alive.load() - reaped);
  for (auto& slot : mailbox) free(slot.exchange(nullptr));
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"one_thread", one_thread},
                            {"beside_a_resting_thread", beside_a_resting_thread},
                            {"many_threads", many_threads},
                            {"threads_that_end", threads_that_end}});
}
