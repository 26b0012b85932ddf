// The page manager under threads, through its C interface: contents stay, nobody gets what another
// one has, and at the end a walk finds one free block that is the whole region.
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "stress_support.hpp"

namespace spanalloc::stress {
namespace {

constexpr std::size_t kUnit = 4096;
constexpr std::size_t kUnits = 1500;   // at first
constexpr std::size_t kLimit = 2000;   // after others have extended the region
constexpr std::size_t kMaxUnits = 60;  // of a block
constexpr unsigned kThreads = 4;
constexpr std::size_t kSlots = 32;  // blocks of a thread, and blocks on their way between threads

// One manager over each kind of region.
class OverStaticMemory {
 public:
  static constexpr bool kPurges = false;
  OverStaticMemory()
      : region_(std::make_unique<char[]>(kUnit * (kLimit + 1))),
        metadata_(sp_pages_metadata_bytes(kLimit * kUnit, kUnit)) {
    const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(region_.get());
    char* const aligned = region_.get() + (kUnit - start % kUnit) % kUnit;
    EXPECT_EQ(
        sp_pages_create_over(aligned, kUnits * kUnit, kUnit, metadata_.data(), metadata_.size(),
                             SP_PAGES_METADATA_ZERO | SP_PAGES_REGION_ZERO, &pages),
        SP_PAGES_OK);
  }
  ~OverStaticMemory() { EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK); }
  sp_pages* pages = nullptr;

 private:
  std::unique_ptr<char[]> region_;
  std::vector<char> metadata_;
};
class OverTheSystem {
 public:
  static constexpr bool kPurges = true;
  OverTheSystem() {
    EXPECT_EQ(sp_pages_create(kUnits * kUnit, kLimit * kUnit, kUnit, &pages), SP_PAGES_OK);
  }
  ~OverTheSystem() { EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK); }
  sp_pages* pages = nullptr;
};

// A block and the number that stands at the beginning and the end of each of its units.
struct Block {
  unsigned char* start = nullptr;
  std::size_t bytes = 0;
  std::uint64_t mark = 0;
};
std::uint64_t* word_at(unsigned char* address) {
  return reinterpret_cast<std::uint64_t*>(address);
}
void write(const Block& block, std::size_t from) {
  for (std::size_t at = from; at < block.bytes; at += kUnit) {
    *word_at(block.start + at) = block.mark + at;
    *word_at(block.start + at + kUnit - 8) = block.mark ^ at;
  }
}
bool stands(const Block& block) {
  for (std::size_t at = 0; at < block.bytes; at += kUnit) {
    if (*word_at(block.start + at) != block.mark + at) return false;
    if (*word_at(block.start + at + kUnit - 8) != (block.mark ^ at)) return false;
  }
  return true;
}
bool reads_as_zero(const unsigned char* start, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (start[i] != 0) return false;
  }
  return true;
}

// What lies between threads: whoever takes a block out frees it or keeps it.
struct Exchange {
  std::atomic<Block*> slots[kSlots] = {};
};

template <bool kPurges>
class Worker {
 public:
  Worker(sp_pages* pages, Exchange& exchange, Report& report, unsigned number)
      : pages_(pages), exchange_(exchange), report_(report), random_(test::seed_of(number + 1)) {}

  void run(std::size_t steps) {
    for (std::size_t i = 0; i < steps && report_.errors() == 0; ++i) step();
    for (Block& block : blocks_) release(block);
  }

 private:
  void step() {
    Block& block = blocks_[random_.below(kSlots)];
    report_.operations.fetch_add(1, std::memory_order_relaxed);
    const std::size_t dice = random_.below(100);
    if (dice < 2) return rare();
    if (block.start == nullptr) return allocate(block);
    if (dice < 30) return release(block);
    if (dice < 50) return grow(block);
    if (dice < 70) return shrink(block);
    if (dice < 85) return pass_on(block);
    check(block);
  }

  void allocate(Block& block) {
    const std::size_t bytes = (1 + random_.below(kMaxUnits)) * kUnit;
    const std::size_t alignment = random_.one_in(4) ? kUnit << random_.below(2) : 1;
    void* start = nullptr;
    int zero = 0;
    const sp_pages_status status =
        sp_pages_allocate_aligned(pages_, bytes, alignment, &start, &zero);
    // Memory may well be short, and the region may be aligned to a unit only.
    if (status == SP_PAGES_NO_ROOM) return;
    if (status != SP_PAGES_OK) return report_.error("allocate: %s", sp_pages_status_text(status));
    if (reinterpret_cast<std::uintptr_t>(start) % alignment != 0)
      report_.error("%p is not aligned", start);
    block = {static_cast<unsigned char*>(start), bytes, random_.next()};
    if (sp_pages_size_of(pages_, start) != bytes) report_.error("%p has another size", start);
    if (zero != 0 && !reads_as_zero(block.start, bytes)) report_.error("%p is not zero", start);
    write(block, 0);
  }
  void check(const Block& block) {
    if (!stands(block)) report_.error("%p was written to", static_cast<void*>(block.start));
  }
  void release(Block& block) {
    if (block.start == nullptr) return;
    check(block);
    const sp_pages_status status = sp_pages_free(pages_, block.start);
    if (status != SP_PAGES_OK) report_.error("free: %s", sp_pages_status_text(status));
    block = {};
  }
  void grow(Block& block) {
    const std::size_t bytes = block.bytes + (1 + random_.below(4)) * kUnit;
    int zero = 0;
    const sp_pages_status status = sp_pages_grow(pages_, block.start, bytes, &zero);
    if (status == SP_PAGES_NO_ROOM) return;
    if (status != SP_PAGES_OK) return report_.error("grow: %s", sp_pages_status_text(status));
    const std::size_t old = block.bytes;
    if (zero != 0 && !reads_as_zero(block.start + old, bytes - old)) {
      report_.error("%p has not gained zeros", static_cast<void*>(block.start));
    }
    block.bytes = bytes;
    write(block, old);
  }
  void shrink(Block& block) {
    const std::size_t bytes = (1 + random_.below(block.bytes / kUnit)) * kUnit;
    const sp_pages_status status = sp_pages_shrink(pages_, block.start, bytes);
    if (status != SP_PAGES_OK) report_.error("shrink: %s", sp_pages_status_text(status));
    block.bytes = bytes;
  }
  void pass_on(Block& block) {
    // Acquire and release: the marks in the block, and its record.
    Block* const other = exchange_.slots[random_.below(kSlots)].exchange(new Block(block));
    block = other == nullptr ? Block{} : *other;
    delete other;
  }
  void rare() {
    if (random_.one_in(40)) {
      const sp_pages_status status = sp_pages_extend(pages_, kUnit, 0);
      if (status != SP_PAGES_OK && status != SP_PAGES_NO_ROOM && status != SP_PAGES_BUSY) {
        report_.error("extend: %s", sp_pages_status_text(status));
      }
    }
    if (kPurges) {
      const unsigned flags = random_.one_in(4) ? 0 : SP_PAGES_PURGE_IDLE;
      const sp_pages_status status = sp_pages_purge(pages_, flags, nullptr);
      if (status != SP_PAGES_OK) report_.error("purge: %s", sp_pages_status_text(status));
    }
  }

