// The links of free blocks: what cannot be forged, and what becomes of a block that is freed twice,
// whichever two lists it has come to stand on. (docs/security.md says which of it is promised.)
#include "standard/free_list.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "heap_walk.hpp"
#include "os_calls.hpp"
#include "reported.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using large::Classes;
using large::E;
using large::free_all;

// A list in thread-local storage, one in the thread cache, spans of several slices.
constexpr std::size_t kSizes[] = {16, 64, 400, 1280, 2000, 7000, 30000};

std::uint64_t& first_word(void* p) {
  return *static_cast<std::uint64_t*>(p);
}
std::size_t blocks_a_span(std::size_t size) {
  return Classes::info(Classes::of(size)).blocks;
}
const standard::Span* span_of(const void* p) {
  return E::pages.span_of(E::pages.any_slice_at(address_of(p))).record;
}

constexpr int kHandedOutTwice = 7;
// Of a process that ends with 0 where a list that has come to nobody's hands yet could still be
// wrong. (A crash, or a block handed out twice, is neither.)
bool is_refused_or_not_seen_yet(int status) {
  return (WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
         (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

// Blocks of one span, which is hot here.
std::vector<void*> hot_blocks(std::size_t size, std::size_t count) {
  std::vector<void*> blocks;
  std::vector<void*> others;
  while (blocks.size() < count) {
    void* p = E::allocate(size);
    if (!blocks.empty() && span_of(blocks[0]) != span_of(p)) {
      others.insert(others.end(), blocks.begin(), blocks.end());
      blocks.clear();
    }
    blocks.push_back(p);
  }
  free_all(others);
  return blocks;
}
// All blocks of one span, which is parked with this thread; and others, which are never given back.
std::vector<void*> parked_blocks(std::size_t size) {
  std::vector<void*> blocks;
  while (blocks.size() < 4 * blocks_a_span(size)) blocks.push_back(E::allocate(size));
  const void* middle = blocks[blocks_a_span(size)];
  std::erase_if(blocks, [&](void* p) { return span_of(p) != span_of(middle); });
  EXPECT_EQ(blocks.size(), blocks_a_span(size));
  EXPECT_EQ(span_of(middle)->stock(), standard::Stock::kAway);
  return blocks;
}

// All blocks that the thread's current span may still have, and more.
void allocate_spans(std::size_t size, std::size_t spans) {
  for (std::size_t i = 0; i < (spans + 1) * blocks_a_span(size); ++i) (void)E::allocate(size);
}
// The same; no block may come twice.
void allocate_each_once(std::size_t size, std::size_t spans) {
  std::set<void*> seen;
  for (std::size_t i = 0; i < (spans + 1) * blocks_a_span(size); ++i) {
    if (!seen.insert(E::allocate(size)).second) _exit(kHandedOutTwice);
  }
}

// --- Links that cannot be forged -----------------------------------------------------------------

TEST(StandardLinks, ABlockThatIsHandedOutShowsNoLink) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < 3 * blocks_a_span(size) / 2; ++i) {
        blocks.push_back(E::allocate(size));
        ASSERT_EQ(first_word(blocks.back()), 0u) << size;
      }
      free_all(blocks);
      blocks.clear();
    }
  }
}

TEST(StandardLinks, ALinkTellsNoAddress) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 3);
    for (void* p : blocks) {
      E::deallocate(p);
      const std::uint64_t word = first_word(p);
      for (const void* secret :
           {static_cast<const void*>(standard::no_block()), static_cast<const void*>(p)}) {
        EXPECT_NE(word >> 16, address_of(secret) >> 16) << size;
        EXPECT_NE((word ^ address_of(p)) >> 16, address_of(secret) >> 16) << size;
      }
    }
  }
}

// A value is as good as any other: all of a word but the offset in the span must be guessed.
TEST(StandardLinks, AWordThatIsNoLinkPassesWithAChanceBelow2ToMinus40) {
  test::Random random(test::seed_of(1));
  for (const std::size_t span : {64 * kKiB, 128 * kKiB, 256 * kKiB}) {
    const std::uint64_t good = span / standard::kQuantum;  // of 2^64 words
    EXPECT_LT(good, std::uint64_t{1} << 24);
    std::size_t counted = 0;
    for (std::uint64_t low = 0; low < 2 * span; ++low)
      counted += standard::leads_to_block(low, span);
    EXPECT_EQ(counted, good);
    for (unsigned bit = 0; bit < 64; ++bit) {
      const std::uint64_t mask = std::uint64_t{1} << bit;
      EXPECT_EQ(standard::leads_to_block(mask, span), mask >= standard::kQuantum && mask < span)
          << bit;
    }
    const standard::Block block{};
    for (int i = 0; i < 1'000'000; ++i) ASSERT_FALSE(block.is_link(random.next(), span));
  }
  const standard::Block* none = standard::no_block();
  EXPECT_FALSE(standard::leads_to_block(none->link(), standard::kMostSpan));
}

