// The inventory against what the test itself has out, and against a walk over the heap.
#include "standard/inventory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <utility>
#include <vector>

#include "heap_walk.hpp"
#include "owned_heap.hpp"
#include "random.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

using Classes = standard::SizeClasses<Standard>;

/// Live blocks by block size, as the test knows them; 0 for what no size class has.
using Truth = std::map<std::size_t, std::size_t>;

struct Taken {
  void* block;
  std::size_t block_bytes;
};

std::size_t block_bytes_of(std::size_t n) {
  return n > Standard::kMaxBlock ? 0 : Classes::info(Classes::of(n)).block_size;
}

/// Blocks of sizes that each class may have, taken and freed by chance.
class Program {
 public:
  explicit Program(std::uint64_t seed) : random_(test::seed_of(seed)) {}

  void run(unsigned steps) {
    for (unsigned i = 0; i < steps; ++i) {
      // Mostly small; the number of blocks goes up and down in waves.
      if (!taken_.empty() && random_.below(2000) < taken_.size()) {
        free_one(random_.below(taken_.size()));
      } else {
        const std::size_t most = std::size_t{16} << random_.below(random_.one_in(50) ? 18 : 10);
        const std::size_t n = 1 + random_.below(most);
        void* p = E::allocate<ReturnNull>(n);
        ASSERT_NE(p, nullptr);
        taken_.push_back({p, block_bytes_of(n)});
      }
    }
  }
  void free_one(std::size_t i) {
    E::deallocate(taken_[i].block);
    taken_[i] = taken_.back();
    taken_.pop_back();
  }
  void free_all() {
    while (!taken_.empty()) free_one(taken_.size() - 1);
  }
  void add_to(Truth& truth) const {
    for (const Taken& one : taken_) ++truth[one.block_bytes];
  }
  std::vector<Taken>& taken() { return taken_; }

 private:
  test::Random random_;
  std::vector<Taken> taken_;
};

enum class Wanted { kExact, kBounds };

/// With all other threads at rest.
void expect_agreement(Truth truth, Wanted wanted) {
  const auto inventory = E::take_inventory();
  const EngineStatistics& totals = inventory.totals;
  ClassFigures sum;
  std::size_t sum_live_bytes = 0;
  std::size_t sum_span_bytes = 0;
  inventory.for_each_class([&](const ClassFigures& c) {
    const std::size_t live = truth[c.block_bytes];
    EXPECT_EQ(c.blocks, c.live_blocks + c.free_blocks + c.unsure_blocks) << c.block_bytes;
    EXPECT_LE(c.carved_blocks, c.blocks) << c.block_bytes;
    if (wanted == Wanted::kExact) {
      EXPECT_EQ(c.unsure_blocks, 0u) << c.block_bytes;
    }
    EXPECT_LE(c.live_blocks, live) << c.block_bytes;
    EXPECT_GE(c.live_blocks + c.unsure_blocks, live) << c.block_bytes;
    truth.erase(c.block_bytes);
    sum.spans += c.spans;
    sum.live_blocks += c.live_blocks;
    sum.free_blocks += c.free_blocks;
    sum.unsure_blocks += c.unsure_blocks;
    sum_live_bytes += c.live_blocks * c.block_bytes;
    sum_span_bytes += c.spans * c.span_bytes;
  });
  EXPECT_EQ(totals.large_objects, truth[0]);
  truth.erase(0);
  for (const auto& [size, live] : truth)
    EXPECT_EQ(live, 0u) << size << ": a class with live blocks has no span";
  EXPECT_EQ(totals.live_blocks, sum.live_blocks);
  EXPECT_EQ(totals.live_bytes, sum_live_bytes);
  EXPECT_EQ(totals.free_blocks, sum.free_blocks);
  EXPECT_EQ(totals.unsure_blocks, sum.unsure_blocks);
  EXPECT_LE(totals.kept_block_bytes, totals.free_bytes);

  // Free memory, and all that is open.
  EXPECT_EQ(totals.pooled_bytes,
            totals.pool_bytes + totals.kept_span_bytes + totals.dirty_bytes + totals.clean_bytes);
  EXPECT_EQ(totals.opened_bytes, sum_span_bytes + totals.large_bytes + totals.pooled_bytes +
                                     Classes::kSlice);  // slice 0 is never handed out
  // The walk finds each span in its place. It has free spans that are not the arena's, too.
  const test::HeapWalk walk = test::walk_heap<E>();
  EXPECT_EQ(walk.broken, 0u);
  EXPECT_EQ(sum.spans + totals.large_objects - E::pages.outside.statistics().objects,
            walk.carved - walk.in_pool);
  EXPECT_EQ(totals.pool_bytes + totals.kept_span_bytes != 0, walk.in_pool != 0);
}

