// A call into a heap that a fork may interrupt.
#pragma once

#include <cstdint>

#include "base/compiler.hpp"
#include "standard/fork_recovery.hpp"
#include "standard/page_layer.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::standard {

/// While it lives, the calling thread may have a span that is in no place, hold a lock, or be
/// changing the arena's books. A fork's child draws two conclusions. It looks for what vanished
/// threads that were in such a call had. And if a signal handler forks in such a call, the thread
/// first returns from the call.
template <class Config>
class [[nodiscard]] HeapCall {
 public:
  // A fork's child sees the stores in this order: what follows the first two begins with
  // a compare-and-swap that releases them, or with a lock or hold that tells as much;
  // the last one is a release.
  SPANALLOC_INLINE HeapCall(CacheRecord<Config>* const& threads_cache, PageLayer<Config>& pages)
      : threads_cache_(threads_cache), pages_(pages), cache_(threads_cache) {
    if (SPANALLOC_LIKELY(cache_ != nullptr)) {
      outer_ = cache_->inside.load_relaxed();
      cache_->inside.store_relaxed(1);
    } else {
      outer_layer_ = inside_without_cache.load_relaxed();
      inside_without_cache.store_relaxed(&pages);
      generation_ = SpinLock::generation();
      pages_.inside_without_cache.fetch_add_acq_rel(1);
    }
    if (SPANALLOC_UNLIKELY(pages_.recovery_is_due.load_relaxed() ==
                           PageLayer<Config>::kAbandonIsDue) &&
        outer_ == 0 && outer_layer_ == nullptr) {
      ForkRecovery<Config>::abandon_for_vanished_threads(pages_);
    }
  }
  SPANALLOC_INLINE ~HeapCall() {
    if (SPANALLOC_LIKELY(cache_ != nullptr)) {
      // A cache that was given back meanwhile may be another thread's.
      if (SPANALLOC_LIKELY(cache_ == threads_cache_)) cache_->inside.store_release(outer_);
    } else {
      // Unless calls were counted anew since, in a child that was put right in
      // the middle of this call.
      if (SPANALLOC_LIKELY(static_cast<std::int16_t>(generation_ - pages_.counted_since) >= 0)) {
        pages_.inside_without_cache.fetch_sub_acq_rel(1);
      }
      inside_without_cache.store_release(outer_layer_);
    }
    if (SPANALLOC_UNLIKELY(pages_.recovery_is_due.load_relaxed() != 0)) {
      ForkRecovery<Config>::recover_if_outside(pages_);
    }
  }
  HeapCall(const HeapCall&) = delete;
  HeapCall& operator=(const HeapCall&) = delete;

 private:
  CacheRecord<Config>* const& threads_cache_;  // the calling thread's
  PageLayer<Config>& pages_;
  CacheRecord<Config>* cache_;
  std::uint32_t outer_ = 0;            // the cache's flag before
  const void* outer_layer_ = nullptr;  // inside_without_cache before
  std::uint16_t generation_ = 0;
};

}  // namespace spanalloc::standard
