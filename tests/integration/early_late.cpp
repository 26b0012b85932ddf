// malloc before main and after it: preinit_array, constructors, static objects, atexit, static
// destructors, destructors of the executable, and threads that still run while the process exits.
// Blocks made in an early phase are freed in the matching late one.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

constexpr std::size_t kSizes[] = {1, 16, 100, 1000, 5000, 40000, 300000, 3000000};

struct Set {
  void* blocks[8] = {};

  void allocate(const char* phase) {
    for (int i = 0; i < 8; ++i) {
      blocks[i] = malloc(kSizes[i]);
      CHECK(blocks[i] != nullptr, "%s: malloc(%zu) refused", phase, kSizes[i]);
      harness::fill(blocks[i], kSizes[i]);
      free(malloc(kSizes[i]));
    }
  }
  void drop(const char* phase) {
    for (int i = 0; i < 8; ++i) {
      CHECK(blocks[i] != nullptr, "%s: the matching early phase did not run", phase);
      CHECK(harness::intact(blocks[i], kSizes[i]), "%s: block of %zu bytes overwritten", phase,
            kSizes[i]);
      free(blocks[i]);
      blocks[i] = nullptr;
    }
  }
};

Set preinit_set;
Set constructor_set;
Set late_set;

// preinit_array runs before every library's constructors, so also before the allocator's own.
void preinit(int, char**, char**) {
  preinit_set.allocate("preinit_array");
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit_entry)(int, char**,
                                                                          char**) = preinit;

[[gnu::constructor(101)]] void first_constructor() {
  constructor_set.allocate("constructor");
}

bool report_at_end = false;

[[gnu::destructor(101)]] void last_destructor() {
  constructor_set.drop("destructor");
  preinit_set.drop("destructor");
  late_set.allocate("destructor");
  late_set.drop("destructor");
  if (report_at_end && write(1, "late phases ran\n", 16) != 16) _exit(1);
}

struct StaticObject {
  StaticObject() { set.allocate("static object"); }
  ~StaticObject() { set.drop("static destructor"); }
  Set set;
};
StaticObject static_object;

// Also reached by exit(): thread_local objects of the main thread.
thread_local std::unique_ptr<std::string> of_main_thread;

std::atomic<unsigned> blocks_of_threads{0};

void child(const Arguments& arguments) {
  harness::require_library_malloc();
  report_at_end = true;
  of_main_thread = std::make_unique<std::string>(500, 'x');
  static Set at_exit;
  at_exit.allocate("main");
  CHECK(atexit([] { at_exit.drop("atexit"); }) == 0, "atexit");
  static Set on_exit_set;
  on_exit_set.allocate("main");
  CHECK(on_exit([](int, void* raw) { static_cast<Set*>(raw)->drop("on_exit"); }, &on_exit_set) == 0,
        "on_exit");
  // A full stdio buffer is flushed and freed by exit as well.
  printf("from main\n");
  if (arguments.size() == 1 && arguments[0] == "threads") {
    for (unsigned i = 0; i < 3; ++i) {
      std::thread([i] {
        harness::Random random(i);
        for (;;) {
          void* p = malloc(random.size(100000));
          memset(p, 1, 1);
          free(p);
          blocks_of_threads.fetch_add(1, std::memory_order_relaxed);
        }
      }).detach();
    }
    while (blocks_of_threads < 1000) std::this_thread::yield();
  }
  if (arguments.size() == 1 && arguments[0] == "exit_from_thread") {
    std::thread([] { exit(0); }).join();
  }
}

void expect_all_phases(const std::vector<std::string>& arguments) {
  const auto outcome = harness::run_self(arguments);
  harness::expect_success(outcome, "early and late phases");
  CHECK(outcome.out.find("from main\n") != std::string::npos &&
            outcome.out.find("late phases ran\n") != std::string::npos,
        "not all phases ran: %s", outcome.describe().c_str());
}

void all_phases(const Arguments&) {
  for (int i = 0; i < 5; ++i) expect_all_phases({"child"});
}
void threads_still_running(const Arguments&) {
  const int runs = harness::is_full_run() ? 30 : 8;
  for (int i = 0; i < runs; ++i) expect_all_phases({"child", "threads"});
}
void exit_from_thread(const Arguments&) {
  for (int i = 0; i < 5; ++i) expect_all_phases({"child", "exit_from_thread"});
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"all_phases", all_phases},
                            {"threads_still_running", threads_still_running},
                            {"exit_from_thread", exit_from_thread},
                            {"child", child}});
}
