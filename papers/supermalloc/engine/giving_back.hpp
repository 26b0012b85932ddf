// What gives memory back: lists that a thread's cache has no room for, threads that end, a trim, a
// request without memory. Each hands objects from the caches to those behind them, and at last to
// the folios and the large objects' bins, whose empty pages go to the kernel.
//
// Other threads' caches nobody may touch. They hear of a wish for memory by a counter, which each
// looks at in its slow paths.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/engine/folio_heap.hpp"
#include "papers/supermalloc/engine/huge_heap.hpp"
#include "papers/supermalloc/engine/large_heap.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "papers/supermalloc/engine/thread_cache.hpp"
#include "papers/supermalloc/engine/thread_caches.hpp"

namespace spanalloc::supermalloc {

/// Thread-safe, but for the thread's cache that is passed: that is its thread's.
/// Zero-initialisable but for the references.
template <class Config>
class GivingBack {
  using TheBins = Bins<Config>;
  using Cache = ThreadCache<Config>;

 public:
  constexpr GivingBack(CpuCaches<Config>& cpus, FolioHeap<Config>& folios, LargeHeap<Config>& large,
                       HugeHeap& huge, ThreadCaches<Config>& threads, const SetOnce& secret)
      : cpus_(cpus),
        folios_(folios),
        large_(large),
        huge_(huge),
        threads_(threads),
        secret_(secret) {}

  /// A list that leaves a thread's cache: if it is worth it to the CPU's, or the global one.
  void put_away(BinNumber b, ObjectList list) {
    if (list.is_empty()) return;
    if (list.count * 2 > TheBins::of(b).list_objects && cpus_.put(b, list)) return;
    put_home(b, list);
  }
  /// All that a thread leaves at its end.
  void flush(Cache& cache) {
    cache.flushed_at = wishes();
    for (BinNumber b = 0; b < TheBins::kFirstLarge; ++b) {
      put_away(b, cache.take_spare(b));
      put_away(b, cache.take_first(b));
    }
  }

  /// Counts requests to give memory back.
  std::uint32_t wishes() const { return wish_.load_relaxed(); }
  /// Asks all threads for what their caches hold.
  void wish() { wish_.fetch_add_relaxed(1); }
  /// By the cache's thread: gives everything up if somebody has asked for it since it was here.
  void follow_wish(Cache& cache) {
    if (SPANALLOC_LIKELY(cache.flushed_at == wishes())) return;
    give_up(cache);
  }

  /// Everything that can go back to the kernel at once: what it has refused, what the calling
  /// thread's cache holds, if it has one (`own`), what all others but threads' hold; these are
  /// asked for theirs. Bytes that the kernel has taken.
  std::size_t trim(Cache* own) {
    wish();
    std::size_t bytes = huge_.purge_again();
    for (BinNumber b = 0; b < TheBins::kCount; ++b) {
      bytes += b < TheBins::kFirstLarge ? folios_.purge_again(b) : large_.purge_again(b);
    }
    if (own != nullptr) bytes += give_up(*own);
    return bytes + drain();
  }

  /// When memory is out: what caches hold may do. (Not this thread's own lists of other bins: its
  /// call may be in one of them.)
  SPANALLOC_COLD void find_memory() {
    wish();
    drain();
  }

 private:
  // Everything that the CPUs' caches and the global one hold goes back, and what vanished threads'
  // have that a fork left behind. Bytes that the kernel has taken.
  std::size_t drain() {
    std::size_t bytes = 0;
    threads_.for_each_left_behind([&](Cache& cache) { bytes += give_up(cache); });
    for (BinNumber b = 0; b < TheBins::kCount; ++b) {
      cpus_.drain(b, [&](ObjectList list) {
        bytes += b < TheBins::kFirstLarge ? put_home(b, list)
                                          : large_.put(b, list.first, secret_.read());
      });
    }
    return bytes;
  }

  std::size_t give_up(Cache& cache) {
    cache.flushed_at = wishes();
    std::size_t bytes = 0;
    for (BinNumber b = 0; b < TheBins::kFirstLarge; ++b) {
      bytes += put_home(b, cache.take_spare(b));
      bytes += put_home(b, cache.take_first(b));
    }
    return bytes;
  }
  // To its folios, past all caches.
  std::size_t put_home(BinNumber b, ObjectList list) {
    return list.is_empty() ? 0 : folios_.put(b, list, secret_.read());
  }

  CpuCaches<Config>& cpus_;
  FolioHeap<Config>& folios_;
  LargeHeap<Config>& large_;
  HugeHeap& huge_;
  ThreadCaches<Config>& threads_;
  const SetOnce& secret_;
  Atomic<std::uint32_t> wish_{0};
};

}  // namespace spanalloc::supermalloc
