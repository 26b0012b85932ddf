// The known failures of the published scheme, one test each: first a literal miniature of Listing 3
// that fails in the named interleaving, then the engine in the same one.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <future>
#include <set>

#include "child.hpp"
#include "papers/scalloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using scalloc::Span;
using scalloc::State;
using scalloc::Step;

// Listing 3 in single steps: state and counts in separate words, transitions by epoch.
struct NaiveSpan {
  int blocks;
  int local = 0;
  int remote = 0;
  State state = State::kFloating;
  unsigned epoch = 0;
  bool in_set = false;
  bool in_pool = false;
  bool set_open = true;

  int free_blocks() const { return local + remote; }
  bool over_threshold() const { return free_blocks() * 100 > blocks * 80; }
  bool try_mark(unsigned old_epoch, State next) {
    if (epoch != old_epoch) return false;
    ++epoch;
    state = next;
    return true;
  }
  void put_into_set() { in_set = in_set || set_open; }
  // Lines 114 to 122, with the epoch read before the free.
  void after_free(unsigned old_epoch) {
    if (over_threshold() && state != State::kReusable && try_mark(old_epoch, State::kReusable))
      put_into_set();
    if (free_blocks() == blocks && try_mark(old_epoch, State::kFree)) {
      in_set = false;
      in_pool = true;
    }
  }
  bool lost() const { return free_blocks() == blocks && !in_set && !in_pool; }
};

class ScallocTraps : public testing::Test {
 protected:
  using Config = HookedConfig<>;

  void expect_nothing_held() { EXPECT_EQ(test::leftovers(*heap), ""); }

  OwnHeap<Config> heap;
};

// One thread marks a span reusable; before it links it, another frees the last block.
TEST_F(ScallocTraps, LastFreeBetweenMarkingReusableAndLinking) {
  NaiveSpan naive{.blocks = 10, .local = 9};
  ASSERT_TRUE(naive.try_mark(naive.epoch, State::kReusable));  // first thread stops before line 116
  const unsigned epoch = naive.epoch;
  ++naive.remote;
  naive.after_free(epoch);
  naive.put_into_set();  // the first thread goes on
  EXPECT_TRUE(naive.in_pool && naive.in_set) << "the naive span must be in both";

  const auto blocks = make_floating_span(*heap, 256);
  for (int i = 0; i < 101; ++i) heap->deallocate(blocks[static_cast<std::size_t>(i)]);
  Span* span = span_of(blocks[0]);
  Config::arm(Step::kBeforeListing, [&](Span* s) {
    EXPECT_EQ(s, span);
    on_another_thread([&] {
      for (std::size_t i = 102; i < 127; ++i) heap->deallocate(blocks[i]);
    });
    EXPECT_EQ(span->load_word().state(), State::kFree);
  });
  on_another_thread([&] { heap->deallocate(blocks[101]); });
  EXPECT_TRUE(Config::fired());
  EXPECT_EQ(span->set_list, scalloc::SetList::kNone);
  EXPECT_EQ(heap->census().pooled, 1u);
  heap->deallocate(blocks[127]);
  expect_nothing_held();
}

// The same the other way round: the span is claimed, but still linked, when
// its owner looks for one.
TEST_F(ScallocTraps, OwnerMeetsASpanThatIsBeingReturned) {
  const auto blocks = make_floating_span(*heap, 256);
  Span* span = span_of(blocks[0]);
  for (std::size_t i = 0; i < 126; ++i) heap->deallocate(blocks[i]);
  ASSERT_EQ(span->load_word().state(), State::kReusable);
  std::promise<void> claimed;
  std::promise<void> go_on;
  Config::arm(Step::kAfterClaim, [&](Span* s) {
    EXPECT_EQ(s, span);
    claimed.set_value();
    go_on.get_future().wait();
  });
  std::thread claimer([&] { heap->deallocate(blocks[126]); });
  claimed.get_future().wait();
  // More than the hot span has left: the owner searches its set, where the span is still linked.
  std::vector<void*> taken;
  for (int i = 0; i < 127; ++i) taken.push_back(heap->allocate(256));
  for (void* p : taken) EXPECT_NE(span_of(p), span);
  go_on.set_value();
  claimer.join();
  EXPECT_EQ(heap->census().pooled, 1u);
  for (void* p : taken) heap->deallocate(p);
  heap->deallocate(blocks[127]);
  expect_nothing_held();
}

