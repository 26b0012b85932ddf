// A limit that nobody enforces: near it, memory that is free goes back to the kernel.
//
//   0 ... far ... near ... most ... limit       near = limit - margin, far = limit - 2 margin
//                                               most = limit - reserve, step = margin / 8
//
// What is *held* cannot be given back: blocks, with the free ones beside them and what caches keep.
// It *comes near* when it exceeds `near`, and *is near* until it is `far` or less: so a program
// that takes and gives a little at the border does not go to and fro. While it is near, callers
// keep nothing that is free. What is free in the arena stays in memory up to `most`, all in all,
// whether memory is near or not: so the next request need not fault it in again. What exceeds that
// is purged when it has come about, an *excess*.
//
// To look for what caches keep, and for free pages in spans in use, takes longer. It is worth it
// when memory comes near, and then again only when more is held than the last look has left: a step
// more; or an eighth of a step, once a step has been used again of what was free in spans in use.
// (A cache that drops a quarter of its entries frees no page, mostly, and no less is held. If only
// a step more counted, it would grow by a step each time that it has dropped a quarter.) So a
// program that needs more than the limit allows pays for one look with each step. After a look the
// program is told.
//
// The margin is an eighth of the limit, the reserve a step. In a control group, which others may
// share, the limit is what may be in memory plus what the group has left; the margin is an eighth
// of the group's own limit, the reserve half of that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

/// Bytes throughout. Constant-initialised: no limit. Under its user's lock, but for what is said to
/// be any thread's. Relaxed throughout: each word is read alone, and decides only when to look.
class SoftLimit {
 public:
  /// What a margin is of a limit.
  static constexpr std::size_t kMarginPart = 8;
  static constexpr std::size_t kStepPart = 8;

  /// From now on so much may be held; 0: there is no limit. What is free stays up to `reserve`
  /// below it.
  void set(std::size_t limit, std::size_t margin, std::size_t reserve) {
    limit_.store_relaxed(limit);
    most_.store_relaxed(limit == 0 ? SIZE_MAX : limit - min_of(reserve, limit));
    margin_.store_relaxed(margin);
    step_.store_relaxed(max_of(margin / kStepPart, 1));
    // (Near it, the mark says what was looked through already.)
    if (limit == 0 || !is_near()) mark_.store_relaxed(limit == 0 ? SIZE_MAX : near());
  }

  /// A limit of which nothing has been seen yet.
  void forget_looks() {
    purge_mark_.store_relaxed(0);
    looked_.store_relaxed(0);
  }

  // --- Any thread --------------------------------------------------------------------------------

  std::size_t limit() const { return limit_.load_relaxed(); }
  bool is_near() const { return is_near_.load_relaxed(); }
  std::size_t step() const { return step_.load_relaxed(); }
  /// Whether to look before so much is held.
  bool is_due(std::size_t held) const { return held > mark_.load_relaxed(); }
  /// If so much may be in memory with what is free, `held` without: how much of the former has to
  /// go. A step may stay, however much is held: who exceeds the limit would else pay for each page
  /// of each request.
  std::size_t excess(std::size_t kept, std::size_t held) const {
    const std::size_t most = most_.load_relaxed();
    if (SPANALLOC_LIKELY(kept <= most)) return 0;
    return kept - min_of(kept, max_of(max_of(most, held + step()), purge_mark_.load_relaxed()));
  }
  /// Whether so much is far from the limit.
  bool is_far(std::size_t held) const { return held <= far(); }
  /// So much became free. True: a step has; it is time to look whether memory is still near, and
  /// what is free exceeds the limit.
  bool note_free(std::size_t bytes) {
    const std::size_t all = free_.fetch_add_relaxed(bytes) + bytes;
    if (SPANALLOC_LIKELY(all < step_.load_relaxed())) return false;
    free_.store_relaxed(0);
    return true;
  }

  /// A slow malloc while it is near: it counts as a page that was free in a span in use.
  void note_miss() {
    const std::size_t all = reused_.fetch_add_relaxed(kMissBytes) + kMissBytes;
    // (If another thread ends a look meanwhile, the next one may come a step early.)
    if (all >= step()) lower_mark(max_of(near(), looked_.load_relaxed() + step() / kPartOfStep));
  }

  // --- A look ------------------------------------------------------------------------------------

  enum class Came : std::uint8_t { kNear, kNowhere, kFar };
  /// So much is held, or about to be.
  Came look(std::size_t held) {
    const std::size_t border = is_near() ? far() : near();
    const bool near_now = limit() != 0 && held > border;
    // (What has been purged since may make the next look due earlier.)
    if (limit() != 0) lower_mark(next_mark(held));
    if (near_now == is_near()) return Came::kNowhere;
    is_near_.store_relaxed(near_now);
    free_.store_relaxed(0);
    return near_now ? Came::kNear : Came::kFar;
  }
  /// So much is left of an excess of which nothing could be purged, because the kernel refuses: it
  /// is no use to try again before it is a step more.
  void could_not_purge(std::size_t kept) { purge_mark_.store_relaxed(kept + step()); }
  void may_purge() {
    if (purge_mark_.load_relaxed() != 0) purge_mark_.store_relaxed(0);
  }
  /// A look has ended, and so much is still held.
  void looked(std::size_t held) {
    // (What falls by less than a step goes up and down.)
    const std::size_t before = looked_.load_relaxed();
    if (held > before || held + step() <= before) looked_.store_relaxed(held);
    reused_.store_relaxed(0);
    if (limit() != 0) mark_.store_relaxed(next_mark(held));
  }

 private:
  static constexpr std::size_t kMissBytes = 4096;
  static constexpr std::size_t kPartOfStep = 8;

  void lower_mark(std::size_t held) { mark_.store_relaxed(min_of(mark_.load_relaxed(), held)); }
  std::size_t next_mark(std::size_t held) const {
    return max_of(near(), held + step_.load_relaxed());
  }
  std::size_t near() const { return limit() - min_of(margin_.load_relaxed(), limit()); }
  std::size_t far() const { return limit() - min_of(2 * margin_.load_relaxed(), limit()); }

  Atomic<std::size_t> limit_{0};
  Atomic<std::size_t> margin_{0};
  Atomic<std::size_t> step_{1};
  Atomic<std::size_t> most_{SIZE_MAX};
  Atomic<std::size_t> purge_mark_{0};   // what is less is no excess
  Atomic<std::size_t> mark_{SIZE_MAX};  // who would hold more looks first
  Atomic<std::size_t> free_{0};         // that became free since that was last a step
  Atomic<std::size_t> looked_{0};       // what the last look has left
  Atomic<std::size_t> reused_{0};       // since then, of memory that was free in spans in use
  Atomic<bool> is_near_{false};
};

}  // namespace spanalloc
