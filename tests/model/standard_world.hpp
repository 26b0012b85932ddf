// What surrounds the standard engine's span protocol in a model: a handful of spans of three
// or four blocks, thread caches, a pool, and books about who holds which block, against
// which everything is checked.
//
// The protocol is the production code (span_word.hpp, span_protocol.hpp,
// treiber_stack.hpp, spin_lock.hpp). Here is only what the thread cache does around it:
// keep hot blocks, count them, hand them out.
#pragma once

#include <cstdint>

#include "engines/standard/span.hpp"
#include "engines/standard/span_protocol.hpp"
#include "engines/standard/span_word.hpp"
#include "model_test.hpp"
#include "span_access.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc::model {

using standard::Block;
using standard::BlockOffset;
using standard::CacheNumber;
using standard::ClassId;
using standard::ListId;
using standard::Span;
using standard::SpanNumber;
using standard::SpanRef;
using standard::SpanState;
using standard::SpanTestAccess;
using standard::SpanWord;

inline constexpr ClassId kClass{1};   // spans of several blocks
inline constexpr ClassId kSingle{2};  // spans of one block

struct StandardShape {
  unsigned spans = 1;
  std::uint32_t capacity = 3;
  std::uint32_t partial_outstanding = 1;
  bool forks = false;  ///< a child goes by what had reached memory, not by what threads had done
};

inline constexpr unsigned kMaxSpans = 2;
inline constexpr std::uint32_t kMaxBlocks = 4;
inline constexpr unsigned kLabs = 5;
inline constexpr CacheNumber kOrphanage{0}, kOtherOrphanage{4};

/// Records and thread caches, as the page layer has them. Spans 1 .. spans, thread caches 0 (an
/// abandoned list), 1 .. 3, and 4 (the abandoned list of whom set_heir says so).
struct ModelPages {
  using Lists = standard::SpanLists<3>;

  StandardShape shape;
  Span spans[kMaxSpans + 1]{};
  Lists labs[kLabs];
  bool torn[kLabs] = {};
  Atomic<std::uint64_t> shown_orphans[3];
  standard::AbandonedLists abandoned_lists;
  struct alignas(standard::kQuantum) PlacedBlock : Block {};
  PlacedBlock blocks[kMaxSpans + 1][kMaxBlocks + 1] = {};

  explicit ModelPages(StandardShape the_shape) : shape(the_shape) {
    // A thread cache's bit is its number; where a thread cache leaves its spans is set by set_heir.
    abandoned_lists.mask = kLabs - 2;
    abandoned_lists.of_class = shown_orphans;
    abandoned_lists.numbers[index_of(kOtherOrphanage)] = kOtherOrphanage;
    for (const CacheNumber number : {kOrphanage, kOtherOrphanage}) {
      labs[index_of(number)].abandoned.begin(index_of(number), shown_orphans);
    }
  }

  SpanRef span(SpanNumber number) {
    MODEL_CHECK(index_of(number) >= 1 && index_of(number) <= shape.spans);
    return {&spans[index_of(number)], number};
  }
  Lists& cache(CacheNumber number) {
    MODEL_CHECK(index_of(number) < kLabs);
    return labs[index_of(number)];
  }
  std::uint32_t capacity(ClassId c) const {
    MODEL_CHECK(c == kClass || c == kSingle);
    return c == kSingle ? 1 : shape.capacity;
  }
  std::uint32_t partial_outstanding(ClassId) const { return shape.partial_outstanding; }
  [[noreturn]] static void corrupted(SpanRef) { fail("the protocol says: corrupted"); }
  Block* block_at_offset(SpanRef span, BlockOffset mark) {
    return &blocks[index_of(span.number)][index_of(mark)];
  }
  static void hide_from_owner(const Lists&, SpanRef) {}
  // No page is ever given back here: partial_purge_test.cpp.
  static BlockOffset cut_lists(SpanRef, BlockOffset remotes) { return remotes; }
  static void unlink_purged(SpanRef, BlockOffset) {}
  static std::uint32_t purged_blocks(SpanRef) { return 0; }
  std::uint32_t list_length(SpanRef span, Block* list) const {
    const standard::ListLength length =
        standard::length_of(list, standard::kMostSpan, capacity(span->class_id()));
    return length.whole ? length.blocks : capacity(span->class_id()) + 1;
  }
  static bool is_mine(CacheNumber) { return false; }  // who forks has nothing here
  CacheNumber end_of_caches() const { return CacheNumber{kLabs}; }
  SpanNumber end_of_spans() const { return SpanNumber{shape.spans + 1}; }
  bool has_cache(CacheNumber) const { return true; }
  bool has_record(SpanNumber) const { return true; }
  bool is_torn(CacheNumber number) const { return torn[index_of(number)]; }
  void set_torn(CacheNumber number, bool value) { torn[index_of(number)] = value; }
  static void note_repair() {}
};

