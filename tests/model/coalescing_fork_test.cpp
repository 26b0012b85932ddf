// recover_after_fork() of pages/coalescing/manager.hpp under the checker. Threads run calls over
// a small region; at every step of every execution a fork is taken, in which all of them vanish.
// Who forks is in no call, so that the child has its memory, and nothing else of the calls in
// flight; which thread that is, one that has returned or one that never called, makes no
// difference to what it finds.
//
// In the child, after the recovery:
//   - blocks tile the range, each is in use or free, and no two neighbours are free; no word inside
//     a block
//     says that one in use or a free one begins there;
//   - what calls that had returned had taken is in use, block by block; of a call in flight, what
//     it had
//     before it or what it has after it, whichever the headers said; everything else is free;
//   - the index holds exactly what the headers say, in the lists of size and dirt, and a search
//     finds all of
//     it;
//   - nothing is called zero that is not;
//   - nobody waits for a vanished thread; and when everything is given back, one block remains.
#include <array>
#include <span>
#include <string>

#include "coalescing_pairs.hpp"

namespace spanalloc::model {
namespace {

// Steps that only these scenarios have. `units` of an allocation of everything there is:
constexpr std::size_t kEverything = SIZE_MAX;
constexpr Step take_all() {
  return {Call::allocate, 0, kEverything};
}
// Frees what has been made zero.
constexpr Step give_zero(Slot slot) {
  return {Call::free, slot, 1};
}

// The manager and a second look at its tables.
class OpenRegion {
 public:
  using Manager = coalescing::CoalescingManager<Books, 1, 1>;

  OpenRegion() {
    manager.attach(metadata_, kUnits);
    using Tables = Manager::Tables;
    unsigned char* table[Tables::kCount] = {metadata_};
    for (unsigned t = 1; t < Tables::kCount; ++t) {
      table[t] = table[t - 1] + Tables::bytes(t - 1, kUnits, kUnits);
    }
    index_.attach(kUnits);
    for (unsigned level = 0; level < Manager::Index::levels_for(kUnits); ++level) {
      index_.attach_level(level, table[Tables::table_of_level(level)],
                          Tables::place_of_level(level, kUnits));
    }
    index_.set_limit(kUnits);
    mapper_.attach(table[Tables::kRows], kUnits, Tables::kBeforeMapper, Tables::kRowWords);
  }
  BlockState state_at(std::size_t unit) const { return mapper_.load(unit).state(); }
  // visit(list, unit) for each bit of the index in lists of blocks of up to kUnits units.
  template <class Visit>
  void for_index(Visit visit) {
    typename Manager::Registry registry;
    coalescing::Hold<typename Manager::Registry> hold(registry);
    for (const bool dirty : {false, true}) {
      for (std::size_t size = 1; size <= kUnits; ++size) {
        const unsigned list = Manager::Index::list_of(size, dirty);
        for (std::size_t unit = index_.find(list, 0, hold); unit != Manager::Index::kNone;
             unit = index_.find(list, unit + 1, hold)) {
          visit(list, unit);
        }
      }
    }
  }

  Books books;
  Manager manager{books};

 private:
  alignas(kCacheLine) unsigned char metadata_[Manager::metadata_bytes(kUnits)] = {};
  typename Manager::Index index_;
  coalescing::WordMapper mapper_;
};

// Of the blocks that begin at each unit; 0: none of interest
using Sizes = std::array<std::size_t, kUnits>;

// Calls that have returned are in `slots_` and `kept_`; calls in flight in `flights_`.
template <unsigned kThreadCount, bool kRecovers = true>
class ForkWorld {
 public:
  static constexpr unsigned kThreads = kThreadCount;

  ForkWorld() : scenario_(*running_scenario) {
    region_.books.purges = scenario_.purges;
    MODEL_CHECK(manager().extend(scenario_.units, true));
    limit_ = scenario_.units;
    for (const Step& step : scenario_.setup) run(step, kThreads);
  }
  void thread(unsigned self) {
    for (const Step& step : scenario_.threads[self]) {
      // Between two calls: a step at which a fork finds the thread in neither
      turns_.fetch_add_relaxed(1);
      run(step, self);
    }
  }
  // In the child.
  void at_rest() {
    const Sizes used_before = used_blocks();
    tell("found");
    if (kRecovers) manager().recover_after_fork();
    tell("after the recovery");
    const Sizes used = used_blocks();
    MODEL_CHECK(used == used_before);
    check_against_calls(used);
    check_layout();
    take_everything_unit_by_unit();
    give_everything_back();
  }

