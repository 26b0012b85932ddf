// What a thread does by the clock. A thread that needs neither pool nor arena reads the clock now
// and then, too: others' free memory must be purged, and its own spans that rest are to be shared.
#pragma once

#include "engines/standard/numbers.hpp"
#include "os/os.hpp"

namespace spanalloc::standard {

/// Of one cache record; `thread`, its thread cache, is the only one who calls. Zero-initialisable.
template <class Config>
class TimedWork {
 public:
  /// Each 64th event runs it. The current span of class `busy` stays.
  SPANALLOC_INLINE void count_event(auto& thread, ClassId busy = ClassId::kNone) {
    if (SPANALLOC_UNLIKELY(++events_ % kEvents == 0)) run(thread, busy);
  }
  /// With each 16th miss of malloc the thread looks at some of its current spans.
  void count_miss(auto& thread, ClassId busy) {
    if (SPANALLOC_UNLIKELY(++misses_ % Config::kMissesPerLook == 0)) {
      const std::uint64_t now = os::now_ms();
      thread.cache->owned.share_unused(thread, now, busy);
      pass_round_if_due(thread, now);
    }
  }
  /// True: run it soon again, because there is more to do, or the thread does it seldom.
  [[gnu::noinline]] bool run(auto& thread, ClassId busy) {
    thread.cache->batches.flush_one(thread);  // (enters by itself)
    const auto inside = thread.enter();
    const std::uint64_t now = os::now_ms();
    const bool has_more = thread.pages->memory_return.purge_if_due(now);
    if (has_more) events_ |= kEvents - 1;  // this thread goes on with its next event
    thread.collect_delayed();
    thread.collect_uncounted_if_due();
    thread.cache->owned.share_unused(thread, now, busy);
    pass_round_if_due(thread, now);
    const bool seldom = now - last_ms_ >= Config::kSeldomMs;
    last_ms_ = now;
    return has_more || seldom;
  }

 private:
  static constexpr std::uint32_t kEvents = 64;

  // Gives back what is for programs that replace at random, and this one has not needed of late.
  SPANALLOC_INLINE void pass_round_if_due(auto& thread, std::uint64_t now) {
    if (SPANALLOC_LIKELY(now - round_ms_ < Config::kRoundOfCurrentMs)) return;
    round_ms_ = now;
    if (thread.pages->arena.is_short()) {
      thread.cache->magazines.end(thread);
    } else {
      thread.cache->magazines.give_back_unused(thread);
    }
    thread.cache->owned.pass_round(thread);
  }

  std::uint32_t events_ = 0;
  std::uint32_t misses_ = 0;
  std::uint64_t last_ms_ = 0;
  std::uint64_t round_ms_ = 0;  // when the last round began
};

}  // namespace spanalloc::standard
