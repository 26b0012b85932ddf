// The backend: arena, class table and span-pool (OOPSLA'15, sections 3.2 and 3.3).
//
// Hands out spans that nobody else knows, and takes them back. All functions may
// be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"
#include "pages/growing_table.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/directory.hpp"
#include "papers/scalloc/engine/numbers.hpp"
#include "papers/scalloc/engine/page_layer.hpp"
#include "papers/scalloc/engine/span.hpp"
#include "standard/span_pool.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc {
struct ScallocTestAccess;  // defined by tests only
}

namespace spanalloc::scalloc {

/// Invariant O8: a span in the pool is in state free, its mark is free, and it is linked into no
/// set; who gets it from there has it alone.
template <class Config>
class Backend {
 public:
  using Arena = SpanSource<Config>;
  using Pool = SpanPool<SliceNumber, kRealSpanSizes>;

  /// `pool`: all zero; may be given with start().
  constexpr explicit Backend(Pool* pool) : pool_(pool) {}

  /// Reserves the arena. False when not even a small one can be had; may be called again then.
  bool start(Pool& pool) {
    LockGuard guard(carve_lock_);
    if (directory_.base.load_relaxed() != 0) return true;
    if (!arena_.start()) return false;
    // A mark for every span the arena can ever hold: 16 MiB for 2^45 bytes, of which what is used
    // is mapped.
    TableRegion region;
    region.choose<PageCalls>();
    if (!marks_.start(arena_.capacity(), &region)) return false;
    pool_ = &pool;
    pool_->set_shards(Config::kStackPerCore ? os::cpu_count() : 1);
    directory_.marks.store_relaxed(&marks_[0]);
    directory_.base.store_relaxed(arena_.base());
    return true;  // other threads see all this through the release of whoever called us
  }

  /// Gives all address space back, while nobody uses the heap; start() may follow.
  void destroy() {
    if (!is_started()) {
      marks_.destroy();
      return arena_.destroy();
    }
    directory_.for_each_span([](Span* span, Mark) { unpoison(span, kVirtualSpan); });
    // Of a span whose tail is closed what lies behind it may be somebody else's by now.
    arena_.destroy([this](std::size_t slice) {
      const bool is_span = slice < directory_.limit.load_relaxed() &&
                           !directory_.mark(known_slice(slice)).is_nothing();
      return is_span ? std::size_t{directory_.span(known_slice(slice))->open_to} : kVirtualSpan;
    });
    marks_.destroy();
    directory_.base.store_relaxed(0);
    directory_.limit.store_relaxed(0);
    directory_.marks.store_relaxed(nullptr);
    closed_tails_.store_relaxed(0);
    pool_is_closed_.store_relaxed(0);
    spare_ = SliceNumber::kNone;
  }
  bool is_started() const { return directory_.base.load_relaxed() != 0; }

  const Directory& directory() const { return directory_; }
  unsigned cores() const { return pool_->shards(); }
  unsigned shard_of(std::uint32_t thread_number) const { return pool_->shard_of(thread_number); }

  /// A span for one class, known to nobody else, its header made up except for word and owner. From
  /// the pool; nullptr when none is found there.
  Span* get_pooled(ClassId size_class, unsigned core) {
    return prepare(find_pooled(kRealSpanIndex[index_of(size_class)], core), size_class);
  }
  /// The same from the arena; nullptr when memory is out.
  Span* get_fresh(ClassId size_class) {
    const SliceNumber number = carve();
    if (number == SliceNumber::kNone) return nullptr;
    if (SPANALLOC_UNLIKELY(closes_tails()))
      close_tail(directory_.span(number), info(size_class).real_span);
    return prepare(number, size_class);
  }

