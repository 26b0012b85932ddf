// When a thread stops using a heap, and when a process becomes two.
//
// ExitKey: a heap finds what a thread keeps for it by a key of the process's (pthread keys), whose
// destructor tells the thread's end, after C++ thread_local destructors and as late among the key
// destructors as POSIX allows (the state re-arms itself for the first rounds), so that most
// destructors of other libraries still find the heap alive. What they do after that must still
// work: a heap treats such a thread as one without state.
//
// ForkWatch: who has something to put right in a fork's child is in a list of the process's.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc::thread {

/// One heap's key. Zero-initialisable, never destroyed but by remove().
class ExitKey {
 public:
  /// The calling thread keeps `state` for the heap from now on, until its end calls
  /// `destructor(state)`, which begins with comes_again(). Callable before main; may itself call
  /// malloc (pthread keys beyond the first 32 do): the state must be usable before. False when the
  /// process has no pthread key left: then the calling thread must not keep state. Every caller
  /// passes the same destructor.
  bool watch_this_thread(void* state, void (*destructor)(void*));
  /// Takes the process's key already, where a library is started: one of the first 32, which a
  /// thread's own block has room for. Of a later one libc allocates room with the thread's first
  /// use; if that is what first calls malloc in a thread, libc loses what our nested use has noted,
  /// and the thread's exit goes unseen.
  void prepare(void (*destructor)(void*)) { (void)key(destructor); }
  /// In the destructor: true, and it will be called again; false when this was the last
  /// time that leaves one round in which other destructors may still call us. `round`:
  /// the state's, 0 at first.
  bool comes_again(void* state, std::uint8_t& round) const;
  /// What the calling thread keeps for the heap; nullptr: nothing, yet or any more.
  void* find() const;
  /// The calling thread, at its end, has left the heap for good: find() returns a mark from now on,
  /// of which has_left() is true. The destructor is called with the mark, too, and passes it on to
  /// stay_away(), for destructors of others that are still to come. That touches no heap: a thread
  /// sanitizer takes the last round for after the thread's end.
  void leave();
  static bool has_left(const void* kept) { return (address_of(kept) & 1) != 0; }
  static void stay_away(void* mark);
  /// The heap is gone; what threads keep for it is nobody's, and their ends are not told any more.
  void remove();

 private:
  unsigned key(void (*destructor)(void*));  // plus one; 0: there is none left

  Atomic<unsigned> key_plus_one_{0};
};

/// What must be put right in a fork's child, and let go of before a misuse is reported; and what
/// tells of an address that the report names.
/// Zero-initialisable but for the functions.
struct ForkWatch {
  void (*in_child)(ForkWatch* self);
  /// The calling thread leaves all that it is in, whatever that is, and may come again as if
  /// it had ended: a handler of SIGABRT allocates, forks, or jumps out. (Not with anything
  /// of others': nobody waits.)
  void (*let_go)(ForkWatch* self) = nullptr;
  /// What the records say of an address: false, if it is none of this heap's. Takes no lock, and
  /// believes no record: others may be changing it.
  bool (*describe)(ForkWatch* self, const void* address, os::AddressFacts& out) = nullptr;
  ForkWatch* next = nullptr;  ///< the list's
};

/// Makes `watch.in_child` run in the child of every fork by a process that has, or had, other
/// threads, in the one that has come along, after SpinLock::enter_child(), and `watch.let_go`
/// before os::fatal() reports; once, however often it is called. A fork takes no lock, neither
/// before nor after: see sync/spin_lock.hpp.
void watch_forks(ForkWatch& watch);
/// Undoes that, before the watch's memory is given back. No fork may be in progress.
void unwatch_forks(ForkWatch& watch);

}  // namespace spanalloc::thread
