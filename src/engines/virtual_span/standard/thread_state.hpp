// What a thread keeps in its own memory for one heap: the hot lists of the small classes and who it is. For
// the default heap that is initial-exec TLS, which in a library that may be loaded by dlopen has to stay
// within 1 KiB: that decides kThreadClasses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/virtual_span/standard/heap.hpp"
#include "engines/virtual_span/standard/lab.hpp"
#include "engines/virtual_span/standard/numbers.hpp"
#include "engines/virtual_span/standard/size_classes.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_word.hpp"

namespace spanalloc::standard {

/// Largest block of the classes whose lists stand in the thread's own memory.
template <class Config>
inline constexpr std::size_t kMaxInThread = SizeClasses<Config>::kTable[Config::kThreadClasses].block_size;

template <class Config>
constexpr std::array<std::uint8_t, kMaxInThread<Config> + 1> make_thread_class_of() {
  std::array<std::uint8_t, kMaxInThread<Config> + 1> classes{};
  for (std::size_t n = 1; n <= kMaxInThread<Config>; ++n) {
    classes[n] = static_cast<std::uint8_t>(index_of(SizeClasses<Config>::of(n)));
  }
  return classes;
}
/// SizeClasses::of() for these sizes; 0 of 0. One load from a table costs less than a branch that some sizes
/// take and others do not.
template <class Config>
inline constexpr std::array<std::uint8_t, kMaxInThread<Config> + 1> kThreadClassOf =
    make_thread_class_of<Config>();

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
  SpanNumber number;  ///< the span that the last such free hit; none yet
  std::uint32_t count;
};

/// Entry 0 of `head` and `start` belongs to no class: requests of size 0 land there, as do pointers whose
/// hint is unset; it never holds a block, and no address passes its check.
template <class Config>
struct ThreadState {
  static constexpr unsigned kLists = Config::kThreadClasses + 1;

  Block* head[kLists];  ///< hot list of each class: blocks of its hot span; no_block() when empty
  StartCheck start[kLists];
  std::uint8_t hint[256];      ///< low byte of a hot span's page number -> class, or what was there before
  Lab<Config>* lab;            ///< nullptr before the first allocation and after the thread's end
  std::uint64_t hot_identity;  ///< (my LAB, hot) as in SpanWord::identity(); while there is no LAB a value
                               ///< that equals no span's
  Heap<Config>* heap;          ///< constant
  PageLayer<Config>* pages;    ///< constant: the heap's
  RemoteRun run;
  bool exited;              ///< the exit hook has run: a LAB is taken for one call at a time
  std::uint8_t exit_round;  ///< thread::ExitKey's

  constexpr ThreadState(Heap<Config>& the_heap, PageLayer<Config>& its_pages)
      : head{},
        start{},
        hint{},
        lab(nullptr),
        hot_identity(kNoIdentity),
        heap(&the_heap),
        pages(&its_pages),
        run{},
        exited(false),
        exit_round(0) {
    for (Block*& h : head) h = no_block();
    for (unsigned c = 1; c < kLists; ++c) {
      start[c] = {divisibility_magic32(SizeClasses<Config>::kTable[c].block_size), 0};
    }
  }

  // All ones is no LAB's number.
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0} >> SpanWord::kIdentityShift;
  /// What the identity of a span says that is parked with the same LAB: see is_parked_here().
  static constexpr std::uint64_t kHotXorParked =
      static_cast<std::uint64_t>(SpanState::kHot) ^ static_cast<std::uint64_t>(SpanState::kParked);

  bool is_hot_here(SpanWord word) const { return word.identity() == hot_identity; }
  bool is_parked_here(SpanWord word) const { return word.identity() == (hot_identity ^ kHotXorParked); }
};

}  // namespace spanalloc::standard