  sp_pages* pages_;
  Exchange& exchange_;
  Report& report_;
  Random random_;
  Block blocks_[kSlots] = {};
};

// Walks while others work: blocks come in order of address and lie in the region.
void look_on(const sp_pages* pages, Report& report, const std::atomic<bool>& end) {
  struct Seen {
    const char* next;
    bool in_order;
  };
  const auto visit = [](const sp_pages_block* block, void* context) {
    auto* const seen = static_cast<Seen*>(context);
    const auto* const start = static_cast<const char*>(block->start);
    seen->in_order =
        seen->in_order && start >= seen->next && block->bytes != 0 && block->bytes % kUnit == 0;
    seen->next = start + block->bytes;
  };
  const char* const region = static_cast<const char*>(sp_pages_region(pages));
  while (!end) {
    Seen seen{region, true};
    sp_pages_walk(pages, visit, &seen);
    if (!seen.in_order) report.error("a walk went backwards");
    if (seen.next > region + kLimit * kUnit) report.error("a walk left the region");
    std::this_thread::yield();
  }
}

template <class Memory>
class Pages : public ::testing::Test {};
using Memories = ::testing::Types<OverStaticMemory, OverTheSystem>;
TYPED_TEST_SUITE(Pages, Memories);

TYPED_TEST(Pages, ThreadsKeepTheirContentsAndLeaveOneBlock) {
  TypeParam memory;
  sp_pages* const pages = memory.pages;
  Exchange exchange;
  Report report;
  std::atomic<bool> end{false};
  // Without calls of the kernel a step is quick.
  const std::size_t steps = scaled(TypeParam::kPurges ? 100'000 : 1'000'000);
  std::thread onlooker([&] { look_on(pages, report, end); });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back(
        [&, t] { Worker<TypeParam::kPurges>(pages, exchange, report, t).run(steps); });
  }
  for (std::thread& thread : threads) thread.join();
  end = true;
  onlooker.join();
  for (std::atomic<Block*>& slot : exchange.slots) {
    const std::unique_ptr<Block> block(slot.exchange(nullptr));
    if (block == nullptr || block->start == nullptr) continue;
    if (!stands(*block)) report.error("%p was written to", static_cast<void*>(block->start));
    if (sp_pages_free(pages, block->start) != SP_PAGES_OK)
      report.error("a passed block is not there");
  }
  EXPECT_EQ(report.errors(), 0u) << report.first();
  EXPECT_GT(report.operations, 1000u);

  sp_pages_statistics stats;
  ASSERT_EQ(sp_pages_stats(pages, &stats, sizeof stats), SP_PAGES_OK);
  EXPECT_EQ(stats.used_blocks, 0u);
  EXPECT_EQ(stats.moving_bytes, 0u);
  EXPECT_EQ(stats.free_blocks, 1u);
  EXPECT_EQ(stats.free_bytes, stats.region_bytes);
  void* all = nullptr;
  EXPECT_EQ(sp_pages_allocate(pages, stats.region_bytes, &all, nullptr), SP_PAGES_OK);
}

// Each thread needs no more than its share, unit by unit: nobody may ever be refused, although
// others split and join blocks all the time.
TYPED_TEST(Pages, NobodyIsRefusedItsShare) {
  TypeParam memory;
  sp_pages* const pages = memory.pages;
  constexpr std::size_t kShare = kUnits / kThreads;
  Report report;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<void*> mine;
      for (int round = 0; round < 20; ++round) {
        while (mine.size() < kShare) {
          void* block = nullptr;
          const sp_pages_status status = sp_pages_allocate(pages, kUnit, &block, nullptr);
          if (status != SP_PAGES_OK)
            return report.error("refused with %zu of %zu", mine.size(), kShare);
          mine.push_back(block);
        }
        for (void* block : mine) {
          if (sp_pages_free(pages, block) != SP_PAGES_OK)
            report.error("%p was freed by another thread", block);
        }
        mine.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(report.errors(), 0u) << report.first();
  sp_pages_statistics stats;
  ASSERT_EQ(sp_pages_stats(pages, &stats, sizeof stats), SP_PAGES_OK);
  EXPECT_EQ(stats.free_blocks, 1u);
}

}  // namespace
}  // namespace spanalloc::stress