using StandardLinksDeathTest = testing::Test;

TEST(StandardLinksDeathTest, AnOverwrittenLinkIsNotFollowed) {
  constexpr std::uint64_t kLow = 0x88;
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 4);
    void* live =
        // Or a tick of the decay's clock may take the span, empty, out of the thread's hands
        blocks.front();
    blocks.erase(blocks.begin());
    for (const std::uint64_t word :
         {std::uint64_t{0}, kLow, ~std::uint64_t{0}, std::uint64_t{16},
          static_cast<std::uint64_t>(address_of(blocks[0])), std::uint64_t{0x4141414141414141}}) {
      const auto write_into_free = [&] {
        for (void* p : blocks) E::deallocate(p);
        first_word(blocks.back()) = word;
        allocate_spans(size, 1);
      };
      EXPECT_DEATH(write_into_free(), "free list overwritten") << size << " " << word;
    }
    free_all(blocks);
    E::deallocate(live);
  }
}

// --- Freed twice, with others in between ---------------------------------------------------------

TEST(StandardLinksDeathTest, OnTheHotListItIsNotHandedOutTwice) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 5);
    const auto free_all_twice = [&] {
      for (int i = 0; i < 2; ++i) {
        for (void* p : blocks) E::deallocate(p);
      }
    };
    const auto then_allocate = [&] {
      free_all_twice();
      std::set<void*> seen;
      while (seen.insert(E::allocate(size)).second) {
      }
      _exit(kHandedOutTwice);
    };
    EXPECT_DEATH(then_allocate(), "double free|not the start of a live block") << size;
    const auto then_trim = [&] {
      free_all_twice();
      E::trim();
    };
    // (Of few blocks all may be back with the first round: then the span is free in the second.)
    EXPECT_DEATH(then_trim(), "double free|not the start of a live block") << size;
    free_all(blocks);
  }
}

// Where a free finds the last one. With others in between it is found when the span
// is allocated from again.
TEST(StandardLinksDeathTest, IntoAParkedSpanItIsNotHandedOutTwice) {
  for (const std::size_t size : kSizes) {
    const auto last_of_list = [&] {
      const std::vector<void*> blocks = parked_blocks(size);
      for (void* p : {blocks[0], blocks[1], blocks[1]}) E::deallocate(p);
    };
    EXPECT_DEATH(last_of_list(), "double free of") << size;
    for (const std::vector<unsigned>& order : {std::vector<unsigned>{0, 1, 2, 0}, {1, 0, 1}}) {
      const auto then_allocate = [&] {
        const std::vector<void*> blocks = parked_blocks(size);
        for (const unsigned i : order) E::deallocate(blocks[i]);
        for (std::size_t i = 3; i < blocks.size(); ++i) E::deallocate(blocks[i]);
        allocate_each_once(size, 5);
      };
      // (A free that counts twice may make the span free before its last blocks come.)
      EXPECT_DEATH(then_allocate(), "double free|not the start of a live block") << size;
    }
  }
}

