// Cache records: the part of a thread's cache that other threads may reach, with the lists
// of its shared spans. A record stays in its table for ever (page_layer.hpp); spans name
// their owner by its number.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/intrusive_list.hpp"
#include "engines/standard/cached_large_spans.hpp"
#include "engines/standard/loans.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/owned_spans.hpp"
#include "engines/standard/remote_batches.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/thread_map.hpp"
#include "engines/standard/timed_work.hpp"
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
/// current spans in its own memory, too (thread_cache.hpp).
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
  /// Of its thread's spans; set by the first thread that takes one
  Atomic<ThreadMap*> map{nullptr};

  OwnedSpans<Config> owned;
  using LargeSpans = CachedLargeSpans<(Config::kCachedLargeBytes >> Config::kSliceBits)>;
  LargeSpans large_spans;
  TimedWork<Config> timed_work;   ///< owner
  std::uint32_t searches = 0;     ///< owner: counts searches for a span
  RemoteBatches<Config> batches;  ///< owner
  Loans<Config> loans;            ///< owner

  /// The thread has ended, or vanished: what it had has been seen to.
  void forget_thread() {
    owned.forget();
    batches.forget();
    loans.forget();
  }
};

}  // namespace spanalloc::standard
