// Which cache a CPU has: CPUs of a process's set share none, whatever their numbers.
#include "papers/supermalloc/engine/cpu_slots.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace spanalloc {
namespace {

using supermalloc::CpuSlots;

class Slots {
 public:
  explicit Slots(unsigned count, CpuSlots::Beyond beyond = CpuSlots::Beyond::kShare) {
    slots_.start(count, memory_.data(), beyond);
  }
  unsigned of(unsigned cpu) { return slots_.of(cpu); }
  unsigned given() const { return slots_.given(); }

 private:
  std::vector<std::uint64_t> memory_ =
      std::vector<std::uint64_t>(CpuSlots::kBytes / sizeof(std::uint64_t));
  CpuSlots slots_;
};

TEST(SupermallocCpuSlots, CpusOfASetHaveOneEachWhateverTheirNumbers) {
  const std::vector<unsigned> sets[] = {{4, 6}, {0, 2, 4, 6}, {7}, {8191, 3, 4095}};
  for (const std::vector<unsigned>& set : sets) {
    Slots slots(static_cast<unsigned>(set.size()));
    for (int round = 0; round < 2; ++round) {
      for (unsigned i = 0; i < set.size(); ++i) EXPECT_EQ(slots.of(set[i]), i) << set[i];
    }
  }
}

// Of a process that is allowed other CPUs later, or on a simulated machine of few.
TEST(SupermallocCpuSlots, MoreCpusThanSlotsShareThemEvenly) {
  Slots slots(3);
  std::vector<unsigned> shared(3);
  for (unsigned cpu = 0; cpu < 30; ++cpu) {
    const unsigned slot = slots.of(5 * cpu);
    ASSERT_LT(slot, 3u);
    ++shared[slot];
  }
  EXPECT_EQ(shared, std::vector<unsigned>(3, 10));
  // Beyond all numbers that there are.
  EXPECT_EQ(slots.of(CpuSlots::kCpus + 5), slots.of(5));
}

// Where a slot must be one CPU's alone.
TEST(SupermallocCpuSlots, MoreCpusThanSlotsHaveNoneIfNoneIsShared) {
  Slots slots(3, CpuSlots::Beyond::kNone);
  for (int round = 0; round < 2; ++round) {
    for (unsigned cpu = 0; cpu < 30; ++cpu) {
      EXPECT_EQ(slots.of(5 * cpu), cpu < 3 ? cpu : 3) << cpu;
      EXPECT_EQ(slots.given(), round == 0 && cpu < 3 ? cpu + 1 : 3)
          << "what others need not look at";
    }
  }
  EXPECT_EQ(slots.of(CpuSlots::kCpus), 3u) << "a number like that of the first one";
  EXPECT_EQ(slots.of(static_cast<unsigned>(-1)), 3u) << "a thread that the kernel does not know";
}

TEST(SupermallocCpuSlots, ThreadsThatAskAtOnceFindTheSame) {
  constexpr unsigned kThreads = 4;
  for (int round = 0; round < 200; ++round) {
    Slots slots(kThreads);
    std::vector<std::vector<unsigned>> found(kThreads, std::vector<unsigned>(kThreads));
    test::in_threads(kThreads, [&](unsigned thread) {
      for (unsigned i = 0; i < kThreads; ++i) {
        const unsigned which = (thread + i) % kThreads;
        found[thread][which] = slots.of(11 * which + 2);
      }
    });
    std::vector<bool> taken(kThreads);
    for (unsigned i = 0; i < kThreads; ++i) {
      ASSERT_LT(found[0][i], kThreads);
      ASSERT_FALSE(taken[found[0][i]]) << "two CPUs share a slot and one has none";
      taken[found[0][i]] = true;
      for (unsigned thread = 1; thread < kThreads; ++thread) ASSERT_EQ(found[thread], found[0]);
    }
  }
}

}  // namespace
}  // namespace spanalloc