// Twice in a row: refused. With others in between: the run's links do not agree with its count when
// it is given back, at the latest when the thread ends. In a run that was given back before:
// refused, or found when the owner comes to the block a second time.
TEST(StandardLinksDeathTest, ByAnotherThreadItIsNotHandedOutTwice) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 6);
    const auto free_elsewhere = [&](std::vector<unsigned> order) {
      test::on_another_thread([&] {
        void* mine = E::allocate(16);  // so that it gathers
        for (const unsigned i : order) E::deallocate(blocks[i]);
        E::deallocate(mine);
      });
    };
    for (const auto& order : {std::vector<unsigned>{0, 0}, {0, 1, 2, 2}}) {
      EXPECT_DEATH(free_elsewhere(order), "double free of") << size;
    }
    // The first free into a span is alone; then the run begins. Its first block twice, its
    // last one, one in between; what is counted is 3 to 6. On the short path, which takes a
    // map, nothing is looked for.
    for (const auto& order : {std::vector<unsigned>{5, 0, 1, 0},
                              {5, 0, 1, 0, 2},
                              {5, 0, 1, 2, 1},
                              {5, 0, 1, 2, 3, 1, 4}}) {
      EXPECT_DEATH(free_elsewhere(order), "double free of") << size;
      const auto free_on_the_short_path = [&] {
        test::on_another_thread([&] {
          std::vector<void*> own;
          for (int i = 0; i < 200; ++i) own.push_back(E::allocate(16));
          free_all(own);
          for (const unsigned i : order) E::deallocate(blocks[i]);
        });
      };
      // (Of large blocks the batch may be full before.)
      EXPECT_DEATH(free_on_the_short_path(),
                   size < 4000 ? "double free. in the list at" : "double free")
          << size;
    }
    // The first one is in no run, and comes again in one.
    for (const auto& order : {std::vector<unsigned>{0, 1, 0}, {0, 1, 2, 3, 0}}) {
      const auto then_allocate = [&] {
        free_elsewhere(order);
        allocate_each_once(size, 5);
        _exit(0);  // the list has not been taken yet
      };
      EXPECT_EXIT(then_allocate(), is_refused_or_not_seen_yet, "") << size;
      const auto then_trim = [&] {
        free_elsewhere(order);
        E::trim();
      };
      EXPECT_DEATH(then_trim(), "double free") << size;
    }
    // One after the other, by threads that end: each run has been given back.
    const auto one_thread_each = [&] {
      for (const unsigned i : {0u, 1u, 2u, 0u}) free_elsewhere({i});
    };
    EXPECT_DEATH(one_thread_each(), "double free of") << size;
    free_all(blocks);
  }
}

// realloc would return it, and so would malloc.
TEST(StandardLinksDeathTest, TheSizeOfAFreedBlockIsRefused) {
  // The second where the frees have emptied the span.
  constexpr const char* kRefused =
      "size asked of (memory that is free|a pointer that is not the start of a live block)";
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 4);
    const auto ask_after_frees = [&] {
      for (void* p : blocks) E::deallocate(p);
      (void)E::usable_size(blocks[1]);
    };
    EXPECT_DEATH(ask_after_frees(), kRefused) << size;
    const auto resize_in_parked = [&] {
      const std::vector<void*> parked = parked_blocks(size);
      for (void* p : {parked[0], parked[1], parked[2]}) E::deallocate(p);
      (void)E::resize(parked[0], size);
    };
    EXPECT_DEATH(resize_in_parked(), kRefused) << size;
    const auto resize_after_others_free = [&] {
      test::on_another_thread([&] {
        for (void* p : {blocks[0], blocks[1], blocks[2]}) E::deallocate(p);
      });
      (void)E::resize(blocks[1], size);
    };
    EXPECT_DEATH(resize_after_others_free(), kRefused) << size;
    free_all(blocks);
  }
}

// The other thread cannot see this one's hot list: found out at the latest when that
// or the other's is settled.
TEST(StandardLinksDeathTest, HereAndByAnotherThreadItIsNotHandedOutTwice) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 5);
    for (const bool here_first : {true, false}) {
      const auto here = [&] {
        for (unsigned i : {0u, 1u, 2u}) E::deallocate(blocks[i]);
      };
      const auto elsewhere = [&] {
        test::on_another_thread([&] {
          for (unsigned i : {3u, 1u}) E::deallocate(blocks[i]);
        });
      };
      const auto free_twice = [&] {
        if (here_first) here();
        elsewhere();
        if (!here_first) here();
      };
      const auto then_allocate = [&] {
        free_twice();
        std::set<void*> seen;
        for (std::size_t i = 0; i < 3 * blocks_a_span(size); ++i) {
          if (!seen.insert(E::allocate(size)).second) _exit(kHandedOutTwice);
        }
        _exit(0);  // the rest of the span has not been settled yet
      };
      EXPECT_EXIT(then_allocate(), is_refused_or_not_seen_yet, "") << size;
      const auto then_trim = [&] {
        free_twice();
        E::trim();
      };
      EXPECT_DEATH(then_trim(), "double free") << size << here_first;
    }
    free_all(blocks);
  }
}

