// Small regions of the coalescing managers under the checker: what the threads of a model do to
// them, and what must be true then.
//
// A Scenario says which blocks there are at first and which calls each thread
// makes. In every execution
//   - no unit is in two blocks, and what one thread wrote into its units happens before the next
//     one has them; - memory that is called zero is zero, and nothing is purged that somebody has;
//     -
//   at rest blocks tile the range, what is free is what nobody has, and a search finds all of it;
// and of the manager that ships, but not of the paper's,
//   - the history is linearizable (block_history.hpp): nothing is refused that was there
//     throughout; - at rest no two free neighbours are left.
#pragma once

#include <vector>

#include "block_history.hpp"
#include "model_test.hpp"
#include "pages/coalescing/manager.hpp"

namespace spanalloc::model {

using coalescing::Allocation;
using coalescing::Block;
using coalescing::BlockState;
using test::Call;
using test::Operation;

inline constexpr std::size_t kUnits = 8;
inline constexpr unsigned kSlots = 6;  // blocks that the threads know by name
inline constexpr unsigned kMaxCalls = 32;

struct Step {
  Call call;
  unsigned slot = 0;
  std::size_t units = 0;
  std::size_t alignment = 1;
};
enum Slot : unsigned { A, B, C, D, E, F };
constexpr Step take(Slot slot, std::size_t units, std::size_t alignment = 1) {
  return {Call::allocate, slot, units, alignment};
}
constexpr Step give(Slot slot) {
  return {Call::free, slot};
}
constexpr Step grow(Slot slot, std::size_t units) {
  return {Call::grow, slot, units};
}
constexpr Step shrink(Slot slot, std::size_t units) {
  return {Call::shrink, slot, units};
}
constexpr Step extend(std::size_t units) {
  return {Call::extend, 0, units};
}
constexpr Step purge() {
  return {Call::purge};
}
// Purges what has not been used since the last tick but one.
constexpr Step tick() {
  return {Call::purge, 0, 1};
}
constexpr Step walk() {
  return {Call::walk};
}

struct Scenario {
  const char* name;
  std::size_t units;        // of the range at first
  std::vector<Step> setup;  // before the threads start
  std::vector<std::vector<Step>> threads;
  bool purges = true;  // or the kernel refuses
};

// What a manager is told by its surroundings, and the books of who has which unit.
class Books {
 public:
  bool pause() {
    spin_hint();
    return true;
  }
  bool purge(Block block) {
    for (std::size_t u = block.first; u < block.end(); ++u) {
      MODEL_CHECK(u < kUnits && owner_[u] == 0);
      if (purges) content_[u] = 0;
    }
    return purges;
  }

  void own(Block block, unsigned self, bool zero) {
    for (std::size_t u = block.first; u < block.end(); ++u) {
      MODEL_CHECK(u < kUnits && owner_[u] == 0);  // no unit in two blocks
      MODEL_CHECK(!zero || content_[u] == 0);
      owner_[u] = static_cast<int>(self) + 1;
      content_[u] = owner_[u];
    }
  }
  void disown(Block block) {
    for (std::size_t u = block.first; u < block.end(); ++u) {
      MODEL_CHECK(content_[u] == owner_[u]);
      owner_[u] = 0;
    }
  }
  // Makes units zero that nobody has any more.
  void clear(Block block) {
    for (std::size_t u = block.first; u < block.end(); ++u) content_[u] = 0;
  }
  bool is_owned(std::size_t unit) const { return owner_[unit] != 0; }
  bool is_zero(std::size_t unit) const { return content_[unit] == 0; }

  bool purges = true;

 private:
  int owner_[kUnits] = {};      // thread + 1, or 0; not part of the modelled memory
  Plain<int> content_[kUnits];  // the units' bytes
};

// The manager that ships, as ScenarioWorld uses it. Two bits of each word used: eight units make
// three levels of the index.
class StaticRegion {
 public:
  static constexpr bool kMayMiss = false;
  StaticRegion() { manager_.attach(metadata_, kUnits); }
  Books& books() { return books_; }
  std::size_t limit() const { return manager_.limit(); }

