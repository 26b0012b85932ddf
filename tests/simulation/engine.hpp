// What a simulated library is asked beside its functions: one file for each engine defines it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::simulation {

/// What the program knows of the heap while all threads are idle.
struct Expected {
  std::size_t blocks = 0;  ///< live ones, but for those of first-class heaps
  std::size_t bytes = 0;   ///< their usable bytes
  /// Threads that have vanished at forks, with what they had in batches for others' spans.
  std::size_t vanished = 0;
  /// ... in the middle of a call: the child may have lost what they had in hand.
  std::size_t torn = 0;
  bool is_end = false;  ///< nothing is live, the other threads have ended, the heap was trimmed
};

namespace engine {

extern const char* const kName;
/// The library's constructors.
void start_process();
/// False: somebody else has mapped a page in the way of a table of the heap's that must have no
/// gaps (GrowingTable::ensure), so that it grows no more. Where the engine's file does not say:
/// true.
bool can_grow();
/// In a thread, when a function of the library has returned to it: nothing is in hand, and nothing
/// is held.
void check_quiet();
/// In a thread whose request for so many bytes was refused, while no other thread was in a call:
/// nothing that threads or pools keep would have served.
void check_refusal(std::size_t bytes);
/// Requests for up to so many bytes go the same way each time. Where the engine's file does not
/// say: all do.
std::size_t most_alike();
/// True: a request may leave memory for another thread's. (A thread that finds none gives up what
/// it has itself, when others have looked already. Or what it obtains serves others.) Where the
/// engine's file does not say: false.
bool allocations_give();
/// True: in a fork's child a request may find what threads lost at fork had, where one before it
/// has found nothing. Where the engine's file does not say: false.
bool children_find_more();
/// True: a call that begins now may wait though no thread holds a lock. Where the engine's file
/// does not say: false.
bool may_wait_without_lock();
/// In the only thread, when it has freed everything, and before it trims: what is free and in
/// memory is within its bound.
void check_bounds();
/// The director: every span and block is in one place, and the heap's accounts agree with that and
/// with what the program knows.
void check_heap(const Expected& expected);

}  // namespace engine
}  // namespace spanalloc::simulation
