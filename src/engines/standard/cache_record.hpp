// A local allocation buffer: what one thread allocates from in one heap, and the lists of the spans that it
// owns. It lives in a table for ever (page_layer.hpp); its number is what spans call their owner.
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

/// The lists of parked spans, changed under the lock only, and read without it where a field says so.
/// Zero-initialisable.
template <unsigned kClassCount>
struct SpanLists {
  using List = IntrusiveList<SpanNumber>;
  // Whether it is empty any thread looks, without the lock: a hint.
  using SharedList = IntrusiveList<SpanNumber, Atomic<SpanNumber>>;

  WakingLock lock;
  /// 1 when the delayed list may hold something. Any thread looks at it: a hint.
  Atomic<std::uint32_t> has_delayed{0};
  /// 0: a thread's. Else these are the lists of abandoned list number abandoned list - 1 of a heap: of spans
  /// whose threads have ended. Constant while a heap has the thread cache: any thread reads it.
  Plain<std::uint32_t> abandoned_list{0};
  /// Of an abandoned list: its heap's, see AbandonedLists. Constant, as above.
  Plain<Atomic<std::uint64_t>*> abandoned_of_class{nullptr};
  /// Of an abandoned list: how many of its spans are `uncounted`. Any thread looks at it: a hint.
  Atomic<std::uint32_t> uncounted{0};
  List delayed;
  List full;
  List nearly_full[kClassCount];
  SharedList partial[kClassCount];
  /// Bit c: class c may have spans that are nearly full or reusable. So that a thread's end need not look at
  /// all of them. The owner reads it without the lock: nobody else sets a bit of its thread cache.
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

/// Which spans are hot the thread keeps in its own memory as well (thread_state.hpp).
template <class Config>
struct alignas(kCacheLine) CacheRecord : SpanLists<SizeClasses<Config>::kSmallClasses> {
  using Classes = SizeClasses<Config>;

  CacheNumber number{};                                ///< constant
  Atomic<HeapNumber> heap{};                           ///< whose it is, or was last; changed under the lock
  bool torn = false;                                   ///< only while a fork's child puts lists right
  Atomic<std::uint32_t> inside{0};                     ///< written by the owner; see HeapCall
  Atomic<std::uintptr_t> thread{0};                    ///< written by the owner: os::thread_id(); 0: nobody's
  Atomic<std::uint32_t> forks{0};                      ///< PageLayer::forks, as long as its thread is there
  CacheRecord* next_idle = nullptr;                    ///< the registry's
  CacheRecord* next_of_all = nullptr;                  ///< "
  Atomic<SpanNumber> current[Classes::kSmallClasses];  ///< written by the owner: current span of each class
  std::uint64_t current_classes[(Classes::kSmallClasses + 63) / 64] =
      {};  ///< owner: bit c: class c may have one
  Atomic<ThreadMap*> map{
      nullptr};  ///< of the spans that the thread cache owns; set by its first thread, if at all

  UsedUpSpans<(Config::kUsedUpBytes >> Config::kSliceBits)> used_up;  ///< owner: current spans besides
  using LargeSpans = CachedLargeSpans<(Config::kCachedLargeBytes >> Config::kSliceBits)>;
  LargeSpans large_spans;
  RemoteBatches batches;                         ///< owner
  std::uint32_t events = 0;                      ///< owner: what it has done without reading the clock
  std::uint64_t clock_read_ms = 0;               ///< owner: when it did so last
  std::uint32_t misses = 0;                      ///< owner: of its short paths
  std::uint32_t searches = 0;                    ///< owner: for a span
  std::uint32_t next_lender = 0;                 ///< owner: whose turn it is to be looked at for a loan
  Loans<Classes::kSmallClasses> loans;           ///< owner
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
  /// By a thread that may have been cut short: in at least one place.
  bool has_as_current(SpanNumber span, ClassId c) const {
    return current[index_of(c)].load_relaxed() == span || used_up.place_of(span) != used_up.kNoPlace;
  }
  bool has_no_current_span() const {
    if (!used_up.is_empty()) return false;
    for (const Atomic<SpanNumber>& span : current) {
      if (span.load_relaxed() != SpanNumber::kNone) return false;
    }
    return true;
  }
};

}  // namespace spanalloc::standard
