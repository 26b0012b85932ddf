// How the model tests state what an exploration must come to.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "model_atomic.hpp"
#include "scheduler.hpp"

namespace spanalloc::model {

/// MODEL_FULL=1 in the environment asks for the larger bounds, which take minutes.
inline bool full_bounds() {
  const char* value = std::getenv("MODEL_FULL");
  return value != nullptr && value[0] == '1';
}
inline unsigned bound(unsigned normal, unsigned full) {
  return full_bounds() ? full : normal;
}

inline const char* name_of(MemoryModel memory) {
  constexpr const char* kNames[] = {"interleaving", "tso", "pso", "views"};
  return kNames[static_cast<unsigned>(memory)];
}

inline void print_counts(const char* world, const Options& options, const Result& result) {
  std::printf("  %-44s %-12s %u preemptions: %9llu executions, %11llu steps%s\n", world,
              name_of(options.memory), options.preemptions,
              static_cast<unsigned long long>(result.executions),
              static_cast<unsigned long long>(result.steps),
              result.failed ? ", failure found" : "");
}

/// Every execution within the bounds must have been free of failures, and there must
/// have been more than one.
inline void expect_passed(const char* world, const Options& options, const Result& result) {
  print_counts(world, options, result);
  EXPECT_FALSE(result.failed) << world << " under " << name_of(options.memory) << ": "
                              << result.message << "\n"
                              << result.trace;
  EXPECT_TRUE(result.failed || result.complete)
      << world << ": not all executions fit into max_executions";
  EXPECT_TRUE(result.failed || result.executions > 1) << world << ": nothing was explored";
}
template <class World>
void expect_holds(const char* world, const Options& options) {
  expect_passed(world, options, explore<World>(options));
}

/// Whether a memory adds anything: `pso` allows whatever `tso` does, so only
/// MODEL_FULL explores both.
inline bool adds_something(MemoryModel memory) {
  return memory != MemoryModel::tso || full_bounds();
}

/// The same under every memory but plain interleavings. Stale reads multiply the executions by ten
/// and more, so `views` has a bound of its own; MODEL_FULL adds one to each.
template <class World>
void expect_holds_everywhere(const char* world, unsigned buffer_preemptions,
                             unsigned view_preemptions) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    if (!adds_something(memory)) continue;
    const unsigned preemptions =
        memory == MemoryModel::views ? view_preemptions : buffer_preemptions;
    // A thread's end walks all size classes: many steps, no livelock.
    expect_holds<World>(world, {.memory = memory,
                                .preemptions = bound(preemptions, preemptions + 1),
                                .max_steps = 20'000});
  }
}

/// The exploration must have found a failure whose message contains `what`.
inline void expect_found(const char* world, const Options& options, const Result& result,
                         const char* what) {
  print_counts(world, options, result);
  ASSERT_TRUE(result.failed) << world << " under " << name_of(options.memory)
                             << ": the known failure was missed";
  EXPECT_NE(result.message.find(what), std::string::npos) << result.message << "\n" << result.trace;
  EXPECT_FALSE(result.trace.empty());
}
template <class World>
void expect_finds(const char* world, const Options& options, const char* what) {
  expect_found(world, options, explore<World>(options), what);
}

#define EXPECT_HOLDS(World, ...) ::spanalloc::model::expect_holds<World>(#World, __VA_ARGS__)
#define EXPECT_HOLDS_EVERYWHERE(World, ...) \
  ::spanalloc::model::expect_holds_everywhere<World>(#World, __VA_ARGS__)
#define EXPECT_FINDS(World, what, ...) \
  ::spanalloc::model::expect_finds<World>(#World, __VA_ARGS__, what)

}  // namespace spanalloc::model
