// Batches: blocks that a thread has of spans that it does not own. It has freed them and not given
// them back yet, or they were lent to it. So the cache line of a span's word moves between cores
// once a batch, not once a block.
//
// A batch is a free target, as the record of a span is, and the thread's map leads to it as long as
// it holds a block: frees into it take the short path. Only its first block and its last one take a
// slow path. One that was lent is what malloc takes from, too, so only its list says how many
// blocks it holds. The span counts the blocks in the batch as out, so the span stays what it is.
//
// A batch is flushed when it holds all blocks that are still out, as far as that is known when it
// begins (so the span's last free is noticed); when it is long enough; when another span needs its
// place; and, in turn with the others, by the thread's next misses, its trim and its end.
#pragma once

#include "base/inspection_access.hpp"
#include "standard/span_blocks.hpp"

namespace spanalloc::standard {

/// Only its thread uses it. (Others may ask how much it holds, for statistics: relaxed.)
struct alignas(kCacheLine) RemoteBatch : FreeTarget {
  /// The span that the last remote free here went to; kNone: there was none
  Atomic<SpanNumber> last_span;
  Atomic<std::uint32_t> most;  ///< how many blocks it may hold; 0: it holds none
  Atomic<bool> lent;           ///< malloc takes from it
  Block* seen;  ///< where the list of one that was lent began when that was asked last

  SpanNumber number() const { return last_span.load_relaxed(); }
  std::uint32_t quota() const { return most.load_relaxed(); }
  bool is_lent() const { return lent.load_relaxed(); }
  bool holds(SpanNumber span) const { return quota() != 0 && number() == span; }
  /// Begins with its first block; `at_most`: how many it may hold.
  void begin(Block* block, const BlockTest& blocks, std::uint32_t at_most) {
    block->link_to(no_block());
    blocks_.set(blocks);
    free_list_.set(block);
    lent.store_relaxed(false);
    set_count(1, at_most);
  }
  /// Begins with blocks that were lent, or gets them beside what it holds.
  void begin_lent(ClassId c, const BlockChain& chain, const BlockTest& blocks) {
    const std::uint32_t before = quota() == 0 ? 0 : count();
    if (before == 0) free_list_.clear();
    blocks_.set(blocks);
    own_class_ = static_cast<std::uint8_t>(index_of(c));
    set_stock(Stock::kBatch);
    lent.store_relaxed(true);
    free_list_.prepend(chain.first, chain.last);
    set_count(before + chain.count, before + 2 * chain.count);
  }
  /// Blocks of the span were carved since it began.
  void follow(const BlockTest& blocks) { blocks_.set(blocks); }
  void set_count(std::uint32_t count, std::uint32_t at_most) {
    left_.store_relaxed(at_most - count);
    most.store_release(at_most);  // a fork's child that finds it finds the list
  }
  /// How many blocks it holds; of one that was lent, at most.
  std::uint32_t count() const { return quota() - left_.load_relaxed(); }
  bool is_full() const { return left_.load_relaxed() == 0; }
  /// Whether malloc or free has used it since this was asked last.
  bool was_used() {
    Block* const before = seen;
    seen = free_list_.first();
    return seen != before;
  }
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
    clear_place_for(thread, span.number);
    return false;
  }
  /// How many blocks of the class may be lent to the thread.
  std::uint32_t most_lent(auto& thread, ClassId c) {
    const std::size_t size = Classes::info(c).block_size;
    const std::size_t wanted = 2 * min_of(Config::kMostLent, max_of(Config::kBytesLent / size, 1));
    const std::uint32_t quota = quota_for(thread, static_cast<std::uint32_t>(wanted), size);
    return quota > 2 ? quota / 2 : 1;
  }
  /// Takes blocks of a span that is nobody's; malloc takes from them.
  void begin_lent(auto& thread, ClassId c, SpanRef span, const BlockChain& chain) {
    RemoteBatch& own = of(span.number);
    const bool has_place = own.number() == span.number;
    RemoteBatch& batch = has_place ? own : clear_place_for(thread, span.number);
    if (batch.quota() != 0) count_out(batch, c);
    batch.begin_lent(c, chain, span->shown_blocks());
    count_in(batch, c);
    thread.pages->maps.show(*thread.map, span, batch);
    thread.current[index_of(c)] = &batch;
  }
  /// malloc has taken the last block of what it takes from in class c.
  void end_used_up(auto& thread, ClassId c) {
    FreeTarget* const target = thread.current[index_of(c)];
    if (target->stock() != Stock::kBatch) return;
    auto& batch = *static_cast<RemoteBatch*>(target);
    end(batch, thread, thread.pages->span(batch.number()), c);
  }