  Allocation allocate(std::size_t size, std::size_t alignment) {
    return manager_.allocate(size, alignment);
  }
  bool free(std::size_t first) { return manager_.free(first); }
  auto grow(std::size_t first, std::size_t size) { return manager_.grow(first, size); }
  bool shrink(std::size_t first, std::size_t size) { return manager_.shrink(first, size); }
  bool extend(std::size_t size) { return manager_.extend(size, true); }
  void purge(bool only_aged) {
    manager_.purge(only_aged);
    if (only_aged) manager_.age();
  }
  template <class Visit>
  void walk(Visit visit) {
    manager_.walk([&](Block block, BlockState state, bool) { visit(block, state); });
  }

 private:
  using Manager = coalescing::CoalescingManager<Books, 1, 1>;
  Books books_;
  alignas(kCacheLine) unsigned char metadata_[Manager::metadata_bytes(kUnits)] = {};
  Manager manager_{books_};
};

/// Memory for an index alone over kUnits units.
template <class Index>
class IndexMemory {
 public:
  void give_to(Index& index) {
    for (unsigned level = 0; level < kIndexLevels; ++level)
      index.attach_level(level, levels_[level]);
    index.set_limit(kUnits);
  }

 private:
  static constexpr unsigned kIndexLevels = Index::levels_for(kUnits);
  alignas(
      // Level 0 is the largest
      8) unsigned char levels_[kIndexLevels][Index::level_bytes(0, kUnits)] = {};
};

// The scenario that ScenarioWorld runs: a world is made anew for every
// execution, and has no arguments.
inline const Scenario* running_scenario = nullptr;

template <class Region, unsigned kThreadCount>
class ScenarioWorld {
 public:
  static constexpr unsigned kThreads = kThreadCount;

  ScenarioWorld() : scenario_(*running_scenario) {
    region_.books().purges = scenario_.purges;
    MODEL_CHECK(region_.extend(scenario_.units));
    for (const Step& step : scenario_.setup) {
      run(step, kThreads);
      MODEL_CHECK(history_[calls_ - 1].done);
    }
  }
  void thread(unsigned self) {
    for (const Step& step : scenario_.threads[self]) {
      // A call begins when its thread first runs in it, not when the call before it has ended: the
      // scheduler may leave a thread between two calls here.
      turns_.fetch_add_relaxed(1);
      run(step, self);
    }
  }
  void at_rest() {
    std::size_t largest = check_rest();
    // Every free block can be found: taking them all, largest first, empties the range.
    while (largest > 0) {
      const Allocation got = allocate({Call::allocate, kSlots, largest, 1}, kThreads + 1);
      if (!got) --largest;
    }
    for (std::size_t u = 0; u < region_.limit(); ++u) MODEL_CHECK(region_.books().is_owned(u));
    if (Region::kMayMiss) return;
    test::LinearizabilityCheck check({history_, calls_}, scenario_.units, kUnits);
    if (!check.holds()) {
      for (std::size_t i = 0; tracing() && i < calls_; ++i) note(to_string(history_[i]).c_str());
      fail("the history is not linearizable");
    }
  }

 private:
  void run(const Step& step, unsigned self) {
    Block& block = slots_[step.slot];  // of those that are about a block
    if (step.call == Call::allocate) {
      block = allocate(step, self).block;
    } else if (step.call == Call::extend) {
      Operation& op = begin(step, {region_.limit(), 0});
      end(op, region_.extend(step.units));
    } else if (step.call == Call::purge) {
      Operation& op = begin(step, {});
      region_.purge(step.units != 0);
      end(op, true);
    } else if (step.call == Call::walk) {
      walk();
    } else if (block) {  // what was refused before is not changed
      change(step, block, self);
    }
  }
  Allocation allocate(const Step& step, unsigned self) {
    Operation& op = begin(step, {});
    const Allocation got = region_.allocate(step.units, step.alignment);
    op.first = got.block.first;
    end(op, static_cast<bool>(got));
    if (got) {
      MODEL_CHECK(got.block.size == step.units && got.block.first % step.alignment == 0);
      region_.books().own(got.block, self, got.zero);
    }
    return got;
  }
  // A step that the refusal of an earlier one has left without sense is left out.
  void change(const Step& step, Block& block, unsigned self) {
    Books& books = region_.books();
    if (step.call == Call::free) {
      books.disown(block);
      Operation& op = begin(step, block);
      end(op, region_.free(block.first));
      MODEL_CHECK(op.done);
      block = {};
    } else if (step.call == Call::grow) {
      if (step.units <= block.size) return;
      Operation& op = begin(step, block);
      const auto grown = region_.grow(block.first, step.units);
      end(op, static_cast<bool>(grown));
      if (!op.done) return;
      books.own({block.end(), step.units - block.size}, self, grown.zero);
      block.size = step.units;
    } else {
      if (step.units >= block.size) return;
      books.disown({block.first + step.units, block.size - step.units});
      Operation& op = begin(step, block);
      end(op, region_.shrink(block.first, step.units));
      MODEL_CHECK(op.done);
      block.size = step.units;
    }
  }

