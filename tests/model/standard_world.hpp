// What surrounds the standard engine's span protocol in a model: a handful of spans of three or four blocks,
// LABs, a pool, and books about who holds which block, against which everything is checked.
//
// The protocol is the production code (span_word.hpp, span_protocol.hpp, treiber_stack.hpp, spin_lock.hpp).
// Here is only what the frontend does around it: keep hot blocks, count them, hand them out.
#pragma once

#include <cstdint>

#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_protocol.hpp"
#include "engines/virtual_span/standard/span_word.hpp"
#include "model_test.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc::model {

using standard::Block;
using standard::ListId;
using standard::Span;
using standard::SpanState;
using standard::SpanWord;

inline constexpr unsigned kClass = 1;   // spans of several blocks
inline constexpr unsigned kSingle = 2;  // spans of one block

struct StandardShape {
  unsigned spans = 1;
  std::uint32_t capacity = 3;
  std::uint32_t reuse_outstanding = 1;
  bool forks = false;  ///< a child goes by what had reached memory, not by what threads had done
};

/// Spans 1 .. spans, LABs 0 (an orphanage), 1 .. 3, and 4 (the orphanage of whom set_heir says so).
class StandardWorld {
 public:
  using Lists = standard::LabLists<3>;
  using Protocol = standard::SpanProtocol<StandardWorld>;
  static constexpr unsigned kMaxSpans = 2;
  static constexpr std::uint32_t kMaxBlocks = 4;
  static constexpr unsigned kLabs = 5;
  static constexpr std::uint32_t kOrphanage = 0, kOtherOrphanage = 4;

  struct Links {
    Atomic<std::uint32_t>& operator()(std::uint32_t number) const { return span(number).pool_link; }
  };

  /// In a call that may have a span in its hands. (The first one that ends says so: calls do not nest here.)
  struct Inside {
    Inside() { set(1); }
    ~Inside() { set(0); }
    static void set(std::uint32_t value) {
      if (modelled) current_->inside_[this_thread()].store_release(value);
    }
  };

  explicit StandardWorld(StandardShape shape) : shape_(shape) {
    current_ = this;
    name_variables();
  }

  // --- World of the protocol -----------------------------------------------------------------------------
  static Span& span(std::uint32_t number) {
    MODEL_CHECK(number >= 1 && number <= current_->shape_.spans);
    return current_->spans_[number];
  }
  static Lists& lab(std::uint32_t number) {
    MODEL_CHECK(number < kLabs);
    return current_->labs_[number];
  }
  static std::uint32_t capacity(unsigned size_class) {
    MODEL_CHECK(size_class == kClass || size_class == kSingle);
    return size_class == kSingle ? 1 : current_->shape_.capacity;
  }
  static std::uint32_t reuse_outstanding(unsigned) { return current_->shape_.reuse_outstanding; }
  static bool is_orphanage(std::uint32_t number) { return number == kOrphanage || number == kOtherOrphanage; }
  static std::uint32_t orphanage_of(std::uint32_t number) { return current_->heirs_[number]; }
  static Atomic<std::uint64_t>& orphans(unsigned size_class) {
    MODEL_CHECK(size_class == kClass);
    return current_->orphans_;
  }
  [[noreturn]] static void corrupted(std::uint32_t) { fail("the protocol says: corrupted"); }
  static void put_in_pool(std::uint32_t number) {
    // Who puts it there owns it alone, memory included.
    MODEL_CHECK(span(number).list == ListId::kNone);
    for (std::uint32_t b = 1; b <= capacity(span(number).size_class); ++b) current_->touch(number, b);
    current_->pool_.push(number, Links{});
  }
  std::uint32_t take_from_pool() { return pool_.pop(Links{}); }
  static Block* block_of_mark(std::uint32_t number, std::uint32_t mark) { return block(number, mark); }
  static bool is_mine(std::uint32_t) { return false; }  // who forks has nothing here
  static void repair_lists(std::uint32_t owner) {
    bool torn[kLabs] = {};
    for (std::uint32_t l = 0; l < kLabs; ++l) {
      torn[l] = l == owner || lab(l).lock.owner_died();
      if (torn[l]) lab(l).forget();
    }
    for (std::uint32_t n = 1; n <= current_->shape_.spans; ++n) {
      const SpanWord word{span(n).word.load_relaxed()};
      if (word.owner() != standard::kNobody && torn[word.owner()]) Protocol::relist(n);
    }
    for (std::uint32_t l = 0; l < kLabs; ++l) {
      if (torn[l] && l != owner) lab(l).lock.reset();
    }
  }

