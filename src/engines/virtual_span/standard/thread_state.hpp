// What a thread keeps in its own memory: the hot lists of the small classes and who it is. Initial-exec TLS
// of a library that may be loaded by dlopen has to stay below 1 KiB: that decides kThreadClasses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/virtual_span/standard/size_classes.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_word.hpp"

namespace spanalloc::standard {

struct Lab;

inline constexpr std::size_t kMaxInThread = kClassTable[kThreadClasses].block_size;

/// class_of() for the sizes whose lists stand in the thread's own memory; 0 of 0. One load from a table costs
/// less than a branch that some sizes take and others do not.
constexpr std::array<std::uint8_t, kMaxInThread + 1> make_thread_class_of() {
  std::array<std::uint8_t, kMaxInThread + 1> classes{};
  for (std::size_t n = 1; n <= kMaxInThread; ++n) classes[n] = static_cast<std::uint8_t>(class_of(n));
  return classes;
}
inline constexpr std::array<std::uint8_t, kMaxInThread + 1> kThreadClassOf = make_thread_class_of();

/// Is an offset in a span the start of one of its blocks? uint32(offset * magic) < limit; see
/// divisibility_magic32 and multiple_limit32. The limit is that of the hot span: what it has carved. 0:
/// nothing is.
struct StartCheck {
  std::uint32_t magic;
  std::uint32_t limit;
};

/// Blocks of one span of another thread's, freed here and not yet given back to it: `count` of them, linked
/// from `newest` to `oldest`. The span counts them as out.
struct RemoteRun {
  Block* newest;
  Block* oldest;
  std::uint32_t number;  ///< the span that the last such free hit; 0: none yet
  std::uint32_t count;
};

/// Entry 0 of `head` and `start` belongs to no class: requests of size 0 land there, as do pointers whose
/// hint is unset; it never holds a block, and no address passes its check.
struct ThreadState {
  Block* head[kThreadClasses + 1];  ///< hot list of each class: blocks of its hot span; kNoBlock when empty
  StartCheck start[kThreadClasses + 1];
  std::uint8_t hint[256];  ///< low byte of a hot span's page number -> class, or what was there before
  Lab* lab;                ///< nullptr before the first allocation and after the thread's end
  std::uint64_t
      parked_identity;         ///< (my LAB, parked) and (my LAB, hot) as in SpanWord::identity(); all ones,
  std::uint64_t hot_identity;  ///< which equals nothing, while there is no LAB
  RemoteRun run;
  bool exited;                               ///< the exit hook has run: a LAB is taken for one call at a time
  std::uint8_t exit_round;                   ///< thread::ExitKey's
  Atomic<std::uint32_t> inside_without_lab;  ///< owner, and its signal handlers; see InsideHeap

  constexpr ThreadState()
      : head{},
        start{},
        hint{},
        lab(nullptr),
        parked_identity(~0ull),
        hot_identity(~0ull),
        run{},
        exited(false),
        exit_round(0),
        inside_without_lab(0) {
    for (Block*& h : head) h = const_cast<Block*>(&kNoBlock);
    for (unsigned c = 1; c <= kThreadClasses; ++c) {
      const ClassInfo& info = kClassTable[c];
      start[c] = {divisibility_magic32(info.block_size), 0};
    }
  }
};
static_assert(sizeof(ThreadState) <= 1024 - 16);  // thread/lifecycle.cpp has a word more

SPANALLOC_TLS inline constinit thread_local ThreadState thread_state;

}  // namespace spanalloc::standard
