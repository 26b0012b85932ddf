// A span's record, in a table with one record a slice; that of a span's first
// slice speaks for the span.
//
// In a span of several blocks `order` leads from every slice to the first. A span of one block is
// only asked for by the address of its block, which begins in its first slice. The records of its
// other slices stay as earlier spans left them: they say "free", and their `order` leads to a
// record that says "free" or to a span in which the address does not lie.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/divisibility.hpp"
#include "base/inspection_access.hpp"
#include "standard/config.hpp"
#include "standard/free_list.hpp"
#include "standard/free_target.hpp"
#include "standard/numbers.hpp"
#include "standard/purged_pages.hpp"
#include "standard/size_classes.hpp"
#include "standard/span_word.hpp"

namespace spanalloc::standard {

/// A span's life begins with the word "never used", or "free". From there it is owned, or held and
/// then nobody's; owned and nobody's change places any number of times; from each of them it may be
/// free again (span_protocol.hpp). A span of one block changes free -> nobody's -> free, maybe as a
/// cached large span. begin_life() writes what is constant while the span is not free.
///
/// The first cache line is the owner's: its short paths write there, and nowhere else in the
/// record. Other threads read and write the second line; in the first they read only whether the
/// span is away.
class alignas(kCacheLine) Span : public FreeTarget {
 public:
  // --- What others may ask -----------------------------------------------------------------------

  SpanWord load_word() const { return word.load_relaxed(); }
  /// Constant while the span is not free
  ClassId class_id() const { return shown_class(); }
  /// That of the latest life, for statistics and guesses of other threads
  ClassId shown_class() const { return ClassId{size_class_.load_relaxed()}; }
  /// log2 of the span's slices if it has several blocks, else 0; constant while the span is not
  /// free, and equal in the records of all its slices
  unsigned order() const { return order_; }
  SPANALLOC_INLINE bool is_block(std::uintptr_t a) const { return shown_.is_block(a); }
  const BlockTest& shown_blocks() const { return shown_; }
  /// Where the only block of a span begins, or the first of several.
  std::uintptr_t first_block() const { return shown_.base.load_relaxed(); }
  bool begins_at(std::uintptr_t a) const { return shown_.base.read_own() == a; }
  /// So many of the first blocks were out or listed once, the rest is untouched; a thread that
  /// holds a block sees that it was carved
  SPANALLOC_INLINE std::uint32_t carved() const { return carved_.load_relaxed(); }
  std::uint64_t purged() const { return purged_.load_relaxed(); }  ///< see purged_pages.hpp
  /// How many blocks are free and on no list: never carved, or purged.
  std::uint32_t count_unlisted(const SizeClass& info) const {
    return info.blocks - carved() + count_purged(purged(), info, carved());
  }
  /// What was never carved reads as zero.
  bool is_zero() const { return zero_; }
  /// Of a span of one block of a class: bytes from where the block begins to where the span ends,
  /// or to its pages that are `gone`
  std::uint32_t room() const { return room_; }

  // --- Life: by the thread that has the span alone -----------------------------------------------

  /// Of each record of a span's slices, before its life begins.
  void set_order(std::uint8_t order) { order_ = order; }
  /// Begins a life; from the word on the span is in use. No block is carved; a span of one block
  /// has it at `first`.
  void begin_life(const ClassInfo& info, ClassId c, std::uintptr_t first, bool zero,
                  SpanWord word_of_life) {
    const bool single = info.blocks <= 1;
    blocks_.set(first, single ? 1 : info.magic, single ? 1 : 0);
    shown_.set(blocks_);
    change_class(c, info);
    if (!single) set_others(0);
    zero_ = zero;
    asked = 0;
    carved_.store_relaxed(0);
    free_list_.clear();
    purged_.store_relaxed(0);
    go_on(word_of_life);
  }
  /// Begins a life in the class of the last one, with the lists that are there.
  void go_on(SpanWord word_of_life) {
    withdrawn_.store_relaxed(false);
    begin_to_own();
    word.set(word_of_life);
  }
  /// A thread becomes its owner.
  void begin_to_own() {
    set_stock(Stock::kMore);
    watched_ = 0;
    set_queued(false);
    expect_first_clock();
  }
  /// Of a span of several blocks: so many are out that its owner has not handed out.
  void set_others(std::uint32_t out) { others_ = out; }
  /// Another class for a span of one block, which may be in use.
  void change_class(ClassId c, const ClassInfo& info) {
    set_room(info);
    own_class_ = static_cast<std::uint8_t>(index_of(c));
    size_class_.store_relaxed(static_cast<std::uint8_t>(index_of(c)));
  }
  /// The only block of a span has no more than `bytes`, until its class or place changes.
  void limit_room(std::uint32_t bytes) { room_ = bytes; }
  /// Places the only block of a span elsewhere.
  void move_block(std::uintptr_t first, const ClassInfo& info) {
    shown_.base.store_relaxed(first);
    set_room(info);
  }

