#include "thread/background.hpp"

#include <pthread.h>
#include <signal.h>

#include "base/bits.hpp"
#include "os/os.hpp"

// In a C library before 2.34 it is a library of its own, which a program need not have.
#pragma weak pthread_create

namespace spanalloc::thread {

namespace {

// Room for the body, and what a program's static thread-local storage takes away from it.
constexpr std::size_t kStackBytes = 128 * kKiB;

void* run(void* body) {
  reinterpret_cast<void (*)()>(body)();
  return nullptr;
}

}  // namespace

bool start_background(void (*body)()) {
  if (&pthread_create == nullptr) return false;
  os::ErrnoGuard keep;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  // It inherits what its maker blocks.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool started =
      pthread_create(&thread, &attributes, run, reinterpret_cast<void*>(body)) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return started;
}

}  // namespace spanalloc::thread