// The owner's last free and a remote last free each look before they can see the
// other's (store buffering).
TEST_F(ScallocTraps, TwoLastFreesMissEachOther) {
  NaiveSpan naive{.blocks = 3, .local = 1};
  const int seen_by_owner = naive.local + 1 + naive.remote;  // its load ran ahead of its store
  const int seen_by_remote = naive.local + naive.remote + 1;
  ++naive.local;
  ++naive.remote;
  EXPECT_LT(seen_by_owner, naive.blocks);
  EXPECT_LT(seen_by_remote, naive.blocks);
  EXPECT_TRUE(naive.lost()) << "nobody takes the naive span";

  auto blocks = make_floating_span(*heap, 512 * kKiB);
  Span* span = span_of(blocks[0]);
  heap->deallocate(blocks[0]);
  on_another_thread([&] { heap->deallocate(blocks[1]); });  // sees one local free
  // Sees no remote free: does nothing more
  ScallocTestAccess::push_local_unseen<Config>(blocks[2]);
  EXPECT_EQ(heap->census().empty_idle, 1u) << "the interleaving must hide the span at first";
  EXPECT_EQ(span->set_list, scalloc::SetList::kSuspects);
  // The owner's next search of the class finds it.
  std::set<Span*> used;
  std::vector<void*> again;
  for (int i = 0; i < 3; ++i) again.push_back(heap->allocate(512 * kKiB));
  for (void* p : again) used.insert(span_of(p));
  EXPECT_EQ(used.count(span), 1u);
  EXPECT_EQ(heap->census().empty_idle, 0u);
  for (void* p : again) heap->deallocate(p);
  heap->deallocate(blocks[3]);
  expect_nothing_held();
}

// The same, found by a trim from a thread that does not own the span.
TEST_F(ScallocTraps, TrimFindsWhatTwoLastFreesMissed) {
  auto blocks = make_floating_span(*heap, 512 * kKiB);
  heap->deallocate(blocks[0]);
  on_another_thread([&] { heap->deallocate(blocks[1]); });
  ScallocTestAccess::push_local_unseen<Config>(blocks[2]);
  on_another_thread([&] { heap->trim(); });
  EXPECT_EQ(heap->census().empty_idle, 0u);
  EXPECT_EQ(heap->census().pooled, 1u);
  heap->deallocate(blocks[3]);
  expect_nothing_held();
}

// Adoption is a transition: a free that adopts must still return or list the span,
// and in its new owner's set.
TEST_F(ScallocTraps, AdoptionKeepsTheFreeGoing) {
  NaiveSpan naive{.blocks = 1};
  const unsigned epoch = naive.epoch;
  ++naive.local;
  ++naive.epoch;            // line 113: adoption
  naive.after_free(epoch);  // and lines 115, 119 with the stale epoch
  EXPECT_TRUE(naive.lost());
  NaiveSpan closed{.blocks = 10, .local = 8, .set_open = false};
  ++closed.local;
  closed.after_free(closed.epoch);  // line 116 puts into the old owner's set
  EXPECT_TRUE(closed.state == State::kReusable && !closed.in_set) << "reusable, and in no set";

  std::vector<void*> single;
  std::vector<void*> many;
  on_another_thread([&] {
    single = make_floating_span(*heap, kMiB);
    many = make_floating_span(*heap, 256);
  });
  ASSERT_EQ(heap->census().pooled, 0u);
  heap->deallocate(single[0]);
  EXPECT_EQ(heap->census().pooled, 1u) << "an orphan's only block";
  for (std::size_t i = 0; i < 110; ++i) heap->deallocate(many[i]);
  Span* span = span_of(many[0]);
  EXPECT_EQ(span->load_word().state(), State::kReusable);
  ASSERT_NE(ScallocTestAccess::lab(*heap), nullptr);
  EXPECT_EQ(span->owner.load_relaxed(), ScallocTestAccess::lab(*heap)->owner_word());
  void* p = heap->allocate(256);
  EXPECT_EQ(span_of(p), span) << "found in the adopter's set";
  heap->deallocate(p);
  heap->deallocate(single[1]);
  for (std::size_t i = 110; i < many.size(); ++i) heap->deallocate(many[i]);
  expect_nothing_held();
}

