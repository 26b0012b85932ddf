// A count of all that a heap has, made when somebody asks: by a walk over the records of spans and
// caches, which say enough. So nothing is counted for it on any path of malloc and free.
//
// Of a span's blocks some are free for certain, and the others live, but for those that only one
// thread knows of (*unsure*: live or free):
//
//   never carved, purged     free   the record says how many
//   on the remote list       free   the span word's count
//   on an abandoned span's lists
//                            free   the word's count
//   in batches               free   their counts; for the span these blocks are out
//   on a current span's list        the calling thread's own is gone through. Another one's has no
//   in a batch that was lent        count, and only its thread may follow its links: what may be
//                                   there is unsure (nothing, if the list shows that it is empty)
//   of a retired span        unsure lost, unless the program has it
//
// Equation, for a class: blocks = live + free + unsure. While no other thread runs in the heap
// `live` and `free` are lower bounds of the truth, and exact where nothing is unsure; all else is
// exact then. While others run everything is an estimate: a block may be seen twice, or nowhere, on
// its way.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "standard/purged_pages.hpp"
#include "standard/thread_cache.hpp"

namespace spanalloc::standard {

/// Of the heap of a thread cache, made by its thread; takes no memory. It gives back abandoned
/// spans that turn out to be empty. About 5 KiB, for the stack. (Cold: inlined it is some KiB
/// more.)
template <class Config>
class Inventory {
  using Classes = SizeClasses<Config>;
  using Record = CacheRecord<Config>;
  using Pages = PageLayer<Config>;

 public:
  EngineStatistics totals;

  SPANALLOC_COLD explicit Inventory(ThreadCache<Config>& thread)
      : heap_(*thread.heap), pages_(*thread.pages) {
    totals.live_threads = heap_.live_caches.load_relaxed();
    totals.spans_lost_to_fork = heap_.lost_to_fork.load_relaxed();
    begin_totals();
    if (!pages_.is_started()) return;
    // Entered: the walk may hold a span, and a fork's child must know that.
    const auto inside = thread.enter();
    mine_ = thread.cache;
    walk_spans();
    pages_.caches.for_each([this](Record& cache) { count_kept(cache); });
    finish_classes();
    add_books();
  }

  /// f(const ClassFigures&) for each class that has a span, smallest blocks first.
  template <class F>
  SPANALLOC_COLD void for_each_class(F&& f) const {
    for (unsigned c = 1; c < Classes::kCount; ++c) {
      const Row& row = rows_[c];
      if (row.spans == 0) continue;
      const ClassInfo& info = Classes::info(ClassId{c});
      f(ClassFigures{info.block_size, info.virtual_span, row.spans, row.blocks, row.carved,
                     row.live(), row.free, row.unsure});
    }
  }
  /// f(const ThreadFigures&) for each thread that has a cache of the heap. f may use the heap.
  template <class F>
  SPANALLOC_COLD void for_each_thread(F&& f) const {
    if (!pages_.is_started()) return;
    // Some threads at a time: the spans tell whose they are, and there may be many.
    ThreadFigures figures[kThreadsAtATime];
    Record* records[kThreadsAtATime];
    unsigned count = 0;
    const auto flush = [&] {
      add_owned_spans(records, figures, count);
      for (unsigned i = 0; i < count; ++i) f(figures[i]);
      count = 0;
    };
    pages_.caches.for_each([&](Record& cache) {
      const std::uintptr_t mark = cache.thread.load_relaxed();
      if (mark == 0) return;
      records[count] = &cache;
      figures[count++] = kept_by(cache, mark);
      if (count == kThreadsAtATime) flush();
    });
    flush();
  }

 private:
  /// Of a class, or a span.
  struct Row {
    std::size_t spans = 0;
    std::size_t blocks = 0;
    std::size_t carved = 0;
    std::size_t free = 0;
    std::size_t unsure = 0;

    std::size_t live() const { return blocks - min_of(blocks, free + unsure); }
    // A block that a batch holds may be one of those that are unsure, too.
    void bound() {
      free = min_of(free, blocks);
      unsure = min_of(unsure, blocks - free);
    }
    void add(const Row& span) {
      spans += span.spans;
      blocks += span.blocks;
      carved += span.carved;
      free += span.free;
      unsure += span.unsure;
    }
  };

  // What this engine has no answer to stays as it was.
  SPANALLOC_COLD void begin_totals() {
    for (auto field :
         {&EngineStatistics::live_bytes, &EngineStatistics::live_blocks,
          &EngineStatistics::free_bytes, &EngineStatistics::free_blocks,
          &EngineStatistics::unsure_bytes, &EngineStatistics::unsure_blocks,
          &EngineStatistics::kept_block_bytes, &EngineStatistics::kept_span_bytes,
          &EngineStatistics::pool_bytes, &EngineStatistics::dirty_bytes,
          &EngineStatistics::clean_bytes, &EngineStatistics::purged_part_bytes,
          &EngineStatistics::decommitted_bytes, &EngineStatistics::metadata_bytes,
          &EngineStatistics::growths, &EngineStatistics::purges, &EngineStatistics::purged_bytes,
          &EngineStatistics::decay_epochs, &EngineStatistics::trims}) {
      totals.*field = 0;
    }
  }

