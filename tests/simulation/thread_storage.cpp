#include "thread_storage.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "scheduler.hpp"

namespace spanalloc::simulation {

namespace {

// The compiler's description of a variable; GCC's and Clang's are the same.
struct Variable {
  std::size_t bytes;
  std::size_t alignment;
  std::uintptr_t number;  // ours, from 1 on; 0: not known yet
  const void* initial;    // nullptr: zero
};

constexpr unsigned kMostVariables = 32;
constexpr std::size_t kStorageBytes = 8192;

struct Storage {
  alignas(64) char bytes[kStorageBytes];
  bool has[kMostVariables];
};

Storage storages[kMostThreads + 1];
Storage* shown = &storages[kDirector];
unsigned variables = 0;
std::size_t offsets[kMostVariables];
std::size_t used = 0;

}  // namespace

void begin_thread_storage(unsigned thread) {
  std::memset(storages[thread].has, 0, sizeof storages[thread].has);
}
void end_thread_storage(unsigned thread) {
  // What still looks there sees no live thread's state.
  std::memset(storages[thread].bytes, 0xDE, kStorageBytes);
}
void show_thread_storage(unsigned thread) {
  shown = &storages[thread];
}

extern "C" void* __emutls_get_address(void* control) {
  auto* variable = static_cast<Variable*>(control);
  if (variable->number == 0) {
    used = (used + variable->alignment - 1) & ~(variable->alignment - 1);
    if (variables == kMostVariables || used + variable->bytes > kStorageBytes) {
      std::fputs("simulation: too many thread-local variables\n", stderr);
      std::abort();
    }
    offsets[variables] = used;
    used += variable->bytes;
    variable->number = ++variables;
  }
  const std::size_t number = variable->number - 1;
  char* const place = shown->bytes + offsets[number];
  if (!shown->has[number]) {
    shown->has[number] = true;
    if (variable->initial == nullptr) {
      std::memset(place, 0, variable->bytes);
    } else {
      std::memcpy(place, variable->initial, variable->bytes);
    }
  }
  return place;
}

}  // namespace spanalloc::simulation