  /// Takes an empty span back. The caller made it free and unlinked it: nobody else refers to it.
  void put(Span* span, unsigned core) {
    const SliceNumber number = directory_.number_of(span);
    SPANALLOC_ASSERT(directory_.mark(number).is_class());  // it was in use
    // O8
    SPANALLOC_ASSERT(span->load_word().state() == State::kFree && span->set_list == SetList::kNone);
    const SizeClass& c = info(span->size_class.load_relaxed());
    // A huge page backs all of the virtual span.
    const std::size_t backed =
        Config::kHugePages == HugePages::kPrefer
            ? std::size_t{span->open_to}
            : c.first_block + std::size_t{span->carved.load_relaxed()} * c.block_size;
    span->dirty_to = static_cast<std::uint32_t>(max_of(std::size_t{span->dirty_to}, backed));
    // Last: a fork's child may find the mark when this thread has vanished, and pools the span.
    directory_.set_mark(number, Mark::free());
    if (Config::kMadvise && c.real_span > kMadviseThreshold) purge(span);
    // (Only a signal handler, which may not, frees in the middle of that: the walk, which goes by
    // the marks, would put the span once more.)
    if (SPANALLOC_UNLIKELY(is_refilling_pool_.load_relaxed())) {
      put_meanwhile_.store_relaxed(true);
      return;
    }
    pool_->put(span->real_span_index, core, number, links());
    // After the put, so that whoever finds it cleared finds the span.
    if (SPANALLOC_UNLIKELY(closes_tails()) && pool_is_closed_.load_relaxed() != 0)
      pool_is_closed_.store_relaxed(0);
  }

  /// The paper's compaction call: gives back the pages of all pooled spans, all
  /// but the first one of each.
  bool purge_pooled() {
    bool any = false;
    for_each_pooled([&](Span* span) { any |= purge(span); });
    return any;
  }

  /// When address space is out, under a limit on it: gives back that of all pooled spans, too.
  bool close_pooled() {
    bool any = arena_.heed_limit();
    // Every large object that is refused comes here: the walk is for what was
    // pooled since the last one.
    if (!closes_tails() || pool_is_closed_.exchange_acq_rel(1) != 0) return any;
    const std::size_t page = os::page_size();
    for_each_pooled([&](Span* span) {
      if (span->open_to <= page) return;
      // Said first: a fork's child that believed pages to be open which this thread, vanished, has
      // given back would hand them out. If it has not come to that, the child gives them back.
      const std::uint32_t open_to = span->open_to;
      const std::uint32_t dirty_to = span->dirty_to;
      closing_ = directory_.number_of(span);
      closing_to_.store_release(open_to);  // release: the child that finds it finds which span
      span->open_to = static_cast<std::uint32_t>(page);
      span->dirty_to = static_cast<std::uint32_t>(min_of(span->dirty_to, page));
      if (os::release(pointer_to(span->address() + page), open_to - page)) {
        any = true;
      } else {
        span->open_to = open_to;
        span->dirty_to = dirty_to;
      }
      closing_to_.store_release(0);
    });
    return any;
  }

  /// Calls f(Span*) for every span in the pool; f has the span to itself. Other threads miss the
  /// spans meanwhile, and f misses theirs. One thread at a time, and none during a fork: whole
  /// stacks are in its hands.
  template <class F>
  void for_each_pooled(F&& f) {
    if (!is_started()) return;
    LockGuard guard(walk_lock_);
    // In a fork's child: whoever was walking there had a stack in its hands.
    if (SPANALLOC_UNLIKELY(guard.owner_died())) {
      stacks_lost_ = true;
      finish_closing();
    }
    for (std::size_t size = 0; size < kRealSpanSizes; ++size) {
      for (unsigned core = 0; core < pool_->shards(); ++core) {
        const SliceNumber first = pool_->take_all(size, core);
        if (first == SliceNumber::kNone) continue;
        SliceNumber last = first;
        for (SliceNumber n = first; n != SliceNumber::kNone; n = Pool::next_of(n, links())) {
          SPANALLOC_ASSERT(directory_.mark(n).is_free());  // O8
          f(directory_.span(n));
          last = n;
        }
        pool_->put_chain(size, core, first, last, links());
      }
    }
  }

  ArenaStatistics arena_statistics() { return arena_.statistics(); }