  /// After a free on the short path. False: the event was not that the span's batch is full.
  bool flush_if_full(auto& thread, SpanRef span) {
    RemoteBatch& batch = of(span.number);
    if (!batch.holds(span.number) || !batch.is_full()) return false;
    if (!batch.is_lent() || !has_room_after_all(batch)) flush(batch, thread);
    return true;
  }
  /// Flushes the next one in turn.
  void flush_one(auto& thread) {
    if (SPANALLOC_UNLIKELY(holding_ != 0)) flush_next(thread);
  }
  void flush_all(auto& thread) {
    if (holding_ != 0) flush_each(thread);
  }

  /// f(const RemoteBatch&) for each batch that holds some blocks. Any thread: an estimate, unless
  /// the record's thread rests.
  template <class F>
  void for_each_held(F&& f) const {
    for (const RemoteBatch& batch : batches_) {
      // (Read one after the other, they may be of two batches.)
      if (batch.quota() != 0 && batch.number() != SpanNumber::kNone &&
          batch.count() <= 2 * max_of(Config::kMaxBatch, Config::kMostLent)) {
        f(batch);
      }
    }
  }

  /// The first block of the span's batch; the end of a list: there is none.
  Block* newest(SpanRef span) {
    const RemoteBatch& batch = of(span.number);
    return batch.holds(span.number) ? batch.free_list().first() : no_block();
  }
  /// Takes the span's batch, which is damaged, out of use; its blocks stay out.
  void retire(auto& thread, SpanRef span) {
    if (RemoteBatch& batch = of(span.number); batch.holds(span.number))
      end(batch, thread, span, span->class_id());
  }
  /// In a fork's child, of a vanished thread: f(SpanRef, const BlockChain&) for the blocks of each
  /// batch, which has ended then. What is damaged is left out.
  template <class F>
  SPANALLOC_COLD void take_all(auto& pages, F&& f) {
    for (RemoteBatch& batch : batches_) {
      if (batch.quota() == 0) continue;
      batch.most.store_relaxed(0);
      const SpanRef span = pages.span(batch.number());
      const ClassInfo& info = Classes::info(span->class_id());
      Block* const first = batch.free_list().first();
      const ListLength length = length_of(first, info.virtual_span, info.blocks);
      if (length.whole && length.blocks != 0)
        f(span, BlockChain{first, length.last, length.blocks});
    }
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
      if (full) flush_if_full(thread, span);
      return;
    }
    const ClassId c = span->class_id();
    const std::size_t size = Classes::info(c).block_size;
    // (Hints, as `word` is. Into an owned span others may free whatever its owner does.)
    const std::size_t out = min_of(word.outstanding(), Config::kMaxBatch);
    const auto most = static_cast<std::uint32_t>(min_of(out, Config::kBytesInBatch / size));
    const std::uint32_t quota = quota_for(thread, most, size);
    if (quota <= 1) return thread.free_to_span(span, block, block, 1);
    batch.begin(block, span->shown_blocks(), quota);
    count_in(batch, c);
    thread.pages->maps.show(*thread.map, span, batch);
  }

  // The place of a batch of the span, which has none.
  RemoteBatch& clear_place_for(auto& thread, SpanNumber span) {
    RemoteBatch& batch = (&first_of(span))[++turn_ % 2];
    if (SPANALLOC_UNLIKELY(batch.quota() != 0)) flush(batch, thread);
    batch.last_span.store_relaxed(span);
    return batch;
  }
  // How many blocks a batch that begins now may hold, of `most`.
  SPANALLOC_INLINE std::uint32_t quota_for(auto& thread, std::uint32_t most, std::size_t size) {
    // The more threads there are, the less each may batch, because each may then wait for long.
    const std::size_t threads = thread.heap->live_caches.load_relaxed();
    if (SPANALLOC_LIKELY((bytes_ + most * size) * threads <= Config::kBatchBytes)) return most;
    flush_next(thread);
    const std::size_t part = Config::kBatchBytes / threads;
    return static_cast<std::uint32_t>(min_of(most, (part - min_of(bytes_, part)) / size));
  }
  // One that was lent has had as many frees as it may hold blocks. True: malloc has taken some.
  static bool has_room_after_all(RemoteBatch& batch) {
    const ClassInfo& info = Classes::info(batch.own_class());
    const ListLength length =
        length_of(batch.free_list().first(), info.virtual_span, batch.quota());
    if (!length.whole || length.blocks == batch.quota()) return false;
    batch.set_count(length.blocks, batch.quota());
    return true;
  }

  // The blocks of a batch that has ended. One that was not lent has as many as it has counted. The
  // links of a block freed twice lead in a circle, or past blocks that nobody would find again,
  // which the span would count as free.
  static BlockChain chain_of(const RemoteBatch& batch, const ClassInfo& info, std::uint32_t count) {
    if (batch.is_lent()) return lent_chain_of(batch, info);
    BlockChain chain{batch.free_list().first(), batch.free_list().first(), count};
    for (std::uint32_t behind = count; --behind != 0;) {
      const std::uint64_t link = chain.last->link();
      if (SPANALLOC_UNLIKELY(!leads_to_block(link, info.virtual_span))) report(chain, link);
      chain.last = chain.last->behind(link);
    }
    if (SPANALLOC_UNLIKELY(!leads_to_end(chain.last))) report(chain, chain.last->link());
    return chain;
  }
  static BlockChain lent_chain_of(const RemoteBatch& batch, const ClassInfo& info) {
    const ListLength length = length_of(batch.free_list().first(), info.virtual_span, info.blocks);
    const BlockChain chain{batch.free_list().first(), length.last, length.blocks};
    if (SPANALLOC_UNLIKELY(!length.whole)) report(chain, length.last->link());
    return chain;
  }
  static bool leads_to_end(const Block* block) {
    return block->link() == (address_of(block) ^ address_of(no_block()));
  }
  // `link`: that of the last block that was looked at.
  SPANALLOC_COLD [[noreturn]] static void report(const BlockChain& chain, std::uint64_t link) {
    if (leads_to_block(link, kMostSpan) || leads_to_end(chain.last))
      Misuse::miscounted(chain.first);
    Misuse::broken_list(chain.last);
  }

  // Frees the batch's blocks to their span.
  [[gnu::noinline]] void flush(RemoteBatch& batch, auto& thread) {
    const std::uint32_t count = batch.count();
    SPANALLOC_ASSERT(batch.quota() != 0 && thread.has_nothing_in_hand());
    const SpanRef span = thread.pages->span(batch.number());
    const ClassId c = span->class_id();
    end(batch, thread, span, c);
    // A damaged one is in no place any more.
    const BlockChain chain = chain_of(batch, Classes::info(c), count);
    if (SPANALLOC_UNLIKELY(chain.count == 0)) return;  // a lent one whose list was damaged
    if (SPANALLOC_UNLIKELY(span->load_word().head() ==
                           thread.pages->offset_of(span, chain.first))) {
      Misuse::remotely_freed_twice(thread, span, chain.first);
    }
    thread.free_to_span(span, chain.first, chain.last, chain.count);
  }
  [[gnu::noinline]] void flush_next(auto& thread) {
    RemoteBatch& batch = batches_[next_++ % kBatches];
    if (batch.quota() == 0 || (batch.is_lent() && batch.was_used())) return;
    flush(batch, thread);
  }
  SPANALLOC_COLD void flush_each(auto& thread) {
    for (RemoteBatch& batch : batches_) {
      if (batch.quota() != 0) flush(batch, thread);
    }
  }
  void end(RemoteBatch& batch, auto& thread, SpanRef span, ClassId c) {
    count_out(batch, c);
    batch.most.store_relaxed(0);
    thread.pages->maps.hide(*thread.map, span, batch);
    if (thread.current[index_of(c)] == &batch) thread.current[index_of(c)] = &kNoTarget;
  }
  void count_in(RemoteBatch& batch, ClassId c) {
    bytes_ += batch.quota() * Classes::info(c).block_size;
    ++holding_;
  }
  void count_out(RemoteBatch& batch, ClassId c) {
    SPANALLOC_ASSERT(holding_ != 0);
    bytes_ -= batch.quota() * Classes::info(c).block_size;
    --holding_;
  }

  RemoteBatch batches_[kBatches];
  std::uint32_t holding_ = 0;  // how many batches hold a block
  std::size_t bytes_ = 0;      // how much the blocks are that these may hold
  std::uint32_t next_ = 0;     // which batch is flushed next
  std::uint32_t turn_ = 0;     // odd or even: which of its two the next span takes that has none
};

}  // namespace spanalloc::standard
