// What a thread keeps in its own memory for one heap: the hot spans of its classes, the map of its spans, and
// who it is. For the default heap that is initial-exec TLS, which in a library that may be loaded by dlopen
// has to stay within 1 KiB.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/heap.hpp"
#include "engines/standard/lab.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span_word.hpp"
#include "engines/standard/thread_map.hpp"

namespace spanalloc::standard {

/// Largest block whose class is looked up by the byte.
template <class Config>
inline constexpr std::size_t kMaxSmallest = SizeClasses<Config>::kTable[Config::kClassesByByte].block_size;

template <class Config, std::size_t kStep, std::size_t kMost>
constexpr std::array<std::uint8_t, kMost / kStep + 1> make_class_table() {
  std::array<std::uint8_t, kMost / kStep + 1> classes{};
  for (std::size_t i = 1; i <= kMost / kStep; ++i) {
    classes[i] = static_cast<std::uint8_t>(index_of(SizeClasses<Config>::of(i * kStep)));
  }
  return classes;
}
/// SizeClasses::of() for these sizes; 0 of 0. One load from a table costs less than a branch that some sizes
/// take and others do not.
template <class Config>
inline constexpr std::array<std::uint8_t, kMaxSmallest<Config> + 1> kClassOf =
    make_class_table<Config, 1, kMaxSmallest<Config>>();
/// The same for larger requests, in steps that divide all their classes' blocks, rounded up.
inline constexpr std::size_t kStepOfLarger = 128;
template <class Config>
inline constexpr std::array<std::uint8_t, Config::kMaxListed / kStepOfLarger + 1> kClassOfSteps =
    make_class_table<Config, kStepOfLarger, Config::kMaxListed>();
inline constexpr std::size_t kStepOfSingles = 4 * kKiB;
template <class Config>
inline constexpr std::array<std::uint8_t, Config::kMaxBlock / kStepOfSingles + 1> kClassOfSingle =
    make_class_table<Config, kStepOfSingles, Config::kMaxBlock>();

template <class Config>
constexpr bool blocks_are_in_steps() {
  for (unsigned c = Config::kClassesByByte; c < SizeClasses<Config>::kCount; ++c) {
    const std::size_t step = c < SizeClasses<Config>::kListed ? kStepOfLarger : kStepOfSingles;
    if (SizeClasses<Config>::kTable[c].block_size % step != 0) return false;
  }
  return true;
}

/// What no link to another block of a span of that class has set; see leads_to_block().
template <class Config>
constexpr std::array<std::uint64_t, SizeClasses<Config>::kListed> make_link_masks() {
  std::array<std::uint64_t, SizeClasses<Config>::kListed> masks{};
  for (unsigned c = 0; c < masks.size(); ++c) {
    const std::size_t span = c == 0 ? kQuantum : SizeClasses<Config>::kTable[c].virtual_span;
    masks[c] = ~std::uint64_t{span - kQuantum};
  }
  return masks;
}
template <class Config>
inline constexpr auto kNoLinkBits = make_link_masks<Config>();

/// Of a class without a hot span: it has no block. Never written.
inline constinit Intake kNoIntake{.free_list = Atomic<Block*>{no_block()}};

/// Entry 0 of `hot` belongs to no class: requests of size 0 land there; it never holds a block.
template <class Config>
struct ThreadState {
  static constexpr unsigned kLists = SizeClasses<Config>::kListed;

  /// The hot span of each class, from whose list malloc takes; kNoIntake: there is none.
  Intake* hot[kLists];
  /// Of the spans that the LAB owns; kNoMap before it is worth one, or without memory for it.
  ThreadMap* map;
  Lab<Config>* lab;            ///< nullptr before the first allocation and after the thread's end
  std::uint64_t hot_identity;  ///< (my LAB, hot) as in SpanWord::identity(); while there is no LAB a value
                               ///< that equals no span's
  Heap<Config>* heap;          ///< constant
  PageLayer<Config>* pages;    ///< constant: the heap's
  bool exited;                 ///< the exit hook has run: a LAB is taken for one call at a time
  std::uint8_t exit_round;     ///< thread::ExitKey's
  std::uint8_t misses;         ///< frees that a map would have served, up to kMissesForMap
  std::uint8_t lone_frees;     ///< of others' blocks while it had no LAB, up to kFreesForLab

  constexpr ThreadState(Heap<Config>& the_heap, PageLayer<Config>& its_pages)
      : hot{},
        map(&kNoMap),
        lab(nullptr),
        hot_identity(kNoIdentity),
        heap(&the_heap),
        pages(&its_pages),
        exited(false),
        exit_round(0),
        misses(0),
        lone_frees(0) {
    for (Intake*& span : hot) span = &kNoIntake;
  }

  /// A thread that only frees takes a LAB with so many frees of others' blocks, for the runs.
  static constexpr std::uint8_t kFreesForLab = 16;
  /// A thread takes a map with so many frees that it would have served: one that frees little costs no page.
  static constexpr std::uint8_t kMissesForMap = 64;
  // All ones is no LAB's number.
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0} >> SpanWord::kIdentityShift;
  /// What the identity of a span says that is parked with the same LAB, xor what that of a hot one says.
  static constexpr std::uint64_t kHotXorParked =
      static_cast<std::uint64_t>(SpanState::kHot) ^ static_cast<std::uint64_t>(SpanState::kParked);

  /// What hide() has put aside.
  struct Hidden {
    Intake* hot[kLists];
    ThreadMap* map;
    Lab<Config>* lab;
    std::uint64_t hot_identity;
  };
  /// Until show() the state is that of a thread which has nothing: each of its frees and mallocs leaves the
  /// short path.
  void hide(Hidden& aside) {
    for (unsigned c = 0; c < kLists; ++c) {
      aside.hot[c] = hot[c];
      hot[c] = &kNoIntake;
    }
    aside.map = map;
    aside.lab = lab;
    aside.hot_identity = hot_identity;
    map = &kNoMap;
    lab = nullptr;
    hot_identity = kNoIdentity;
  }
  void show(const Hidden& aside) {
    for (unsigned c = 0; c < kLists; ++c) hot[c] = aside.hot[c];
    map = aside.map;
    lab = aside.lab;
    hot_identity = aside.hot_identity;
  }

  bool is_hot_here(SpanWord word) const { return word.identity() == hot_identity; }
  bool is_mine(SpanWord word) const {
    return is_hot_here(word) || word.identity() == (hot_identity ^ kHotXorParked);
  }
};

}  // namespace spanalloc::standard