// Counted twice, the block makes its span pass for empty while another one is out:
// that is found when it does.
TEST(StandardLinksDeathTest, ASpanThatCountsAsEmptyIsLookedAt) {
  for (const std::size_t size : kSizes) {
    for (const bool here_first : {true, false}) {
      const auto free_twice_and_all_others = [&] {
        std::vector<void*> blocks = hot_blocks(size, 3);
        void* twice = blocks[1];
        const auto elsewhere = [&] { std::thread([&] { E::deallocate(twice); }).join(); };
        if (!here_first) elsewhere();
        E::deallocate(twice);
        if (here_first) elsewhere();
        void* live = E::allocate(size);
        std::memset(live, 'L', size);
        std::vector<void*> others;
        for (std::size_t i = 0; i < 3 * blocks_a_span(size); ++i)
          others.push_back(E::allocate(size));
        for (void* p : {blocks[0], blocks[2]}) {
          if (p != live) E::deallocate(p);
        }
        for (void* p : others) {
          if (p != live) E::deallocate(p);
        }
        for (std::size_t i = 0; i < 3 * blocks_a_span(size); ++i) {
          if (E::allocate(size) == live) _exit(kHandedOutTwice);
        }
        // The span has not been settled yet, or the second free was taken back with the first
        _exit(0);
      };
      EXPECT_EXIT(free_twice_and_all_others(), is_refused_or_not_seen_yet, "")
          << size << here_first;
    }
  }
}

// The same by its own thread alone, where the program has written to the block in between, so that
// it looks like one in use: its list leads in a circle. Who counts the list finds that.
TEST(StandardLinksDeathTest, ASpanThatItsOwnThreadHasEmptiedIsCountedWhenItIsGivenUp) {
  for (const std::size_t size : kSizes) {
    for (const std::uint64_t written : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      const auto free_twice_and_all_but_one = [&] {
        std::vector<void*> blocks = parked_blocks(size);
        E::deallocate(blocks[0]);
        E::deallocate(blocks[1]);
        first_word(blocks[0]) = written;
        E::deallocate(blocks[0]);
        // blocks[2] stays out
        for (std::size_t i = 3; i < blocks.size(); ++i) E::deallocate(blocks[i]);
      };
      const auto then_give_back = [&] {
        free_twice_and_all_but_one();
        E::trim();
      };
      EXPECT_DEATH(then_give_back(), "double free") << size << " " << written;
      const auto then_allocate = [&] {
        free_twice_and_all_but_one();
        allocate_each_once(size, 5);
      };
      EXPECT_DEATH(then_allocate(), "double free") << size << " " << written;
    }
  }
}

// By other threads alone it makes the span pass for empty while a block is out. Once that is told,
// whoever has the block may free it: that is no misuse, and the span comes to nobody's hands.
TEST(StandardLinksDeathTest, ABlockThatIsOutOfASpanThatPassedForFreeCanBeFreed) {
  static void* block;
  static const standard::Span* span;
  const auto is_told_once = [](std::size_t size, bool here) {
    auto& blocks = *new std::vector<void*>(parked_blocks(size));
    block = blocks[2];
    span = span_of(block);
    test::on_another_thread([&] {
      for (unsigned i : {0u, 1u}) E::deallocate(blocks[i]);
    });
    first_word(blocks[0]) = 0;
    bool told = false;
    test::on_another_thread([&] {
      told = test::is_reported([&] {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          if (i != 1 && i != 2) E::deallocate(blocks[i]);
        }
        E::trim();
      });
    });
    if (!told) return 1;
    if (here) {
      E::deallocate(block);
    } else {
      test::on_another_thread([] { E::deallocate(block); });
    }
    E::trim();
    for (std::size_t i = 0; i < 5 * blocks_a_span(size); ++i) {
      if (span_of(E::allocate(size)) == span) return 2;
    }
    return 0;
  };
  for (const std::size_t size : kSizes) {
    for (const bool here : {true, false}) {
      EXPECT_EXIT(_exit(is_told_once(size, here)), testing::ExitedWithCode(0),
                  "with a block in use")
          << size;
    }
  }
}

std::size_t counted_in_pool() {
  std::size_t count = 0;
  for (unsigned stack = 0; stack < Classes::kPoolStacks; ++stack) {
    for (unsigned shard = 0; shard < E::heap.pool().shards(); ++shard) {
      count += E::heap.pool().stacks().count_hint(stack, shard);
    }
  }
  return count;
}