TEST(StandardInventory, CountsOneThreadsBlocksExactly) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    in_fresh_process([&] {
      Program program(seed);
      for (unsigned round = 0; round < 12; ++round) {
        program.run(5000);
        if (round == 8) E::trim();
        Truth truth;
        program.add_to(truth);
        expect_agreement(truth, Wanted::kExact);
      }
      program.free_all();
      expect_agreement({}, Wanted::kExact);
    });
  }
}

// The span that a thread allocated from at its end: nobody has counted its free blocks, but others
// free more of them. Of these a purge takes some off that list.
TEST(StandardInventory, CountsOnceWhatOthersFreeOfAnEndedThread) {
  for (const std::size_t size : {std::size_t{16}, std::size_t{64}, std::size_t{1000}}) {
    SCOPED_TRACE(size);
    in_fresh_process([&] {
      std::vector<void*> blocks(48 * kKiB / size);  // no span is full
      test::on_another_thread([&] {
        for (void*& p : blocks) p = E::allocate(size);
      });
      std::size_t live = blocks.size();
      // One in so many stays.
      for (const std::size_t kept : {2u, 8u, 64u, 1024u}) {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          if (blocks[i] == nullptr || i % kept == 0) continue;
          E::deallocate(std::exchange(blocks[i], nullptr));
          --live;
        }
        expect_agreement({{block_bytes_of(size), live}}, Wanted::kExact);
        E::pages.memory_return.trim();  // as an epoch does, which counts no span
        expect_agreement({{block_bytes_of(size), live}}, Wanted::kExact);
      }
    });
  }
}

TEST(StandardInventory, BoundsWhatRestingThreadsHave) {
  constexpr unsigned kThreads = 3;
  for (std::uint64_t seed = 10; seed <= 12; ++seed) {
    in_fresh_process([&] {
      std::vector<Program> programs;
      for (unsigned k = 0; k <= kThreads; ++k) programs.emplace_back(seed * 100 + k);
      std::barrier rests(kThreads + 1);
      {
        std::vector<std::jthread> threads;
        for (unsigned k = 0; k < kThreads; ++k) {
          threads.emplace_back([&, k] {
            for (unsigned round = 0; round < 4; ++round) {
              programs[k].run(4000);
              rests.arrive_and_wait();
              rests.arrive_and_wait();
            }
          });
        }
        Program& mine = programs[kThreads];
        for (unsigned round = 0; round < 4; ++round) {
          mine.run(4000);
          rests.arrive_and_wait();
          // Every other block of the others' is freed by this thread, many from batches.
          for (unsigned k = 0; k < kThreads; ++k) {
            auto& taken = programs[k].taken();
            for (std::size_t i = taken.size(); i > 1; i -= 2) programs[k].free_one(i - 1);
          }
          Truth truth;
          for (const Program& program : programs) program.add_to(truth);
          expect_agreement(truth, Wanted::kBounds);
          std::size_t threads_told = 0;
          E::take_inventory().for_each_thread([&](const ThreadFigures& thread) {
            ++threads_told;
            EXPECT_LE(thread.live_bytes + thread.unsure_bytes, thread.span_bytes);
            if (thread.mark == address_of(os::thread_id())) {
              EXPECT_EQ(thread.unsure_bytes, 0u);
            }
          });
          EXPECT_EQ(threads_told, E::statistics().live_threads);
          EXPECT_EQ(threads_told, kThreads + 1);
          rests.arrive_and_wait();
        }
      }
      // What threads that have ended leave behind is nobody's: nothing is unsure.
      Truth truth;
      for (const Program& program : programs) program.add_to(truth);
      expect_agreement(truth, Wanted::kExact);
      for (Program& program : programs) program.free_all();
      expect_agreement({}, Wanted::kExact);
    });
  }
}

TEST(StandardInventory, KnowsWhatBatchesAndCachedSpansKeep) {
  in_fresh_process([] {
    std::vector<void*> blocks(5000);
    test::on_another_thread([&] {
      for (void*& p : blocks) p = E::allocate<ReturnNull>(64);
    });
    EXPECT_EQ(E::statistics().live_blocks, blocks.size());
    void* large = E::allocate<ReturnNull>(100 * kKiB);
    EXPECT_EQ(E::statistics().live_blocks, blocks.size() + 1);
    E::deallocate(large);
    EXPECT_EQ(E::statistics().kept_span_bytes, 128 * kKiB);
    std::size_t most_kept = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      E::deallocate(blocks[i]);
      const EngineStatistics now = E::statistics();
      ASSERT_EQ(now.live_blocks, blocks.size() - i - 1);
      ASSERT_EQ(now.kept_block_bytes % 64, 0u);
      most_kept = std::max(most_kept, now.kept_block_bytes);
    }
    EXPECT_GT(most_kept, 0u) << "no batch ever held a block";
  });
}