  // --- Blocks: by the owner ----------------------------------------------------------------------

  /// `count` more blocks are carved. The limit says which blocks may be freed: those that were
  /// carved. (A thread that gets a block from another thread has been given this limit with it.)
  void carve(const ClassInfo& info, std::uint32_t count) {
    const std::uint32_t carved = this->carved() + count;
    carved_.store_relaxed(static_cast<std::uint16_t>(carved));
    const std::uint64_t limit = multiple_limit(info.block_size, info.magic, carved);
    blocks_.limit.store_relaxed(limit);
    shown_.limit.store_relaxed(limit);
  }
  Block* next_to_carve(const ClassInfo& info) const {
    return pointer_to<Block>(blocks_.base.read_own() + std::size_t{carved()} * info.block_size);
  }
  /// By its owner, or holder. Release: a fork's child finds the mask before the lists change.
  void set_purged(std::uint64_t mask) {
    set_stock(Stock::kMore);
    purged_.store_release(mask);
  }
  /// Forgets all free blocks that are on its list, or purged.
  void lose_free_blocks() {
    free_list_.clear();
    set_purged(0);
  }

  // --- Events: by the owner ----------------------------------------------------------------------

  /// A current span is looked at when its list ends. Frees into it are events only to read the
  /// clock, unless the thread may be about to give the span up: expect_emptying(). Then `quota` is
  /// how often it has looked.
  SPANALLOC_INLINE void expect_first_clock() { expect_clock(AllSpans::kFirstClock); }
  SPANALLOC_INLINE void expect_clock(std::uint32_t frees) {
    expect_emptying(frees, kForClock + frees);
  }
  SPANALLOC_INLINE void expect_emptying(std::uint32_t count, std::uint32_t looks) {
    quota_.store_relaxed(looks);
    left_.store_relaxed(count);
  }
  bool is_for_clock() const { return quota_.load_relaxed() >= kForClock; }
  std::uint32_t looks() const { return quota_.load_relaxed(); }
  /// After an event of the clock: the next one comes after twice as many frees.
  void expect_next_clock() {
    const std::uint32_t frees = 2 * (looks() - kForClock);
    const std::uint32_t most = AllSpans::kMostClock;
    expect_clock(frees < most ? frees : most);
  }
  /// Of an owned span: its owner's free is the first since it was used up. The next event comes
  /// when the owner has freed all that is out. False: that was the last one.
  SPANALLOC_INLINE bool expect_empty() {
    SPANALLOC_ASSERT(!has_others());
    const std::uint32_t out = load_word().outstanding() - 1;
    set_stock(Stock::kNone);
    expect_emptying(out, 0);
    return out != 0;
  }
  /// Of a span of several blocks: whether others had blocks when its owner became that.
  bool has_others() const { return others_ != 0; }
  /// expect_empty() of such a span: it may never become empty.
  void expect_few() {
    const std::uint32_t out = own_out(load_word().outstanding()) - 1;
    set_stock(Stock::kNone);
    expect_emptying(out - out / 4, 0);
  }
  /// After either of these: nothing of it is out.
  bool is_emptied() const { return left_.load_relaxed() == 0; }
  /// If the span counts its frees, the next event comes `few` of them earlier. False: it would have
  /// come already.
  bool expect_few_out(std::uint32_t few) {
    if (looks() != 0) return true;  // it reads the clock, or this was asked before
    const std::uint32_t left = left_.load_relaxed();
    if (left <= few) return false;
    expect_emptying(left - few, 1);
    return true;
  }
  /// Of `out` blocks those that are its owner's, as far as is known; at least one.
  SPANALLOC_INLINE std::uint32_t own_out(std::uint32_t out) const {
    return out > others_ ? out - others_ : 1;
  }
  void expect_soon_clock() { expect_clock(AllSpans::kSoonClock); }
  /// Changes whenever the owner takes a block or frees one (but for rare chances).
  std::uint64_t trace() const {
    const std::uint64_t left = left_.load_relaxed();
    return address_of(free_list_.first()) ^ left << 48 ^ left >> 16;
  }

  // --- What is remembered of it: by its holder ---------------------------------------------------

  /// Whether the pages of a span with `out` blocks out are to be purged: not a second time,
  /// and if `aged` only if as many were out when this was asked in the epoch before.
  bool wants_purge(std::uint32_t out, bool aged) {
    const auto seen = static_cast<std::uint16_t>(out * 2 + 2);
    const auto purged = static_cast<std::uint16_t>(out * 2 + 3);
    if (watched_ == purged) return false;
    const bool is_due = !aged || watched_ == seen;
    watched_ = is_due ? purged : seen;
    return is_due;
  }

