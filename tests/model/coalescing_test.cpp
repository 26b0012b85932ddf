// pages/coalescing/manager.hpp under the checker: pairs and triples of operations over small regions.
//
// At rest every unit belongs to exactly one block, what the threads hold is theirs alone, no two neighbours
// are free, and a search finds exactly the free blocks. An allocation that fails although there was room
// throughout is a failure.
#include "pages/coalescing/manager.hpp"

#include "model_test.hpp"

namespace spanalloc::model {
namespace {

using coalescing::Allocation;
using coalescing::Block;
using coalescing::BlockState;

constexpr std::size_t kUnits = 8;

struct Environment {
  bool purges = true;
  void pause() { spin_hint(); }
  bool purge(Block) { return purges; }
};
// Two bits of each word used: eight units make three levels of the index.
using Manager = coalescing::CoalescingManager<Environment, 1, 4, 1>;

// A region of kUnits units; what each unit is used for stands in `owner`, outside the model's memory.
struct Region {
  Environment environment;
  alignas(8) unsigned char metadata[Manager::metadata_bytes(kUnits)] = {};
  Manager manager{environment};
  int owner[kUnits] = {};  // thread + 1, or 0
  std::size_t size = kUnits;

  explicit Region(std::size_t units) : size(units) {
    manager.attach(metadata, kUnits);
    manager.extend(units, true);
  }