// Two threads meet an orphan at once; only one adopts, both frees count.
TEST_F(ScallocTraps, TwoAdopters) {
  std::vector<void*> blocks;
  on_another_thread([&] { blocks = make_floating_span(*heap, 512 * kKiB); });
  Config::arm(Step::kBeforeAdopting,
              [&](Span*) { on_another_thread([&] { heap->deallocate(blocks[1]); }); });
  heap->deallocate(blocks[0]);
  EXPECT_TRUE(Config::fired());
  heap->deallocate(blocks[2]);
  EXPECT_EQ(heap->census().pooled, 1u);
  heap->deallocate(blocks[3]);
  expect_nothing_held();
}

// With few blocks a span one free makes it both reusable and empty.
TEST_F(ScallocTraps, OneFreeCrossesReusableAndEmpty) {
  NaiveSpan naive{.blocks = 1};
  const unsigned epoch = naive.epoch;
  ++naive.local;
  naive.after_free(epoch);
  EXPECT_FALSE(naive.in_pool) << "the second transition fails on the first one's epoch";

  for (const std::size_t size : {std::size_t{kMiB}, 512 * kKiB, 128 * kKiB, 64 * kKiB}) {
    for (const bool remote : {false, true}) {
      const auto blocks = make_floating_span(*heap, size);
      const std::size_t pooled = heap->census().pooled;
      for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
        if (remote) {
          on_another_thread([&] { heap->deallocate(blocks[i]); });
        } else {
          heap->deallocate(blocks[i]);
        }
      }
      EXPECT_EQ(heap->census().pooled, pooled + 1) << size << (remote ? " remote" : " local");
      heap->deallocate(blocks.back());
    }
  }
  expect_nothing_held();
}

// A thread ends with an empty hot span: no free will follow that could return it.
TEST_F(ScallocTraps, ThreadEndsWithAnEmptyHotSpan) {
  NaiveSpan naive{.blocks = 10, .local = 10, .state = State::kHot};
  naive.try_mark(naive.epoch, State::kFloating);  // line 127
  EXPECT_TRUE(naive.lost());

  on_another_thread([&] {
    heap->deallocate(heap->allocate(100));
    heap->deallocate(heap->allocate(100000));
    on_another_thread([&, p = heap->allocate(300)] { heap->deallocate(p); });
  });
  const scalloc::Census census = heap->census();
  EXPECT_EQ(census.carved, 3u);
  EXPECT_EQ(census.pooled, 3u);
}

// Blocks come back from other threads between the owner's look at the remote
// list and hot -> floating.
TEST_F(ScallocTraps, RemoteFreesWhileTheHotSpanIsGivenUp) {
  NaiveSpan naive{.blocks = 10, .state = State::kHot};
  const bool refills = naive.over_threshold();  // line 98: no
  for (int i = 0; i < 10; ++i) ++naive.remote;  // each sees "hot" and does nothing (section 3.4)
  if (!refills) naive.try_mark(naive.epoch, State::kFloating);
  EXPECT_TRUE(naive.lost());

  for (const std::size_t size : {std::size_t{kMiB}, std::size_t{256}}) {
    std::vector<void*> blocks;
    const std::size_t count = scalloc::info(scalloc::class_of(size)).blocks;
    while (blocks.size() < count) blocks.push_back(heap->allocate(size));
    Config::arm(Step::kBeforeFloating, [&](Span*) {
      on_another_thread([&] {
        for (void* p : blocks) heap->deallocate(p);
      });
    });
    void* p = heap->allocate(size);
    EXPECT_TRUE(Config::fired());
    EXPECT_EQ(span_of(p), span_of(blocks[0]));
    heap->deallocate(p);
  }
  EXPECT_EQ(heap->census().carved, 2u);
  expect_nothing_held();
}

