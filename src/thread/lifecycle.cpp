#include "thread/lifecycle.hpp"

#include <limits.h>
#include <pthread.h>

#include "os/os.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::thread {

namespace {

// How many destructor rounds this thread's exit has seen. Rounds 1..ITERATIONS-2 re-arm; the hook runs in
// the last but one, which leaves one round in which other destructors may still call us.
SPANALLOC_TLS constinit thread_local unsigned exit_rounds = 0;

}  // namespace

unsigned ExitHook::key() {
  os::ErrnoGuard keep;
  unsigned known = key_plus_one_.load_acquire();
  if (known != 0) return known;
  // No lock: a fork could leave it locked in the child. Who loses the race gives its key back.
  pthread_key_t key{};
  if (pthread_key_create(&key, key_destructor) != 0) return 0;
  // Release: for the destructors of threads that find the key made.
  if (key_plus_one_.compare_exchange_strong_acq_rel(known, key + 1)) return key + 1;
  pthread_key_delete(key);
  return known;
}

bool ExitHook::watch_this_thread(void (*on_exit)()) {
  os::ErrnoGuard keep;
  on_exit_.store_relaxed(
      on_exit);  // every caller passes the same function, in the thread that it is for, too
  const unsigned known = key();
  return known != 0 && pthread_setspecific(known - 1, this) == 0;
}

void ExitHook::key_destructor(void* argument) {
  auto* hook = static_cast<ExitHook*>(argument);
  if (++exit_rounds < PTHREAD_DESTRUCTOR_ITERATIONS - 1) {
    pthread_setspecific(hook->key_plus_one_.load_relaxed() - 1, hook);  // the key exists: cannot fail
    return;
  }
  hook->on_exit_.load_relaxed()();
}

void register_fork_handler(void (*child)()) {
  os::ErrnoGuard keep;
  // ENOMEM: a child then waits for locks that are lost.
  pthread_atfork(SpinLock::begin_fork, SpinLock::end_fork, child);
}

}  // namespace spanalloc::thread