// The report comes as the pool is given back: no other span of it is lost, and none
// counts as there for ever.
TEST(StandardLinksDeathTest, AReportLosesNoOtherSpanOfThePool) {
  const auto loses_none = [](std::size_t size) {
    E::trim();
    std::vector<void*> blocks(40 * blocks_a_span(size));
    for (void*& p : blocks) p = E::allocate(size);
    std::vector<void*> pooled;  // a block of each span that went there, as far as the pool has room
    for (void* p : blocks) {
      E::deallocate(p);
      if (span_of(p)->load_word().state() == standard::SpanState::kFree) pooled.push_back(p);
    }
    if (test::walk_heap<E>().in_pool < 3 || pooled.size() < 3) return 1;
    const bool told = test::is_reported([&] {
      first_word(pooled[1]) = 0;
      E::trim();
    });
    if (!told) return 2;
    const test::HeapWalk walk = test::walk_heap<E>();
    if (!walk.consistent() || walk.lost != 1) return 3;
    E::trim();
    if (test::walk_heap<E>().in_pool != 0 || counted_in_pool() != 0) return 4;
    return test::walk_heap<E>().consistent() ? 0 : 5;
  };
  for (const std::size_t size : {std::size_t{400}, std::size_t{2000}}) {
    EXPECT_EXIT(_exit(loses_none(size)), testing::ExitedWithCode(0), "with a block in use") << size;
  }
}

// Makes a tick due that finds this span in the pool damaged: it tells that where a span
// is just being put there.
void damage_pooled(const std::vector<void*>& blocks) {
  first_word(blocks[1]) = 0;
  test::advance_clock(1000);  // twice the time that memory stays
}

// Nor are the large_spans lost that a thread gives to the pool as it frees more.
TEST(StandardLinksDeathTest, AReportLosesNoSpares) {
  const auto loses_none = [] {
    std::vector<void*> damaged = parked_blocks(400);
    std::vector<void*> singles(1000);
    for (void*& p : singles) p = E::allocate(100'000);
    for (void* p : damaged) E::deallocate(p);
    if (span_of(damaged[0])->load_word().state() != standard::SpanState::kFree) return 1;
    std::size_t freed = 0;
    // More than the pool takes
    for (; freed < singles.size() / 2; ++freed) E::deallocate(singles[freed]);
    static std::size_t at;
    at = freed;
    const bool told = test::is_reported([&] {
      damage_pooled(damaged);
      while (at < singles.size()) E::deallocate(singles[at++]);
    });
    if (!told) return 2;
    const test::HeapWalk walk = test::walk_heap<E>();
    if (!walk.consistent() || walk.lost != 1) return 3;
    return walk.single == singles.size() - at ? 0 : 4;
  };
  EXPECT_EXIT(_exit(loses_none()), testing::ExitedWithCode(0), "with a block in use");
}

// Where the pool's spans of one block are taken several at a time a damaged one of several may lie
// between them, of as many slices. Where it cannot go back to the pool it is looked at.
constexpr std::size_t kOneGranule = 40'000;

TEST(StandardLinksDeathTest, AReportLosesNoSpanThatIsAboutToBeHandedOut) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "sanitizers need address space";
  const auto loses_none = [] {
    E::trim();
    std::vector<void*> damaged = parked_blocks(400);
    std::vector<void*> singles((Standard::kCachedLargeBytes >> Standard::kSliceBits) + 1);
    for (void*& p : singles) p = E::allocate(kOneGranule);
    for (void* p : damaged) E::deallocate(p);
    if (span_of(damaged[0])->load_word().state() != standard::SpanState::kFree) return 1;
    free_all(singles);  // half of them to the pool, above the damaged one
    first_word(damaged[1]) = 0;
    if (!test::leave_address_space(kGiB)) return 2;
    E::pages.arena.decommit_free();
    if (!E::pages.arena.is_at_limit()) return 3;
    static std::size_t taken = 0;
    const bool told = test::is_reported([] {
      for (; taken < 1000; ++taken) (void)E::allocate(kOneGranule);
    });
    if (!told || taken == 0) return 4;
    const test::HeapWalk walk = test::walk_heap<E>();
    if (!walk.consistent() || walk.lost != 1) return 5;
    return walk.single == taken ? 0 : 6;
  };
  EXPECT_EXIT(_exit(loses_none()), testing::ExitedWithCode(0), "with a block in use");
}

