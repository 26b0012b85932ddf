// The checks of coalescing_region.hpp can fail: the paper's manager has the faults that they are there for
// (Leite & Rocha, ISMM'19, section 4.4). And what the paper's manager and its tree do promise holds.
#include "coalescing_paper.hpp"

namespace spanalloc::model {
namespace {

using Slots = SlotController<false>;

const Scenario kRoomForBoth = {"paper: room for both", 4, {}, {{take(A, 2)}, {take(B, 2)}}};
const Scenario kNeighbours = {"paper: neighbours", 2, {take(A, 1), take(B, 1)}, {{give(A)}, {give(B)}}};
const Options kBounds{.memory = MemoryModel::pso, .preemptions = 2, .max_steps = 20'000};

template <class Region>
void expect_scenario_finds(const Scenario& scenario, const char* what) {
  expect_found(scenario.name, kBounds, explore_scenario<Region>(scenario, kBounds), what);
}

TEST(CoalescingPaper, RefusesWhatAnotherIsSplitting) {
  expect_scenario_finds<PaperRegion<Slots, false, false>>(kRoomForBoth, "the history is not linearizable");
}
TEST(CoalescingPaper, MissesNeighboursFreedAtOnce) {
  expect_scenario_finds<PaperRegion<Slots, false, false>>(kNeighbours, "free && free_before");
  expect_scenario_finds<PaperRegion<Slots, true, false>>(kNeighbours, "free && free_before");
}
TEST(CoalescingPaper, ATornTakeHandsABlockOutTwice) {
  expect_scenario_finds<PaperRegion<SlotController<true>, false, true>>(kRoomForBoth, "owner_[u] == 0");
}

// The tree with its pool and epochs: retired nodes come back as soon as the epoch allows it.
struct Chunks {
  alignas(kCacheLine) static inline unsigned char memory[4096];
  static inline bool taken;
  static void* map(std::size_t bytes) {
    MODEL_CHECK(!taken && bytes <= sizeof(memory));
    taken = true;
    return memory;
  }
  static void unmap(void*, std::size_t) { fail("the only chunk is given back"); }
};
struct Tree : coalescing::TreeController<Chunks, 64, 1, 2> {
  bool start() {
    std::memset(Chunks::memory, 0, sizeof(Chunks::memory));
    Chunks::taken = false;
    return TreeController::start();
  }
};

const Scenario kTreeScenarios[] = {
    {"tree: room for both", 4, {}, {{take(A, 2)}, {take(B, 2)}}},
    {"tree: neighbours", 4, {take(A, 2), take(B, 2)}, {{give(A)}, {give(B)}}},
    {"tree: around free memory", 6, {take(A, 2), take(B, 2), take(C, 2), give(B)}, {{give(A)}, {give(C)}}},
    {"tree: merge and take", 6, {take(A, 2), take(B, 2)}, {{give(A), take(C, 1)}, {take(D, 2), give(B)}}},
};
TEST(CoalescingPaper, LosesAndDoublesNothing) {
  for (const Scenario& scenario : kTreeScenarios) {
    for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
      const unsigned normal = memory == MemoryModel::views ? 1 : 2;
      const Options options{.memory = memory, .preemptions = bound(normal, normal + 1), .max_steps = 20'000};
      expect_passed(scenario.name, options,
                    explore_scenario<PaperRegion<Tree, false, true>>(scenario, options));
      expect_passed(scenario.name, options,
                    explore_scenario<PaperRegion<Tree, true, true>>(scenario, options));
    }
  }
}

}  // namespace
}  // namespace spanalloc::model