// In a child: the first four blocks fill a span that floats, one of them is free, and nothing else
// is to be had.
std::vector<void*> make_last_floating_span(scalloc::Heap<HookedConfig<>>& heap) {
  setenv("SPANALLOC_ARENA_BITS", "30", 1);
  std::vector<void*> blocks = make_floating_span(heap, 128 * kKiB);
  while (heap.allocate(kMiB) != nullptr) {
  }
  while (heap.allocate(128 * kKiB) != nullptr) {
  }
  heap.deallocate(blocks[0]);
  return blocks;
}

// Memory is out: between a thread's look at a floating span and its taking it another thread frees
// the last block, and a third one begins the span's next life, with smaller blocks.
TEST_F(ScallocTraps, TheLastBlockGoesBeforeTheSpanIsTaken) {
  NaiveSpan naive{.blocks = 4, .local = 1};
  const bool takes = naive.free_blocks() > 0 && naive.state == State::kFloating;
  naive.remote = 3;
  naive.after_free(naive.epoch);
  naive = {.blocks = 8, .local = 1, .epoch = naive.epoch + 1};  // as another thread's
  EXPECT_TRUE(takes && naive.try_mark(naive.epoch, State::kHot)) << "loads the epoch anew";

  test::in_child([&] {
    const auto blocks = make_last_floating_span(*heap);
    std::vector<void*> smaller;
    Config::arm(Step::kBeforeTaking, [&](Span* span) {
      EXPECT_EQ(span, span_of(blocks[0]));
      on_another_thread([&] {
        for (std::size_t i = 1; i < 4; ++i) heap->deallocate(blocks[i]);
      });
      on_another_thread([&] {
        while (void* p = heap->allocate(64 * kKiB)) smaller.push_back(p);
        heap->deallocate(smaller.back());
        smaller.pop_back();
      });
    });
    EXPECT_EQ(heap->allocate(128 * kKiB), nullptr);
    EXPECT_TRUE(Config::fired());
    EXPECT_EQ(smaller.size(), 7u);
    EXPECT_EQ(span_of(smaller[0]), span_of(blocks[0]));
    EXPECT_EQ(span_of(smaller[0])->load_word().state(), State::kFloating);
  });
}

// The same, but another thread's free only lists the span.
TEST_F(ScallocTraps, TheSpanIsListedBeforeItIsTaken) {
  test::in_child([&] {
    const auto blocks = make_last_floating_span(*heap);
    Span* span = span_of(blocks[0]);
    Config::arm(Step::kBeforeTaking, [&](Span*) {
      on_another_thread([&] { heap->deallocate(blocks[1]); });
      EXPECT_EQ(span->set_list, scalloc::SetList::kSuspects);
    });
    EXPECT_EQ(span_of(heap->allocate(128 * kKiB)), span);
    EXPECT_TRUE(Config::fired());
    EXPECT_EQ(span->set_list, scalloc::SetList::kNone);
  });
}

// The class mark by which the span was found may be of an earlier life.
TEST_F(ScallocTraps, ASpanOfAnotherClassIsNotTaken) {
  const auto blocks = make_floating_span(*heap, 64 * kKiB);
  heap->deallocate(blocks[0]);
  Span* span = span_of(blocks[0]);
  const scalloc::ClassId another = scalloc::class_of(128 * kKiB);
  EXPECT_EQ(ScallocTestAccess::take_idle(*heap, span, another), nullptr);
  EXPECT_EQ(span->load_word().state(), State::kFloating);
  for (std::size_t i = 1; i < blocks.size(); ++i) heap->deallocate(blocks[i]);
  expect_nothing_held();
}

// Listing 1 as printed drops what line 31 found.
TEST_F(ScallocTraps, PoolReturnsWhatItsFastPathFinds) {
  void* keep = heap->allocate(kMiB);
  const Span* last = nullptr;
  for (int i = 0; i < 100; ++i) {
    const auto blocks = make_floating_span(*heap, kMiB);
    last = span_of(blocks[0]);
    heap->deallocate(blocks[0]);
    heap->deallocate(blocks[1]);
  }
  EXPECT_NE(last, nullptr);
  EXPECT_LE(heap->census().carved, 4u) << "spans that were got must not vanish";
  heap->deallocate(keep);
  expect_nothing_held();
}