  /// The same near the soft limit, where this is asked often, and each purge goes through all free
  /// blocks: if a 16th of the `blocks` fewer are out than at the last purge, or than was seen
  /// since.
  bool wants_purge_near(std::uint32_t out, std::uint32_t blocks) {
    const auto seen = static_cast<std::uint16_t>(out * 2 + 2);
    const std::uint32_t last = watched_ != 0 ? (watched_ - 2u) / 2 : blocks;
    if (out > last) watched_ = seen;
    if (out > last || last - out < max_of(blocks / 16, 1)) return false;
    watched_ = static_cast<std::uint16_t>(seen + 1);
    return true;
  }

  // --- Where it is -------------------------------------------------------------------------------

  /// The next span on a chain of free ones, or the one that became ready before it: by who has it
  SpanNumber next() const { return next_; }
  void set_next(SpanNumber next) { next_ = next; }
  /// Among its owner's ready spans (owned_spans.hpp), and the one that became ready after it
  bool is_ready() const { return (newer_ & kReady) != 0; }
  SpanNumber newer() const { return SpanNumber{newer_ & ~kReady}; }
  void set_ready(SpanNumber newer) { newer_ = kReady | index_of(newer); }
  void set_not_ready() { newer_ = 0; }
  /// In its owner's queue of away spans, as far as its owner knows. (A former owner may take that
  /// knowledge away: then the owner looks at the queue's link.)
  bool is_queued() const { return queued_.load_relaxed(); }
  void set_queued(bool queued) { queued_.store_relaxed(queued); }
  /// Whose queue has it as an entry, if one has (away_link); constant meanwhile
  CacheNumber queuer() const {
    return CacheNumber{std::uint32_t{queuer_high_.load_relaxed()} << 16 |
                       queuer_low_.load_relaxed()};
  }
  void set_queuer(CacheNumber number) {
    queuer_low_.store_relaxed(static_cast<std::uint16_t>(index_of(number)));
    queuer_high_.store_relaxed(static_cast<std::uint8_t>(index_of(number) >> 16));
  }
  /// On no list, and not counted again
  bool is_withdrawn() const { return withdrawn_.load_relaxed(); }
  void set_withdrawn(bool retired) { withdrawn_.store_relaxed(retired); }

 private:
  friend struct SpanTestAccess;
  friend struct spanalloc::InspectionAccess;

  static constexpr std::uint32_t kReady = 1u << 31;     // no span has such a number
  static constexpr std::uint32_t kForClock = 1u << 16;  // `quota` of a current span: the clock's

  void set_room(const ClassInfo& info) {
    room_ = static_cast<std::uint32_t>(info.virtual_span -
                                       first_block() % (std::size_t{1} << AllSpans::kSliceBits));
  }

  Atomic<std::uint16_t> carved_;
  bool zero_;

 public:
  std::uint8_t idle;  ///< of a span of one block, the thread that has it: see SlackBound
  std::uint8_t gone;  ///< the same: pages around its block that do not count as held

 private:
  Atomic<bool> withdrawn_;  // others ask, for statistics
  Atomic<std::uint64_t> purged_;

 public:
  alignas(kCacheLine) AtomicSpanWord word;  ///< shared

 private:
  Plain<SpanNumber> next_;
  Atomic<bool> queued_;
  Atomic<std::uint8_t> size_class_;
  std::uint8_t order_;
  Atomic<std::uint8_t> queuer_high_;
  static_assert(index_of(SpanWord::kMaxOwner) >> 16 <= UINT8_MAX);

 public:
  /// The pool's stack that the free span is in: the next span there
  Atomic<std::uint32_t> pool_link;
  /// Whether the span is on a stack of abandoned spans, and the next one there:
  /// abandoned_spans.hpp's alone, whatever life the span lives
  Atomic<std::uint32_t> abandoned_link;
  /// The same of a queue of away spans (away_spans.hpp)
  Atomic<std::uint32_t> away_link;

 private:
  Plain<std::uint16_t> watched_;  // 0: nothing
  Atomic<std::uint16_t> queuer_low_;
  // A copy of `blocks_` for other threads, written by the owner: a look into the first line would
  // take that line from the owner's CPU at each of their frees
  BlockTest shown_;

 public:
  union {
    /// Holder of a block of kHuge: slices that it was last resized to (or a little more), beyond
    /// which the span may have room; 0: never resized
    std::uint32_t asked;
    std::uint32_t newer_;  // of several blocks: ready, and the next ready one
  };

 private:
  union {
    std::uint32_t room_;    // of a span of one block
    std::uint32_t others_;  // of several: how many were out when its owner became that
  };
};
static_assert(sizeof(Span) == 2 * kCacheLine);

/// A span's record and number, as functions pass a span to each other. Without a number: no span.
struct SpanRef {
  Span* record = nullptr;
  SpanNumber number = SpanNumber::kNone;

  Span* operator->() const { return record; }
  explicit operator bool() const { return number != SpanNumber::kNone; }
  friend bool operator==(SpanRef a, SpanRef b) { return a.number == b.number; }
};

}  // namespace spanalloc::standard
