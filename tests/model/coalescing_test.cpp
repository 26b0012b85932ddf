// pages/coalescing/manager.hpp under the checker: every pair of operations and some triples,
// over small regions where they get in each other's way. What is checked in every execution
// stands in coalescing_region.hpp.
#include <span>

#include "coalescing_pairs.hpp"

namespace spanalloc::model {
namespace {

const Scenario kTriples[] = {
    {"free three neighbours",
     6,
     {take(A, 2), take(B, 2), take(C, 2)},
     {{give(A)}, {give(B)}, {give(C)}}},
    {"allocate all there is", 3, {}, {{take(A, 1)}, {take(B, 1)}, {take(C, 1)}}},
    {"split, free beside it, take both",
     5,
     {take(A, 3), take(B, 2), give(A)},
     {{take(C, 1)}, {give(B)}, {take(D, 4)}}},
    {"free, purge, allocate",
     4,
     {take(A, 2), take(B, 2), give(A)},
     {{purge()}, {give(B)}, {take(C, 3)}}},
    {"free, grow, allocate",
     6,
     {take(A, 2), take(B, 2), take(C, 1)},
     {{give(B)}, {grow(A, 3)}, {take(D, 2)}}},
    {"shrink, free, extend", 4, {take(A, 2), take(B, 2)}, {{shrink(A, 1)}, {give(B)}, {extend(2)}}},
    {"grow, shrink, purge",
     6,
     {take(A, 1), take(B, 2), take(C, 3), give(B)},
     {{grow(A, 2)}, {shrink(C, 1)}, {purge()}}},
};
// A merge that claims the lower block, finds the upper one gone and gives the lower one
// back must look at that one's neighbours again: the block below was freed meanwhile and
// found it held. Units: K L R R; R is in the purge's hands when L comes free, L in the
// merge's when R goes and K comes free.
const Scenario kGivenBack = {"merge in vain, neighbour freed meanwhile",
                             4,
                             {take(A, 1), take(B, 1), take(C, 2), give(C)},
                             {{purge()}, {give(B)}, {take(D, 2), give(A)}}};

void expect_all_hold(std::span<const Scenario> scenarios, unsigned preemptions,
                     unsigned view_preemptions) {
  for (const Scenario& scenario : scenarios)
    expect_scenario_holds(scenario, preemptions, view_preemptions);
}

TEST(Coalescing, AllocateAndEveryOther) {
  expect_all_hold(kAllocatePairs, 3, 2);
}
TEST(Coalescing, FreeAndEveryOther) {
  expect_all_hold(kFreePairs, 3, 2);
}
TEST(Coalescing, GrowAndEveryOther) {
  expect_all_hold(kGrowPairs, 3, 2);
}
TEST(Coalescing, ShrinkPurgeExtendAndWalk) {
  expect_all_hold(kOtherPairs, 3, 2);
}
TEST(Coalescing, Triples) {
  expect_all_hold(kTriples, 2, 1);
}
TEST(Coalescing, WhatIsGivenBackIsLookedAtAgain) {
  expect_scenario_holds(kGivenBack, 2, 1);
}

// The same block freed by two threads at once, which is an error of theirs: one is told so.
struct FreeTwiceAtOnce {
  static constexpr unsigned kThreads = 2;
  StaticRegion region;
  std::size_t first = 0;
  int freed = 0;
  FreeTwiceAtOnce() {
    region.extend(2);
    first = region.allocate(1, 1).block.first;
  }
  void thread(unsigned) { freed += region.free(first); }
  void at_rest() {
    MODEL_CHECK(freed == 1);
    MODEL_CHECK(region.allocate(2, 1));
  }
};
TEST(Coalescing, OfTwoFreesOfOneBlockOneFails) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(FreeTwiceAtOnce, {.memory = memory, .preemptions = bound(3, 4)});
  }
}

}  // namespace
}  // namespace spanalloc::model
