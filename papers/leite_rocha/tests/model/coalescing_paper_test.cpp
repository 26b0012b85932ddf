// The checks of coalescing_region.hpp can fail: the paper's manager has the faults that
// they are there for (Leite & Rocha, ISMM'19, section 4.4). And what the paper's manager
// and its tree do promise holds.
#include "coalescing_region.hpp"
#include "papers/leite_rocha/manager/paper_manager.hpp"

namespace spanalloc::model {
namespace {

/// The paper's three controller operations over an array: each takes effect in one
/// compare-and-swap, so what goes wrong above it is the manager's doing. `kTorn`: takes a block by
/// a load and a store, which is wrong.
template <bool kTorn>
class SlotController {
 public:
  bool start() { return true; }
  bool add(Block block) {
    for (Atomic<std::uint64_t>& slot : slots_) {
      std::uint64_t empty = 0;
      if (slot.compare_exchange_strong_seq_cst(empty, word_of(block))) return true;
    }
    return false;
  }
  bool remove(Block block) {
    if (!block) return false;
    for (Atomic<std::uint64_t>& slot : slots_) {
      std::uint64_t word = word_of(block);
      if (slot.compare_exchange_strong_seq_cst(word, 0)) return true;
    }
    return false;
  }
  Block take(std::size_t size) {
    for (;;) {
      Atomic<std::uint64_t>* best = nullptr;
      std::uint64_t least = UINT64_MAX;
      for (Atomic<std::uint64_t>& slot : slots_) {
        const std::uint64_t word = slot.load_seq_cst();
        if (block_of(word).size < size || word >= least) continue;
        best = &slot;
        least = word;
      }
      if (best == nullptr) return {};
      if (kTorn) {
        best->store_seq_cst(0);
        return block_of(least);
      }
      if (best->compare_exchange_strong_seq_cst(least, 0)) return block_of(least);
    }
  }
  template <class Visit>
  void for_each(Visit visit) {
    for (Atomic<std::uint64_t>& slot : slots_) {
      if (slot.load_seq_cst() != 0) visit(block_of(slot.load_seq_cst()));
    }
  }

 private:
  // Ordered as the paper orders blocks: by size, then address.
  static std::uint64_t word_of(Block block) {
    return std::uint64_t{block.size} << 32 | block.first;
  }
  static Block block_of(std::uint64_t word) { return {word & UINT32_MAX, word >> 32}; }

  Atomic<std::uint64_t> slots_[kUnits];
};

/// A region of the paper's manager, for scenarios that only allocate and free. `kMayMiss`: its open
/// problems, blocks refused that others hold and neighbours that miss each other, are no failures.
template <class Controller, bool kRecursive, bool kMayMissSome>
class PaperRegion {
 public:
  static constexpr bool kMayMiss = kMayMissSome;
  PaperRegion() { MODEL_CHECK(manager_.attach(metadata_, kUnits)); }
  Books& books() { return books_; }
  std::size_t limit() const { return manager_.limit(); }

  Allocation allocate(std::size_t size, std::size_t) { return {manager_.allocate(size), false}; }
  bool free(std::size_t first) { return manager_.free(first); }
  bool extend(std::size_t size) { return manager_.extend(size); }
  Allocation grow(std::size_t, std::size_t) { return {}; }
  bool shrink(std::size_t, std::size_t) { return false; }
  void purge(bool) {}

  // What is not in the controller is handed out: at rest.
  template <class Visit>
  void walk(Visit visit) {
    Block free[kUnits + 1] = {};
    manager_.for_each_free([&](Block block) { free[block.first] = block; });
    for (std::size_t unit = 0; unit < limit();) {
      const Block block = free[unit] ? free[unit] : Block{unit, 1};
      visit(block, free[unit] ? BlockState::kFree : BlockState::kUsed);
      unit = block.end();
    }
  }

 private:
  Books books_;
  alignas(8) unsigned char metadata_[kUnits * 8] = {};
  coalescing::PaperManager<Controller, kRecursive> manager_;
};

using Slots = SlotController<false>;

const Scenario kRoomForBoth = {"paper: room for both", 4, {}, {{take(A, 2)}, {take(B, 2)}}};
const Scenario kNeighbours = {
    "paper: neighbours", 2, {take(A, 1), take(B, 1)}, {{give(A)}, {give(B)}}};
const Options kBounds{.memory = MemoryModel::pso, .preemptions = 2, .max_steps = 20'000};

template <class Region>
void expect_scenario_finds(const Scenario& scenario, const char* what) {
  expect_found(scenario.name, kBounds, explore_scenario<Region>(scenario, kBounds), what);
}

TEST(CoalescingPaper, RefusesWhatAnotherIsSplitting) {
  expect_scenario_finds<PaperRegion<Slots, false, false>>(kRoomForBoth,
                                                          "the history is not linearizable");
}
TEST(CoalescingPaper, MissesNeighboursFreedAtOnce) {
  expect_scenario_finds<PaperRegion<Slots, false, false>>(kNeighbours, "free && free_before");
  expect_scenario_finds<PaperRegion<Slots, true, false>>(kNeighbours, "free && free_before");
}
TEST(CoalescingPaper, ATornTakeHandsABlockOutTwice) {
  expect_scenario_finds<PaperRegion<SlotController<true>, false, true>>(kRoomForBoth,
                                                                        "owner_[u] == 0");
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
    {"tree: around free memory",
     6,
     {take(A, 2), take(B, 2), take(C, 2), give(B)},
     {{give(A)}, {give(C)}}},
    {"tree: merge and take",
     6,
     {take(A, 2), take(B, 2)},
     {{give(A), take(C, 1)}, {take(D, 2), give(B)}}},
};
TEST(CoalescingPaper, LosesAndDoublesNothing) {
  for (const Scenario& scenario : kTreeScenarios) {
    for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
      const unsigned normal = memory == MemoryModel::views ? 1 : 2;
      const Options options{
          .memory = memory, .preemptions = bound(normal, normal + 1), .max_steps = 20'000};
      expect_passed(scenario.name, options,
                    explore_scenario<PaperRegion<Tree, false, true>>(scenario, options));
      expect_passed(scenario.name, options,
                    explore_scenario<PaperRegion<Tree, true, true>>(scenario, options));
    }
  }
}

}  // namespace
}  // namespace spanalloc::model
