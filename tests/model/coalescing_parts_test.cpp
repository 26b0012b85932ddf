// The parts of the coalescing manager one by one: registry of holds, index, controller.
#include "coalescing_region.hpp"

namespace spanalloc::model {
namespace {

// The registry alone: who looks between two readings that are called quiet finds
// nothing in anybody's hands.
struct HoldsAgainstReading {
  static constexpr unsigned kThreads = 3;
  using Registry = coalescing::HoldRegistry<1>;
  Registry registry;
  Atomic<unsigned> in_hands{0};
  void thread(unsigned self) {
    if (self == 2) return read();
    coalescing::Hold<Registry> hold(registry);
    hold.begin();
    in_hands.fetch_add_seq_cst(1);
    if (self == 0) hold.begin();  // has one: nothing changes
    in_hands.fetch_add_seq_cst(-1u);
  }
  void read() {
    const Registry::Reading first = registry.read();
    const unsigned found = in_hands.load_seq_cst();
    MODEL_CHECK(!Registry::quiet_between(first, registry.read()) || found == 0);
  }
  void at_rest() {
    const Registry::Reading now = registry.read();
    MODEL_CHECK(Registry::quiet_between(now, registry.read()));  // everything has ended
    MODEL_CHECK(now.completed == 2);
  }
};
TEST(CoalescingParts, NobodyHoldsAnythingBetweenQuietReadings) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(HoldsAgainstReading, {.memory = memory, .preemptions = bound(4, 6)});
  }
}

// The controller alone: whoever claims and gives back, at rest the index holds exactly the free
// blocks, each in the list of its size and dirt.
struct IndexAtRest {
  static constexpr unsigned kThreads = 3;
  using Index = coalescing::FreeIndex<1>;
  using Mapper = coalescing::WordMapper;
  using Registry = coalescing::HoldRegistry<1>;
  alignas(8) unsigned char words[Mapper::bytes_for(kUnits)] = {};
  IndexMemory<Index> bits;
  Mapper mapper;
  coalescing::StaticController<Mapper, Index> controller{mapper};
  Registry registry;
  IndexAtRest() {
    mapper.attach(words, kUnits);
    controller.attach(kUnits, 0);
    bits.give_to(controller.index());
    controller.add({0, 2}, false);
    controller.add({4, 3}, true);
  }
  void thread(unsigned self) {
    coalescing::Hold<Registry> hold(registry);
    if (self == 2) {
      controller.take(1, 1, coalescing::Search::kQuick, hold);
    } else if (controller.remove({4, 3}, hold)) {
      controller.add({4, 3}, self == 0);  // in one list or in another
    }
  }
  void at_rest() {
    coalescing::Hold<Registry> hold(registry);
    for (unsigned list = 0; list < Index::kLists; ++list) {
      std::size_t unit = controller.index().find(list, 0, hold);
      for (std::size_t expected = 0; expected < kUnits; ++expected) {
        const coalescing::BlockWord word = mapper.load(expected);
        if (!word.is(BlockState::kFree) || Index::list_of(word.size(), word.dirty()) != list)
          continue;
        MODEL_CHECK(unit == expected);
        unit = controller.index().find(list, unit + 1, hold);
      }
      MODEL_CHECK(unit == Index::kNone);
    }
  }
};
TEST(CoalescingParts, AtRestTheIndexHoldsWhatIsFree) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(IndexAtRest, {.memory = memory, .preemptions = bound(2, 3)});
  }
}

// The index alone: summaries that an erased unit left behind are cleared by two searches while a
// unit below them is entered again. Then a search from the top must find it.
struct SearchesAgainstInsert {
  static constexpr unsigned kThreads = 3;
  static constexpr unsigned kList = 1;
  using Index = coalescing::FreeIndex<1>;
  struct Hold {
    void begin() {}
  };
  IndexMemory<Index> memory;
  Index index;
  SearchesAgainstInsert() {
    index.attach(kUnits);
    memory.give_to(index);
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
TEST(CoalescingParts, WhatIsEnteredStaysFindable) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    const unsigned preemptions = memory == MemoryModel::views ? 3 : 5;
    EXPECT_HOLDS(SearchesAgainstInsert,
                 {.memory = memory, .preemptions = bound(preemptions, preemptions + 1)});
  }
}

// A search finds that the list has nothing and says so, while the range grows and what is new is
// entered: behind the word that stood for all units when the search began.
struct SearchAgainstGrowth {
  static constexpr unsigned kThreads = 2;
  static constexpr unsigned kList = 1;
  using Index = coalescing::FreeIndex<1>;
  struct Hold {
    void begin() {}
  };
  IndexMemory<Index> memory;
  Index index;
  SearchAgainstGrowth() {
    index.attach(kUnits);
    memory.give_to(index);
    index.set_limit(2);
    index.insert(kList, 0);
    index.erase(kList, 0);
  }
  void thread(unsigned self) {
    Hold hold;
    if (self == 0) {
      index.set_limit(kUnits);
      return index.insert(kList, 5);
    }
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
TEST(CoalescingParts, WhatIsEnteredIsFindableInARangeThatGrows) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(SearchAgainstGrowth, {.memory = memory, .preemptions = bound(5, 6)});
  }
}

// Index and registry together: while a search tidies the index up, what was entered may be
// unfindable for a moment; but not for one who searches between two quiet readings. What is to be
// tidied up: the summaries, or only the list.
template <bool kOnlyTheList>
struct SearchBetweenQuietReadings {
  static constexpr unsigned kThreads = 2;
  static constexpr unsigned kList = 1;
  using Index = coalescing::FreeIndex<1>;
  using Registry = coalescing::HoldRegistry<1>;
  IndexMemory<Index> memory;
  Index index;
  Registry registry;
  SearchBetweenQuietReadings() {
    index.attach(kUnits);
    memory.give_to(index);
    index.insert(kList, 4);
    index.erase(kList, 4);
    coalescing::Hold<Registry> hold(registry);
    // Each clears one
    for (int level = 0; kOnlyTheList && level < 3; ++level) index.find(kList, 0, hold);
  }
  void thread(unsigned self) {
    coalescing::Hold<Registry> hold(registry);
    if (self == 0) {
      if (index.find(kList, 0, hold) == Index::kNone) index.clear_list(kList, hold);
      return;
    }
    index.insert(kList, 5);
    const Registry::Reading first = registry.read();
    const bool found =
        index.next_list(0, Index::kLists) == kList && index.find(kList, 0, hold) == 5;
    MODEL_CHECK(found || !Registry::quiet_between(first, registry.read()));
  }
  void at_rest() {}
};
TEST(CoalescingParts, WhatIsEnteredIsFoundBetweenQuietReadings) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(SearchBetweenQuietReadings<false>, {.memory = memory, .preemptions = bound(4, 6)});
    EXPECT_HOLDS(SearchBetweenQuietReadings<true>, {.memory = memory, .preemptions = bound(4, 6)});
  }
}

}  // namespace
}  // namespace spanalloc::model
