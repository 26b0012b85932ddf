// A local allocation buffer: what one thread allocates from in one heap, and the lists of the spans that it
// owns. It lives in a table for ever (page_layer.hpp); its number is what spans call their owner.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/intrusive_list.hpp"
#include "engines/standard/hot_ages.hpp"
#include "engines/standard/hot_patience.hpp"
#include "engines/standard/loans.hpp"
#include "engines/standard/numbers.hpp"
#include "engines/standard/remote_runs.hpp"
#include "engines/standard/size_classes.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/spare_spans.hpp"
#include "engines/standard/thread_map.hpp"
#include "engines/standard/warm_spans.hpp"
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
  /// 1 when the attention list may hold something. Any thread looks at it: a hint.
  Atomic<std::uint32_t> attention_waiting{0};
  /// 0: a thread's. Else these are the lists of orphanage number orphanage - 1 of a heap: of spans whose
  /// threads have ended. Constant while a heap has the LAB: any thread reads it.
  Plain<std::uint32_t> orphanage{0};
  /// Of an orphanage: its heap's, see Orphanages. Constant, as above.
  Plain<Atomic<std::uint64_t>*> orphans_of_class{nullptr};
  /// Of an orphanage: how many of its spans are `uncounted`. Any thread looks at it: a hint.
  Atomic<std::uint32_t> uncounted{0};
  List attention;
  List full;
  List floating[kClassCount];
  SharedList reusable[kClassCount];
  /// Bit c: class c may have spans that are floating or reusable. So that a thread's end need not look at all
  /// of them. The owner reads it without the lock: nobody else sets a bit of its LAB.
  static constexpr unsigned kWords = (kClassCount + 63) / 64;
  Plain<std::uint64_t> classes[kWords];

  bool is_orphanage() const { return orphanage != 0u; }
  void note_class(ClassId c) {
    Plain<std::uint64_t>& word = classes[index_of(c) / 64];
    word = word | std::uint64_t{1} << index_of(c) % 64;
  }
  void forget() {
    attention_waiting.store_relaxed(0);
    uncounted.store_relaxed(0);
    attention.forget();
    full.forget();
    for (List& list : floating) list.forget();
    for (SharedList& list : reusable) list.forget();
    for (Plain<std::uint64_t>& word : classes) word = 0;
  }
};

/// Which spans are hot the thread keeps in its own memory as well (thread_state.hpp).
template <class Config>
struct alignas(kCacheLine) Lab : SpanLists<SizeClasses<Config>::kListed> {
  using Classes = SizeClasses<Config>;

  LabNumber number{};                        ///< constant
  Atomic<HeapNumber> heap{};                 ///< whose it is, or was last; changed under the lock
  bool torn = false;                         ///< only while a fork's child puts lists right
  Atomic<std::uint32_t> inside{0};           ///< written by the owner; see InsideHeap
  Atomic<std::uintptr_t> thread{0};          ///< written by the owner: os::thread_mark(); 0: nobody's
  Atomic<std::uint32_t> forks{0};            ///< PageLayer::forks, as long as its thread is there
  Lab* next_idle = nullptr;                  ///< the registry's
  Lab* next_of_all = nullptr;                ///< "
  Atomic<SpanNumber> hot[Classes::kListed];  ///< written by the owner: hot span of each class
  std::uint64_t hot_classes[(Classes::kListed + 63) / 64] = {};  ///< owner: bit c: class c may have one
  Atomic<ThreadMap*> map{nullptr};  ///< of the spans that the LAB owns; set by its first thread, if at all

  WarmSpans<(Config::kWarmBytes >> Config::kGranuleBits)> warm;  ///< owner: hot spans besides
  using Spares = SpareSpans<(Config::kSpareBytes >> Config::kGranuleBits)>;
  Spares spares;
  RemoteRuns runs;                         ///< owner
  std::uint32_t events = 0;                ///< owner: what it has done without reading the clock
  std::uint64_t clock_read_ms = 0;         ///< owner: when it did so last
  std::uint32_t misses = 0;                ///< owner: of its short paths
  std::uint32_t searches = 0;              ///< owner: for a span
  std::uint32_t next_lender = 0;           ///< owner: whose turn it is to be looked at for a loan
  Loans<Classes::kListed> loans;           ///< owner
  HotPatience<Classes::kListed> patience;  ///< owner
  HotAges<Classes::kListed> ages;          ///< owner

  void forget_hot_spans() {
    warm.forget();
    runs.forget();
    loans.forget();
    patience.forget();
    ages.forget();
    for (Atomic<SpanNumber>& span : hot) span.store_relaxed(SpanNumber::kNone);
    for (std::uint64_t& word : hot_classes) word = 0;
  }
  /// By a thread that may have been cut short: in at least one place.
  bool has_as_hot(SpanNumber span, ClassId c) const {
    return hot[index_of(c)].load_relaxed() == span || warm.place_of(span) != warm.kNoPlace;
  }
  bool has_no_hot_span() const {
    if (!warm.is_empty()) return false;
    for (const Atomic<SpanNumber>& span : hot) {
      if (span.load_relaxed() != SpanNumber::kNone) return false;
    }
    return true;
  }
};

}  // namespace spanalloc::standard
