// What the simulated program has, and how it knows its blocks again: each is stamped by its address
// and life.
#pragma once

#include <spanalloc/spanalloc.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/bits.hpp"
#include "plan.hpp"
#include "random.hpp"
#include "scheduler.hpp"

namespace spanalloc::simulation::program {

using test::Random;

constexpr int kUntouched = 4711;  // errno before each call
constexpr unsigned kMostHeaps = 5;
constexpr int kNoHeap = -1;
constexpr std::size_t kSmall = 28 * kKiB;  // in every engine, whatever its alignment

struct Block {
  char* memory = nullptr;
  std::size_t bytes = 0;   // as asked
  std::size_t usable = 0;  // as reported
  std::uint64_t stamp = 0;
  int heap = kNoHeap;
};

struct FirstClassHeap {
  sp_heap* heap = nullptr;
  std::size_t limit = 0;
  bool closing = false;  // it is being reset or destroyed
  unsigned calls = 0;    // in flight
  unsigned begun = 0;    // calls that have begun
  bool torn = false;     // a fork has left a call behind
  std::vector<Block> blocks;
};

struct Thread {
  Random random{0};
  std::vector<Block> blocks;
  unsigned left = 0;  // operations of the phase
  bool must_end = false;
  bool rises = true;  // Phase::swings
  bool in_call = false;
  bool gives = false;                    // the call may give memory back
  std::size_t bytes_in_call = SIZE_MAX;  // of the block; SIZE_MAX: it may be large
  bool vanished = false;                 // at a fork
  bool misused = false;                  // its signal handler has allocated
  bool has_allocated = false;
  bool began_alone = false;  // no other thread was in a call when its call began
  std::uint64_t call = 0;    // its number
  int heap_in_call = kNoHeap;
  std::uint64_t lives = 0;  // threads that had the number before
};

// The program's state. A fork's child has all of it, but for the threads.
extern const Plan* plan;
extern const Phase* phase;
extern Thread threads[kMostThreads];
extern std::vector<Block> commons;  // any thread may free these
extern FirstClassHeap heaps[kMostHeaps];
extern std::map<std::uintptr_t, std::uintptr_t> live;  // [begin, end)
extern std::size_t live_bytes;
extern std::uint64_t stamps;
extern std::size_t vanished;  // threads that have at forks
extern std::size_t torn;      // ... in the middle of a call
extern std::uint64_t refusals_before;
extern bool limit_is_set;
extern unsigned calls_in_flight;
extern std::uint64_t calls_begun;
extern std::uint64_t gifts_begun;  // calls that may give memory back
extern bool any_misuse;
extern bool wants_threads;  // a fork's child has lost those of its phase

inline Thread& me() {
  return threads[scheduler.self()];
}

// --- Contents ------------------------------------------------------------------------------------

void write_stamps(const Block& block);
/// Of what was stamped as `block`, and lies at `memory` now, the first `bytes`.
void check_stamps(const Block& block, const char* memory, std::size_t bytes);
void check_stamps(const Block& block);
void check_zero(const char* memory, std::size_t bytes);

// --- Live blocks ---------------------------------------------------------------------------------

/// The program has it; no other live block overlaps it.
void enter(const Block& block);
void leave(const Block& block);
/// What the library writes by atomic operations is its own, and no block that a program has.
void check_store(const void* cell);

}  // namespace spanalloc::simulation::program