 private:
  struct Flight {
    const Step* step = nullptr;
    Block block;  // what the call is about, as it was before
  };

  typename OpenRegion::Manager& manager() { return region_.manager; }

  void run(const Step& step, unsigned self) {
    Block& slot = slots_[step.slot];
    const bool about_slot =
        step.call == Call::free || step.call == Call::grow || step.call == Call::shrink;
    // A step that the refusal of an earlier one has left without sense is left out.
    if (about_slot && !slot) return;
    if (step.call == Call::grow && step.units <= slot.size) return;
    if (step.call == Call::shrink && step.units >= slot.size) return;
    Flight& flight = flights_[self];
    flight = {&step, about_slot ? slot : Block{}};
    if (about_slot) slot = {};
    switch (step.call) {
      case Call::allocate:
        if (step.units == kEverything) {
          take_all(flight, self);
        } else {
          const Allocation got = manager().allocate(step.units, step.alignment);
          region_.books.own(got.block, self, got.zero);
          slot = got.block;
        }
        break;
      case Call::free:
        region_.books.disown(flight.block);
        if (step.units != 0) region_.books.clear(flight.block);
        MODEL_CHECK(manager().free(flight.block.first, step.units != 0));
        break;
      case Call::grow: {
        Block block = flight.block;
        if (const auto grown = manager().grow(block.first, step.units)) {
          region_.books.own({block.end(), step.units - block.size}, self, grown.zero);
          block.size = step.units;
        }
        slot = block;
        break;
      }
      case Call::shrink:
        region_.books.disown({flight.block.first + step.units, flight.block.size - step.units});
        MODEL_CHECK(manager().shrink(flight.block.first, step.units));
        slot = {flight.block.first, step.units};
        break;
      case Call::extend:
        if (manager().extend(step.units, true)) limit_ += step.units;
        break;
      case Call::purge:
        manager().purge(step.units != 0);
        if (step.units != 0) manager().age();
        break;
      case Call::walk:
        break;  // of no interest here
    }
    flight = {};
  }
  // Every other block is refused.
  void take_all(Flight& flight, unsigned self) {
    bool keeps = false;
    manager().take_all([&](Block block) {
      if (flight.block) kept_[kept_count_++] = flight.block;
      flight.block = {};
      keeps = !keeps;
      if (keeps) {
        region_.books.own(block, self, false);
        flight.block = block;
      }
      return keeps;
    });
    if (flight.block) kept_[kept_count_++] = flight.block;
  }

  Sizes used_blocks() {
    Sizes used{};
    manager().walk([&](Block block, BlockState state, bool) {
      MODEL_CHECK(block.end() <= kUnits);
      if (state == BlockState::kUsed) used[block.first] = block.size;
    });
    return used;
  }

  void tell(const char* when) {
    if (!tracing()) return;
    note(when);
    manager().walk([](Block block, BlockState state, bool dirty) {
      constexpr const char* kNames[] = {"none", "used", "free", "busy", "footer"};
      const std::string text = std::string(dirty ? "dirty " : "") +
                               kNames[static_cast<unsigned>(state)] + " block of " +
                               std::to_string(block.size) + " at";
      note(text.c_str(), block.first);
    });
  }

  void check_against_calls(Sizes used) {
    const auto strike = [&](Block block) {
      if (!block || used[block.first] != block.size) return false;
      used[block.first] = 0;
      return true;
    };
    for (const Block& block : slots_) {
      if (block) MODEL_CHECK(strike(block));
    }
    for (unsigned i = 0; i < kept_count_; ++i) MODEL_CHECK(strike(kept_[i]));
    for (const Flight& flight : flights_) {
      if (flight.step == nullptr) continue;
      if (flight.step->call == Call::grow || flight.step->call == Call::shrink) {
        MODEL_CHECK(strike(flight.block) || strike({flight.block.first, flight.step->units}));
      } else {
        strike(flight.block);  // freed, or taken with all: done or not
      }
    }
    // What allocations in flight may have: the strictest alignment first.
    for (std::size_t alignment = kUnits; alignment != 0; alignment /= 2) {
      for (const Flight& flight : flights_) {
        if (flight.step == nullptr || flight.step->call != Call::allocate) continue;
        if (flight.step->alignment != alignment || flight.step->units > kUnits) continue;
        for (std::size_t u = 0; u < kUnits; u += alignment) {
          if (strike({u, flight.step->units})) break;
        }
      }
    }
    MODEL_CHECK(used == Sizes{});  // nothing else is in use
  }

