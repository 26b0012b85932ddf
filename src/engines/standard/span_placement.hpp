// On which list of its LAB a parked span stands, and getting it there and off again.
//
//   attention   another thread's free has pointed it out: its owner settles it
//   floating    few of its blocks are free
//   reusable    enough are; of an orphanage: any is
//   full        none is, and memory was out when its owner last looked
//
// Everything here is done under the lock of the LAB concerned.
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "engines/standard/lab.hpp"
#include "engines/standard/span.hpp"
#include "engines/standard/span_word.hpp"

namespace spanalloc::standard {

/// Spans that are free and their finder's alone, linked through `next`: to be put into the pool when no lock
/// is held.
struct SpanChain {
  SpanNumber first = SpanNumber::kNone;
  std::uint32_t count = 0;
  SpanNumber damaged = SpanNumber::kNone;  ///< the last one that was lost on the way: to be told after that

  bool has_nothing() const { return first == SpanNumber::kNone && damaged == SpanNumber::kNone; }
};

/// The places where a heap's orphans are, and where to look: the LABs that own what nobody owns, as many as
/// threads can end at once on this machine, 64 at most.
struct Orphanages {
  static constexpr unsigned kMost = 64;

  LabNumber numbers[kMost] = {};  ///< constant once there is a LAB
  std::uint32_t mask = 0;         ///< "; how many there are, a power of two, less one
  /// By class; bit n: orphanage numbers[n] may have a reusable span. Apart from what others read all the
  /// time.
  Atomic<std::uint64_t>* of_class = nullptr;

  /// Where a LAB leaves its spans.
  LabNumber home_of(LabNumber lab) const { return numbers[index_of(lab) & mask]; }
};

/// `Pages` (page_layer.hpp; in models a handful of spans):
///   SpanRef span(SpanNumber), Lists& lab(LabNumber)        their records
///   std::uint32_t capacity(ClassId)                        blocks of a span of that class
///   BlockMark cut_lists(SpanRef, BlockMark)                SpanThinning::cut_lists()
///   std::uint32_t reuse_outstanding(ClassId)               how many may be out of a reusable one
template <class Pages>
class SpanPlacement {
 public:
  using Lists = typename Pages::Lists;

  constexpr explicit SpanPlacement(Pages& pages) : pages_(pages) {}

  /// A parked span that is on no list, with the word that it has now: puts it where its fill belongs, under
  /// the lock of word.owner().
  void place(SpanRef span, SpanWord word) {
    Lists& lab = pages_.lab(word.owner());
    const ClassId c = span->class_id();
    const std::uint32_t capacity = pages_.capacity(c);
    SPANALLOC_ASSERT(word.state() == SpanState::kParked && word.outstanding() != 0);
    SPANALLOC_ASSERT(word.outstanding() <= capacity && capacity > 1);
    const bool orphan = lab.is_orphanage();
    // Orphans serve whoever needs a block: any free block makes them reusable.
    const std::uint32_t limit = orphan ? capacity - 1 : pages_.reuse_outstanding(c);
    if (word.outstanding() <= limit || span->uncounted) {
      span->expect_frees(word.outstanding());
      push(lab, span, ListId::kReusable);
      if (orphan) show_orphan(lab, c);
    } else {
      span->expect_frees(word.outstanding() - limit);
      push(lab, span, ListId::kFloating);
    }
  }

  /// Unless the span is on the attention list already it is on no list.
  void push_attention(Lists& lab, SpanRef span) {
    if (span->list != ListId::kAttention) push(lab, span, ListId::kAttention);
    lab.attention_waiting.store_relaxed(1);  // the lock orders it
  }

  void push(Lists& lab, SpanRef span, ListId list) {
    SPANALLOC_ASSERT(may_change(lab) && span);
    SPANALLOC_ASSERT(span->list == ListId::kNone);  // I1: on one list at most
    span->list = list;
    const ClassId c = span->class_id();
    with_list(lab, list, c, [&](auto& the_list) { the_list.push_front(span.number, links()); });
    if (list == ListId::kReusable || list == ListId::kFloating) lab.note_class(c);
  }

  void unlink(Lists& lab, SpanRef span) {
    SPANALLOC_ASSERT(may_change(lab) && span->list != ListId::kNone);
    with_list(lab, span->list, span->class_id(),
              [&](auto& the_list) { the_list.remove(span.number, links()); });
    span->list = ListId::kNone;
  }

  /// f(SpanRef) for every span on a list; f may unlink it, or chain it up.
  template <class List, class F>
  void for_each_on(const List& list, F f) {
    for (SpanNumber number = list.first(); number != SpanNumber::kNone;) {
      const SpanRef span = pages_.span(number);
      number = span->next;
      f(span);
    }
  }

  void chain(SpanChain& chain, SpanRef span) {
    SPANALLOC_ASSERT(span->list == ListId::kNone && span->load_word().state() == SpanState::kFree);
    span->next = chain.first;
    chain.first = span.number;
    ++chain.count;
  }

 protected:
  struct Links {
    Pages& pages;
    auto& next(SpanNumber number) const { return pages.span(number)->next; }
    auto& previous(SpanNumber number) const { return pages.span(number)->prev; }
  };
  Links links() const { return {pages_}; }

  // Lists are changed under their LAB's lock; in a fork's child also for one whose lock's owner vanished.
  static bool may_change(const Lists& lab) { return lab.lock.is_mine() || lab.lock.owner_died(); }

  // The look first: most of the time the bit is set, and the line stays shared. Relaxed: the bit says nothing
  // but where to look, and the lock orders it with the list (I5).
  void show_orphan(const Lists& lab, ClassId c) {
    const std::uint64_t bit = std::uint64_t{1} << (lab.orphanage - 1);
    Atomic<std::uint64_t>& orphans = lab.orphans_of_class[index_of(c)];
    if ((orphans.load_relaxed() & bit) == 0) orphans.fetch_or_relaxed(bit);
  }
  // I5, of an orphanage whose lock the calling thread has.
  bool orphans_are_shown(const Lists& lab) const {
    if (!lab.is_orphanage()) return true;
    unsigned c = 0;
    for (const auto& list : lab.reusable) {
      const bool shown =
          list.is_empty() || (lab.orphans_of_class[c].load_relaxed() >> (lab.orphanage - 1) & 1) != 0;
      if (!shown) return false;
      ++c;
    }
    return true;
  }

  Pages& pages_;

 private:
  template <class F>
  static void with_list(Lists& lab, ListId list, ClassId c, F f) {
    switch (list) {
      case ListId::kReusable:
        return f(lab.reusable[index_of(c)]);
      case ListId::kFloating:
        return f(lab.floating[index_of(c)]);
      case ListId::kFull:
        return f(lab.full);
      default:
        return f(lab.attention);
    }
  }
};

}  // namespace spanalloc::standard
