// The state of a thread cache: what a thread keeps in its own memory for one heap, that
// is the current spans of its classes, the map of its spans, and which cache record it
// has. For the default heap this is initial-exec TLS, which must stay within 1 KiB in a
// library that dlopen may load.
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

/// The largest block whose class is looked up by the byte.
template <class Config>
inline constexpr std::size_t kMaxSmallest =
    SizeClasses<Config>::kTable[Config::kClassesByByte].block_size;

template <class Config, std::size_t kStep, std::size_t kMost>
constexpr std::array<std::uint8_t, kMost / kStep + 1> make_class_table() {
  std::array<std::uint8_t, kMost / kStep + 1> classes{};
  for (std::size_t i = 1; i <= kMost / kStep; ++i) {
    classes[i] = static_cast<std::uint8_t>(index_of(SizeClasses<Config>::of(i * kStep)));
  }
  return classes;
}
/// SizeClasses::of() of these sizes, and 0 of 0. A load from a table costs less than a branch that
/// some sizes take and others do not.
template <class Config>
inline constexpr std::array<std::uint8_t, kMaxSmallest<Config> + 1> kClassOf =
    make_class_table<Config, 1, kMaxSmallest<Config>>();
/// For larger requests, in steps: rounded up to steps that divide the block
/// sizes of all their classes.
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
    const std::size_t step =
        c < SizeClasses<Config>::kSmallClasses ? kStepOfLarger : kStepOfSingles;
    if (SizeClasses<Config>::kTable[c].block_size % step != 0) return false;
  }
  return true;
}

/// By class: the bits that no link to another block of such a span has set.
template <class Config>
constexpr std::array<std::uint64_t, SizeClasses<Config>::kSmallClasses> make_link_masks() {
  std::array<std::uint64_t, SizeClasses<Config>::kSmallClasses> masks{};
  for (unsigned c = 0; c < masks.size(); ++c) {
    const std::size_t span = c == 0 ? kQuantum : SizeClasses<Config>::kTable[c].virtual_span;
    masks[c] = no_link_bits(span);
  }
  return masks;
}
template <class Config>
inline constexpr auto kNoLinkBits = make_link_masks<Config>();

/// Entry 0 of `current` belongs to no class: it serves requests of size 0, and never holds a block.
template <class Config>
struct ThreadState {
  static constexpr unsigned kLists = SizeClasses<Config>::kSmallClasses;

  /// The current span of each class, or its loan, from whose list malloc takes; kNoTarget: neither.
  FreeTarget* current[kLists];
  /// The map of the thread's spans. kNoMap: it has made too few frees yet, or there
  /// was no memory for a map.
  ThreadMap* map;
  CacheRecord<Config>* cache;  ///< nullptr before the first allocation and after the thread's end
  /// SpanWord::identity() of a span that this thread owns; without a cache record
  /// a value that no span has
  std::uint64_t owned_identity;
  Heap<Config>* heap;        ///< constant
  PageLayer<Config>* pages;  ///< constant: the heap's
  /// The exit hook has run: the thread takes a cache record for one call at a time
  bool exited;
  std::uint8_t exit_round;  ///< thread::ExitKey's
  std::uint8_t misses;      ///< how many frees a map would have served, up to kMissesForMap
  /// Frees of others' blocks without a cache record, up to kFreesForCache
  std::uint8_t lone_frees;

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

  /// A thread that only frees takes a cache record with so many frees of others'
  /// blocks, for its batches.
  static constexpr std::uint8_t kFreesForCache = 16;
  /// A thread takes a map with so many frees that it would have served: one that
  /// frees little needs no page.
  static constexpr std::uint8_t kMissesForMap = 64;
  // No cache record has the number whose bits are all ones.
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0} >> SpanWord::kIdentityShift;
  /// The identities of an owned and of a shared span of one owner, xored.
  static constexpr std::uint64_t kOwnedXorShared = static_cast<std::uint64_t>(SpanState::kOwned) ^
                                                   static_cast<std::uint64_t>(SpanState::kShared);

  /// What hide() puts aside.
  struct Hidden {
    FreeTarget* current[kLists];
    ThreadMap* map;
    CacheRecord<Config>* cache;
    std::uint64_t owned_identity;
  };
  /// Until show() the state is that of a thread which has nothing, so that each of its mallocs and
  /// frees leaves the short path.
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

  bool is_owned_here(SpanWord word) const { return word.identity() == owned_identity; }
  bool is_mine(SpanWord word) const {
    return is_owned_here(word) || word.identity() == (owned_identity ^ kOwnedXorShared);
  }
};

}  // namespace spanalloc::standard
