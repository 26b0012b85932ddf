// When a thread starts and stops using an engine.
//
// An engine registers one hook per process. A thread that first needs per-thread state calls
// `watch_this_thread`; the hook then runs when that thread exits, after C++ thread_local destructors and as
// late among the pthread key destructors as POSIX allows (the hook re-arms itself for the first rounds), so
// that most destructors of other libraries still find the engine alive. What they do after that must still
// work: the engine treats such a thread as one without state.
#pragma once

#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc::thread {

/// One engine's interest in thread exits; zero-initialisable, never destroyed.
class ExitHook {
 public:
  /// Makes `on_exit` run when the calling thread exits. Callable before main; may itself call malloc (pthread
  /// keys beyond the first 32 do): the caller's state must be usable before it calls. False when the process
  /// has no pthread key left: then the caller's thread must not keep state.
  bool watch_this_thread(void (*on_exit)());
  /// Takes the process's key already, where a library is started: one of the first 32, which a thread's own
  /// block has room for. Of a later one libc allocates room with the thread's first use; if that is what
  /// first calls malloc in a thread, libc loses what our nested use has noted, and the thread's exit goes
  /// unseen.
  void prepare() { (void)key(); }

 private:
  static void key_destructor(void* hook);
  unsigned key();  // plus one; 0: there is none left

  // A thread's own watch call precedes its destructor, which therefore may read both relaxed.
  Atomic<void (*)()> on_exit_{nullptr};
  Atomic<unsigned> key_plus_one_{0};
};

/// Makes `child` run in every fork's child, in the one thread that is left. Handlers that are registered
/// later run later there. Once an engine: a second call would run it twice. A fork takes no lock, neither
/// before nor after: see sync/spin_lock.hpp.
void register_fork_handler(void (*child)());

}  // namespace spanalloc::thread
