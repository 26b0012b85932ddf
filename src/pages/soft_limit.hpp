// A limit that nobody enforces: near it, memory that is free goes back to the kernel at once.
//
//   0 ... far ... near ... limit                 near = limit - margin, far = limit - 2 margin
//
// What is held (arena/slices.hpp; and blocks outside the arena) *comes near* when it exceeds
// `near`, and *is near* until it is `far` or less: so a program that takes and gives a little at
// the border does not go to and fro. While it is near, callers keep nothing that is free; and what
// has become free is purged whenever that is a *step*, an eighth of the margin, so that no free
// pays for a purge of its own.
//
// To look for all that is free takes longer than that: it is worth it when memory comes near, and
// then again only after a step more is held than the last look has left, however little it found.
// So a program that needs more than the limit allows pays for one look with each step.
//
// The margin is an eighth of the limit. In a control group, which others may share, the limit is
// what is held plus what the group has left, and the margin an eighth of the group's own limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

/// Bytes throughout. Constant-initialised: no limit. Under its user's lock, but for what is said to
/// be any thread's. Relaxed throughout: each word is read alone, and decides only when to purge.
class SoftLimit {
 public:
  /// What a margin is of a limit.
  static constexpr std::size_t kMarginPart = 8;
  static constexpr std::size_t kStepPart = 8;

  /// From now on so much may be held; 0: there is no limit.
  void set(std::size_t limit, std::size_t margin) {
    limit_.store_relaxed(limit);
    margin_ = margin;
    step_.store_relaxed(max_of(margin / kStepPart, 1));
    // (Near it, the mark says what was looked through already.)
    if (limit == 0 || !is_near()) mark_.store_relaxed(limit == 0 ? SIZE_MAX : near());
  }

  // --- Any thread --------------------------------------------------------------------------------

  std::size_t limit() const { return limit_.load_relaxed(); }
  bool is_near() const { return is_near_.load_relaxed(); }
  std::size_t step() const { return step_.load_relaxed(); }
  /// Whether to look before so much is held.
  bool is_due(std::size_t held) const { return held > mark_.load_relaxed(); }
  /// So much became free while it is near. True: it is time to purge what has become so.
  bool note_free(std::size_t bytes) {
    const std::size_t all = free_.fetch_add_relaxed(bytes) + bytes;
    if (SPANALLOC_LIKELY(all < step_.load_relaxed())) return false;
    free_.store_relaxed(0);
    return true;
  }

  // --- A look ------------------------------------------------------------------------------------

  enum class Came : std::uint8_t { kNear, kNowhere, kFar };
  /// So much is held, or about to be.
  Came look(std::size_t held) {
    const std::size_t border = is_near() ? far() : near();
    const bool near_now = limit() != 0 && held > border;
    // (What has been purged since may make the next look due earlier.)
    if (limit() != 0) mark_.store_relaxed(min_of(mark_.load_relaxed(), next_mark(held)));
    if (near_now == is_near()) return Came::kNowhere;
    is_near_.store_relaxed(near_now);
    free_.store_relaxed(0);
    return near_now ? Came::kNear : Came::kFar;
  }
  /// All that was found to be free has been purged, or is about to be, and so much is still held.
  void looked(std::size_t held) {
    if (limit() != 0) mark_.store_relaxed(next_mark(held));
  }

 private:
  std::size_t next_mark(std::size_t held) const {
    return max_of(near(), held + step_.load_relaxed());
  }
  std::size_t near() const { return limit() - min_of(margin_, limit()); }
  std::size_t far() const { return limit() - min_of(2 * margin_, limit()); }

  Atomic<std::size_t> limit_{0};
  std::size_t margin_ = 0;
  Atomic<std::size_t> step_{1};
  Atomic<std::size_t> mark_{SIZE_MAX};  // who would hold more looks first
  Atomic<std::size_t> free_{0};         // that became free since the last purge
  Atomic<bool> is_near_{false};
};

}  // namespace spanalloc