  void check_layout() {
    std::size_t at = 0;
    bool free_before = false;
    Sizes list_at{};
    std::size_t free_blocks = 0;
    manager().walk([&](Block block, BlockState state, bool dirty) {
      MODEL_CHECK(block.first == at);
      at = block.end();
      for (std::size_t u = block.first + 1; u < at; ++u) {
        MODEL_CHECK(region_.state_at(u) != BlockState::kFree &&
                    region_.state_at(u) != BlockState::kUsed);
      }
      const bool free = state == BlockState::kFree;
      MODEL_CHECK(free || state == BlockState::kUsed);
      MODEL_CHECK(!(free && free_before));
      free_before = free;
      if (!free) return;
      list_at[block.first] = OpenRegion::Manager::Index::list_of(block.size, dirty);
      ++free_blocks;
      for (std::size_t u = block.first; u < block.end(); ++u) {
        MODEL_CHECK(dirty || region_.books.is_zero(u));
      }
    });
    MODEL_CHECK(at == manager().limit());
    MODEL_CHECK(at == limit_ || at == limit_ + extending());
    region_.for_index([&](unsigned list, std::size_t unit) {
      MODEL_CHECK(list_at[unit] == list);
      --free_blocks;
    });
    MODEL_CHECK(free_blocks == 0);
  }
  std::size_t extending() const {
    for (const Flight& flight : flights_) {
      if (flight.step != nullptr && flight.step->call == Call::extend) return flight.step->units;
    }
    return 0;
  }

  void take_everything_unit_by_unit() {
    std::size_t in_use = 0;
    for (const std::size_t size : used_blocks()) in_use += size;
    while (const Allocation got = manager().allocate(1)) {
      MODEL_CHECK(!got.zero || region_.books.is_zero(got.block.first));
      MODEL_CHECK(got.block.size == 1 && ++in_use <= manager().limit());
    }
    MODEL_CHECK(in_use == manager().limit());
  }
  void give_everything_back() {
    const Sizes used = used_blocks();
    for (std::size_t u = 0; u < kUnits; ++u) {
      if (used[u] != 0) MODEL_CHECK(manager().free(u));
    }
    MODEL_CHECK(manager().extend(kUnits - manager().limit(), true));
    std::size_t blocks = 0;
    manager().walk([&](Block block, BlockState state, bool) {
      MODEL_CHECK(state == BlockState::kFree && block == (Block{0, kUnits}));
      ++blocks;
    });
    MODEL_CHECK(blocks == 1);
    MODEL_CHECK(manager().allocate(kUnits));
  }

