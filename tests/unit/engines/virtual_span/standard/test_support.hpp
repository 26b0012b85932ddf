// What the tests of the standard engine's large objects share.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <vector>

#include "api/malloc_api.hpp"
#include "census_check.hpp"
#include "child.hpp"
#include "engines/virtual_span/standard/engine.hpp"
#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "sanitizers.hpp"

namespace spanalloc::large {

using E = StandardEngine;
using Classes = standard::SizeClasses<Standard>;
using Api = MallocApi<E>;
using test::fill_pattern;
using test::first_mismatch;
using test::first_nonzero;
using test::resident_pages;

inline constexpr std::size_t kPage = 4 * kKiB;

// f() in a process where the engine has not started yet; free memory is purged after `decay_ms`.
template <class F>
void in_fresh_process(F f, const char* decay_ms = "3600000") {
  test::in_fresh_process([&] {
    ASSERT_FALSE(E::heap.is_started());
    setenv("SPANALLOC_DECAY_MS", decay_ms, 1);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // pages are counted one by one
    f();
  });
}

inline std::size_t opened() {
  return E::statistics().opened_bytes;
}

// Blocks of `size` that take `bytes` together, the first word of every page written.
inline std::vector<void*> fill(std::size_t bytes, std::size_t size) {
  std::vector<void*> blocks(bytes / size);
  for (void*& p : blocks) {
    p = E::allocate(size);
    EXPECT_NE(p, nullptr);
    for (std::size_t at = 0; at < size; at += kPage) static_cast<char*>(p)[at] = 1;
  }
  return blocks;
}

inline void free_all(std::vector<void*>& blocks) {
  for (void* p : blocks) E::deallocate(p);
  blocks.clear();
}

inline void expect_nothing_out() {
  EXPECT_EQ(test::leftovers<E>(), "");
}

}  // namespace spanalloc::large
