// pages/coalescing/manager.hpp under the checker: every pair of operations and some triples, over small
// regions where they get in each other's way. What is checked in every execution stands in
// coalescing_region.hpp.
#include <span>

#include "coalescing_region.hpp"

namespace spanalloc::model {
namespace {

// D on [0, 5) and E on [5, 6), and in the word of unit 3 what is left of a header that said 4 units: who
// comes to unit 3 before a new header is there leaps over E. Then `more` is done.
std::vector<Step> with_old_header(std::initializer_list<Step> more) {
  std::vector<Step> steps = {take(A, 3), take(B, 4), take(C, 1), give(B), give(A), take(D, 5), take(E, 1)};
  steps.insert(steps.end(), more);
  return steps;
}

// Pairs. Each region is laid out so that both calls want the same memory, or memory that must be merged.
const Scenario kAllocatePairs[] = {
    {"allocate, allocate: room for both", 4, {}, {{take(A, 2)}, {take(B, 2)}}},
    {"allocate, allocate: room for one", 3, {}, {{take(A, 2)}, {take(B, 2)}}},
    {"allocate, allocate: aligned", 8, {take(A, 1)}, {{take(B, 2, 2)}, {take(C, 2, 4)}}},
    {"allocate, free: what is merged meanwhile", 6, {take(A, 2)}, {{give(A)}, {take(B, 4)}}},
    {"allocate, free: the largest", 4, {take(A, 2), take(B, 1)}, {{give(A)}, {take(C, 2)}}},
    {"allocate, free: give, then take more",
     5,
     {take(A, 3), take(B, 2), give(A)},
     {{take(C, 1)}, {give(B), take(D, 4)}}},
    {"allocate, grow", 6, {take(A, 2)}, {{grow(A, 4)}, {take(B, 2)}}},
    {"allocate, shrink", 6, {take(A, 4)}, {{shrink(A, 1)}, {take(B, 3)}}},
    {"allocate, shrink: give, then take more",
     5,
     {take(A, 3), take(B, 2), give(B)},
     {{take(D, 1, 2)}, {shrink(A, 1), take(E, 3)}}},
    {"allocate, purge", 4, {take(A, 4), give(A)}, {{purge()}, {take(B, 4)}}},
    {"allocate, purge: give, then take more",
     4,
     {take(A, 2), take(B, 2), give(A)},
     {{purge()}, {give(B), take(C, 4)}}},
    {"allocate, refused purge", 4, {take(A, 4), give(A)}, {{purge()}, {take(B, 4)}}, false},
    {"allocate, tick", 4, {take(A, 4), give(A), tick()}, {{tick()}, {take(B, 3)}}},
    {"allocate, extend", 2, {}, {{extend(2)}, {take(A, 3)}}},
    {"allocate, walk", 8, with_old_header({give(D)}), {{take(F, 3)}, {walk()}}},
};
const Scenario kFreePairs[] = {
    {"free, free: neighbours", 2, {take(A, 1), take(B, 1)}, {{give(A)}, {give(B)}}},
    {"free, free: around free memory",
     6,
     {take(A, 2), take(B, 2), take(C, 2), give(B)},
     {{give(A)}, {give(C)}}},
    {"free, free: every second",
     8,
     {take(A, 2), take(B, 2), take(C, 2), take(D, 2)},
     {{give(A), give(C)}, {give(B), give(D)}}},
    {"free, grow", 6, {take(A, 2), take(B, 2)}, {{grow(A, 3)}, {give(B)}}},
    {"free, grow: of a neighbour",
     6,
     {take(A, 1), take(B, 1), take(C, 1)},
     {{give(A), give(C)}, {grow(B, 3)}}},
    {"free, shrink", 6, {take(A, 3), take(B, 3)}, {{shrink(A, 1)}, {give(B)}}},
    {"free, purge", 4, {take(A, 2), take(B, 2), give(A)}, {{purge()}, {give(B)}}},
    {"free, purge: on both sides",
     6,
     {take(A, 2), take(B, 2), take(C, 2), give(B)},
     {{purge()}, {give(A), give(C)}}},
    {"free, refused purge", 4, {take(A, 2), take(B, 2), give(A)}, {{purge()}, {give(B)}}, false},
    {"free, tick", 4, {take(A, 2), take(B, 2), give(A)}, {{tick(), tick()}, {give(B)}}},
    {"free, extend", 2, {take(A, 2)}, {{give(A)}, {extend(3)}}},
    {"free, walk",
     8,
     {take(A, 2), take(B, 2), take(C, 2), take(D, 1)},
     {{give(A), give(B), take(E, 3)}, {walk()}}},
};
const Scenario kGrowPairs[] = {
    {"grow, grow", 7, {take(A, 1), take(B, 2), take(C, 1), give(B)}, {{grow(A, 3)}, {grow(C, 3)}}},
    {"grow, shrink: one gives what the other takes",
     6,
     {take(A, 4)},
     {{shrink(A, 1), grow(A, 3)}, {take(B, 2)}}},
    {"grow, shrink: neighbours",
     7,
     {take(A, 3), take(B, 2), take(C, 2), give(B)},
     {{shrink(A, 1), grow(A, 4)}, {shrink(C, 1), grow(C, 2)}}},
    {"grow, purge", 6, {take(A, 2), take(B, 4), give(B)}, {{purge()}, {grow(A, 4)}}},
    {"grow, refused purge", 6, {take(A, 2), take(B, 4), give(B)}, {{purge()}, {grow(A, 4)}}, false},
    {"grow, tick", 6, {take(A, 2), take(B, 4), give(B), tick()}, {{tick()}, {grow(A, 4)}}},
    {"grow, extend", 2, {take(A, 2)}, {{extend(3)}, {grow(A, 3)}}},
    {"grow, extend: free units before", 3, {take(A, 2)}, {{extend(3)}, {grow(A, 4)}}},
    {"grow, walk", 8, with_old_header({shrink(D, 1)}), {{grow(D, 3)}, {walk()}}},
};
const Scenario kOtherPairs[] = {
    {"shrink, shrink", 6, {take(A, 3), take(B, 3)}, {{shrink(A, 1)}, {shrink(B, 2), shrink(B, 1)}}},
    {"shrink, purge", 6, {take(A, 3), take(B, 3), give(B)}, {{purge()}, {shrink(A, 1)}}},
    {"shrink, extend", 3, {take(A, 3)}, {{extend(3)}, {shrink(A, 1)}}},
    {"shrink, walk", 8, with_old_header({}), {{shrink(D, 3)}, {walk()}}},
    {"purge, purge", 6, {take(A, 2), take(B, 1), take(C, 2), give(A), give(C)}, {{purge()}, {purge()}}},
    {"purge, tick", 4, {take(A, 4), give(A), tick()}, {{purge()}, {tick()}}},
    {"purge, extend", 4, {take(A, 4), give(A)}, {{purge()}, {extend(2)}}},
    {"purge, walk", 6, {take(A, 2), take(B, 1), take(C, 2), give(A), give(C)}, {{purge()}, {walk()}}},
    {"extend, walk", 3, {take(A, 2)}, {{extend(2), extend(1)}, {walk()}}},
};

const Scenario kTriples[] = {
    {"free three neighbours", 6, {take(A, 2), take(B, 2), take(C, 2)}, {{give(A)}, {give(B)}, {give(C)}}},
    {"allocate all there is", 3, {}, {{take(A, 1)}, {take(B, 1)}, {take(C, 1)}}},
    {"split, free beside it, take both",
     5,
     {take(A, 3), take(B, 2), give(A)},
     {{take(C, 1)}, {give(B)}, {take(D, 4)}}},
    {"free, purge, allocate", 4, {take(A, 2), take(B, 2), give(A)}, {{purge()}, {give(B)}, {take(C, 3)}}},
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
// A merge that claims the lower block, finds the upper one gone and gives the lower one back must look at
// that one's neighbours again: the block below was freed meanwhile and found it held. Units: K L R R; R is in
// the purge's hands when L comes free, L in the merge's when R goes and K comes free.
const Scenario kGivenBack = {"merge in vain, neighbour freed meanwhile",
                             4,
                             {take(A, 1), take(B, 1), take(C, 2), give(C)},
                             {{purge()}, {give(B)}, {take(D, 2), give(A)}}};

void expect_all_hold(std::span<const Scenario> scenarios, unsigned preemptions, unsigned view_preemptions) {
  for (const Scenario& scenario : scenarios) expect_scenario_holds(scenario, preemptions, view_preemptions);
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
