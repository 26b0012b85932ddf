// What the allocator in this process asks of the kernel, apart from all that libc, the test framework and
// sanitizers ask for themselves: in a program with os_calls.cpp the calls of src/os are counted, and its
// coarse clock can be stopped. It takes the linker's --wrap (tests/unit/CMakeLists.txt).
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::test {

/// Bytes of address space that were mapped and not unmapped by those calls and the test's own. mremap is left
/// out: what the engines move leaves as much mapped as there was.
std::size_t mapped_by_calls();

/// For as long as it lives the coarse clock, which decay goes by, moves only when it is told to. Afterwards
/// it goes on from there. One at a time.
class StoppedClock {
 public:
  StoppedClock();
  ~StoppedClock();
  StoppedClock(const StoppedClock&) = delete;
  StoppedClock& operator=(const StoppedClock&) = delete;
  void advance(std::uint64_t ms);
};

}  // namespace spanalloc::test
