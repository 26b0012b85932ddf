// What a run does, drawn from its seed: a process, and phases of a program in it.
//
// A plan is a value that is printed, changed and run again. A Spec names one: the seed, and what is
// left out of what the seed draws. So a failure shrinks without another seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "process.hpp"
#include "scheduler.hpp"

namespace spanalloc::simulation {

/// What a run may do beside allocating and freeing: each is switched off in about a third of the
/// runs (swarm testing: Groce et al., ISSTA 2012).
enum class Feature : std::uint8_t {
  late_stores,
  signals,
  forks,
  refusals,
  limits,
  foreign,
  locked,
  clock,
  heaps,
  soft_limit,
  realloc,
  aligned,
  large,
  trim,
  statistics,
  thread_ends,
  stalls,
  sharing,
  alone,
  misuse,  ///< a signal handler allocates; in few runs
};
inline constexpr unsigned kFeatures = 20;
extern const char* const kFeatureNames[kFeatures];

enum class Sizes : std::uint8_t { one, few, small, medium, wide, large, pages };
enum class Order : std::uint8_t { random, newest, oldest, neighbours };

/// What a thread's next operation is, by weight.
enum class Operation : std::uint8_t {
  allocate_or_free,  ///< which of them follows from Phase::target
  reallocate,
  publish,
  take,
  free_public,
  ask,
  trim,
  statistics,
  document,
  heap,
  limit,
  fork,
  sleep,
  exit_soon,
};
inline constexpr unsigned kOperations = 14;

struct Phase {
  unsigned number = 0;
  unsigned threads = 1;
  bool new_threads = false;   ///< the ones of the phase before end first
  unsigned operations = 100;  ///< of each thread
  Sizes sizes = Sizes::one;
  std::size_t size[3] = {16, 16, 16};
  std::size_t target = 100;  ///< blocks that each thread holds, about
  bool swings = false;       ///< between none and `target`
  Order order = Order::random;
  std::uint32_t weights[kOperations] = {};
  Schedule schedule;
  KernelPlan kernel;
};

/// A seed, and what of its plan is left out.
struct Spec {
  std::uint64_t seed = 1;
  std::uint32_t phases = UINT32_MAX;  ///< a bit for each that stays
  unsigned threads = 16;              ///< at most
  unsigned operations = 1'000'000;    ///< at most, of each thread and phase
  std::uint32_t off = 0;              ///< a bit for each feature that is switched off
  std::uint64_t schedule = 0;         ///< another order of the same program

  std::string text() const;
};
/// "SEED[:phases=0+2][,threads=N][,ops=N][,off=NAME+NAME][,schedule=N]". False: it is none.
bool parse(const char* text, Spec& out);

struct Plan {
  Spec spec;
  std::uint32_t features = 0;
  ProcessPlan process;
  std::vector<Phase> phases;
  std::size_t most_bytes = 0;  ///< that live at a time

  bool has(Feature feature) const { return (features >> static_cast<unsigned>(feature) & 1) != 0; }
};
Plan make_plan(const Spec& spec);

}  // namespace spanalloc::simulation
