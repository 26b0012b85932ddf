// Random numbers, as many processes draw them. And how many CPUs there might be.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "child.hpp"
#include "environment.hpp"
#include "os/cgroup.hpp"
#include "os/os.hpp"
#include "simulated_cpus.hpp"

namespace spanalloc {
namespace {

using Numbers = std::array<std::uint64_t, 8>;

template <class Next>
Numbers draw(Next next) {
  Numbers numbers{};
  for (std::uint64_t& n : numbers) n = next();
  return numbers;
}
Numbers draw() {
  return draw(os::random_bits);
}

// What a child draws that is made as libc's fork makes one, but calls no handlers.
template <class First>
Numbers drawn_in_child(First first, std::uint64_t (*next)() = os::random_bits) {
  int ends[2];
  Numbers numbers{};
  if (pipe(ends) != 0) return numbers;
  const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    first();
    numbers = draw(next);
    _exit(write(ends[1], numbers.data(), sizeof numbers) == sizeof numbers ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(static_cast<pid_t>(child), &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(ends[0], numbers.data(), sizeof numbers), static_cast<ssize_t>(sizeof numbers));
  close(ends[0]);
  close(ends[1]);
  return numbers;
}

void expect_all_differ(const std::vector<Numbers>& drawn) {
  std::set<std::uint64_t> all;
  for (const Numbers& numbers : drawn) all.insert(numbers.begin(), numbers.end());
  EXPECT_EQ(all.size(), drawn.size() * Numbers().size());
}

// A number that somebody has set makes them repeatable.
template <class F>
void with_a_secret(F f) {
  test::in_fresh_process([=] {
    unsetenv("SPANALLOC_SEED");
    os::start();
    f();
  });
}

TEST(Random, ChildrenOfForksAtOnceDrawDifferentNumbers) {
  with_a_secret([] {
    constexpr unsigned kThreads = 4;
    std::vector<Numbers> drawn(kThreads);
    std::barrier all_are_about_to_fork(kThreads);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        os::before_fork();
        all_are_about_to_fork.arrive_and_wait();
        drawn[t] = drawn_in_child([] {
          if (!os::is_new_child()) _exit(2);
          os::enter_child();
          if (os::is_new_child()) _exit(3);
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    drawn.push_back(draw());
    expect_all_differ(drawn);
  });
}

TEST(Random, ChildrenThatNobodyTellsDrawDifferentNumbersToo) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator clears no pages in children";
  with_a_secret([] {
    std::vector<Numbers> drawn;
    for (unsigned i = 0; i < 4; ++i) drawn.push_back(drawn_in_child([] {}));
    // And their children, by a fork that tells them.
    for (unsigned i = 0; i < 4; ++i) {
      drawn.push_back(drawn_in_child([] {
        os::before_fork();
        const pid_t child = fork();
        if (child == 0) return os::enter_child();
        int status = 0;
        waitpid(child, &status, 0);
        _exit(status == 0 ? 0 : 4);
      }));
    }
    drawn.push_back(draw());
    expect_all_differ(drawn);
  });
}

TEST(Random, GrandchildrenDrawOtherNumbersThanTheirParents) {
  with_a_secret([] {
    std::vector<Numbers> drawn;
    const auto fork_deep = [](unsigned depth) {
      for (unsigned i = 0; i < depth; ++i) {
        os::before_fork();
        const pid_t child = fork();
        if (child != 0) {
          int status = 0;
          waitpid(child, &status, 0);
          _exit(status == 0 ? 0 : 4);
        }
        os::enter_child();
      }
    };
    for (unsigned depth = 1; depth < 4; ++depth)
      drawn.push_back(drawn_in_child([&] { fork_deep(depth); }));
    expect_all_differ(drawn);
  });
}

// In a process that has not asked for anything yet: as debuggers start it.
void switch_randomisation_off() {
  unsetenv("SPANALLOC_SEED");
  ASSERT_NE(personality(ADDR_NO_RANDOMIZE), -1);
}
constexpr char kMayNotChange[] = "no process may change the randomisation of its addresses";

TEST(Random, WithoutRandomisationPlacesRepeatAndSecretsDoNot) {
  if (!test::may_change_randomisation()) GTEST_SKIP() << kMayNotChange;
  test::in_fresh_process([] {
    switch_randomisation_off();
    const auto start = [] { os::start(); };
    const Numbers places = drawn_in_child(start, os::random_place_bits);
    EXPECT_EQ(drawn_in_child(start, os::random_place_bits), places);
    // Also where secrets are drawn between them.
    const auto start_and_draw = [] {
      os::start();
      draw();
    };
    EXPECT_EQ(drawn_in_child(start_and_draw, os::random_place_bits), places);
    expect_all_differ({places, drawn_in_child(start), drawn_in_child(start)});
  });
}

TEST(Random, WithoutRandomisationASeedDecidesPlacesToo) {
  if (!test::may_change_randomisation()) GTEST_SKIP() << kMayNotChange;
  test::in_fresh_process([] {
    switch_randomisation_off();
    const auto start_with = [](const char* seed) {
      return [seed] {
        setenv("SPANALLOC_SEED", seed, 1);
        os::start();
      };
    };
    const Numbers places = drawn_in_child(start_with("7"), os::random_place_bits);
    EXPECT_EQ(drawn_in_child(start_with("7"), os::random_place_bits), places);
    EXPECT_EQ(drawn_in_child(start_with("7")), places) << "one sequence for all";
    expect_all_differ({places, drawn_in_child(start_with("8"), os::random_place_bits)});
  });
}

TEST(Random, WithRandomisationPlacesDiffer) {
  if (!test::may_change_randomisation()) GTEST_SKIP() << kMayNotChange;
  test::in_fresh_process([] {
    unsetenv("SPANALLOC_SEED");
    const auto now = static_cast<unsigned>(personality(0xFFFFFFFF));
    ASSERT_NE(personality(now & ~ADDR_NO_RANDOMIZE), -1);
    const auto start = [] { os::start(); };
    expect_all_differ({drawn_in_child(start, os::random_place_bits),
                       drawn_in_child(start, os::random_place_bits)});
  });
}

// Whichever this process may run on, and whatever it is told to believe in.
TEST(Asked, EachCpuHasANumberBelowAllThatThereMightBe) {
  const test::SimulatedCpus one(1);
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  unsigned beyond = CPU_SETSIZE;
  while (!CPU_ISSET(beyond - 1, &set)) --beyond;
  EXPECT_GE(os::cpu_numbers(), beyond);
  EXPECT_GE(os::cpu_numbers(), 64u);
  EXPECT_LE(os::cpu_numbers(), 16384u) << "the longest set that is asked for";
  EXPECT_EQ(os::cpu_count(), 1u);
}

TEST(Asked, ThereAreNoMoreCpusThanMayBeRunOnAndPaidFor) {
  test::in_fresh_process([] {
    unsetenv("SPANALLOC_CPUS");
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    unsigned wanted = static_cast<unsigned>(CPU_COUNT(&set));
    if (const unsigned quota = os::cpu_quota(); quota != 0) wanted = std::min(wanted, quota);
    EXPECT_EQ(os::cpu_count(), wanted);
  });
}

}  // namespace
}  // namespace spanalloc
