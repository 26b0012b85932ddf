// Work that a thread does on its own spans by the clock: it gives up those that rest. It polls
// memory return, too, for a thread that needs neither pool nor arena.
//
// The work may give up each span that the thread owns. So it begins where the thread has nothing in
// hand (in_hand.hpp), and not within itself: its frees are events, too. A look at the clock within
// the work is noted: the span asks for the clock again soon.
#pragma once

#include "base/assert.hpp"
#include "os/os.hpp"
#include "standard/numbers.hpp"

namespace spanalloc::standard {

/// Of one cache record; `thread`, its thread cache, is the only one who calls. Zero-initialisable.
template <class Config>
class TimedWork {
 public:
  /// While it lives, the thread works on its own spans: it gives them up.
  class [[nodiscard]] Working {
   public:
    explicit Working(auto& thread) : work_(thread.cache->timed_work), outer_(work_.is_working_) {
      SPANALLOC_ASSERT(thread.has_nothing_in_hand());
      work_.is_working_ = true;
    }
    ~Working() { work_.is_working_ = outer_; }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;

   private:
    TimedWork& work_;
    const bool outer_;
  };

  /// A slow path ends, with nothing in hand. Each 64th event runs the work.
  SPANALLOC_INLINE void count_event(auto& thread) {
    if (SPANALLOC_UNLIKELY(is_nth<kEvents>(events_))) run(thread);
  }
  /// A span that might be given up stays, with nothing in hand. A thread whose spans stay takes few
  /// other slow paths.
  void count_stay(auto& thread) {
    if (is_nth<kStays>(stays_)) run(thread);
  }
  /// A miss of malloc begins, with nothing in hand. With each 16th the thread looks at some of its
  /// current spans; each 64th runs all of the work.
  SPANALLOC_INLINE void count_miss(auto& thread) {
    if (SPANALLOC_UNLIKELY(is_nth<Config::kMissesPerLook>(misses_))) pass_miss(thread);
  }
  /// If the record's thread was at the work, it is not any more: it has vanished, or jumped.
  void leave() { is_working_ = false; }
  /// True: run it soon again, because there is more to do, or the thread does it seldom.
  [[gnu::noinline]] bool run(auto& thread) {
    SPANALLOC_ASSERT(thread.has_nothing_in_hand());
    if (SPANALLOC_UNLIKELY(is_working_)) return true;
    const auto working = thread.begin_work();
    thread.cache->batches.flush_one(thread);  // (enters by itself)
    const auto inside = thread.enter();
    const std::uint64_t now = os::now_ms();
    const bool has_more = thread.pages->memory_return.purge_if_due(now);
    if (has_more) events_ = kWrap - kWrap / kEvents;  // this thread goes on with its next event
    thread.cache->owned.give_up_unused(thread, now);
    const bool seldom = now - last_ms_ >= Config::kSeldomMs;
    last_ms_ = now;
    return has_more || seldom;
  }

 private:
  static constexpr unsigned kEvents = 64;
  static constexpr unsigned kStays = 4;
  static constexpr unsigned kLooksPerRun = kEvents / Config::kMissesPerLook;
  static constexpr unsigned kWrap = 256;

  // True each n-th time: `count` wraps to 0, which one addition tells.
  template <unsigned n>
  static bool is_nth(std::uint8_t& count) {
    static_assert(kWrap % n == 0);
    return __builtin_add_overflow(count, std::uint8_t{kWrap / n}, &count);
  }

  [[gnu::noinline]] void pass_miss(auto& thread) {
    if (++looks_ % kLooksPerRun == 0) return (void)run(thread);
    const auto working = thread.begin_work();
    thread.cache->owned.give_up_unused(thread, os::now_ms());
  }

  std::uint64_t last_ms_ = 0;
  std::uint8_t events_ = 0;
  std::uint8_t stays_ = 0;
  std::uint8_t misses_ = 0;
  std::uint8_t looks_ = 0;
  bool is_working_ = false;
};

}  // namespace spanalloc::standard
