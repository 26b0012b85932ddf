// Cache records: the part of a thread's cache that other threads may reach. A record stays in its
// table for ever (page_layer.hpp); spans name their owner by its number.
#pragma once

#include "standard/cached_large_spans.hpp"
#include "standard/in_hand.hpp"
#include "standard/owned_spans.hpp"
#include "standard/remote_batches.hpp"
#include "standard/thread_map.hpp"
#include "standard/timed_work.hpp"

namespace spanalloc::standard {

/// Fields marked "owner" are read and written by the record's thread only. The thread has its
/// current spans in its own memory, too (thread_cache.hpp).
template <class Config>
struct alignas(kCacheLine) CacheRecord {
  using Classes = SizeClasses<Config>;

  CacheNumber number{};             ///< constant
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
  InHand in_hand;                 ///< owner; assertions only
  RemoteBatches<Config> batches;  ///< owner

  /// Its thread has left whatever it was doing to its spans, and does not come back.
  void leave_work() {
    timed_work.leave();
    in_hand.let_go();
  }
  /// The thread has ended, or vanished: what it had has been seen to.
  void forget_thread() {
    leave_work();
    owned.forget();
    batches.forget();
  }
};

}  // namespace spanalloc::standard
