// What every integration program shares: checks, skips, child processes, memory readings, and the
// proof that the malloc under test is the library's.
//
// A program holds several cases; CTest runs one case a process, so that a skip or a crash
// in one hides no other. The environment names the library (SPANALLOC_LIBRARY) and its
// config (SPANALLOC_CONFIG).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "random.hpp"

namespace harness {

/// Prints one line and ends the process: exit 1 (failed) or 77 (CTest counts it as skipped).
[[noreturn, gnu::format(printf, 3, 4)]] void fail(const char* file, int line, const char* format,
                                                  ...);
[[noreturn, gnu::format(printf, 1, 2)]] void skip(const char* format, ...);

#define CHECK(condition, ...)                                         \
  do {                                                                \
    if (!(condition)) harness::fail(__FILE__, __LINE__, __VA_ARGS__); \
  } while (false)

/// Ends the process unless malloc, free and the rest resolve to the library that
/// SPANALLOC_LIBRARY names.
void require_library_malloc();
/// The library under test; empty only when the environment does not say.
std::string library_path();
/// True for the product's config; false for the paper's, which promises less about memory.
bool is_standard();
/// True when the long versions of tests were asked for (SPANALLOC_TEST_FULL is set).
bool is_full_run();

/// One reading of /proc, in KiB. Taken without allocating.
struct Memory {
  std::size_t own = 0;  ///< in memory or swapped out, and no file's: exact
  std::size_t peak_resident = 0;
  std::size_t page_tables = 0;
  std::size_t locked = 0;
  std::size_t address_space = 0;
  std::size_t footprint() const { return own + page_tables; }
};
Memory memory();
/// To be called first where memory is judged: on machines that make huge pages of whatever is
/// mapped, chance decides how much of what nobody touched is in memory. None are made in this
/// process and its children then.
void judge_memory();
/// Lines in /proc/self/maps, counted without allocating.
std::size_t map_count();

/// How a child process ended and what it wrote.
struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
  bool exited(int code) const;
  bool killed_by(int signal) const;
  std::string describe() const;
};

/// A process that takes so long hangs, on the slowest and busiest machine: it dies of its alarm,
/// which tells more than ctest's time-out after 600 s.
constexpr unsigned kSecondsToHang = 540;

/// Runs a command; `prepare` runs in the child between fork and exec.
Outcome run(const std::vector<std::string>& command, const std::function<void()>& prepare = {});
/// Runs another case of this program as a fresh process.
Outcome run_self(const std::vector<std::string>& arguments,
                 const std::function<void()>& prepare = {});
/// Runs a function in a forked child, which then exits with 0.
Outcome run_forked(const std::function<void()>& body);
/// Skips if the child skipped, fails if it did anything but exit with 0.
void expect_success(const Outcome& outcome, const char* what);

/// Sets a soft and hard resource limit of the calling process. With one on address space the
/// threads of what it executes next have stacks of no more than the usual 8 MiB: whoever runs the
/// tests may have allowed much more, and a few would take all of it.
void limit_resource(int resource, std::size_t bytes);

/// Fills a block with bytes that depend on its address and size; `intact` tells
/// whether they still stand.
void fill(void* block, std::size_t size);
bool intact(const void* block, std::size_t size);
bool all_zero(const void* block, std::size_t size);

/// SPANALLOC_TEST_SEED, 1 without it.
std::uint64_t test_seed();

class Random : public spanalloc::test::Random {
 public:
  /// Other numbers for each `seed`, and for each SPANALLOC_TEST_SEED.
  explicit Random(std::uint64_t seed)
      : spanalloc::test::Random(seed + (test_seed() - 1) * 0x9E3779B97F4A7C15u) {}
  /// A size with a realistic skew: mostly small, now and then up to `largest`.
  std::size_t size(std::size_t largest);
};

/// One case: its name on the command line and what it does with the arguments after it.
struct Case {
  const char* name;
  std::function<void(const std::vector<std::string>&)> body;
};
/// Runs the case that argv[1] names; prints "ok" when it returns.
int run_case(int argc, char** argv, const std::vector<Case>& cases);

}  // namespace harness
