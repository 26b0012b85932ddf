#include "process.hpp"

#include <limits.h>
#include <pthread.h>

#include <cerrno>

#include "kernel.hpp"
#include "report.hpp"
#include "scheduler.hpp"

namespace spanalloc::simulation {

Process process;

namespace {

constexpr unsigned kKeys = 16;
struct Key {
  bool used;
  void (*destructor)(void*);
};
Key keys[kKeys];
void* values[kKeys][kMostThreads + 1];

struct ForkHandlers {
  void (*prepare)();
  void (*parent)();
  void (*child)();
};
constexpr unsigned kMostHandlers = 8;
ForkHandlers handlers[kMostHandlers];
unsigned handler_count = 0;

alignas(16) const char marks[kMostThreads + 1][16] = {};

}  // namespace

const void* mark_of(unsigned thread) {
  return marks[thread];
}
bool is_mark_of(unsigned thread, std::uint64_t word) {
  const std::uint64_t mark = word & ((std::uint64_t{1} << 48) - 2);
  return mark == reinterpret_cast<std::uintptr_t>(marks[thread]);
}
void pass_time() {
  kernel.pass(1);
}

void Process::begin(std::uint64_t seed, const ProcessPlan& plan) {
  random_ = test::Random(seed);
  plan_ = plan;
}

void Process::begin_thread(unsigned thread) {
  for (auto& value : values) value[thread] = nullptr;
}

void Process::run_destructors(void (*between)(unsigned)) {
  const unsigned self = scheduler.self();
  for (unsigned round = 0; round < PTHREAD_DESTRUCTOR_ITERATIONS; ++round) {
    between(round);
    bool any = false;
    for (unsigned k = 0; k < kKeys; ++k) {
      void* const value = values[k][self];
      if (!keys[k].used || keys[k].destructor == nullptr || value == nullptr) continue;
      values[k][self] = nullptr;
      any = true;
      keys[k].destructor(value);
    }
    if (!any) break;
  }
}

bool Process::fork(bool as_child) {
  const unsigned count = handler_count;
  for (unsigned i = count; i-- != 0;) {
    if (handlers[i].prepare != nullptr) handlers[i].prepare();
  }
  ++forks_;
  SIM_LOG("fork: goes on as the %s", as_child ? "child" : "parent");
  scheduler.drain();
  if (as_child) {
    scheduler.vanish_others();
    is_new_child_ = is_child_ = true;
  }
  for (unsigned i = 0; i < count; ++i) {
    auto* const handler = as_child ? handlers[i].child : handlers[i].parent;
    if (handler != nullptr) handler();
  }
  return as_child;
}

}  // namespace spanalloc::simulation

// --- What src/thread/lifecycle.cpp calls of the C library, by these names (CMakeLists.txt) -------

extern "C" {

/// As sys/single_threaded.h has it.
char simulated_single_threaded = 1;

int simulated_key_create(pthread_key_t* key, void (*destructor)(void*)) {
  using namespace spanalloc::simulation;
  for (unsigned k = 0; k < kKeys; ++k) {
    if (keys[k].used) continue;
    keys[k] = {true, destructor};
    *key = k;
    return 0;
  }
  return EAGAIN;
}
int simulated_key_delete(pthread_key_t key) {
  spanalloc::simulation::keys[key].used = false;
  return 0;
}
int simulated_setspecific(pthread_key_t key, const void* value) {
  using namespace spanalloc::simulation;
  values[key][scheduler.self()] = const_cast<void*>(value);
  return 0;
}
void* simulated_getspecific(pthread_key_t key) {
  using namespace spanalloc::simulation;
  return values[key][scheduler.self()];
}
int simulated_atfork(void (*prepare)(), void (*parent)(), void (*child)()) {
  using namespace spanalloc::simulation;
  if (handler_count == kMostHandlers) return ENOMEM;
  handlers[handler_count++] = {prepare, parent, child};
  return 0;
}

}  // extern "C"
