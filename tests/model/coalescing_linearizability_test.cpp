// Programs drawn at random, each explored as the others are (coalescing_region.hpp): calls in
// combinations that nobody thought of. Every history must be linearizable.
#include <random>
#include <string>

#include "coalescing_region.hpp"

namespace spanalloc::model {
namespace {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  // `threads` threads of `calls` calls each over five to eight units, some of which
  // are handed out at first.
  Scenario scenario(unsigned threads, unsigned calls) {
    Scenario drawn{"", 5 + below(4), {}, {}, below(8) != 0};
    setup(drawn);
    unsigned next_slot = 0;
    for (unsigned thread = 0; thread < threads; ++thread) {
      std::vector<Step> steps;
      // Two slots are a thread's own.
      const Slot slots[] = {static_cast<Slot>(next_slot), static_cast<Slot>(next_slot + 1)};
      next_slot += 2;
      for (unsigned i = 0; i < calls; ++i) steps.push_back(step(slots[below(2)], steps, drawn));
      drawn.threads.push_back(steps);
    }
    return drawn;
  }

 private:
  unsigned below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }

  // Four blocks from the start on, as many as there is room for, one of them given back: a
  // slot each, not in order.
  void setup(Scenario& drawn) {
    std::size_t left = drawn.units;
    unsigned taken = 0;
    for (const Slot slot : {A, C, B, D}) {
      const std::size_t size = 1 + below(3);
      if (size > left || below(4) == 0) continue;
      drawn.setup.push_back(take(slot, size));
      left -= size;
      ++taken;
    }
    if (taken != 0 && below(2) == 0)
      drawn.setup.push_back(give(static_cast<Slot>(drawn.setup[below(taken)].slot)));
  }
  Step step(Slot slot, const std::vector<Step>& before, const Scenario& drawn) {
    switch (below(10)) {
      case 0:
        return purge();
      case 1:
        return grow(slot, 2 + below(3));
      case 2:
        return shrink(slot, 1 + below(2));
      case 3:
        // One thread may extend: the first.
        if (drawn.threads.empty()) return extend(1);
        [[fallthrough]];
      default:
        return holds(slot, before, drawn) ? give(slot)
                                          : take(slot, 1 + below(4), below(4) == 0 ? 2 : 1);
    }
  }
  // Does the slot hold a block if nothing is refused?
  static bool holds(Slot slot, const std::vector<Step>& before, const Scenario& drawn) {
    bool holds = false;
    for (const std::vector<Step>* steps : {&drawn.setup, &before}) {
      for (const Step& step : *steps) {
        if (step.slot != slot) continue;
        if (step.call == Call::allocate) holds = true;
        if (step.call == Call::free) holds = false;
      }
    }
    return holds;
  }

  std::mt19937_64 random_;
};

void expect_drawn_hold(unsigned threads, unsigned calls, unsigned scenarios, unsigned preemptions) {
  std::uint64_t executions = 0;
  std::uint64_t steps = 0;
  for (unsigned seed = 0; seed < scenarios; ++seed) {
    const Scenario scenario = Draw(seed).scenario(threads, calls);
    const Options options{.memory = MemoryModel::interleaving,
                          .preemptions = bound(preemptions, preemptions + 1),
                          .max_steps = 20'000};
    const Result result = explore_scenario(scenario, options);
    executions += result.executions;
    steps += result.steps;
    ASSERT_FALSE(result.failed) << "scenario " << seed << ": " << result.message << "\n"
                                << result.trace;
    ASSERT_TRUE(result.complete);
  }
  std::printf(
      "  %u scenarios of %u threads with %u calls, %u preemptions: %llu executions, %llu steps\n",
      scenarios, threads, calls, bound(preemptions, preemptions + 1),
      static_cast<unsigned long long>(executions), static_cast<unsigned long long>(steps));
  EXPECT_GT(executions, scenarios);
}

TEST(CoalescingLinearizability, TwoThreads) {
  expect_drawn_hold(2, 3, bound(30, 300), 2);
}
TEST(CoalescingLinearizability, ThreeThreads) {
  expect_drawn_hold(3, 2, bound(60, 600), 1);
}

}  // namespace
}  // namespace spanalloc::model
