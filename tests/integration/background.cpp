// SPANALLOC_BACKGROUND=1 on the libraries as they ship: the thread is there when there is something
// to give back, no signal comes to it, and the process ends as if it were not there.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

int threads_of_process() {
  FILE* status = fopen("/proc/self/status", "r");
  CHECK(status != nullptr, "no /proc/self/status");
  char line[256];
  int threads = 0;
  while (fgets(line, sizeof line, status) != nullptr) sscanf(line, "Threads: %d", &threads);
  fclose(status);
  return threads;
}

void work() {
  constexpr int kBlocks = 4096;
  static void* blocks[kBlocks];
  for (void*& p : blocks) {
    p = malloc(4096);
    memset(p, 1, 4096);
  }
  for (void* p : blocks) free(p);
}

std::atomic<pthread_t> delivered_to;
std::atomic<int> delivered{0};

void note_thread(int) {
  delivered_to = pthread_self();
  delivered.fetch_add(1);
}

// What the children do; they begin with the option set.
void leave_main(const Arguments&) {
  alarm(harness::kSecondsToHang);
  work();
  CHECK(threads_of_process() == 2, "%d threads", threads_of_process());
  pthread_exit(nullptr);
}
void leave_by_exit(const Arguments&) {
  work();
  CHECK(threads_of_process() == 2, "%d threads", threads_of_process());
  exit(0);
}
void take_signals(const Arguments&) {
  work();
  CHECK(threads_of_process() == 2, "%d threads", threads_of_process());
  signal(SIGUSR1, note_thread);
  for (int i = 0; i < 100; ++i) {
    kill(getpid(), SIGUSR1);
    while (delivered == i) sched_yield();
    CHECK(pthread_equal(delivered_to, pthread_self()), "a signal came to another thread");
  }
}

// Nobody but the thread looks at the clock from then on.
void fall_idle(const Arguments&) {
  alarm(harness::kSecondsToHang);
  constexpr std::size_t kPeak = 64 << 20;
  const auto resident = [] { return harness::memory().own * 1024; };
  const std::size_t before = resident();
  work();
  void* large = malloc(kPeak);
  memset(large, 1, kPeak);
  CHECK(resident() >= before + kPeak, "%zu bytes are in memory", resident());
  free(large);
  while (resident() > before + (4 << 20)) usleep(1000);
}

std::string self;

void ends_well(const char* child) {
  const harness::Outcome outcome =
      harness::run({self, child}, [] { setenv("SPANALLOC_BACKGROUND", "1", 1); });
  CHECK(outcome.exited(0), "%s: %s", child, outcome.describe().c_str());
}
void ends_with_the_process(const Arguments&) {
  ends_well("leave_main");
  ends_well("leave_by_exit");
}
// Where the kernel's clock is not to be had, time passes for the thread all the same.
void gives_back_by_a_counted_clock(const Arguments&) {
  const harness::Outcome outcome = harness::run({self, "fall_idle"}, [] {
    setenv("SPANALLOC_BACKGROUND", "1", 1);
    setenv("SPANALLOC_CLOCK", "counted", 1);
    setenv("SPANALLOC_DECAY_MS", "10", 1);
  });
  CHECK(outcome.exited(0), "%s", outcome.describe().c_str());
}
void gets_no_signals(const Arguments&) {
  ends_well("take_signals");
}

}  // namespace

int main(int argc, char** argv) {
  self = argv[0];
  return harness::run_case(argc, argv,
                           {{"ends_with_the_process", ends_with_the_process},
                            {"gets_no_signals", gets_no_signals},
                            {"gives_back_by_a_counted_clock", gives_back_by_a_counted_clock},
                            {"fall_idle", fall_idle},
                            {"leave_main", leave_main},
                            {"leave_by_exit", leave_by_exit},
                            {"take_signals", take_signals}});
}
