// What the tests of the standard engine's large objects share.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/malloc_api.hpp"
#include "census_check.hpp"
#include "child.hpp"
#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "sanitizers.hpp"
#include "standard/engine.hpp"

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
    ASSERT_FALSE(E::pages.is_started());
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

// What a child that does f() says before it dies of SIGABRT.
template <class F>
inline std::string last_words(F f) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[256];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? said : "did not abort: " + said;
}

template <class F>
void expect_named(F f, const std::string& mistake) {
  const std::string said = last_words(f);
  EXPECT_EQ(said.rfind("spanalloc: ", 0), 0u) << said;
  EXPECT_NE(said.find(mistake), std::string::npos) << said;
  // An emulator adds a line of its own.
  if (!test::kEmulated) {
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

}  // namespace spanalloc::large
