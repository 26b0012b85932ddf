// What the allocator in this process asks of the kernel, apart from all that libc, the test
// framework and sanitizers ask for themselves: in a program with os_calls.cpp the calls of src/os
// are counted, and the allocator's clock can be stopped. It takes the linker's --wrap
// (tests/unit/CMakeLists.txt). None of it orders anything between threads, so that thread
// sanitizer misses no race for it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::test {

/// Bytes of address space that were mapped and not unmapped by those calls and the test's own.
/// mremap is left out: what the engines move leaves as much mapped as there was.
std::size_t mapped_by_calls();

/// Times that threads have given their CPU away: who waits for a spin lock does so after a few
/// looks (src/sync/spin_lock.hpp).
std::size_t yields();

/// While it lives hints of addresses are followed as Linux 6.7 to 6.12 follow them:
/// what is as large as a huge page is placed elsewhere, if from the hint on there is
/// not room for a huge page more.
class HintsWantMoreRoom {
 public:
  HintsWantMoreRoom();
  ~HintsWantMoreRoom();
  HintsWantMoreRoom(const HintsWantMoreRoom&) = delete;
  HintsWantMoreRoom& operator=(const HintsWantMoreRoom&) = delete;
};

/// While it lives no mmap takes the place of what is mapped: memory is out by then. kKeeps: what
/// was there stays; kUnmaps: it is gone, as where the kernel's own memory is out.
class NothingIsMappedOver {
 public:
  enum Way { kKeeps = 1, kUnmaps };
  explicit NothingIsMappedOver(Way way);
  ~NothingIsMappedOver();
  NothingIsMappedOver(const NothingIsMappedOver&) = delete;
  NothingIsMappedOver& operator=(const NothingIsMappedOver&) = delete;
  /// How often that was tried.
  static std::size_t refused();
};

/// While it lives no munmap unmaps anything.
class NothingIsUnmapped {
 public:
  NothingIsUnmapped();
  ~NothingIsUnmapped();
  NothingIsUnmapped(const NothingIsUnmapped&) = delete;
  NothingIsUnmapped& operator=(const NothingIsUnmapped&) = delete;
};

/// While it lives f() comes before each mmap, munmap and madvise that is not f's own.
class BeforeEachCall {
 public:
  explicit BeforeEachCall(void (*f)());
  ~BeforeEachCall();
  BeforeEachCall(const BeforeEachCall&) = delete;
  BeforeEachCall& operator=(const BeforeEachCall&) = delete;
};

/// The clock, which decay goes by, stands still: what a test sees does not depend on how long it
/// takes. Here it is moved;
void advance_clock(std::uint64_t ms);
/// and from here on it is the machine's, in a process of the test's own.
void let_clock_go();

}  // namespace spanalloc::test