  SPANALLOC_COLD void walk_spans() {
    pages_.arena.walk([this](std::uint32_t number, std::size_t slices, bool free) {
      if (free) return count_free(number, slices);
      // A range that is just being taken: its record is not its own yet.
      if (number + slices > index_of(pages_.end_of_spans())) return;
      const SpanRef span = pages_.span(SpanNumber{number});
      heap_.count_abandoned(span, 0);
      const SpanWord word = span->word.load_acquire();
      const std::size_t bytes = slices << Config::kSliceBits;
      if (word.state() == SpanState::kFree) return count_waiting(word, bytes);
      // After the word, which says that the life with this class has begun. (It may be another
      // life than that of the range which the walk has seen.)
      count_in_use(span, word, bytes);
    });
  }
  SPANALLOC_COLD void count_free(std::uint32_t first, std::size_t slices) {
    const std::size_t dirty = min_of(pages_.arena.dirty_slices(first, slices), slices);
    totals.pooled_bytes += slices << Config::kSliceBits;
    totals.dirty_bytes += dirty << Config::kSliceBits;
    totals.clean_bytes += (slices - dirty) << Config::kSliceBits;
  }
  // A free span that the arena has not: in a pool, a thread's cached large span, or on its way.
  SPANALLOC_COLD void count_waiting(SpanWord word, std::size_t bytes) {
    totals.pooled_bytes += bytes;
    (word == cached_of(word.owner()) ? totals.kept_span_bytes : totals.pool_bytes) += bytes;
  }
  SPANALLOC_COLD void count_in_use(SpanRef span, SpanWord word, std::size_t bytes) {
    const ClassId c = span->shown_class();
    if (c == Classes::kHuge) {
      totals.large_bytes += bytes;
      ++totals.large_objects;
      return;
    }
    const ClassInfo& info = Classes::info(c);
    // No more than the range is counted for it.
    totals.small_bytes_carved += min_of(info.real_span, bytes);
    Row row = Classes::has_one_block(c) ? Row{1, 1, 1, 0, 0} : blocks_of(span, word, info);
    row.bound();
    rows_[index_of(c)].add(row);
    if (info.blocks > 1)
      totals.purged_part_bytes += PageMask::pages(span->purged()) * PageMask::kBytes;
  }

  // Of a span of several blocks. What the record says of it is read piece by piece, so that each is
  // bounded by the one before.
  SPANALLOC_COLD Row blocks_of(SpanRef span, SpanWord word, const ClassInfo& info) const {
    const std::uint32_t blocks = info.blocks;
    const auto carved = static_cast<std::uint32_t>(min_of(span->carved(), blocks));
    const std::uint32_t purged =
        span->purged() == 0 ? 0 : count_purged(span->purged(), info, carved);
    const auto remote = blocks - static_cast<std::uint32_t>(min_of(word.outstanding(), blocks));
    Row row{1, blocks, carved, blocks - carved + purged + remote, 0};
    if (word.state() == SpanState::kOwned) {
      count_own_list(span, word, info, row);
    } else if (span->is_withdrawn() || word.state() == SpanState::kHeld) {
      row.unsure = blocks;
    } else {
      row.free = remote;  // nobody's: the word counts all that is free
    }
    return row;
  }
  SPANALLOC_COLD void count_own_list(SpanRef span, SpanWord word, const ClassInfo& info,
                                     Row& row) const {
    if (!pages_.caches.was_used(word.owner())) return;
    Record& cache = pages_.caches[word.owner()];
    if (&cache == mine_) {
      row.free += on_lists(span, info);
    } else if (!span->is_used_up() && !span->free_list().is_empty()) {
      row.unsure = info.blocks;
    }
  }
  SPANALLOC_COLD static std::uint32_t on_lists(SpanRef span, const ClassInfo& info) {
    return length_of(span->free_list().first(), info.virtual_span, info.blocks).blocks;
  }

  // What a thread keeps: blocks that are out for their spans.
  SPANALLOC_COLD void count_kept(Record& cache) {
    cache.batches.for_each_held([&](const RemoteBatch& batch) {
      if (batch.number() >= pages_.end_of_spans()) return;
      const ClassId c = pages_.span(batch.number())->shown_class();
      if (c >= Classes::kFirstLarge) return;  // the span has begun another life
      if (batch.is_lent() && &cache != mine_) {
        rows_[index_of(c)].unsure += batch.count();
      } else {
        add_kept(c, blocks_in(batch, c));
      }
    });
  }
  // Of a batch that was lent the calling thread goes through its own.
  SPANALLOC_COLD static std::uint32_t blocks_in(const RemoteBatch& batch, ClassId c) {
    if (!batch.is_lent()) return batch.count();
    const ClassInfo& info = Classes::info(c);
    return length_of(batch.free_list().first(), info.virtual_span, info.blocks).blocks;
  }
  SPANALLOC_COLD void add_kept(ClassId c, std::uint32_t blocks) {
    rows_[index_of(c)].free += blocks;
    totals.kept_block_bytes += std::size_t{blocks} * Classes::info(c).block_size;
  }