// Nor does it count among those of one block if one was wanted.
TEST(StandardLinksDeathTest, ADamagedSpanCountsAsWhatItWas) {
  const auto counts = [] {
    E::trim();
    std::vector<void*> damaged = parked_blocks(400);
    for (void* p : damaged) E::deallocate(p);
    if (span_of(damaged[0])->load_word().state() != standard::SpanState::kFree) return 1;
    first_word(damaged[1]) = 0;
    const std::size_t before = E::pages.memory_return.dirty_bound.live();
    if (!test::is_reported([] { (void)E::allocate(kOneGranule); })) return 2;
    return E::pages.memory_return.dirty_bound.live() == before ? 0 : 3;
  };
  EXPECT_EXIT(_exit(counts()), testing::ExitedWithCode(0), "with a block in use");
}

TEST(StandardLinks, OnlyMultiplesOfTheQuantumAndTheEndAreLinks) {
  for (const std::size_t span : {64 * kKiB, 256 * kKiB}) {
    alignas(256 * kKiB) static char memory[256 * kKiB];
    for (const std::size_t offset : {std::size_t{0}, std::size_t{16}, span / 2 + 48, span - 16}) {
      auto* block = reinterpret_cast<standard::Block*>(memory + offset);
      for (std::uint64_t low = 0; low < 2 * span; ++low) {
        const bool leads = low % standard::kQuantum == 0 && low < span;
        ASSERT_EQ(block->is_link(low, span), leads) << low;
      }
      block->link_to(standard::no_block());
      EXPECT_EQ(block->next(), standard::no_block());
      EXPECT_TRUE(block->has_link(span));
      EXPECT_FALSE(standard::leads_to_block(block->link(), span));
    }
  }
  EXPECT_TRUE(standard::no_block()->is_end());
}

TEST(FreeList, GivesBlocksBackInTurnAndRefusesOnesWithoutALink) {
  constexpr std::size_t kSize = 48;
  constexpr std::uint32_t kCount = 6;
  alignas(64 * kKiB) static char memory[kCount * kSize];
  const auto at = [](std::size_t i) {
    return reinterpret_cast<standard::Block*>(memory + i * kSize);
  };
  standard::link_key.choose(12345);
  standard::FreeList list{standard::no_block()};
  EXPECT_TRUE(list.is_empty());
  list.set(standard::link_up(memory, kSize, 3));
  EXPECT_EQ(standard::find_without_link(memory, kSize, 3, 64 * kKiB), nullptr);
  at(5)->link_to(standard::no_block());
  at(4)->link_to(at(5));
  list.prepend(at(4), at(5));
  at(3)->clear_link();
  EXPECT_EQ(standard::find_without_link(memory, kSize, kCount, 64 * kKiB), memory + 3 * kSize);
  list.push(at(3), address_of(list.first()) ^ address_of(at(3)));
  const standard::ListLength length = standard::length_of(list.first(), 64 * kKiB, kCount);
  EXPECT_TRUE(length.whole);
  EXPECT_EQ(length.blocks, kCount);
  EXPECT_EQ(length.last, at(2));
  EXPECT_FALSE(standard::length_of(list.first(), 64 * kKiB, kCount - 1).whole);
  EXPECT_TRUE(standard::list_has(list.first(), at(0), 64 * kKiB, kCount));
  for (const unsigned i : {3u, 4u, 5u, 0u, 1u}) {
    EXPECT_EQ(list.pop(64 * kKiB), at(i));
    EXPECT_EQ(first_word(at(i)), 0u);
  }
  EXPECT_EQ(list.pop(64 * kKiB), at(2));
  EXPECT_TRUE(list.is_empty());
  list.set(at(1));
  EXPECT_EQ(list.pop(64 * kKiB), nullptr) << "it was handed out";
  EXPECT_EQ(list.take_all(), at(1));
  EXPECT_TRUE(list.is_empty());
}

// A program may copy what it finds in memory that it was given: a word that
// looks like a link is none.
TEST(StandardLinks, AWordThatLooksLikeALinkIsNoDoubleFree) {
  for (const std::size_t size : kSizes) {
    std::vector<void*> blocks = hot_blocks(size, 3);
    E::deallocate(blocks[0]);
    const std::uint64_t link = first_word(blocks[0]);
    blocks[0] = E::allocate(size);
    for (void* p : blocks) first_word(p) = link;
    test::on_another_thread([&] { E::deallocate(blocks[2]); });
    E::deallocate(blocks[1]);
    E::deallocate(blocks[0]);
  }
}

}  // namespace
}  // namespace spanalloc