  /// In a fork's child, first of all.
  void enter_child() { arena_.enter_child(); }
  /// Then, in no call: what vanished threads held of the books. Whoever was walking the pool had
  /// whole stacks in its hands; then every free span goes back.
  void recover_in_child() {
    if (carve_lock_.owner_died()) carve_lock_.reset();
    if (walk_lock_.owner_died()) {
      walk_lock_.reset();
      stacks_lost_ = true;
      finish_closing();
    }
    if (!stacks_lost_) return;
    stacks_lost_ = false;
    // A signal handler that frees meanwhile, which it must not do, leaves the span to the walk. One
    // that comes later puts the span itself. So what is left is seen by the next look at
    // put_meanwhile_, which must not come before the store: sequentially consistent, both.
    do {
      is_refilling_pool_.store_relaxed(true);
      put_meanwhile_.store_relaxed(false);
      pool_->forget_all();
      directory_.for_each_span([this](Span* span, Mark mark) {
        if (!mark.is_free()) return;
        const SliceNumber number = directory_.number_of(span);
        pool_->put(span->real_span_index, shard_of(index_of(number)), number, links());
      });
      is_refilling_pool_.store_seq_cst(false);
    } while (put_meanwhile_.load_seq_cst());
  }

 private:
  friend struct spanalloc::ScallocTestAccess;

  Span* prepare(SliceNumber number, ClassId size_class) {
    if (number == SliceNumber::kNone) return nullptr;
    Span* span = directory_.span(number);
    SPANALLOC_ASSERT(index_of(number) < directory_.limit.load_relaxed());
    // O8
    SPANALLOC_ASSERT(span->load_word().state() <= State::kFree && span->set_list == SetList::kNone);
    const SizeClass& c = info(size_class);
    if (SPANALLOC_UNLIKELY(c.real_span > span->open_to) && !open_tail(span, c.real_span)) {
      pool_->put(span->real_span_index, 0, number, links());  // still fit for what it was
      return nullptr;
    }
    SPANALLOC_ASSERT(span->open_to >= c.real_span);
    span->inverse = inverse_of(c.block_size);
    span->bias = 0 - c.first_block * span->inverse;
    span->blocks = c.blocks;
    span->first_block = static_cast<std::uint16_t>(c.first_block);
    span->shift = static_cast<std::uint8_t>(std::countr_zero(c.block_size));
    span->real_span_index = kRealSpanIndex[index_of(size_class)];
    span->local_list = nullptr;
    span->carved.store_relaxed(0);
    span->shifted.store_relaxed(0);
    span->suspected.store_relaxed(0);
    span->lost_to_fork.store_relaxed(0);
    span->local_free.store_relaxed(0);
    // Release, after the span became free in its former life: who reads this
    // class sees that life's end.
    span->size_class.store_release(size_class);
    directory_.set_mark(number, Mark::of_class(size_class));
    return span;
  }

  auto links() const {
    return
        [this](SliceNumber n) -> Atomic<std::uint32_t>& { return directory_.span(n)->pool_link; };
  }

  // Own size: own core, then the other cores; then any other size in the same order (lines 31 to 38
  // of Listing 1, which as printed loses what line 31 finds).
  SliceNumber find_pooled(unsigned size, unsigned core) {
    if (const SliceNumber n = pool_->get_local(size, core, links()); n != SliceNumber::kNone)
      return n;
    if (const SliceNumber n = pool_->get_from_other_shard(size, core, links());
        n != SliceNumber::kNone)
      return n;
    for (unsigned other = 0; other < kRealSpanSizes; ++other) {
      if (other == size) continue;
      if (const SliceNumber n = pool_->get_local(other, core, links()); n != SliceNumber::kNone)
        return n;
      if (const SliceNumber n = pool_->get_from_other_shard(other, core, links());
          n != SliceNumber::kNone)
        return n;
    }
    return SliceNumber::kNone;
  }