  SPANALLOC_COLD void finish_classes() {
    for (unsigned c = 1; c < Classes::kCount; ++c) {
      Row& row = rows_[c];
      const std::size_t size = Classes::info(ClassId{c}).block_size;
      row.bound();
      totals.live_blocks += row.live();
      totals.live_bytes += row.live() * size;
      totals.free_blocks += row.free;
      totals.free_bytes += row.free * size;
      totals.unsure_blocks += row.unsure;
      totals.unsure_bytes += row.unsure * size;
    }
  }
  SPANALLOC_COLD void add_books() {
    const LargeObjectStatistics outside = pages_.outside.statistics();
    totals.large_bytes += outside.bytes;
    totals.large_objects += outside.objects;
    const ArenaStatistics arena = pages_.arena.statistics();
    totals.reserved_bytes = arena.reserved_bytes + outside.bytes;
    totals.opened_bytes = arena.opened_bytes + outside.bytes;
    totals.decommitted_bytes = arena.decommitted_bytes;
    totals.metadata_bytes = arena.table_bytes + records_bytes();
    totals.growths = arena.growths;
    totals.purges = arena.purges;
    totals.purged_bytes = arena.purged_bytes;
    totals.decay_epochs = pages_.memory_return.epochs();
    totals.trims = pages_.memory_return.trims();
  }
  // Of spans, caches and maps; whole pages. (A map is touched in few places only.)
  SPANALLOC_COLD std::size_t records_bytes() const {
    std::size_t maps = 0;
    pages_.caches.for_each(
        [&](const Record& cache) { maps += cache.map.load_relaxed() != nullptr ? 1 : 0; });
    return align_up(index_of(pages_.end_of_spans()) * sizeof(Span), os::page_size()) +
           align_up(index_of(pages_.caches.end()) * sizeof(Record), os::page_size()) +
           maps * MapTable<Config>::kMapBytes;
  }

  static constexpr unsigned kThreadsAtATime = 64;

  // `records`: of the next threads, by number.
  SPANALLOC_COLD void add_owned_spans(Record* const* records, ThreadFigures* figures,
                                      unsigned count) const {
    pages_.arena.walk([&](std::uint32_t number, std::size_t slices, bool free) {
      if (free || number + slices > index_of(pages_.end_of_spans())) return;
      const SpanRef span = pages_.span(SpanNumber{number});
      const SpanWord word = span->word.load_acquire();
      const ClassId c = span->shown_class();
      if (word.state() != SpanState::kOwned || c >= Classes::kFirstLarge) return;
      unsigned i = 0;
      while (i < count && records[i]->number != word.owner()) ++i;
      if (i == count) return;
      const ClassInfo& info = Classes::info(c);
      Row row = blocks_of(span, word, info);
      row.bound();
      ThreadFigures& out = figures[i];
      ++out.spans;
      out.span_bytes += info.virtual_span;
      out.live_bytes += row.live() * info.block_size;
      out.unsure_bytes += row.unsure * info.block_size;
    });
  }
  SPANALLOC_COLD ThreadFigures kept_by(Record& cache, std::uintptr_t mark) const {
    ThreadFigures out;
    out.mark = mark;
    cache.batches.for_each_held([&](const RemoteBatch& batch) {
      if (batch.number() >= pages_.end_of_spans()) return;
      const ClassId c = pages_.span(batch.number())->shown_class();
      const std::size_t size = Classes::info(c).block_size;
      if (batch.is_lent() && &cache != mine_) {
        out.unsure_bytes += batch.count() * size;
      } else {
        out.kept_block_bytes += blocks_in(batch, c) * size;
      }
    });
    cache.large_spans.for_each_once([&](const Span& span) {
      out.kept_span_bytes += Classes::info(span.shown_class()).virtual_span;
    });
    return out;
  }

  Heap<Config>& heap_;
  Pages& pages_;
  const Record* mine_ = nullptr;  // the calling thread's; nullptr: it has none
  Row rows_[Classes::kCount];
};

/// Bytes of a page layer's blocks and free memory that are in memory: asks the kernel, of each
/// piece of the arena and of each block outside (CoalescingArena::resident_bytes).
template <class Config>
SPANALLOC_COLD std::size_t resident_bytes(PageLayer<Config>& pages) {
  if (!pages.is_started()) return 0;
  std::size_t sum = pages.outside.resident_bytes();
  std::size_t first = 0;
  std::size_t end = 0;
  const auto ask = [&] {
    sum += first == end ? 0 : pages.arena.resident_bytes(first, end - first);
  };
  // Neighbours are asked about together.
  pages.arena.walk([&](std::uint32_t number, std::size_t slices, bool) {
    if (number != end) {
      ask();
      first = number;
    }
    end = number + slices;
  });
  ask();
  return sum;
}

}  // namespace spanalloc::standard
