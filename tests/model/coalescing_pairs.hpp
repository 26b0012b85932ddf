// Scenarios of two threads for every pair of the coalescing manager's operations.
#pragma once

#include "coalescing_region.hpp"

namespace spanalloc::model {

// D on [0, 5) and E on [5, 6), and in the word of unit 3 what is left of a header that said 4
// units: who comes to unit 3 before a new header is there leaps over E. Then `more` is done.
inline std::vector<Step> with_old_header(std::initializer_list<Step> more) {
  std::vector<Step> steps = {take(A, 3), take(B, 4), take(C, 1), give(B),
                             give(A),    take(D, 5), take(E, 1)};
  steps.insert(steps.end(), more);
  return steps;
}

// Pairs. Each region is laid out so that both calls want the same memory, or
// memory that must be merged.
inline const Scenario kAllocatePairs[] = {
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
inline const Scenario kFreePairs[] = {
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
inline const Scenario kGrowPairs[] = {
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
inline const Scenario kOtherPairs[] = {
    {"shrink, shrink", 6, {take(A, 3), take(B, 3)}, {{shrink(A, 1)}, {shrink(B, 2), shrink(B, 1)}}},
    {"shrink, purge", 6, {take(A, 3), take(B, 3), give(B)}, {{purge()}, {shrink(A, 1)}}},
    {"shrink, extend", 3, {take(A, 3)}, {{extend(3)}, {shrink(A, 1)}}},
    {"shrink, walk", 8, with_old_header({}), {{shrink(D, 3)}, {walk()}}},
    {"purge, purge",
     6,
     {take(A, 2), take(B, 1), take(C, 2), give(A), give(C)},
     {{purge()}, {purge()}}},
    {"purge, tick", 4, {take(A, 4), give(A), tick()}, {{purge()}, {tick()}}},
    {"purge, extend", 4, {take(A, 4), give(A)}, {{purge()}, {extend(2)}}},
    {"purge, walk",
     6,
     {take(A, 2), take(B, 1), take(C, 2), give(A), give(C)},
     {{purge()}, {walk()}}},
    {"extend, walk", 3, {take(A, 2)}, {{extend(2), extend(1)}, {walk()}}},
};

}  // namespace spanalloc::model