TEST(StandardInventory, TellsDirtyMemoryFromClean) {
  in_fresh_process([] {
    std::vector<void*> blocks = fill(32 * kMiB, 2 * kMiB);
    const EngineStatistics held = E::statistics();
    EXPECT_EQ(held.large_bytes, 32 * kMiB);
    EXPECT_GE(E::resident_bytes(), 32 * kMiB);
    free_all(blocks);
    const EngineStatistics freed = E::statistics();
    EXPECT_EQ(freed.large_bytes, 0u);
    EXPECT_GE(freed.dirty_bytes, 32 * kMiB);
    EXPECT_EQ(freed.trims, held.trims);
    ASSERT_TRUE(E::trim());
    const EngineStatistics trimmed = E::statistics();
    EXPECT_EQ(trimmed.dirty_bytes, 0u);
    EXPECT_EQ(trimmed.pool_bytes, 0u);
    EXPECT_GE(trimmed.clean_bytes, 32 * kMiB);
    EXPECT_EQ(trimmed.trims, held.trims + 1);
    EXPECT_GE(trimmed.purged_bytes, held.purged_bytes + 32 * kMiB);
    EXPECT_GT(trimmed.purges, held.purges);
    EXPECT_EQ(trimmed.opened_bytes, held.opened_bytes);
    EXPECT_LT(E::resident_bytes(), 32 * kMiB);
    EXPECT_GT(trimmed.metadata_bytes, 0u);
    EXPECT_GE(trimmed.growths, 1u);
  });
}

TEST(StandardInventory, CountsPagesThatWereGivenBackInSpansInUse) {
  in_fresh_process([] {
    // The first block of each span stays, so that no span becomes free; then they are shared.
    std::vector<void*> kept;
    std::vector<void*> blocks;
    for (int i = 0; i < 40000; ++i) {
      void* p = E::allocate<ReturnNull>(256);
      (address_of(p) % (64 * kKiB) < 1024 ? kept : blocks).push_back(p);
    }
    free_all(blocks);
    EXPECT_EQ(E::statistics().purged_part_bytes, 0u);
    E::trim();
    const EngineStatistics now = E::statistics();
    EXPECT_GT(now.purged_part_bytes, 0u);
    EXPECT_EQ(now.live_blocks, kept.size());
    EXPECT_EQ(now.unsure_blocks, 0u);
    free_all(kept);
    EXPECT_EQ(E::statistics().live_blocks, 0u);
  });
}

TEST(StandardInventory, AddsUpWhileOthersRun) {
  in_fresh_process([] {
    constexpr unsigned kThreads = 3;
    std::atomic<bool> done{false};
    test::Progress progress;
    std::vector<void*> handed_over(64);
    {
      std::vector<std::jthread> threads;
      for (unsigned k = 0; k < kThreads; ++k) {
        threads.emplace_back([&, k] {
          Program program(50 + k);
          while (!done.load(std::memory_order_relaxed)) {
            program.run(200);
            progress.step();
          }
          program.free_all();
        });
      }
      for (int i = 0; i < 100; ++i) {
        progress.wait_for_more(2);
        const auto inventory = E::take_inventory();
        inventory.for_each_class([](const ClassFigures& c) {
          EXPECT_EQ(c.blocks, c.live_blocks + c.free_blocks + c.unsure_blocks);
        });
        inventory.for_each_thread([](const ThreadFigures& thread) {
          EXPECT_LE(thread.live_bytes + thread.unsure_bytes, thread.span_bytes);
        });
        EXPECT_LE(inventory.totals.opened_bytes, inventory.totals.reserved_bytes);
      }
      done.store(true, std::memory_order_relaxed);
    }
    expect_agreement({}, Wanted::kExact);
  });
}

TEST(StandardInventory, IsOfOneHeap) {
  test::OwnedHeap<> first;
  test::OwnedHeap<> second;
  EXPECT_EQ(first.statistics().live_blocks, 0u) << "before its first use";
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(first.allocate(100));
  EXPECT_EQ(first.statistics().live_blocks, 1000u);
  EXPECT_EQ(second.statistics().live_blocks, 0u);
  EXPECT_NE(second.allocate(100), nullptr);
  EXPECT_EQ(second.statistics().live_blocks, 1u);
  EXPECT_EQ(first.statistics().live_blocks, 1000u);
}

}  // namespace
}  // namespace spanalloc::large