  void own(Block block, unsigned self) {
    for (std::size_t u = block.first; u < block.end(); ++u) {
      MODEL_CHECK(u < kUnits && owner[u] == 0);  // no unit in two blocks
      owner[u] = static_cast<int>(self) + 1;
    }
  }
  void disown(Block block) {
    for (std::size_t u = block.first; u < block.end(); ++u) owner[u] = 0;
  }
  // 0: refused.
  Block allocate(unsigned self, std::size_t units, std::size_t alignment = 1) {
    const Allocation got = manager.allocate(units, alignment);
    if (got) {
      MODEL_CHECK(got.block.size == units && got.block.first % alignment == 0);
      own(got.block, self);
    }
    return got.block;
  }
  Block must_allocate(unsigned self, std::size_t units) {
    const Block got = allocate(self, units);
    MODEL_CHECK(got.size == units);  // spuriously out of memory
    return got;
  }
  void free(Block block) {
    disown(block);
    MODEL_CHECK(manager.free(block.first));
  }
  void at_rest() {
    std::size_t at = 0;
    bool free_before = false;
    std::size_t largest = 0;
    manager.walk([&](Block block, BlockState state, bool) {
      MODEL_CHECK(block.first == at);  // blocks tile the range
      MODEL_CHECK(state == BlockState::kFree || state == BlockState::kUsed);
      at = block.end();
      const bool free = state == BlockState::kFree;
      MODEL_CHECK(!(free && free_before));  // neighbours coalesced
      free_before = free;
      for (std::size_t u = block.first; u < block.end(); ++u) MODEL_CHECK((owner[u] == 0) == free);
      if (free && block.size > largest) largest = block.size;
    });
    MODEL_CHECK(at == manager.limit());
    // Every free block can be found: taking them all, largest first, empties the region.
    while (largest > 0) {
      const Allocation got = manager.allocate(largest);
      if (got) {
        own(got.block, 9);
      } else {
        --largest;
      }
    }
    for (std::size_t u = 0; u < manager.limit(); ++u) MODEL_CHECK(owner[u] != 0);
  }
};

// Two neighbours freed at once, with more around them or nothing.
struct FreeBoth : Region {
  static constexpr unsigned kThreads = 2;
  Block mine[2];
  FreeBoth() : Region(2) {
    for (unsigned i = 0; i < 2; ++i) mine[i] = must_allocate(i, 1);
  }
  void thread(unsigned self) { free(mine[self]); }
};
struct FreeThree : Region {
  static constexpr unsigned kThreads = 3;
  Block mine[3];
  FreeThree() : Region(6) {
    for (unsigned i = 0; i < 3; ++i) mine[i] = must_allocate(i, 2);
  }
  void thread(unsigned self) { free(mine[self]); }
};
struct FreeAroundUsed : Region {
  static constexpr unsigned kThreads = 2;
  Block mine[4];
  FreeAroundUsed() : Region(8) {
    for (unsigned i = 0; i < 4; ++i) mine[i] = must_allocate(i % 2, 2);
  }
  void thread(unsigned self) {
    free(mine[self]);
    free(mine[self + 2]);
  }
};
// Room for both, in one block: neither may be refused, however long the other holds the block.
struct AllocateBoth : Region {
  static constexpr unsigned kThreads = 2;
  AllocateBoth() : Region(4) {}
  void thread(unsigned self) { must_allocate(self, 2); }
};
struct AllocateThree : Region {
  static constexpr unsigned kThreads = 3;
  AllocateThree() : Region(3) {}
  void thread(unsigned self) { must_allocate(self, 1); }
};
// Room for one of them: one is refused, the other is not.
struct AllocateTheLast : Region {
  static constexpr unsigned kThreads = 2;
  int got = 0;
  AllocateTheLast() : Region(3) {}
  void thread(unsigned self) { got += allocate(self, 2).size != 0; }
  void at_rest() {
    MODEL_CHECK(got == 1);
    Region::at_rest();
  }
};
// The neighbour's merge takes the free block away for a moment: it must not be missed.
struct AllocateDuringMerge : Region {
  static constexpr unsigned kThreads = 2;
  Block first;
  AllocateDuringMerge() : Region(6) { first = must_allocate(0, 2); }
  void thread(unsigned self) {
    if (self == 0) return free(first);
    must_allocate(1, 4);
  }
};
struct AllocateAgainstFree : Region {
  static constexpr unsigned kThreads = 2;
  Block mine[3];
  AllocateAgainstFree() : Region(6) {
    for (unsigned i = 0; i < 3; ++i) mine[i] = must_allocate(0, 2);
    free(mine[1]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free(mine[0]);
      free(mine[2]);
    } else {
      free(must_allocate(1, 1));
    }
  }
};
struct GrowAgainst : Region {
  Block mine, other;
  GrowAgainst() : Region(6) {
    mine = must_allocate(0, 2);
    other = must_allocate(1, 2);
  }
  void grow(std::size_t units) {
    if (manager.grow(mine.first, units)) {
      own({mine.end(), units - mine.size}, 0);
      mine.size = units;
    }
  }
};
struct GrowAgainstFree : GrowAgainst {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 0) return grow(3);
    free(other);
  }
};
struct GrowAgainstAllocate : GrowAgainst {
  static constexpr unsigned kThreads = 2;
  GrowAgainstAllocate() { free(other); }  // four units behind `mine`: room for both
  void thread(unsigned self) {
    if (self == 0) return grow(4);
    must_allocate(1, 2);
  }
};
struct ShrinkAgainst : Region {
  static constexpr unsigned kThreads = 2;
  Block mine[2];
  ShrinkAgainst() : Region(6) {
    for (unsigned i = 0; i < 2; ++i) mine[i] = must_allocate(i, 3);
  }
  void thread(unsigned self) {
    if (self == 1) return free(mine[1]);
    disown({1, 2});
    MODEL_CHECK(manager.shrink(mine[0].first, 1));
  }
};
// Purging holds free memory for a while.
template <bool kRefused>
struct PurgeAgainstAllocate : Region {
  static constexpr unsigned kThreads = 2;
  PurgeAgainstAllocate() : Region(4) {
    environment.purges = !kRefused;
    free(must_allocate(0, 4));
  }
  void thread(unsigned self) {
    if (self == 0) {
      manager.purge(false);
    } else {
      must_allocate(1, 4);
    }
  }
};
struct PurgeAgainstFree : Region {
  static constexpr unsigned kThreads = 2;
  Block mine[2];
  PurgeAgainstFree() : Region(4) {
    for (unsigned i = 0; i < 2; ++i) mine[i] = must_allocate(i, 2);
    free(mine[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      manager.purge(false);
    } else {
      free(mine[1]);
    }
  }
};
struct ExtendAgainstFree : Region {
  static constexpr unsigned kThreads = 2;
  Block mine;
  ExtendAgainstFree() : Region(2) { mine = must_allocate(0, 2); }
  void thread(unsigned self) {
    if (self == 0) return free(mine);
    MODEL_CHECK(manager.extend(3, true));
  }
};
struct FreeTwiceAtOnce : Region {
  static constexpr unsigned kThreads = 2;
  Block mine;
  int freed = 0;
  FreeTwiceAtOnce() : Region(2) {
    mine = must_allocate(0, 1);
    disown(mine);
  }
  void thread(unsigned) { freed += manager.free(mine.first); }
  void at_rest() {
    MODEL_CHECK(freed == 1);
    Region::at_rest();
  }
};

// The index alone: summaries that an erased unit left behind are cleared by two searches while a unit below
// them is entered again. Then a search from the top must find it.
struct SearchesAgainstInsert {
  static constexpr unsigned kThreads = 3;
  static constexpr unsigned kList = 1;
  using Index = coalescing::FreeIndex<1>;
  struct Hold {
    void cover(std::size_t) {}
  };
  alignas(8) unsigned char memory[Index::bytes_for(kUnits)] = {};
  Index index;
  SearchesAgainstInsert() {
    index.attach(memory, kUnits);
    // Not in the first words: a search starts below those and never asks their summaries.
    index.insert(kList, 4);
    index.erase(kList, 4);
  }
  void thread(unsigned self) {
    Hold hold;
    if (self == 0) return index.insert(kList, 5);
    const std::size_t found = index.find(kList, 0, hold);
    MODEL_CHECK(found == 5 || found == Index::kNone);
    if (found == Index::kNone) index.clear_list(kList, hold);
  }
  void at_rest() {
    Hold hold;
    MODEL_CHECK(index.next_list(0, Index::kLists) == kList);
    MODEL_CHECK(index.find(kList, 0, hold) == 5);
  }
};

template <class World>
void expect_coalescing_holds(const char* world, unsigned preemptions, unsigned view_preemptions) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    const unsigned normal = memory == MemoryModel::views ? view_preemptions : preemptions;
    expect_holds<World>(world,
                        {.memory = memory, .preemptions = bound(normal, normal + 1), .max_steps = 20'000});
  }
}
#define EXPECT_COALESCING_HOLDS(World, ...) expect_coalescing_holds<World>(#World, __VA_ARGS__)

TEST(Coalescing, WhatIsEnteredStaysFindable) {
  EXPECT_COALESCING_HOLDS(SearchesAgainstInsert, 5, 3);
}
TEST(Coalescing, NeighboursFreedAtOnceBecomeOneBlock) {
  EXPECT_COALESCING_HOLDS(FreeBoth, 3, 2);
  EXPECT_COALESCING_HOLDS(FreeThree, 2, 1);
  EXPECT_COALESCING_HOLDS(FreeAroundUsed, 2, 1);
}
TEST(Coalescing, NobodyIsRefusedWhatOthersOnlyHold) {
  EXPECT_COALESCING_HOLDS(AllocateBoth, 3, 2);
  EXPECT_COALESCING_HOLDS(AllocateThree, 2, 1);
  EXPECT_COALESCING_HOLDS(AllocateTheLast, 3, 2);
  EXPECT_COALESCING_HOLDS(AllocateDuringMerge, 3, 2);
  EXPECT_COALESCING_HOLDS(AllocateAgainstFree, 2, 1);
}
TEST(Coalescing, GrowAndShrink) {
  EXPECT_COALESCING_HOLDS(GrowAgainstFree, 3, 2);
  EXPECT_COALESCING_HOLDS(GrowAgainstAllocate, 3, 2);
  EXPECT_COALESCING_HOLDS(ShrinkAgainst, 3, 2);
}
TEST(Coalescing, Purge) {
  EXPECT_COALESCING_HOLDS(PurgeAgainstAllocate<false>, 3, 2);
  EXPECT_COALESCING_HOLDS(PurgeAgainstAllocate<true>, 3, 2);
  EXPECT_COALESCING_HOLDS(PurgeAgainstFree, 3, 2);
}
TEST(Coalescing, ExtendAgainstFree) {
  EXPECT_COALESCING_HOLDS(ExtendAgainstFree, 3, 2);
}
TEST(Coalescing, OfTwoFreesOfOneBlockOneFails) {
  EXPECT_COALESCING_HOLDS(FreeTwiceAtOnce, 3, 2);
}

}  // namespace
}  // namespace spanalloc::model