  // Blocks that nobody touches during the walk are visited once each, as what they are; and what is
  // visited is in order and does not overlap.
  void walk() {
    std::uint64_t visited = 0;
    std::size_t at = 0;
    region_.walk([&](Block block, BlockState state) {
      MODEL_CHECK(block && block.first >= at && block.end() <= kUnits);
      at = block.end();
      for (unsigned slot = 0; slot < kSlots; ++slot) {
        if (untouched(slot) && slots_[slot] == block) {
          MODEL_CHECK(state == BlockState::kUsed);
          visited |= std::uint64_t{1} << slot;
        }
      }
    });
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      if (untouched(slot) && slots_[slot]) MODEL_CHECK((visited >> slot & 1) != 0);
    }
  }
  bool untouched(unsigned slot) const {
    for (const auto& steps : scenario_.threads) {
      for (const Step& step : steps) {
        const bool has_slot =
            step.call != Call::purge && step.call != Call::extend && step.call != Call::walk;
        if (has_slot && step.slot == slot) return false;
      }
    }
    return true;
  }

  Operation& begin(const Step& step, Block block) {
    MODEL_CHECK(calls_ < kMaxCalls);
    Operation& op = history_[calls_++];
    op = {step.call, block.first, step.units, step.alignment, block.size, false, ++clock_, 0};
    return op;
  }
  void end(Operation& op, bool done) {
    op.done = done;
    op.ended = ++clock_;
  }

  // Returns the size of the largest free block.
  std::size_t check_rest() {
    std::size_t at = 0;
    std::size_t largest = 0;
    bool free_before = false;
    region_.walk([&](Block block, BlockState state) {
      MODEL_CHECK(block.first == at);  // blocks tile the range
      MODEL_CHECK(state == BlockState::kFree || state == BlockState::kUsed);
      at = block.end();
      const bool free = state == BlockState::kFree;
      MODEL_CHECK(Region::kMayMiss || !(free && free_before));  // neighbours coalesced
      free_before = free;
      for (std::size_t u = block.first; u < block.end(); ++u) {
        MODEL_CHECK(region_.books().is_owned(u) != free);
      }
      if (free) largest = max_of(largest, block.size);
    });
    MODEL_CHECK(at == region_.limit());
    return largest;
  }

  const Scenario& scenario_;
  Region region_;
  Atomic<unsigned> turns_;
  // Outside the modelled memory, in the order of the execution:
  Block slots_[kSlots] = {};
  Operation history_[kMaxCalls] = {};
  unsigned calls_ = 0;
  std::uint64_t clock_ = 0;
};

template <class Region = StaticRegion>
Result explore_scenario(const Scenario& scenario, const Options& options) {
  running_scenario = &scenario;
  switch (scenario.threads.size()) {
    case 2:
      return explore<ScenarioWorld<Region, 2>>(options);
    case 3:
      return explore<ScenarioWorld<Region, 3>>(options);
    default:
      return explore<ScenarioWorld<Region, 4>>(options);
  }
}

/// Every execution within the bounds must be right. Where all accesses are sequentially consistent
/// the memories differ only if something is not; `pso` allows whatever `tso` does.
inline void expect_scenario_holds(const Scenario& scenario, unsigned preemptions,
                                  unsigned view_preemptions) {
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    const unsigned normal = memory == MemoryModel::views ? view_preemptions : preemptions;
    const Options options{
        .memory = memory, .preemptions = bound(normal, normal + 1), .max_steps = 20'000};
    const Result result = explore_scenario(scenario, options);
    expect_passed(scenario.name, options, result);
  }
}

}  // namespace spanalloc::model
