#include "thread/lifecycle.hpp"

#include <limits.h>
#include <pthread.h>

#include "os/os.hpp"
#include "sync/spin_lock.hpp"

/// glibc's, from 2.32 on (<sys/single_threaded.h>): not 0 as long as the process never had another
/// thread. (A later one may set it again when the others have ended.)
extern "C" [[gnu::weak]] char __libc_single_threaded;

namespace spanalloc::thread {

// --- ExitKey -------------------------------------------------------------------------------------

unsigned ExitKey::key(void (*destructor)(void*)) {
  os::ErrnoGuard keep;
  unsigned known = key_plus_one_.load_acquire();
  if (known != 0) return known;
  // No lock: a fork could leave it locked in the child. Who loses the race gives its key back.
  pthread_key_t key{};
  if (pthread_key_create(&key, destructor) != 0) return 0;
  // Release: for the destructors of threads that find the key made.
  if (key_plus_one_.compare_exchange_strong_acq_rel(known, key + 1)) return key + 1;
  pthread_key_delete(key);
  return known;
}

bool ExitKey::watch_this_thread(void* state, void (*destructor)(void*)) {
  os::ErrnoGuard keep;
  const unsigned known = key(destructor);
  return known != 0 && pthread_setspecific(known - 1, state) == 0;
}

// Relaxed, here and below: a thread's own watch_this_thread() came before.
bool ExitKey::comes_again(void* state, std::uint8_t& round) const {
  if (++round >= PTHREAD_DESTRUCTOR_ITERATIONS - 1) return false;
  return pthread_setspecific(key_plus_one_.load_relaxed() - 1, state) == 0;
}

void* ExitKey::find() const {
  const unsigned known = key_plus_one_.load_relaxed();
  return known == 0 ? nullptr : pthread_getspecific(known - 1);
}

// The mark is the key, shifted, plus one.
void ExitKey::leave() {
  const unsigned known = key_plus_one_.load_relaxed();
  if (known != 0) stay_away(pointer_to(std::uintptr_t{known} << 1 | 1));
}

void ExitKey::stay_away(void* mark) {
  os::ErrnoGuard keep;
  (void)pthread_setspecific(static_cast<pthread_key_t>((address_of(mark) >> 1) - 1), mark);
}

void ExitKey::remove() {
  const unsigned known = key_plus_one_.load_acquire();
  if (known == 0) return;
  pthread_key_delete(known - 1);  // first: a fork's child that finds it half done does both
  key_plus_one_.store_release(0);
}

// --- ForkWatch -----------------------------------------------------------------------------------

namespace {

// Entered at the front: a child that finds somebody in the middle of it finds the list with the
// watch or without it. Hence it is read without the lock there.
constinit SpinLock list_lock;
constinit Atomic<ForkWatch*> watches{nullptr};
constinit Atomic<std::uint32_t> registered{0};

// The fork that is being made leaves nobody behind: the only thread makes it. Then the child's
// memory is the parent's, with nothing half done but what that thread goes on with, so there is
// nothing to tell anybody. (A child draws other random numbers than its parent all the same:
// the kernel shows that it is one.) So it goes by what glibc's own malloc goes by where it
// takes no locks. Relaxed, and not each thread's own: it is 1 only while there is one thread,
// which has written it itself.
constinit Atomic<std::uint32_t> forks_alone{0};

bool is_alone() {
  return &__libc_single_threaded != nullptr && __libc_single_threaded != 0 &&
         os::children_show_themselves();
}

// Nothing is written that is so already: each page that parent or child writes to after a fork is
// one that the kernel must copy, or at least look after.
void begin_fork() {
  const std::uint32_t alone = is_alone() ? 1 : 0;
  if (forks_alone.load_relaxed() != alone) forks_alone.store_relaxed(alone);
  if (alone == 0) SpinLock::begin_fork();
}

void end_fork() {
  if (forks_alone.load_relaxed() == 0) SpinLock::end_fork();
}

void enter_child() {
  // Asked again: another library's handler may have started a thread after ours.
  if (forks_alone.load_relaxed() != 0 && is_alone()) return;
  SpinLock::enter_child();
  list_lock.abandon_if_owner_died();
  for (ForkWatch* watch = watches.load_acquire(); watch != nullptr; watch = watch->next) {
    watch->in_child(watch);
  }
}

// Read without the lock, too: another thread may have it, and wait for one that this one holds.
void leave_all() {
  list_lock.unlock_if_mine();
  for (ForkWatch* watch = watches.load_acquire(); watch != nullptr; watch = watch->next) {
    if (watch->let_go != nullptr) watch->let_go(watch);
  }
}

// Without the lock, too.
bool describe(const void* address, os::AddressFacts& out) {
  for (ForkWatch* watch = watches.load_acquire(); watch != nullptr; watch = watch->next) {
    if (watch->describe != nullptr && watch->describe(watch, address, out)) return true;
  }
  return false;
}

}  // namespace

void watch_forks(ForkWatch& watch) {
  // Before anything else: a fork may find another thread in the middle of it. Nobody waits for who
  // is first: libc's own lock may be held around the handlers of a fork. Until that one is done the
  // child of a fork by another thread does not know of us, which only happens where no library's
  // constructor has come before all threads.
  if (registered.exchange_acq_rel(1) == 0) {
    os::ErrnoGuard keep;
    // ENOMEM: a child then waits for locks that are lost.
    pthread_atfork(begin_fork, end_fork, enter_child);
  }
  os::before_fatal(&leave_all, &describe);
  LockGuard guard(list_lock);
  for (const ForkWatch* at = watches.load_relaxed(); at != nullptr; at = at->next) {
    if (at == &watch) return;
  }
  watch.next = watches.load_relaxed();
  watches.store_release(&watch);  // release: who finds it finds its link
}

void unwatch_forks(ForkWatch& watch) {
  LockGuard guard(list_lock);
  ForkWatch* before = nullptr;
  for (ForkWatch* at = watches.load_relaxed(); at != nullptr; before = at, at = at->next) {
    if (at != &watch) continue;
    if (before != nullptr) {
      before->next = watch.next;
    } else {
      watches.store_release(watch.next);
    }
    return;
  }
}

}  // namespace spanalloc::thread
