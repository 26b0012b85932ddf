// Remote batches: blocks of other threads' spans that a thread has freed and not given back yet. So
// the cache line of a span's word moves between cores once a batch, not once a block.
//
// A batch is a free target, as the record of a span is, and the thread's map leads to it as long as
// it holds a block: frees into it take the short path. Only its first block and its last one take a
// slow path. The span counts the blocks in the batch as out, so the span stays what it is.
//
// A batch is flushed when it holds all blocks that are still out, as far as that is known when it
// begins (so the span's last free is noticed); when it is long enough; when another span needs its
// place; and, in turn with the others, by the thread's next misses, its trim and its end.
#pragma once

#include "base/inspection_access.hpp"
#include "standard/misuse.hpp"

namespace spanalloc::standard {

/// Only its thread uses it. (Others may ask how much it holds, for statistics: relaxed.)
struct alignas(kCacheLine) RemoteBatch : FreeTarget {
  Block* oldest;  ///< of the blocks that it holds
  /// The span that the last remote free here went to; kNone: there was none
  Atomic<SpanNumber> last_span;
  Atomic<std::uint32_t> most;  ///< how many blocks it may hold; 0: it holds none

  SpanNumber number() const { return last_span.load_relaxed(); }
  std::uint32_t quota() const { return most.load_relaxed(); }
  bool holds(SpanNumber span) const { return quota() != 0 && number() == span; }
  /// Begins with its first block; `at_most`: how many it may hold.
  void begin(Block* block, const BlockTest& blocks, std::uint32_t at_most) {
    block->link_to(no_block());
    blocks_.set(blocks);
    free_list_.set(block);
    oldest = block;
    left_.store_relaxed(at_most - 1);
    most.store_relaxed(at_most);
  }
  /// Blocks of the span were carved since it began.
  void follow(const BlockTest& blocks) { blocks_.set(blocks); }
  std::uint32_t count() const { return quota() - left_.load_relaxed(); }
  bool is_full() const { return left_.load_relaxed() == 0; }
};

/// Of one cache record; `thread`, its thread cache, is the only one who calls. A span may have one
/// of two batches, which its number tells. (If it told one, every third of nine spans that are
/// freed into in turn would have none.) Zero-initialisable.
template <class Config>
class RemoteBatches {
  using Classes = SizeClasses<Config>;
  using Misuse = standard::Misuse<Config>;

 public:
  static constexpr unsigned kBatches = 64;

  bool are_empty() const { return holding_ == 0; }

  /// Takes the second block in a row of a span, as far as its batch remembers, and those that
  /// follow. False: it is the first one, which the caller frees to the span.
  SPANALLOC_INLINE bool add(auto& thread, SpanRef span, SpanWord word, Block* block) {
    if (RemoteBatch& batch = of(span.number); batch.number() == span.number) {
      add_to(batch, thread, span, word, block);
      return true;
    }
    RemoteBatch& batch = (&first_of(span.number))[++turn_ % 2];
    if (SPANALLOC_UNLIKELY(batch.quota() != 0)) flush(batch, thread);
    batch.last_span.store_relaxed(span.number);
    return false;
  }

  /// After a free on the short path. False: the event was not that the span's batch is full.
  bool flush_if_full(auto& thread, SpanRef span) {
    RemoteBatch& batch = of(span.number);
    if (!batch.holds(span.number) || !batch.is_full()) return false;
    flush(batch, thread);
    return true;
  }
  /// Flushes the next one in turn.
  void flush_one(auto& thread) {
    if (SPANALLOC_UNLIKELY(holding_ != 0)) flush_next(thread);
  }
  void flush_all(auto& thread) {
    if (holding_ != 0) flush_each(thread);
  }

  /// f(SpanNumber, blocks) for each batch that holds some. Any thread: an estimate, unless the
  /// record's thread rests.
  template <class F>
  void for_each_held(F&& f) const {
    for (const RemoteBatch& batch : batches_) {
      // (Read one after the other, they may be of two batches.)
      const std::uint32_t held = batch.count();
      if (batch.quota() != 0 && batch.number() != SpanNumber::kNone && held <= Config::kMaxBatch)
        f(batch.number(), held);
    }
  }

  /// The first block of the span's batch; the end of a list: there is none.
  Block* newest(SpanRef span) {
    const RemoteBatch& batch = of(span.number);
    return batch.holds(span.number) ? batch.free_list().first() : no_block();
  }
  /// Takes the span's batch, which is damaged, out of use; its blocks stay out.
  void retire(auto& thread, SpanRef span) {
    if (RemoteBatch& batch = of(span.number); batch.holds(span.number)) end(batch, thread, span);
  }
  /// No batch may hold a block, or the blocks are lost.
  void forget() {
    for (RemoteBatch& batch : batches_) {
      batch.last_span.store_relaxed(SpanNumber::kNone);
      batch.most.store_relaxed(0);
    }
    holding_ = 0;
    bytes_ = 0;
  }

 private:
  friend struct spanalloc::InspectionAccess;

  static constexpr unsigned kPairBits = 5;
  static_assert(kBatches == 2u << kPairBits);