  // --- What threads do -----------------------------------------------------------------------------------
  static Block* block(std::uint32_t number, std::uint32_t b) { return &current_->blocks_[number][b]; }

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
  /// The same for blocks first .. first + count - 1, gathered and given back in one step.
  void free_run(std::uint32_t number, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t b = first; b < first + count; ++b) {
      let_go(number, b);
      if (b != first) link_to(block(number, b), block(number, b - 1));
    }
    const auto link = [&](std::uint32_t head) {
      link_to(block(number, first), head == 0 ? standard::no_block() : block(number, head));
    };
    MODEL_CHECK(Protocol::free_remote(number, first + count - 1, link, count));
  }
  /// free() as the frontend does it, by the thread whose LAB is `me`.
  void free_any(std::uint32_t number, std::uint32_t b, std::uint32_t me) {
    Span& s = span(number);
    const SpanWord word{s.word.load_relaxed()};
    MODEL_CHECK(word.state() != SpanState::kFree);
    if (word.identity() == SpanWord::identity_of(me, SpanState::kParked)) {
      let_go(number, b);
      Protocol::free_parked(s, number, word, block(number, b));
    } else if (word.identity() == SpanWord::identity_of(me, SpanState::kHot)) {
      let_go(number, b);
      link_to(block(number, b), s.free_list.load_relaxed());
      s.free_list.store_relaxed(block(number, b));
    } else {
      free_remote(number, b);
    }
  }
  /// malloc() from the hot span `number`: a block of its list, else one never carved, else of its remote
  /// list. Returns 0 when it has none.
  std::uint32_t allocate_hot(std::uint32_t number) {
    Span& s = span(number);
    if (s.free_list.load_relaxed() == standard::no_block() && s.carved.load_relaxed() == shape_.capacity) {
      std::uint32_t count = 0;
      const std::uint32_t head = standard::take_remotes(s.word, shape_.capacity, count);
      if (head != 0) s.free_list.store_relaxed(block(number, head));
      check_list(number, s.free_list.load_relaxed(), count);
    }
    std::uint32_t b = 0;
    if (s.free_list.load_relaxed() != standard::no_block()) {
      Block* first = s.free_list.load_relaxed();
      s.free_list.store_relaxed(next_of(first));
      b = number_of(number, first);
    } else if (s.carved.load_relaxed() < shape_.capacity) {
      s.carved.store_relaxed(s.carved.load_relaxed() + 1);
      b = s.carved.load_relaxed();
    }
    if (b != 0) hand_out(number, b);
    return b;
  }
  /// The frontend's way out of a hot span: counts what is free in it and parks it.
  void park(std::uint32_t number, std::uint32_t me) {
    Span& s = span(number);
    std::uint32_t free_blocks = shape_.capacity - s.carved.load_relaxed();
    for (Block* b = s.free_list.load_relaxed(); b != standard::no_block(); b = next_of(b)) ++free_blocks;
    const Inside inside;
    Protocol::hot_to_parked(number, me, free_blocks);
  }
  /// The frontend's search for a reusable span: own ones, then orphans. 0: none.
  std::uint32_t find_reusable(std::uint32_t me) {
    const Inside inside;
    Protocol::settle_attention(me);
    std::uint32_t remote_head = 0;
    std::uint32_t number = Protocol::reusable_to_hot(kClass, me, remote_head);
    if (number == 0) number = Protocol::orphan_to_hot(kClass, me, remote_head);
    return with_remotes(number, remote_head);
  }
  /// The frontend's last resorts when memory is out: orphans, waiting for them; its own floating spans.
  std::uint32_t find_orphan_waiting(std::uint32_t me) {
    const Inside inside;
    std::uint32_t remote_head = 0;
    const std::uint32_t number = Protocol::orphan_to_hot(kClass, me, remote_head, true);
    return with_remotes(number, remote_head);
  }
  std::uint32_t find_floating(std::uint32_t me) {
    const Inside inside;
    std::uint32_t remote_head = 0;
    const std::uint32_t number = Protocol::floating_to_hot(kClass, me, remote_head);
    return with_remotes(number, remote_head);
  }
  /// A span that comes from the pool or was never used becomes hot.
  void make_hot(std::uint32_t number, std::uint32_t me) {
    Span& s = span(number);
    s.size_class = kClass;
    s.carved.store_relaxed(0);
    s.free_list.store_relaxed(standard::no_block());
    s.unpublished.store_relaxed(0);
    s.list = ListId::kNone;
    s.word.store_release(SpanWord::make(me, SpanState::kHot, shape_.capacity).bits);
  }
  /// The same for a span of one block, which is handed out at once.
  void make_single(std::uint32_t number) {
    Span& s = span(number);
    s.size_class = kSingle;
    s.unpublished.store_relaxed(0);
    s.list = ListId::kNone;
    s.word.store_release(SpanWord::make(standard::kNobody, SpanState::kParked, 1).bits);
    hand_out(number, 1);
  }
  /// Before the threads start: a span of LAB `me`, parked, with blocks 1 .. out handed out.
  void start_parked(std::uint32_t number, std::uint32_t me, std::uint32_t out) {
    start_hot(number, me, out);
    park(number, me);
  }
  void start_hot(std::uint32_t number, std::uint32_t me, std::uint32_t out) {
    make_hot(number, me);
    for (std::uint32_t b = 0; b < out; ++b) allocate_hot(number);
  }
  /// The end of the thread whose LAB is `me`, apart from its hot spans.
  void orphan(std::uint32_t me) {
    const Inside inside;
    Protocol::orphan_all(me);
  }
  void set_heir(std::uint32_t me, std::uint32_t orphanage) { heirs_[me] = orphanage; }

  // --- At rest -------------------------------------------------------------------------------------------
  /// Everything is where it must be. With `settled` also: no empty span is held by a LAB.
  void check_at_rest(bool settled = true) {
    std::uint32_t pooled[kMaxSpans + 1] = {};
    for (std::uint32_t n = take_from_pool(); n != 0; n = take_from_pool()) ++pooled[n];
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) check_span(n, pooled[n], settled);
  }
  bool is_out(std::uint32_t number, std::uint32_t b) const { return out_[number][b]; }
  std::uint32_t in_pool_count() {
    std::uint32_t count = 0;
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) {
      if (SpanWord{span(n).word.load_relaxed()}.state() == SpanState::kFree) ++count;
    }
    return count;
  }

 private:
  // Remotely freed blocks go in front of the span's own list.
  std::uint32_t with_remotes(std::uint32_t number, std::uint32_t remote_head) {
    if (number == 0 || remote_head == 0) return number;
    Span& s = span(number);
    Block* last = block(number, remote_head);
    while (next_of(last) != standard::no_block()) last = next_of(last);
    link_to(last, s.free_list.load_relaxed());
    s.free_list.store_relaxed(block(number, remote_head));
    return number;
  }

  void touch(std::uint32_t number, std::uint32_t b) {
    contents_[number][b].set(contents_[number][b].get() + 1);
  }

  std::uint32_t number_of(std::uint32_t number, const Block* b) const {
    const auto index = b - blocks_[number];
    MODEL_CHECK(index >= 1 && index <= static_cast<std::ptrdiff_t>(shape_.capacity));
    return static_cast<std::uint32_t>(index);
  }
  void check_list(std::uint32_t number, Block* first, std::uint32_t length) const {
    std::uint32_t found = 0;
    for (Block* b = first; b != standard::no_block(); b = next_of(b)) {
      number_of(number, b);
      MODEL_CHECK(++found <= length);
    }
    MODEL_CHECK(found == length);
  }

  static std::uint32_t times_listed(std::uint32_t number, std::uint32_t head, ListId list) {
    std::uint32_t found = 0;
    for (std::uint32_t steps = 0; head != 0; head = span(head).next) {
      MODEL_CHECK(++steps <= kMaxSpans);
      if (head != number) continue;
      MODEL_CHECK(span(number).list == list);
      ++found;
    }
    return found;
  }
  static std::uint32_t times_listed(std::uint32_t number, std::uint32_t owner) {
    const Lists& l = lab(owner);
    return times_listed(number, l.floating[kClass], ListId::kFloating) +
           times_listed(number, l.full, ListId::kFull) +
           times_listed(number, l.attention, ListId::kAttention) +
           times_listed(number, l.reusable[kClass].load_relaxed(), ListId::kReusable);
  }

  void check_span(std::uint32_t n, std::uint32_t pooled, bool settled) {
    Span& s = span(n);
    const SpanWord word{s.word.load_relaxed()};
    if (s.size_class == 0) return;  // never used
    const std::uint32_t blocks = capacity(s.size_class);
    std::uint32_t out = 0;
    for (std::uint32_t b = 1; b <= blocks; ++b) out += out_[n][b];
    std::uint32_t listed_anywhere = 0;
    for (std::uint32_t owner = 0; owner < kLabs; ++owner) listed_anywhere += times_listed(n, owner);

    if (word.state() == SpanState::kFree) {
      MODEL_CHECK(pooled == 1);  // an empty span is in the pool exactly once
      MODEL_CHECK(listed_anywhere == 0);
      MODEL_CHECK(out == 0);
      return;
    }
    MODEL_CHECK(pooled == 0);  // a span in use is not in the pool
    if (s.size_class == kSingle) {
      MODEL_CHECK(out == 1 && listed_anywhere == 0);
      return;
    }
    check_blocks(n, word);
    if (word.state() == SpanState::kHot) {
      MODEL_CHECK(listed_anywhere == 0);
      return;
    }
    MODEL_CHECK(word.outstanding() - s.unpublished.load_relaxed() == out);
    MODEL_CHECK(listed_anywhere == 1);                // a parked span is on exactly one list,
    MODEL_CHECK(times_listed(n, word.owner()) == 1);  // and that is its owner's
    if (settled) MODEL_CHECK(out != 0);               // an empty span was returned
    // Whoever needs a block finds an orphan that has a free one.
    if (is_orphanage(word.owner()) && out < blocks) {
      MODEL_CHECK(s.list == ListId::kReusable);
      MODEL_CHECK((orphans_.load_relaxed() >> word.owner() & 1) != 0);
    }
  }

  // Every block is out, on the span's list, on its remote list, or untouched; and in one place only.
  void check_blocks(std::uint32_t n, SpanWord word) {
    Span& s = span(n);
    std::uint32_t places[kMaxBlocks + 1] = {};
    for (std::uint32_t b = 1; b <= shape_.capacity; ++b) places[b] += out_[n][b];
    for (std::uint32_t b = s.carved.load_relaxed() + 1; b <= shape_.capacity; ++b) ++places[b];
    for (Block* b = s.free_list.load_relaxed(); b != standard::no_block(); b = next_of(b))
      MODEL_CHECK(++places[number_of(n, b)] == 1);
    std::uint32_t remote = 0;
    if (word.head() != 0) {
      for (Block* b = block(n, word.head()); b != standard::no_block(); b = next_of(b)) {
        MODEL_CHECK(++places[number_of(n, b)] == 1);
        ++remote;
      }
    }
    for (std::uint32_t b = 1; b <= shape_.capacity; ++b) MODEL_CHECK(places[b] == 1);
    // capacity = outstanding + remote + published: what is published is no longer in `outstanding`.
    MODEL_CHECK(word.outstanding() + remote <= shape_.capacity);
  }

  void name_variables() {
    for (std::uint32_t n = 1; n <= kMaxSpans; ++n) {
      constexpr const char* kWords[] = {"", "span1.word", "span2.word"};
      constexpr const char* kUnpublished[] = {"", "span1.unpublished", "span2.unpublished"};
      constexpr const char* kLists[] = {"", "span1.list", "span2.list"};
      constexpr const char* kFree[] = {"", "span1.free_list", "span2.free_list"};
      name_variable(&spans_[n].word, kWords[n]);
      name_variable(&spans_[n].unpublished, kUnpublished[n]);
      name_variable(&spans_[n].list, kLists[n]);
      name_variable(&spans_[n].free_list, kFree[n]);
      name_variable(&spans_[n].size_class, "span.size_class");
      name_variable(&spans_[n].floor, "span.floor");
      name_variable(&spans_[n].carved, "span.carved");
      name_variable(&spans_[n].next, "span.next");
      name_variable(&spans_[n].prev, "span.prev");
      name_variable(&spans_[n].pool_link, "span.pool_link");
    }
    constexpr const char* kLocks[] = {"orphanage.lock", "lab1.lock", "lab2.lock", "lab3.lock",
                                      "other_orphanage.lock"};
    name_variable(&orphans_, "orphans");
    for (std::uint32_t l = 0; l < kLabs; ++l) {
      name_variable(&labs_[l].lock, kLocks[l]);
      name_variable(&labs_[l].attention_waiting, "lab.attention_waiting");
      name_variable(&labs_[l].floating[kClass], "lab.floating");
      name_variable(&labs_[l].full, "lab.full");
      name_variable(&labs_[l].attention, "lab.attention");
      name_variable(&labs_[l].reusable[kClass], "lab.reusable");
    }
    name_variable(&pool_, "pool.top");
  }

 protected:
  void believe_shown_blocks() {
    for (std::uint32_t n = 1; n <= shape_.spans; ++n) {
      for (std::uint32_t b = 1; b <= kMaxBlocks; ++b) out_[n][b] = shown_out_[n][b].load_relaxed() != 0;
    }
  }
  /// In a fork's child: whether a thread vanished inside a call.
  bool someone_was_inside() const {
    bool inside = false;
    for (const Atomic<std::uint32_t>& flag : inside_) inside = inside || flag.load_relaxed() != 0;
    for (const Lists& lists : labs_) inside = inside || lists.lock.owner_died();
    return inside;
  }
  std::uint32_t spans() const { return shape_.spans; }
  std::uint32_t blocks_of(std::uint32_t number) { return capacity(span(number).size_class); }
  TreiberStack& pool() { return pool_; }
  /// How often block b of a span in use is somewhere: out, on a list of the span's, or untouched.
  std::uint32_t places_of(std::uint32_t n, std::uint32_t b) {
    Span& s = span(n);
    std::uint32_t places = out_[n][b] + (b > s.carved.load_relaxed());
    std::uint32_t steps = 0;
    for (Block* at = s.free_list.load_relaxed(); at != standard::no_block(); at = next_of(at)) {
      MODEL_CHECK(++steps <= kMaxBlocks);
      places += number_of(n, at) == b;
    }
    const std::uint32_t head = SpanWord{s.word.load_relaxed()}.head();
    steps = 0;
    for (Block* at = head == 0 ? standard::no_block() : block(n, head); at != standard::no_block();
         at = next_of(at)) {
      MODEL_CHECK(++steps <= kMaxBlocks);
      places += number_of(n, at) == b;
    }
    return places;
  }
  static std::uint32_t times_listed_anywhere(std::uint32_t number) {
    std::uint32_t found = 0;
    for (std::uint32_t owner = 0; owner < kLabs; ++owner) found += times_listed(number, owner);
    return found;
  }

 private:
  static inline StandardWorld* current_ = nullptr;
  Atomic<std::uint32_t> inside_[kMaxThreads];
  StandardShape shape_;
  Span spans_[kMaxSpans + 1]{};
  Lists labs_[kLabs];
  Atomic<std::uint64_t> orphans_{0};
  std::uint32_t heirs_[kLabs] = {};
  TreiberStack pool_;
  Block blocks_[kMaxSpans + 1][kMaxBlocks + 1] = {};
  Plain<int> contents_[kMaxSpans + 1][kMaxBlocks + 1];
  bool out_[kMaxSpans + 1][kMaxBlocks + 1] = {};
  Atomic<std::uint8_t> shown_out_[kMaxSpans + 1][kMaxBlocks + 1];
};

}  // namespace spanalloc::model