  // A fresh virtual span: its header reads as zero, which is state expected, epoch 0.
  SliceNumber carve() {
    LockGuard guard(carve_lock_);
    SliceNumber number = spare_;
    if (number == SliceNumber::kNone) number = SliceNumber{arena_.allocate(0)};
    if (number == SliceNumber::kNone) return number;
    // The arena takes nothing back: a slice whose mark cannot be opened waits for the next call.
    spare_ = number;
    const std::size_t slice = index_of(number);
    if (!arena_.ask_within_limits([=, this] { return marks_.ensure(slice + 1); }))
      return SliceNumber::kNone;
    spare_ = SliceNumber::kNone;
    (new (directory_.span(number)) Span)->open_to = kVirtualSpan;
    directory_.set_mark(number, Mark::free());
    // Release: whoever sees the limit may read the marks below it.
    if (slice >= directory_.limit.load_relaxed()) directory_.limit.store_release(slice + 1);
    return number;
  }

  // Under a limit (RLIMIT_AS, RLIMIT_DATA) the arena reserves nothing, or nothing any more, and 2
  // MiB for each span would use the limit up at once: what lies behind the real span is given back
  // to the kernel, and mapped again when a larger real span needs it. Every such span is a mapping
  // of its own, of which a process may have 65530.
  bool closes_tails() const { return !arena_.is_reserved(); }
  void close_tail(Span* span, std::size_t real_span) {
    if (closed_tails_.fetch_add_relaxed(1) >= kMaxClosedTails) return;
    const std::size_t end = align_up(real_span, os::page_size());
    if (end >= kVirtualSpan) return;
    // (Before the call, for a fork's child.)
    span->open_to = static_cast<std::uint32_t>(end);
    if (!os::release(pointer_to(span->address() + end), kVirtualSpan - end))
      span->open_to = kVirtualSpan;
  }
  // In a fork's child: what a vanished thread was giving back. (Once more, perhaps: its addresses
  // are no more anybody's than they were in the parent at that instant.)
  void finish_closing() {
    const std::uint32_t end = closing_to_.load_relaxed();
    if (end == 0) return;
    Span* span = directory_.span(closing_);
    if (span->open_to < end)
      os::release(pointer_to(span->address() + span->open_to), end - span->open_to);
    closing_to_.store_release(0);
  }
  static bool open_tail(Span* span, std::size_t real_span) {
    const std::size_t end = align_up(real_span, os::page_size());
    if (os::open_at(pointer_to(span->address() + span->open_to), end - span->open_to) !=
        os::Placed::kYes) {
      return false;
    }
    span->open_to = static_cast<std::uint32_t>(end);
    return true;
  }

  // All but the first page, which holds the header.
  static bool purge(Span* span) {
    const std::size_t page = os::page_size();
    const std::size_t end = align_up(span->dirty_to, page);
    if (end <= page) return false;
    // The old bytes stay
    if (!os::purge(pointer_to(span->address() + page), end - page)) return false;
    span->dirty_to = static_cast<std::uint32_t>(page);
    return true;
  }

  Directory directory_;
  Arena arena_;
  Pool* pool_;  // apart: it is large, and all zero at first
  static constexpr std::uint32_t kMaxClosedTails = 16384;
  Atomic<std::uint32_t> closed_tails_{0};  // how many spans were cut
  // 1: no span was pooled since the last close_pooled()
  Atomic<std::uint32_t> pool_is_closed_{0};
  WakingLock carve_lock_;     // guards the two below, and starting
  SpinLock walk_lock_;        // taking the pool's stacks apart
  bool stacks_lost_ = false;  // under walk_lock_
  // Written in a fork's child while it has one thread, and by that thread's signal handlers.
  Atomic<bool> is_refilling_pool_{false};
  Atomic<bool> put_meanwhile_{false};
  // The same: the span whose addresses are being given back, and up to where; 0: none is.
  SliceNumber closing_ = SliceNumber::kNone;
  Atomic<std::uint32_t> closing_to_{0};
  SliceNumber spare_ = SliceNumber::kNone;
  GrowingTable<MarkByte> marks_;
};

}  // namespace spanalloc::scalloc
