// Counts the instructions that a piece of work takes, one by one, and the calls of the kernel among
// them: exact, however busy the machine is. Each counted one costs some ten microseconds.
#pragma once

#include <cstddef>

namespace harness {

/// Ends the test as skipped where nothing can be counted.
void require_step_count();

/// From here to end_count() the processor traps after each instruction of the calling
/// thread outside the kernel. It must not block SIGTRAP meanwhile, and a child that
/// it forks is counted, too.
void begin_count();
std::size_t end_count();
/// Of the last count: instructions that called the kernel.
std::size_t kernel_calls_counted();

/// In what is counted next: has handler() called in the counting thread, in the middle of its work,
/// behind so many instructions.
void call_behind(std::size_t instructions, void (*handler)());

template <class Work>
std::size_t instructions_of(Work work) {
  begin_count();
  work();
  return end_count();
}

}  // namespace harness
