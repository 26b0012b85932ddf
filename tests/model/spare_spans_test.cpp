// standard/cached_large_spans.hpp under the checker: a span of one block is in one pair of
// hands at a time, whoever keeps, takes and steals it, and what one did to its memory happens
// before what the next does.
#include "standard/cached_large_spans.hpp"

#include "model_test.hpp"
#include "span_access.hpp"

namespace spanalloc::model {
namespace {

using standard::CacheNumber;
using standard::ClassId;
using standard::Span;
using standard::SpanWord;

constexpr ClassId kSmall{1}, kHuge{2};
constexpr CacheNumber kLabs[] = {CacheNumber{0}, CacheNumber{1}};

template <class LargeSpans>
struct SpareWorld {
  Span spans[2]{};
  Plain<std::uint32_t> contents[2];
  LargeSpans large_spans[2];

  SpareWorld() {
    for (unsigned cache = 0; cache < 2; ++cache) large_spans[cache].start(kLabs[cache]);
    for (Span& span : spans) {
      standard::SpanTestAccess::shown_class(span).store_relaxed(1);
      span.word.set(standard::kLargeInUse);
    }
  }
  unsigned index(const Span& span) const { return static_cast<unsigned>(&span - spans); }
  // Whoever has the span writes to its memory: a race if somebody else has it, too.
  void use(Span& span) { contents[index(span)] = contents[index(span)] + 1; }
  void free(unsigned cache, unsigned n) {
    use(spans[n]);
    MODEL_CHECK(large_spans[cache].keep(spans[n], 1));
  }
  static unsigned slices(const Span&) { return 1; }
  Span* allocate(unsigned cache, ClassId c = kSmall) {
    Span* span = large_spans[cache].take_youngest(c);
    if (span == nullptr) span = large_spans[cache].take(c, slices);
    if (span == nullptr) return nullptr;
    MODEL_CHECK(span->shown_class() == c);
    use(*span);
    return span;
  }
  // As a tick of the decay clock: to be given to somebody else, as another class.
  Span* steal(unsigned cache) {
    Span* stolen = nullptr;
    large_spans[cache].for_each([&](Span& span) {
      if (stolen != nullptr || !large_spans[cache].take_away(span)) return;
      stolen = &span;
      use(span);
    });
    return stolen;
  }
  static void begin_life(Span& span, ClassId c) {
    standard::SpanTestAccess::shown_class(span).store_relaxed(
        static_cast<std::uint8_t>(index_of(c)));
    span.word.set(standard::kLargeInUse);
  }
  // Each span is in use, taken, or somebody's spare at one place.
  void check_at_rest() {
    for (Span& span : spans) {
      unsigned places = 0;
      for (LargeSpans& s : large_spans) s.for_each([&](Span& at) { places += &at == &span; });
      const SpanWord word = span.load_word();
      const bool large =
          word == standard::cached_of(kLabs[0]) || word == standard::cached_of(kLabs[1]);
      MODEL_CHECK(places == (large ? 1u : 0u));
      MODEL_CHECK(large || word == standard::kLargeInUse || word == standard::kLargeFree);
    }
  }
};

using LargeSpans = standard::CachedLargeSpans<2>;

// One thread frees and allocates, two others steal.
struct OwnerAndThieves : SpareWorld<LargeSpans> {
  static constexpr unsigned kThreads = 3;
  void thread(unsigned self) {
    if (self != 0) {
      steal(0);
      return;
    }
    free(0, 0);
    free(0, 1);
    if (Span* span = allocate(0); span != nullptr) free(0, index(*span));
    allocate(0);
    allocate(0);
  }
  void at_rest() { check_at_rest(); }
};

// The owner's older half goes to the pool (here: to the owner itself, who takes
// it back as large_spans).
struct OlderOnesLeave : SpareWorld<LargeSpans> {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self != 0) {
      steal(0);
      return;
    }
    free(0, 0);
    free(0, 1);
    Span* left = nullptr;
    large_spans[0].let_go_of_older(slices, [&](Span& span) {
      MODEL_CHECK(left == nullptr);  // two are kept, half of the room is one
      left = &span;
      use(span);
    });
    MODEL_CHECK(large_spans[0].has_room_for(1));
    if (left != nullptr) MODEL_CHECK(large_spans[0].add(*left, 1));
    allocate(0);
  }
  void at_rest() { check_at_rest(); }
};

