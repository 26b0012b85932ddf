#include "thread/lifecycle.hpp"

#include <limits.h>
#include <pthread.h>

#include "os/os.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::thread {

namespace {

constinit SpinLock key_lock;
// How many destructor rounds this thread's exit has seen. Rounds 1..ITERATIONS-2 re-arm; the hook runs in
// the last but one, which leaves one round in which other destructors may still call us.
SPANALLOC_TLS constinit thread_local unsigned exit_rounds = 0;

}  // namespace

bool ExitHook::watch_this_thread(void (*on_exit)()) {
  os::ErrnoGuard keep;
  {
    LockGuard guard(key_lock);
    if (key_plus_one_.load_relaxed() == 0) {
      pthread_key_t key{};
      if (pthread_key_create(&key, key_destructor) != 0) return false;
      on_exit_.store_relaxed(on_exit);
      key_plus_one_.store_relaxed(key + 1);
    }
  }
  return pthread_setspecific(key_plus_one_.load_relaxed() - 1, this) == 0;
}

void ExitHook::key_destructor(void* argument) {
  auto* hook = static_cast<ExitHook*>(argument);
  if (++exit_rounds < PTHREAD_DESTRUCTOR_ITERATIONS - 1) {
    pthread_setspecific(hook->key_plus_one_.load_relaxed() - 1, hook);  // the key exists: cannot fail
    return;
  }
  hook->on_exit_.load_relaxed()();
}

void register_fork_handlers(void (*prepare)(), void (*parent)(), void (*child)()) {
  os::ErrnoGuard keep;
  pthread_atfork(prepare, parent, child);  // ENOMEM: fork then works as far as an unlocked heap allows
}

}  // namespace spanalloc::thread