/// The world of one execution. Spans, thread caches and blocks go by plain numbers here.
class StandardWorld {
 public:
  using Protocol = standard::SpanProtocol<ModelPages>;

  /// In a call that may have a span in its hands. (The first one that ends says so:
  /// calls do not nest here.)
  struct Inside {
    explicit Inside(StandardWorld& world) : world_(world) { set(1); }
    ~Inside() { set(0); }
    void set(std::uint32_t value) {
      if (modelled) world_.inside_[this_thread()].store_release(value);
    }
    StandardWorld& world_;
  };

  explicit StandardWorld(StandardShape shape) : pages_(shape), shape_(shape) { name_variables(); }

  Span& span(std::uint32_t number) { return *pages_.span(SpanNumber{number}).record; }
  SpanRef ref(std::uint32_t number) { return pages_.span(SpanNumber{number}); }
  ModelPages::Lists& cache(CacheNumber number) { return pages_.cache(number); }
  ModelPages::Lists& cache(std::uint32_t number) { return pages_.cache(CacheNumber{number}); }
  std::uint32_t capacity(ClassId c) { return pages_.capacity(c); }
  Protocol& protocol() { return protocol_; }
  Atomic<std::uint64_t>& abandoned() { return pages_.abandoned_lists.of_class[index_of(kClass)]; }

  auto links() {
    return
        [this](std::uint32_t number) -> Atomic<std::uint32_t>& { return span(number).pool_link; };
  }
  void put_in_pool(SpanRef span) {
    // Who puts it there owns it alone, memory included.
    MODEL_CHECK(span->list() == ListId::kNone);
    for (std::uint32_t b = 1; b <= capacity(span->class_id()); ++b) touch(index_of(span.number), b);
    pool_.push(index_of(span.number), links());
  }
  void put_in_pool(standard::SpanChain chain) {
    MODEL_CHECK(chain.damaged == SpanNumber::kNone);
    for (SpanNumber number = chain.first; number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next();
      put_in_pool(span);
    }
  }
  std::uint32_t take_from_pool() { return pool_.pop(links()); }
  void collect_delayed(std::uint32_t me) {
    put_in_pool(protocol_.collect_delayed(CacheNumber{me}));
  }
  void claim_unnoticed_empties(std::uint32_t owner) {
    put_in_pool(protocol_.claim_unnoticed_empties(CacheNumber{owner}, [] { return true; }));
  }

  // --- What threads do ---------------------------------------------------------------------------
  Block* block(std::uint32_t number, std::uint32_t b) { return &pages_.blocks[number][b]; }

