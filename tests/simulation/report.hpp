// What a run reports to the process that started it, through memory that both have, and its log.
#pragma once

#include <cstddef>
#include <cstdint>

#include "scheduler.hpp"

namespace spanalloc::simulation {

/// Of one run.
struct Result {
  bool failed;
  char message[600];
  char place[200];  ///< the phase and the operation that failed
  std::uint64_t operations, steps, switches, signals, forks, late_stores, refusals, new_pairs;
};

/// Of all runs.
struct Coverage {
  static constexpr std::size_t kPairs = 1 << 16;
  static constexpr std::size_t kSites = std::size_t{8} << 20;  // bytes of code
  /// By the address behind an atomic operation in the program, less code_begin(): how often it ran.
  std::uint32_t sites[kSites];
  /// Pairs of places that have met at a variable, one behind the other, in two threads.
  std::uint8_t pairs[kPairs];
};

extern Result* result;
extern Coverage* coverage;
/// Writes every step to stdout.
extern bool logging;

std::uintptr_t code_begin();
inline void note_site(const void* site) {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(site) - code_begin();
  if (at < Coverage::kSites) ++coverage->sites[at];
}
/// True: no run before has met this pair.
inline bool note_pair(std::uint32_t pair) {
  if (coverage->pairs[pair] != 0) return false;
  coverage->pairs[pair] = 1;
  return true;
}

[[gnu::format(printf, 1, 2)]] void write_log(const char* format, ...);
#define SIM_LOG(...) \
  (::spanalloc::simulation::logging ? ::spanalloc::simulation::write_log(__VA_ARGS__) : void())

void write_step(Step step, const void* site, const void* cell, std::uint64_t value);
inline void log_step(Step step, const void* site, const void* cell, std::uint64_t value) {
  if (logging) write_step(step, site, cell, value);
}

/// Ends the run: a fault of the program's has stopped it.
[[noreturn]] void end_excused();
/// The same, if there was such a fault.
void end_if_excused();

/// Says, in Result::place, what the running thread is about to do.
[[gnu::format(printf, 2, 3)]] void set_place(unsigned thread, const char* format, ...);

}  // namespace spanalloc::simulation
