// A kernel that refuses. A program that is linked with kernel_refusals.cpp has mmap, munmap,
// mprotect, madvise and mremap of its own in the place of libc's: the allocator's calls are
// counted, and refused as a plan says. Calls that libc makes for itself (stacks of threads, its own
// malloc) never come here.
//
// The clock is ours, too (own_clock.cpp), once there is a plan: it stands still until
// the test moves it, so that an allocator that does something every so often does it at
// the same call in every run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace spanalloc::test::kernel {

enum Call : unsigned { kMmap, kMunmap, kMprotect, kMadvise, kMremap, kCalls };
inline constexpr const char* kCallNames[kCalls] = {"mmap", "munmap", "mprotect", "madvise",
                                                   "mremap"};
inline constexpr unsigned kAllCalls = (1u << kCalls) - 1;
inline constexpr std::size_t kForEver = SIZE_MAX / 2;

/// Which calls are refused, with ENOMEM: of those in `calls` (bits), counted from 0, number `first`
/// and the ones behind it, `count` in all; or with `permille` each one by chance.
struct Plan {
  unsigned calls = 0;
  std::size_t first = 0;
  std::size_t count = 1;
  unsigned permille = 0;
  std::uint64_t seed = 0;
};

/// What is to be refused; what was asked and refused. Plain memory: a test puts it where both
/// of two processes see it.
struct Books {
  Plan plan;
  std::atomic<std::size_t> made[kCalls];
  std::atomic<std::size_t> refused[kCalls];
  std::atomic<std::size_t> planned;  ///< calls that the plan is about, refused or not
  char failure[512];                 ///< for the program: why it ended
};

/// From here on calls go by the plan, and into the books.
void arm(const Plan& plan, Books& books);
/// From here on nothing is refused, or counted. The clock stays ours.
void disarm();
/// Calls refused since arm().
std::size_t refusals();
/// Moves the clock.
void advance_clock(unsigned ms);

/// A program that execs itself names in this variable a file with its books, which say what its
/// library's very first call must know; that call arms them.
inline constexpr const char* kBooksVariable = "REFUSALS_BOOKS";
/// The books of such a program; nullptr in one that was not told.
Books* told_books();

}  // namespace spanalloc::test::kernel