  const Scenario& scenario_;
  OpenRegion region_;
  Atomic<unsigned> turns_;
  // Outside the modelled memory:
  std::size_t limit_ = 0;
  Block slots_[kSlots] = {};
  Block kept_[kUnits] = {};
  unsigned kept_count_ = 0;
  Flight flights_[kThreads + 1] = {};  // the last one: the constructor's
};

template <bool kRecovers = true>
Result explore_forks(const Scenario& scenario, const Options& options) {
  running_scenario = &scenario;
  return scenario.threads.size() == 1 ? explore<ForkWorld<1, kRecovers>>(options)
                                      : explore<ForkWorld<2, kRecovers>>(options);
}

bool walks(const Scenario& scenario) {
  for (const auto& steps : scenario.threads) {
    for (const Step& step : steps) {
      if (step.call == Call::walk) return true;
    }
  }
  return false;
}

void expect_recovers(std::span<const Scenario> scenarios, unsigned preemptions) {
  for (const Scenario& scenario : scenarios) {
    if (walks(scenario)) continue;  // a walk leaves no traces
    for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
      const unsigned normal = memory == MemoryModel::views ? preemptions - 1 : preemptions;
      const Options options{.memory = memory,
                            .preemptions = bound(normal, normal + 1),
                            .max_steps = 20'000,
                            .forks = true};
      expect_passed(scenario.name, options, explore_forks(scenario, options));
    }
  }
}

// One thread, and around its block or its free memory what a recovery may join it with.
const Scenario kAlone[] = {
    {"allocate: all of a block", 4, {take(A, 2), take(B, 1)}, {{take(C, 1)}}},
    {"allocate: leaves a rest", 8, {take(A, 2)}, {{take(B, 2)}}},
    {"allocate: leaves a front and a rest", 8, {take(A, 1)}, {{take(B, 2, 4)}}},
    {"allocate: dirty and clean", 8, {take(A, 2), give(A)}, {{take(B, 1, 4), take(C, 4)}}},
    {"allocate: refused, tidies the index up", 8, {take(A, 4), take(B, 4)}, {{take(C, 3)}}},
    {"free: nothing around it", 6, {take(A, 2), take(B, 2), take(C, 2)}, {{give(B)}}},
    {"free: free memory around it",
     8,
     {take(A, 1), take(B, 2), take(C, 2), take(D, 2), take(E, 1), give(B), give(D)},
     {{give(C)}}},
    {"free: one unit between others",
     6,
     {take(A, 2), take(B, 1), take(C, 1), take(D, 2), give(A), give(C)},
     {{give(B)}}},
    {"free: zero memory beside dirty",
     8,
     {take(A, 2), take(B, 2), take(C, 4), give(A)},
     {{give_zero(B), give_zero(C)}}},
    {"grow: leaves a rest", 8, {take(A, 2)}, {{grow(A, 5)}}},
    {"grow: all of a block", 6, {take(A, 2), take(B, 2), take(C, 2), give(B)}, {{grow(A, 4)}}},
    {"shrink: beside a free block", 8, {take(A, 5)}, {{shrink(A, 1)}}},
    {"shrink: beside a block in use", 8, {take(A, 5), take(B, 3)}, {{shrink(A, 1), grow(A, 3)}}},
    {"purge: two blocks", 8, {take(A, 2), take(B, 1), take(C, 3), give(A), give(C)}, {{purge()}}},
    {"purge: refused",
     8,
     {take(A, 2), take(B, 1), take(C, 3), give(A), give(C)},
     {{purge()}},
     false},
    {"tick: purges", 8, {take(A, 2), take(B, 1), give(A), tick(), give(B)}, {{tick(), tick()}}},
    {"extend: behind a free block", 4, {take(A, 2)}, {{extend(2), extend(1)}}},
    {"take all: every other block",
     8,
     {take(A, 1), take(B, 1), take(C, 2), take(D, 1), take(E, 3), give(A), give(C), give(E)},
     {{take_all()}}},
};
// Words of blocks that are gone, where the next call's blocks will be.
const Scenario kOldWords[] = {
    {"old headers: allocate", 8, with_old_header({give(D)}), {{take(F, 3)}}},
    {"old headers: shrink, grow", 8, with_old_header({}), {{shrink(D, 3), grow(D, 4)}}},
    {"old headers: free", 8, with_old_header({}), {{give(E), give(D)}}},
    {"old headers: aligned", 8, with_old_header({give(D)}), {{take(F, 1, 4), give(F)}}},
};
// Two threads, and calls that the pairs do not have.
const Scenario kMorePairs[] = {
    {"take all, free", 6, {take(A, 2), take(B, 2), give(A)}, {{take_all()}, {give(B)}}},
    {"take all, allocate", 6, {take(A, 1), take(B, 2), give(A)}, {{take_all()}, {take(C, 2)}}},
    {"take all, shrink", 6, {take(A, 4), take(B, 1)}, {{take_all()}, {shrink(A, 1)}}},
    {"take all, purge", 6, {take(A, 2), take(B, 1), give(A)}, {{take_all()}, {purge()}}},
    {"free zero memory, purge", 6, {take(A, 2), take(B, 2), give(A)}, {{purge()}, {give_zero(B)}}},
    {"free zero memory, free", 4, {take(A, 2), take(B, 2)}, {{give(A)}, {give_zero(B)}}},
    {"free, free: single units",
     5,
     {take(A, 1), take(B, 1), take(C, 1), take(D, 1), take(E, 1), give(C)},
     {{give(B)}, {give(D)}}},
};

TEST(CoalescingFork, OneThread) {
  expect_recovers(kAlone, 1);
}
TEST(CoalescingFork, OldWords) {
  expect_recovers(kOldWords, 1);
}
TEST(CoalescingFork, AllocateAndEveryOther) {
  expect_recovers(kAllocatePairs, 2);
}
TEST(CoalescingFork, FreeAndEveryOther) {
  expect_recovers(kFreePairs, 2);
}
TEST(CoalescingFork, GrowAndEveryOther) {
  expect_recovers(kGrowPairs, 2);
}
TEST(CoalescingFork, ShrinkPurgeAndExtend) {
  expect_recovers(kOtherPairs, 2);
}
TEST(CoalescingFork, TakeAllAndZeroMemory) {
  expect_recovers(kMorePairs, 2);
}

// Without a recovery every one of these is found.
TEST(CoalescingFork, WithoutARecoveryTheChildIsBroken) {
  for (const Scenario& scenario : kAlone) {
    const Options options{.memory = MemoryModel::pso, .max_steps = 20'000, .forks = true};
    expect_found(scenario.name, options, explore_forks<false>(scenario, options), "");
  }
}

}  // namespace
}  // namespace spanalloc::model
