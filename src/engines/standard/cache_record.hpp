// Cache records: the part of a thread's cache that other threads may reach, with the lists
// of its shared spans. A record stays in its table for ever (page_layer.hpp); spans name
// their owner by its number.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/intrusive_list.hpp"
#include "engines/standard/cached_large_spans.hpp"
#include "engines/standard/current_ages.hpp"
#include "engines/standard/give_up_delay.hpp"
#include "engines/standard/loans.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/remote_batches.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/thread_map.hpp"
#include "engines/standard/used_up_spans.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// The lists of shared spans: changed under the lock only; where a field says so also read
/// without it. Zero-initialisable.
template <unsigned kClassCount>
struct SpanLists {
  using List = IntrusiveList<SpanNumber>;
  // Any thread may ask without the lock whether it is empty: a hint.
  using SharedList = IntrusiveList<SpanNumber, Atomic<SpanNumber>>;

  WakingLock lock;
  /// 1 when the delayed list may hold something. Any thread may read it: a hint.
  Atomic<std::uint32_t> has_delayed{0};
  /// 0: these are a thread's lists. Else they are abandoned list number `abandoned_list` -
  /// 1 of the heap, for spans of ended threads. Any thread may read it: it is constant
  /// while a heap has the record.
  Plain<std::uint32_t> abandoned_list{0};
  /// In an abandoned list: the heap's AbandonedLists::of_class. As constant as `abandoned_list`.
  Plain<Atomic<std::uint64_t>*> abandoned_of_class{nullptr};
  /// In an abandoned list: how many of its spans are `uncounted`. Any thread may read it: a hint.
  Atomic<std::uint32_t> uncounted{0};
  List delayed;
  List full;
  List nearly_full[kClassCount];
  SharedList partial[kClassCount];
  /// Bit c: class c may have nearly full or partial spans; so a thread's end need not look at all
  /// classes. The owner reads it without the lock, because nobody else sets a bit of its record.
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  Plain<std::uint64_t> classes[kWords];

  bool is_abandoned_list() const { return abandoned_list != 0u; }
  void note_class(ClassId c) {
    Plain<std::uint64_t>& word = classes[index_of(c) / 64];
    word = word | std::uint64_t{1} << index_of(c) % 64;
  }
  void forget() {
    has_delayed.store_relaxed(0);
    uncounted.store_relaxed(0);
    delayed.forget();
    full.forget();
    for (List& list : nearly_full) list.forget();
    for (SharedList& list : partial) list.forget();
    for (Plain<std::uint64_t>& word : classes) word = 0;
  }
};

/// Fields marked "owner" are read and written by the record's thread only. The thread has its
/// current spans in its own memory, too (thread_state.hpp).
template <class Config>
struct alignas(kCacheLine) CacheRecord : SpanLists<SizeClasses<Config>::kSmallClasses> {
  using Classes = SizeClasses<Config>;

  CacheNumber number{};  ///< constant
  /// The heap that has it, or had it last; changed under the lock
  Atomic<HeapNumber> heap{};
  bool torn = false;                ///< true while the child of a fork makes its lists anew
  Atomic<std::uint32_t> inside{0};  ///< written by the owner; see HeapCall
  /// Written by the owner: os::thread_id(); 0: no thread has it
  Atomic<std::uintptr_t> thread{0};
  /// CacheTable::forks, as long as its thread lives in this process
  Atomic<std::uint32_t> forks{0};
  CacheRecord* next_idle = nullptr;    ///< the registry's
  CacheRecord* next_of_all = nullptr;  ///< the registry's
  /// Written by the owner: current span of each class
  Atomic<SpanNumber> current[Classes::kSmallClasses];
  /// Owner: bit c: class c may have a current span.
  std::uint64_t current_classes[(Classes::kSmallClasses + 63) / 64] = {};
  /// Of its thread's spans; set by the first thread that takes one
  Atomic<ThreadMap*> map{nullptr};

  UsedUpSpans<(Config::kUsedUpBytes >> Config::kSliceBits)> used_up;  ///< written by the owner
  using LargeSpans = CachedLargeSpans<(Config::kCachedLargeBytes >> Config::kSliceBits)>;
  LargeSpans large_spans;
  RemoteBatches<Config> batches;  ///< owner
  /// Owner: counts steps, each 64th of which reads the clock
  std::uint32_t events = 0;
  std::uint64_t clock_read_ms = 0;  ///< owner: when it read the clock last
  std::uint32_t misses = 0;         ///< owner: counts malloc's misses
  std::uint32_t searches = 0;       ///< owner: counts searches for a span
  /// Owner: the number of the record to ask for a loan next
  std::uint32_t next_lender = 0;
  Loans<Config> loans;                           ///< owner
  GiveUpDelay<Classes::kSmallClasses> patience;  ///< owner
  CurrentAges<Classes::kSmallClasses> ages;      ///< owner

  void forget_current_spans() {
    used_up.forget();
    batches.forget();
    loans.forget();
    patience.forget();
    ages.forget();
    for (Atomic<SpanNumber>& span : current) span.store_relaxed(SpanNumber::kNone);
    for (std::uint64_t& word : current_classes) word = 0;
  }
  /// Whether the span is in at least one of the owner's places, whatever step its
  /// thread was cut short in.
  bool has_as_owned(SpanNumber span, ClassId c) const {
    return current[index_of(c)].load_relaxed() == span ||
           used_up.place_of(span) != used_up.kNoPlace;
  }
  bool has_no_owned_span() const {
    if (!used_up.is_empty()) return false;
    for (const Atomic<SpanNumber>& span : current) {
      if (span.load_relaxed() != SpanNumber::kNone) return false;
    }
    return true;
  }
};

}  // namespace spanalloc::standard