  /// Hands block b out to the program.
  void hand_out(std::uint32_t number, std::uint32_t b) {
    MODEL_CHECK(!out_[number][b]);
    out_[number][b] = true;
    if (shape_.forks) shown_out_[number][b].store_release(1);
    touch(number, b);
  }
  /// The program's last access to a block, before it frees it.
  void let_go(std::uint32_t number, std::uint32_t b) {
    MODEL_CHECK(out_[number][b]);
    touch(number, b);
    out_[number][b] = false;
    if (shape_.forks) shown_out_[number][b].store_release(0);
  }
  /// free() by a thread that does not own the span.
  void free_remote(std::uint32_t number, std::uint32_t b) { free_run(number, b, 1); }
  /// The same for blocks first .. first + count - 1, batched and given back in one step.
  void free_run(std::uint32_t number, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t b = first; b < first + count; ++b) {
      let_go(number, b);
      if (b != first) block(number, b)->link_to(block(number, b - 1));
    }
    const auto link = [&](BlockOffset head) {
      block(number, first)
          ->link_to(head == BlockOffset::kNone ? standard::no_block()
                                               : block(number, index_of(head)));
    };
    const Inside inside(*this);
    const auto freed =
        protocol_.free_remote(ref(number), BlockOffset{first + count - 1}, count, link);
    MODEL_CHECK(freed != standard::Freed::kRefused);
    if (freed == standard::Freed::kEmptied) put_in_pool(ref(number));
  }
  /// free() as the thread cache does it, by the thread whose thread cache is `me`.
  void free_any(std::uint32_t number, std::uint32_t b, std::uint32_t me) {
    Span* s = &span(number);
    const SpanWord word = s->word.load_relaxed();
    MODEL_CHECK(word.state() != SpanState::kFree);
    if (word.is(CacheNumber{me}, SpanState::kShared) ||
        word.is(CacheNumber{me}, SpanState::kOwned)) {
      let_go(number, b);
      Block* const list = s->free_list().first();
      if (!standard::FreeTarget::push(s, block(number, b),
                                      address_of(list) ^ address_of(block(number, b))))
        return;
      MODEL_CHECK(word.state() == SpanState::kShared);
      const Inside inside(*this);
      if (protocol_.collect_after_free(ref(number), CacheNumber{me})) put_in_pool(ref(number));
    } else {
      free_remote(number, b);
    }
  }
  /// malloc() from the current span `number`: a block of its list, else one never carved, else of
  /// its remote list. Returns 0 when it has none.
  std::uint32_t allocate_hot(std::uint32_t number) {
    Span& s = span(number);
    if (s.free_list().first() == standard::no_block() && s.carved() == shape_.capacity) {
      const standard::RemoteList remotes = s.word.take_remotes(shape_.capacity);
      if (remotes.count != 0) s.free_list().set(block(number, index_of(remotes.first)));
      check_list(number, s.free_list().first(), remotes.count);
    }
    std::uint32_t b = 0;
    if (s.free_list().first() != standard::no_block()) {
      Block* first = s.free_list().first();
      s.free_list().set(first->next());
      b = number_of(number, first);
    } else if (s.carved() < shape_.capacity) {
      SpanTestAccess::carved(s).store_relaxed(s.carved() + 1);
      b = s.carved();
    }
    if (b != 0) hand_out(number, b);
    return b;
  }
  /// A thread without any block of span `number` takes what others have freed of it, at
  /// least so much, as it is hot with thread cache `owner`, and allocates all that:
  /// blocks, newest first. None: 0.
  struct Loan {
    std::uint32_t count = 0;
    std::uint32_t blocks[kMaxBlocks] = {};
  };
  Loan borrow(std::uint32_t number, std::uint32_t owner, std::uint32_t at_least = 1) {
    const standard::RemoteList list =
        protocol_.borrow(ref(number), CacheNumber{owner}, kClass, at_least, [] { return true; });
    Loan loan;
    if (list.first == BlockOffset::kNone) return loan;
    MODEL_CHECK(list.count >= at_least);
    check_list(number, block(number, index_of(list.first)), list.count);
    for (Block* b = block(number, index_of(list.first)); b != standard::no_block();) {
      Block* const next = b->next();
      b->clear_link();
      loan.blocks[loan.count++] = number_of(number, b);
      hand_out(number, loan.blocks[loan.count - 1]);
      b = next;
    }
    return loan;
  }
  /// The owner of a current span looks through what others have freed of it.
  void check_remotes(std::uint32_t number, std::uint32_t me, bool locked) {
    if (locked) protocol_.lock_cache(CacheNumber{me});
    const SpanWord word = span(number).word.load_acquire();
    // Links are no steps of their own: others may come between here
    (void)span(number).word.load_relaxed();
    if (word.head() != BlockOffset::kNone) {
      check_list(number, block(number, index_of(word.head())),
                 shape_.capacity - word.outstanding());
    }
    if (locked) protocol_.unlock_cache(cache(me));
  }
  /// The thread cache's way out of a current span: counts what is free in it and parks it.
  void share(std::uint32_t number, std::uint32_t me) {
    const std::uint32_t free_blocks = free_of(span(number));
    const Inside inside(*this);
    const auto collected = protocol_.owned_to_shared(ref(number), CacheNumber{me}, free_blocks);
    MODEL_CHECK(collected != standard::Freed::kRefused);
    if (collected == standard::Freed::kEmptied) put_in_pool(ref(number));
  }
  /// The thread cache's search for a reusable span: own ones, then abandoned spans. 0: none.
  std::uint32_t find_reusable(std::uint32_t me) {
    const Inside inside(*this);
    collect_delayed(me);
    standard::OwnedSpan owned = protocol_.partial_to_owned(kClass, CacheNumber{me});
    if (!owned)
      owned = protocol_.abandoned_to_owned(pages_.abandoned_lists, kClass, CacheNumber{me});
    return with_remotes(owned);
  }
  /// The thread cache's last resorts when memory is out: abandoned spans, waiting for them;
  /// its own nearly full spans.
  std::uint32_t find_orphan_waiting(std::uint32_t me) {
    const Inside inside(*this);
    return with_remotes(
        protocol_.abandoned_to_owned(pages_.abandoned_lists, kClass, CacheNumber{me}, true));
  }
  std::uint32_t find_floating(std::uint32_t me) {
    const Inside inside(*this);
    return with_remotes(protocol_.nearly_full_to_owned(kClass, CacheNumber{me}));
  }
  void begin_life(std::uint32_t number, ClassId c, SpanWord word) {
    standard::ClassInfo info;
    info.blocks = capacity(c);
    span(number).begin_life(info, c, 0, standard::HeapNumber{}, false, word);
  }
  /// A span that comes from the pool or was never used becomes hot.
  void make_current(std::uint32_t number, std::uint32_t me) {
    begin_life(number, kClass, SpanWord::make(CacheNumber{me}, SpanState::kOwned, shape_.capacity));
  }
  /// The same for a span of one block, which is handed out at once.
  void make_single(std::uint32_t number) {
    begin_life(number, kSingle, standard::kLargeInUse);
    hand_out(number, 1);
  }
  /// Before the threads start: a span of thread cache `me`, parked, with
  /// blocks 1 .. out handed out.
  void start_parked(std::uint32_t number, std::uint32_t me, std::uint32_t out) {
    start_hot(number, me, out);
    share(number, me);
  }
  void start_hot(std::uint32_t number, std::uint32_t me, std::uint32_t out) {
    make_current(number, me);
    for (std::uint32_t b = 0; b < out; ++b) allocate_hot(number);
  }
  /// The end of the thread whose thread cache is `me`, apart from its current spans.
  void adopted(std::uint32_t me) {
    const Inside inside(*this);
    put_in_pool(
        protocol_.abandon_all(CacheNumber{me}, pages_.abandoned_lists.home_of(CacheNumber{me})));
  }
  /// The same for a current span: its lists go as they are, uncounted.
  void orphan_uncounted(std::uint32_t number, std::uint32_t me) {
    const Inside inside(*this);
    const Protocol::CacheGuard guard(protocol_, CacheNumber{me});
    protocol_.owned_to_abandoned(ref(number), CacheNumber{me},
                                 pages_.abandoned_lists.home_of(CacheNumber{me}));
  }
  /// Whoever counts them later, with thread cache `me`.
  void count_abandoned(std::uint32_t me) {
    const Inside inside(*this);
    const standard::OwnedSpan found =
        protocol_.uncounted_to_owned(kOrphanage, kClass, CacheNumber{me}, kMaxSpans);
    if (!found) return;
    with_remotes(found);
    if (protocol_.counted_to_abandoned(found.span, CacheNumber{me}, kOrphanage,
                                       free_of(*found.span.record))) {
      put_in_pool(found.span);
    }
  }
  /// An emptied span that was taken from the pool serves its class again,
  /// with the lists that it has.
  void make_hot_again(std::uint32_t number, std::uint32_t me) {
    Span& s = span(number);
    const SpanWord was = s.word.load_relaxed();
    s.go_on(SpanWord::make(CacheNumber{me}, SpanState::kOwned, shape_.capacity));
    with_remotes({ref(number), was.head()});
  }
  void set_heir(std::uint32_t me, CacheNumber abandoned_list) {
    pages_.abandoned_lists.numbers[me] = abandoned_list;
  }

  // --- At rest -----------------------------------------------------------------------------------
  /// Everything is where it must be. With `settled` also: no empty span is held by a thread cache.
  void check_at_rest(bool collected = true) {
    std::uint32_t pooled[kMaxSpans + 1] = {};
    for (std::uint32_t n = take_from_pool(); n != 0; n = take_from_pool()) ++pooled[n];
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) check_span(n, pooled[n], collected);
  }
  bool is_out(std::uint32_t number, std::uint32_t b) const { return out_[number][b]; }
  std::uint32_t in_pool_count() {
    std::uint32_t count = 0;
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) {
      if (span(n).word.load_relaxed().state() == SpanState::kFree) ++count;
    }
    return count;
  }

 private:
  // Remotely freed blocks go in front of the span's own list.
  std::uint32_t with_remotes(standard::OwnedSpan owned) {
    const std::uint32_t number = index_of(owned.span.number);
    if (!owned || owned.remotes == BlockOffset::kNone) return number;
    Span& s = span(number);
    Block* first = block(number, index_of(owned.remotes));
    Block* last = first;
    while (last->next() != standard::no_block()) last = last->next();
    s.free_list().prepend(first, last);
    return number;
  }
  // Of a current span, but for what others have freed.
  std::uint32_t free_of(const Span& s) const {
    std::uint32_t free_blocks = shape_.capacity - s.carved();
    for (Block* b = s.free_list().first(); b != standard::no_block(); b = b->next()) ++free_blocks;
    return free_blocks;
  }
  void touch(std::uint32_t number, std::uint32_t b) {
    contents_[number][b].set(contents_[number][b].get() + 1);
  }

  std::uint32_t number_of(std::uint32_t number, const Block* b) const {
    const auto index = static_cast<const ModelPages::PlacedBlock*>(b) - pages_.blocks[number];
    MODEL_CHECK(index >= 1 && index <= static_cast<std::ptrdiff_t>(shape_.capacity));
    return static_cast<std::uint32_t>(index);
  }
  void check_list(std::uint32_t number, Block* first, std::uint32_t length) const {
    std::uint32_t found = 0;
    for (Block* b = first; b != standard::no_block(); b = b->next()) {
      number_of(number, b);
      MODEL_CHECK(++found <= length);
    }
    MODEL_CHECK(found == length);
  }

  template <class List>
  std::uint32_t times_on(const List& list, ListId id, std::uint32_t number) {
    std::uint32_t found = 0;
    std::uint32_t steps = 0;
    for (SpanNumber at = list.first(); at != SpanNumber::kNone; at = pages_.span(at)->next()) {
      MODEL_CHECK(++steps <= kMaxSpans);
      if (index_of(at) != number) continue;
      MODEL_CHECK(span(number).list() == id);
      ++found;
    }
    return found;
  }
  std::uint32_t times_listed(std::uint32_t number, CacheNumber owner) {
    const auto& l = cache(owner);
    return times_on(l.nearly_full[index_of(kClass)], ListId::kNearlyFull, number) +
           times_on(l.full, ListId::kFull, number) + times_on(l.delayed, ListId::kDelayed, number) +
           times_on(l.partial[index_of(kClass)], ListId::kPartial, number);
  }

  void check_span(std::uint32_t n, std::uint32_t pooled, bool collected) {
    Span& s = span(n);
    const SpanWord word = s.word.load_relaxed();
    if (s.class_id() == ClassId::kNone) return;  // never used
    const std::uint32_t blocks = capacity(s.class_id());
    std::uint32_t out = 0;
    for (std::uint32_t b = 1; b <= blocks; ++b) out += out_[n][b];
    const std::uint32_t listed_anywhere = times_listed_anywhere(n);

    if (word.state() == SpanState::kFree) {
      MODEL_CHECK(pooled == 1);  // an empty span is in the pool exactly once
      MODEL_CHECK(listed_anywhere == 0);
      MODEL_CHECK(out == 0);
      return;
    }
    MODEL_CHECK(pooled == 0);  // a span in use is not in the pool
    if (s.class_id() == kSingle) {
      MODEL_CHECK(out == 1 && listed_anywhere == 0);
      return;
    }
    check_blocks(n, word);
    if (word.state() == SpanState::kOwned) {
      MODEL_CHECK(listed_anywhere == 0);
      return;
    }
    MODEL_CHECK(word.outstanding() - s.uncollected() == out + (s.is_uncounted() ? free_of(s) : 0));
    MODEL_CHECK(!s.is_uncounted() || (cache(word.owner()).is_abandoned_list() &&
                                      cache(word.owner()).uncounted.load_relaxed() != 0));
    MODEL_CHECK(listed_anywhere == 1);                // a parked span is on exactly one list,
    MODEL_CHECK(times_listed(n, word.owner()) == 1);  // and that is its owner's
    // An empty span was returned, if anybody knew
    if (collected) MODEL_CHECK(out != 0 || s.is_uncounted());
    // Whoever needs a block finds an orphan that has a free one.
    if (cache(word.owner()).is_abandoned_list() && out < blocks) {
      MODEL_CHECK(s.list() == ListId::kPartial);
      const std::uint64_t shown = pages_.abandoned_lists.of_class[index_of(kClass)].load_relaxed();
      MODEL_CHECK((shown >> index_of(word.owner()) & 1) != 0);
    }
  }

  // Every block is out, on the span's list, on its remote list, or
  // untouched; and in one place only.
  void check_blocks(std::uint32_t n, SpanWord word) {
    std::uint32_t remote = 0;
    for (std::uint32_t b = 1; b <= shape_.capacity; ++b) {
      MODEL_CHECK(places_of(n, b) == 1);
      remote += times_linked(n, first_remote(n, word), b);
    }
    // capacity = outstanding + remote + published: what is published is no longer in `outstanding`.
    MODEL_CHECK(word.outstanding() + remote <= shape_.capacity);
  }
  Block* first_remote(std::uint32_t n, SpanWord word) {
    return word.head() == BlockOffset::kNone ? standard::no_block()
                                             : block(n, index_of(word.head()));
  }
  // How often the list from `first` on has block b.
  std::uint32_t times_linked(std::uint32_t n, Block* first, std::uint32_t b) const {
    std::uint32_t times = 0;
    std::uint32_t steps = 0;
    for (Block* at = first; at != standard::no_block(); at = at->next()) {
      MODEL_CHECK(++steps <= kMaxBlocks);
      times += number_of(n, at) == b;
    }
    return times;
  }

  void name_variables() {
    for (std::uint32_t n = 1; n <= kMaxSpans; ++n) {
      constexpr const char* kWords[] = {"", "span1.word", "span2.word"};
      constexpr const char* kLeft[] = {"", "span1.left", "span2.left"};
      constexpr const char* kLists[] = {"", "span1.list", "span2.list"};
      constexpr const char* kFree[] = {"", "span1.free_list", "span2.free_list"};
      name_variable(&pages_.spans[n].word, kWords[n]);
      name_variable(&SpanTestAccess::left(pages_.spans[n]), kLeft[n]);
      name_variable(&SpanTestAccess::list(pages_.spans[n]), kLists[n]);
      name_variable(&pages_.spans[n].free_list(), kFree[n]);
      name_variable(&SpanTestAccess::size_class(pages_.spans[n]), "span.size_class");
      name_variable(&SpanTestAccess::quota(pages_.spans[n]), "span.quota");
      name_variable(&SpanTestAccess::carved(pages_.spans[n]), "span.carved");
      name_variable(&SpanTestAccess::next(pages_.spans[n]), "span.next");
      name_variable(&SpanTestAccess::previous(pages_.spans[n]), "span.prev");
      name_variable(&pages_.spans[n].pool_link, "span.pool_link");
    }
    constexpr const char* kLocks[] = {"abandoned_list.lock", "lab1.lock", "lab2.lock", "lab3.lock",
                                      "other_orphanage.lock"};
    name_variable(&pages_.abandoned_lists.of_class[index_of(kClass)], "abandoned");
    for (std::uint32_t l = 0; l < kLabs; ++l) {
      name_variable(&pages_.labs[l].lock, kLocks[l]);
      name_variable(&pages_.labs[l].has_delayed, "cache.has_delayed");
      name_variable(&pages_.labs[l].nearly_full[index_of(kClass)], "cache.nearly_full");
      name_variable(&pages_.labs[l].full, "cache.full");
      name_variable(&pages_.labs[l].delayed, "cache.delayed");
      name_variable(&pages_.labs[l].partial[index_of(kClass)], "cache.partial");
    }
    name_variable(&pool_, "pool.top");
  }

 protected:
  void believe_shown_blocks() {
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) {
      for (std::uint32_t b = 1; b <= kMaxBlocks; ++b)
        out_[n][b] = shown_out_[n][b].load_relaxed() != 0;
    }
  }
  /// In a fork's child: whether a thread vanished inside a call.
  bool someone_was_inside() const {
    bool inside = false;
    for (const Atomic<std::uint32_t>& flag : inside_) inside = inside || flag.load_relaxed() != 0;
    for (const auto& lists : pages_.labs) inside = inside || lists.lock.owner_died();
    return inside;
  }
  std::uint32_t spans() const { return shape_.spans; }
  std::uint32_t blocks_of(std::uint32_t number) { return capacity(span(number).class_id()); }
  TreiberStack& pool() { return pool_; }
  /// How often block b of a span in use is somewhere: out, on a list of the span's, or untouched.
  std::uint32_t places_of(std::uint32_t n, std::uint32_t b) {
    Span& s = span(n);
    return out_[n][b] + (b > s.carved()) + times_linked(n, s.free_list().first(), b) +
           times_linked(n, first_remote(n, s.word.load_relaxed()), b);
  }
  std::uint32_t times_listed_anywhere(std::uint32_t number) {
    std::uint32_t found = 0;
    for (std::uint32_t owner = 0; owner < kLabs; ++owner)
      found += times_listed(number, CacheNumber{owner});
    return found;
  }

 private:
  Atomic<std::uint32_t> inside_[kMaxThreads];
  ModelPages pages_;
  Protocol protocol_{pages_};
  StandardShape shape_;
  TreiberStack pool_;
  Plain<int> contents_[kMaxSpans + 1][kMaxBlocks + 1];
  bool out_[kMaxSpans + 1][kMaxBlocks + 1] = {};
  Atomic<std::uint8_t> shown_out_[kMaxSpans + 1][kMaxBlocks + 1];
};

}  // namespace spanalloc::model
