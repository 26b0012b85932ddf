// When a thread keeps an emptying current span, and when it gives it up.
#include "standard/give_up_delay.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "random.hpp"
#include "standard/test_support.hpp"

namespace spanalloc::large {
namespace {

using standard::ClassId;

using Delay = standard::GiveUpDelay<Standard>;

unsigned times_it_stays(Delay& delay, ClassId c) {
  unsigned times = 0;
  while (delay.stays(c)) ++times;
  return times;
}

TEST(StandardGiveUpDelay, WhatIsNeededAgainAtOnceStaysLongerAndLonger) {
  Delay delay;
  const ClassId c{70};
  EXPECT_FALSE(delay.stays(c));
  for (const unsigned bought : {7u, 63u, 127u, 127u}) {
    EXPECT_FALSE(delay.has_given_up(c));
    delay.gave_up(c, 1000);
    EXPECT_TRUE(delay.has_given_up(c));
    delay.needs_again(c, 1005);
    EXPECT_FALSE(delay.has_given_up(c));
    EXPECT_FALSE(delay.stays(ClassId{6}));
    EXPECT_EQ(times_it_stays(delay, c), bought);
  }
}

TEST(StandardGiveUpDelay, WhoComesBackLaterHasNone) {
  Delay delay;
  const ClassId c{3};
  for (int i = 0; i < 4; ++i) {
    delay.gave_up(c, 1000);
    delay.needs_again(c, 1001);
  }
  delay.gave_up(c, 2000);
  delay.needs_again(c, 2500);
  EXPECT_EQ(times_it_stays(delay, c), 0u);
  delay.gave_up(c, 3000);
  delay.needs_again(c, 3001);
  EXPECT_EQ(times_it_stays(delay, c), 7u);  // as if it were the first time
}

// In how many of some rounds one of the spans was given up. (The memory was used before, so that
// blocks are carved a few at a time.)
int make_small_program_in_rounds(std::size_t blocks, int rounds) {
  test::Random random(1);  // the same in all runs: how many rounds are lost is about this order
  const std::size_t sizes[] = {4683, 2528, 17, 7655, 2364, 60, 4908, 287, 129};
  std::vector<void*> used = fill(8 * kMiB, 1000);
  free_all(used);
  int lost = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<void*> all;
    std::vector<standard::SpanRef> spans;
    for (std::size_t i = 0; i < blocks; ++i) {
      all.push_back(E::allocate(sizes[i % std::size(sizes)]));
      spans.push_back(E::pages.span_of(E::pages.any_slice_at(address_of(all.back()))));
    }
    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.next() % i]);
    free_all(all);
    for (const standard::SpanRef span : spans) {
      if (span->load_word().state() == standard::SpanState::kOwned) continue;
      ++lost;
      break;
    }
  }
  return lost;
}

// Some dozens of blocks of several classes, round after round: but for the first
// rounds each class's span stays the thread's. (Else one class takes, from the pool,
// what another has given up.)
TEST(StandardGiveUpDelay, ASmallProgramInRoundsKeepsItsSpans) {
  for (const std::size_t blocks : {std::size_t{24}, std::size_t{60}})
    EXPECT_LE(make_small_program_in_rounds(blocks, 300), 60) << blocks;
}

// What one thread has learned is not the next one's, who may be about to sleep.
TEST(StandardGiveUpDelay, TheNextThreadOfALabHasNone) {
  const void* cache = nullptr;
  bool learned = false;
  std::thread([&] {
    make_small_program_in_rounds(24, 100);
    cache = E::thread_cache.cache;
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
      learned = E::thread_cache.cache->owned.give_up_delay().stays(ClassId{c}) || learned;
    }
  }).join();
  EXPECT_TRUE(learned);
  std::thread([&] {
    E::deallocate(E::allocate(100));
    EXPECT_EQ(E::thread_cache.cache, cache);
    for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
      EXPECT_FALSE(E::thread_cache.cache->owned.give_up_delay().stays(ClassId{c})) << c;
    }
  }).join();
}

}  // namespace
}  // namespace spanalloc::large
