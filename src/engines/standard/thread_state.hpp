// What a thread keeps in its own memory for one heap: the current spans of its classes, the map of its spans,
// and who it is. For the default heap that is initial-exec TLS, which in a library that may be loaded by
// dlopen has to stay within 1 KiB.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/standard/cache_record.hpp"
#include "engines/standard/heap.hpp"
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
inline constexpr std::array<std::uint8_t, Config::kMaxSmall / kStepOfLarger + 1> kClassOfSteps =
    make_class_table<Config, kStepOfLarger, Config::kMaxSmall>();
inline constexpr std::size_t kStepOfSingles = 4 * kKiB;
template <class Config>
inline constexpr std::array<std::uint8_t, Config::kMaxBlock / kStepOfSingles + 1> kClassOfSingle =
    make_class_table<Config, kStepOfSingles, Config::kMaxBlock>();

template <class Config>
constexpr bool blocks_are_in_steps() {
  for (unsigned c = Config::kClassesByByte; c < SizeClasses<Config>::kCount; ++c) {
    const std::size_t step = c < SizeClasses<Config>::kSmallClasses ? kStepOfLarger : kStepOfSingles;
    if (SizeClasses<Config>::kTable[c].block_size % step != 0) return false;
  }
  return true;
}

/// What no link to another block of a span of that class has set; see leads_to_block().
template <class Config>
constexpr std::array<std::uint64_t, SizeClasses<Config>::kSmallClasses> make_link_masks() {
  std::array<std::uint64_t, SizeClasses<Config>::kSmallClasses> masks{};
  for (unsigned c = 0; c < masks.size(); ++c) {
    const std::size_t span = c == 0 ? kQuantum : SizeClasses<Config>::kTable[c].virtual_span;
    masks[c] = ~std::uint64_t{span - kQuantum};
  }
  return masks;
}
template <class Config>
inline constexpr auto kNoLinkBits = make_link_masks<Config>();

/// Of a class without a current span: it has no block. Never written.
inline constinit FreeTarget kNoTarget{.free_list = Atomic<Block*>{no_block()}};

/// Entry 0 of `hot` belongs to no class: requests of size 0 land there; it never holds a block.
template <class Config>
struct ThreadState {
  static constexpr unsigned kLists = SizeClasses<Config>::kSmallClasses;

  /// The current span of each class, from whose list malloc takes; kNoTarget: there is none.
  FreeTarget* current[kLists];
  /// Of the spans that the thread cache owns; kNoMap before it is worth one, or without memory for it.
  ThreadMap* map;
  CacheRecord<Config>* cache;    ///< nullptr before the first allocation and after the thread's end
  std::uint64_t owned_identity;  ///< (my thread cache, hot) as in SpanWord::identity(); while there is no
                                 ///< thread cache a value that equals no span's
  Heap<Config>* heap;        ///< constant
  PageLayer<Config>* pages;  ///< constant: the heap's
  bool exited;               ///< the exit hook has run: a thread cache is taken for one call at a time
  std::uint8_t exit_round;   ///< thread::ExitKey's
  std::uint8_t misses;       ///< frees that a map would have served, up to kMissesForMap
  std::uint8_t lone_frees;   ///< of others' blocks while it had no thread cache, up to kFreesForCache

  constexpr ThreadState(Heap<Config>& the_heap, PageLayer<Config>& its_pages)
      : current{},
        map(&kNoMap),
        cache(nullptr),
        owned_identity(kNoIdentity),
        heap(&the_heap),
        pages(&its_pages),
        exited(false),
        exit_round(0),
        misses(0),
        lone_frees(0) {
    for (FreeTarget*& span : current) span = &kNoTarget;
  }

  /// A thread that only frees takes a thread cache with so many frees of others' blocks, for the runs.
  static constexpr std::uint8_t kFreesForCache = 16;
  /// A thread takes a map with so many frees that it would have served: one that frees little costs no page.
  static constexpr std::uint8_t kMissesForMap = 64;
  // All ones is no thread cache's number.
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0} >> SpanWord::kIdentityShift;
  /// What the identity of a span says that is parked with the same thread cache, xor what that of a hot one
  /// says.
  static constexpr std::uint64_t kOwnedXorShared =
      static_cast<std::uint64_t>(SpanState::kOwned) ^ static_cast<std::uint64_t>(SpanState::kShared);

  /// What hide() has put aside.
  struct Hidden {
    FreeTarget* current[kLists];
    ThreadMap* map;
    CacheRecord<Config>* cache;
    std::uint64_t owned_identity;
  };
  /// Until show() the state is that of a thread which has nothing: each of its frees and mallocs leaves the
  /// short path.
  void hide(Hidden& aside) {
    for (unsigned c = 0; c < kLists; ++c) {
      aside.current[c] = current[c];
      current[c] = &kNoTarget;
    }
    aside.map = map;
    aside.cache = cache;
    aside.owned_identity = owned_identity;
    map = &kNoMap;
    cache = nullptr;
    owned_identity = kNoIdentity;
  }
  void show(const Hidden& aside) {
    for (unsigned c = 0; c < kLists; ++c) current[c] = aside.current[c];
    map = aside.map;
    cache = aside.cache;
    owned_identity = aside.owned_identity;
  }

  bool is_current_here(SpanWord word) const { return word.identity() == owned_identity; }
  bool is_mine(SpanWord word) const {
    return is_current_here(word) || word.identity() == (owned_identity ^ kOwnedXorShared);
  }
};

}  // namespace spanalloc::standard