  // (The number is mixed, because spans of four slices have every fourth number.)
  RemoteBatch& first_of(SpanNumber span) {
    return batches_[(index_of(span) * 0x9E3779B1u >> (32 - kPairBits)) * 2];
  }
  // The span's batch. If it has none: a batch of another span, or of none.
  RemoteBatch& of(SpanNumber span) {
    RemoteBatch& first = first_of(span);
    return first.number() == span ? first : (&first)[1];
  }

  [[gnu::noinline]] void add_to(RemoteBatch& batch, auto& thread, SpanRef span, SpanWord word,
                                Block* block) {
    if (SPANALLOC_UNLIKELY(batch.quota() != 0)) {
      // The batch is not in the map any more, or the block was carved after the batch had begun.
      Block* newest = batch.free_list().first();
      if (SPANALLOC_UNLIKELY(newest == block)) Misuse::retire_and_report(thread, span, block);
      RemoteBatch* const the_batch = &batch;
      const bool full = FreeTarget::push(the_batch, block, address_of(newest) ^ address_of(block));
      batch.follow(span->shown_blocks());
      thread.miss_map(span, batch);
      if (full) flush(batch, thread);
      return;
    }
    const std::size_t size = Classes::info(span->class_id()).block_size;
    const std::uint32_t quota = quota_for(thread, span, word, size);
    if (quota <= 1) return thread.free_to_span(span, block, block, 1);
    batch.begin(block, span->shown_blocks(), quota);
    bytes_ += quota * size;
    ++holding_;
    thread.pages->maps.show(*thread.map, span, batch);
  }

  // How many blocks a batch that begins now may hold.
  SPANALLOC_INLINE std::uint32_t quota_for(auto& thread, SpanRef span, SpanWord word,
                                           std::size_t size) {
    // (Hints, as `word` is. Into an owned span others may free whatever its owner does.)
    const std::uint32_t uncollected = word.state() == SpanState::kShared ? span->uncollected() : 0;
    const std::uint32_t out =
        word.outstanding() > uncollected ? word.outstanding() - uncollected : 0;
    const auto most = static_cast<std::uint32_t>(min_of(out, Config::kMaxBatch));
    // The more threads there are, the less each may batch, because each may then wait for long.
    const std::size_t threads = thread.heap->live_caches.load_relaxed();
    if (SPANALLOC_LIKELY((bytes_ + most * size) * threads <= Config::kBatchBytes)) return most;
    flush_next(thread);
    const std::size_t part = Config::kBatchBytes / threads;
    return static_cast<std::uint32_t>(min_of(most, (part - min_of(bytes_, part)) / size));
  }

  // From its newest block to its oldest a batch has as many blocks as it has counted. The links of
  // a block freed twice lead in a circle, or past blocks that nobody would find again, which the
  // span would count as free.
  static void check(const RemoteBatch& batch, SpanRef span, std::uint32_t count) {
    const std::size_t most = Classes::info(span->class_id()).virtual_span;
    Block* block = batch.free_list().first();
    std::uint32_t behind = count - 1;
    for (; block != batch.oldest && behind != 0; --behind) {
      const std::uint64_t link = block->link();
      if (SPANALLOC_UNLIKELY(!leads_to_block(link, most))) Misuse::broken_list(block);
      block = block->behind(link);
    }
    if (SPANALLOC_UNLIKELY(block != batch.oldest || behind != 0))
      Misuse::miscounted(batch.free_list().first());
  }

  // Frees the batch's blocks to their span, which another thread owns.
  [[gnu::noinline]] void flush(RemoteBatch& batch, auto& thread) {
    const std::uint32_t count = batch.count();
    SPANALLOC_ASSERT(count != 0 && batch.quota() != 0 && thread.has_nothing_in_hand());
    const SpanRef span = thread.pages->span(batch.number());
    end(batch, thread, span);
    check(batch, span, count);  // a damaged one is in no place any more
    thread.free_to_span(span, batch.free_list().first(), batch.oldest, count);
  }
  [[gnu::noinline]] void flush_next(auto& thread) {
    RemoteBatch& batch = batches_[next_++ % kBatches];
    if (batch.quota() != 0) flush(batch, thread);
  }
  SPANALLOC_COLD void flush_each(auto& thread) {
    for (RemoteBatch& batch : batches_) {
      if (batch.quota() != 0) flush(batch, thread);
    }
  }
  void end(RemoteBatch& batch, auto& thread, SpanRef span) {
    SPANALLOC_ASSERT(holding_ != 0);
    bytes_ -= batch.quota() * Classes::info(span->class_id()).block_size;
    batch.most.store_relaxed(0);
    --holding_;
    thread.pages->maps.hide(*thread.map, span, batch);
  }

  RemoteBatch batches_[kBatches];
  std::uint32_t holding_ = 0;  // how many batches hold a block
  std::size_t bytes_ = 0;      // how much the blocks are that these may hold
  std::uint32_t next_ = 0;     // which batch is flushed next
  std::uint32_t turn_ = 0;     // odd or even: which of its two the next span takes that has none
};

}  // namespace spanalloc::standard