// The epoch goes on through the pool: what a thread saw in one life must not match in the next. And
// a pop that reads a link of a span that is in use again must find a pool link there, not a set's.
TEST_F(ScallocTraps, EpochAndPoolLinkSurviveThePool) {
  auto blocks = make_floating_span(*heap, kMiB);
  Span* span = span_of(blocks[0]);
  scalloc::SpanWord stale = span->load_word();
  const scalloc::SpanWord before = stale;
  heap->deallocate(blocks[0]);
  std::vector<void*> again;
  do {
    again.push_back(heap->allocate(kMiB));
  } while (span_of(again.back()) != span);
  // The span floats once more, in the very state seen before
  again.push_back(heap->allocate(kMiB));
  EXPECT_EQ(span->load_word().state(), before.state());
  EXPECT_GT(span->load_word().bits() >> 34, before.bits() >> 34);
  EXPECT_FALSE(span->try_mark_free(stale));
  EXPECT_NE(static_cast<void*>(&span->pool_link), static_cast<void*>(&span->set_next));
  EXPECT_GE(offsetof(Span, set_next), offsetof(Span, pool_link) + sizeof span->pool_link);
  for (void* p : again) heap->deallocate(p);
  heap->deallocate(blocks[1]);
  expect_nothing_held();
}

// Pointers beyond a block's start, from large alignments, are brought back by
// arithmetic, wherever freed.
TEST_F(ScallocTraps, AlignedPointersFindTheirBlock) {
  for (const std::size_t alignment :
       {std::size_t{8192}, std::size_t{65536}, std::size_t{512 * 1024}}) {
    std::vector<char*> inside;
    std::vector<void*> rest;
    for (int i = 0; inside.size() < 6 && i < 400; ++i) {
      auto* p = static_cast<char*>(heap->allocate_aligned(100 + alignment / 2, alignment));
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(address_of(p) % alignment, 0u);
      ASSERT_GE(heap->usable_size(p), 100 + alignment / 2);
      p[0] = p[heap->usable_size(p) - 1] = 1;
      if (span_of(p)->is_block(p)) {
        rest.push_back(p);
      } else {
        inside.push_back(p);
      }
    }
    ASSERT_GE(inside.size(), 3u) << "no pointer beyond a block's start for " << alignment;
    on_another_thread([&] { heap->deallocate(inside.back()); });
    inside.pop_back();
    for (char* p : inside) heap->deallocate(p);
    for (void* p : rest) heap->deallocate(p);
  }
  expect_nothing_held();
}

// A LAB's generation comes round to a value that an old orphan carries: its spans
// then belong to the new life.
TEST_F(ScallocTraps, GenerationComesRound) {
  std::vector<void*> blocks;
  scalloc::Lab* lab = nullptr;
  on_another_thread([&] {
    blocks = make_floating_span(*heap, 256);
    lab = ScallocTestAccess::lab(*heap);
  });
  lab->generation = static_cast<std::uint16_t>(lab->generation - 1);
  on_another_thread([&] {
    heap->deallocate(heap->allocate(2000));
    ASSERT_EQ(ScallocTestAccess::lab(*heap), lab);
    ASSERT_EQ(span_of(blocks[0])->owner.load_relaxed(), lab->owner_word()) << "the same word again";
    for (std::size_t i = 0; i < 60; ++i) heap->deallocate(blocks[i]);
    on_another_thread([&] {
      for (std::size_t i = 60; i < 120; ++i) heap->deallocate(blocks[i]);
    });
    for (std::size_t i = 120; i < blocks.size(); ++i) heap->deallocate(blocks[i]);
  });
  expect_nothing_held();
}

// The remote count has room for every block of the smallest class, beside the ABA counter.
TEST_F(ScallocTraps, RemoteCountHoldsAWholeSpan) {
  const auto blocks = make_floating_span(*heap, 16);
  on_another_thread([&] {
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) heap->deallocate(blocks[i]);
  });
  EXPECT_EQ(heap->census().pooled, 1u);
  heap->deallocate(blocks.back());
  expect_nothing_held();
}

}  // namespace
}  // namespace spanalloc
