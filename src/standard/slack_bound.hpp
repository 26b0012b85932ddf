// Bounds the idle memory around the blocks of spans of one block, which stays
// though nobody can use it:
//
//   idle <= 4 MiB + spans of one block / 16, plus what there was no credit to give back
//
// What exceeds the bound is given back when a span is handed out. So a program whose objects come
// and go within the bound never pays, and a program that lives in such objects keeps little memory
// that it has no use for. Credit keeps a program from paying again and again for memory that blocks
// of other sizes use in between. Giving back takes credit; credit grows by as much as the live
// spans of one block exceed their former maximum, and by 32 MiB a second, up to 32 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc::standard {

/// Thread-safe, zero-initialisable. Relaxed throughout: nothing depends on the
/// counts but what is purged.
template <class Config>
class SlackBound {
 public:
  static constexpr std::size_t kPage = 4 * kKiB;
  /// Pages that a span's record can count.
  static constexpr std::size_t kMostOfASpan = 255;

  /// A span had `before` idle pages and has `now`.
  void changed(std::size_t before, std::size_t now) { pages_.fetch_add_relaxed(now - before); }
  /// `live`: bytes of spans of one block that are in use.
  bool has_room(std::size_t live) const {
    return idle_bytes() <= Config::kSlackAlways + live / Config::kSlackPartOfLive;
  }
  /// True: so many bytes may be given back; their credit is taken.
  bool pays(std::size_t bytes, std::size_t live, std::uint64_t now_ms) {
    earn(live, now_ms);
    const std::size_t credit = credit_.load_relaxed();
    if (credit < bytes) return false;
    credit_.store_relaxed(credit - bytes);
    return true;
  }
  std::size_t idle_bytes() const { return pages_.load_relaxed() * kPage; }

 private:
  // (Threads that come at once may both earn the same credit, or lose what one has earned.)
  void earn(std::size_t live, std::uint64_t now_ms) {
    std::size_t credit = credit_.load_relaxed();
    if (const std::size_t most = most_live_.load_relaxed(); live > most) {
      most_live_.store_relaxed(live);
      credit += live - most;
    }
    // (Another thread may have read the clock later, and been here before.)
    if (const std::uint64_t then = earned_ms_.load_relaxed(); now_ms > then) {
      earned_ms_.store_relaxed(now_ms);
      const auto ms = static_cast<std::size_t>(
          min_of(now_ms - then, Config::kSlackByTime / Config::kSlackPerMs));
      const std::size_t earned = ms * Config::kSlackPerMs;
      if (credit < Config::kSlackByTime) credit = min_of(credit + earned, Config::kSlackByTime);
    }
    credit_.store_relaxed(credit);
  }

  Atomic<std::size_t> credit_{0};     // bytes
  Atomic<std::size_t> most_live_{0};  // bytes of spans of one block; the maximum seen
  Atomic<std::uint64_t> earned_ms_{0};
  Atomic<std::size_t> pages_{0};
};

}  // namespace spanalloc::standard