// What is stolen becomes another class's, and the other thread cache's spare, while its
// former owner looks for it.
template <class TheSpares>
struct StolenAndKeptElsewhere : SpareWorld<TheSpares> {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 0) {
      this->free(0, 0);
      this->allocate(0);
      return;
    }
    Span* span = this->steal(0);
    if (span == nullptr) return;
    this->begin_life(*span, kHuge);
    this->use(*span);
    MODEL_CHECK(this->large_spans[1].keep(*span, 1));
    this->allocate(1, kHuge);
  }
  void at_rest() { this->check_at_rest(); }
};

// It comes back to the thread that it was stolen from, as another class.
struct StolenAndBack : SpareWorld<LargeSpans> {
  static constexpr unsigned kThreads = 2;
  Atomic<std::uint32_t> handed;
  void thread(unsigned self) {
    if (self == 0) {
      free(0, 0);
      if (handed.load_acquire() != 0) free(0, 0);
      allocate(0, kSmall);
      allocate(0, kHuge);
      return;
    }
    Span* span = steal(0);
    if (span == nullptr) return;
    begin_life(*span, kHuge);
    handed.store_release(1);
  }
  void at_rest() { check_at_rest(); }
};

// A block is freed twice at once, by two threads: one of them finds out.
struct FreedTwiceAtOnce : SpareWorld<LargeSpans> {
  static constexpr unsigned kThreads = 2;
  Atomic<std::uint32_t> kept;
  void thread(unsigned self) { kept.fetch_add_relaxed(large_spans[self].keep(spans[0], 1)); }
  void at_rest() {
    MODEL_CHECK(kept.load_relaxed() == 1);
    check_at_rest();
  }
};

// One that has room for it, and one that has not.
struct FreedTwiceAtOnceWithoutRoom : SpareWorld<LargeSpans> {
  static constexpr unsigned kThreads = 2;
  Atomic<std::uint32_t> freed;
  void thread(unsigned self) {
    if (self == 0)
      return static_cast<void>(freed.fetch_add_relaxed(large_spans[0].keep(spans[0], 1)));
    if (!LargeSpans::claim_in_use(spans[0])) return;
    use(spans[0]);
    freed.fetch_add_relaxed(1);
  }
  void at_rest() {
    MODEL_CHECK(freed.load_relaxed() == 1);
    check_at_rest();
  }
};

// One word for the large_spans of all thread caches: a stale place takes what is
// another thread cache's by now.
struct OneWordForAll : LargeSpans {
  void start(CacheNumber) { LargeSpans::start(kLabs[0]); }
};
using WithAWordEach = StolenAndKeptElsewhere<LargeSpans>;
using WithOneWord = StolenAndKeptElsewhere<OneWordForAll>;

TEST(CachedLargeSpans, OneWordForAllLabsIsFoundOut) {
  EXPECT_FINDS(WithOneWord, "== c", {.memory = MemoryModel::interleaving, .preemptions = 3});
}

TEST(CachedLargeSpans, ASpanIsInOnePairOfHands) {
  EXPECT_HOLDS_EVERYWHERE(OwnerAndThieves, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OlderOnesLeave, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(WithAWordEach, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(StolenAndBack, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(FreedTwiceAtOnce, 6, 6);
  EXPECT_HOLDS_EVERYWHERE(FreedTwiceAtOnceWithoutRoom, 6, 6);
}

}  // namespace
}  // namespace spanalloc::model
