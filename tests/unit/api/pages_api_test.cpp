// The page manager of spanalloc.h: every operation's answers, to good input and to bad, over
// memory that nobody may touch.
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "api/pages_api_test_support.hpp"
#include "threads.hpp"

namespace spanalloc::test {
namespace {

// A manager over memory that nobody may touch.
class Untouchable : public ::testing::Test {
 protected:
  static constexpr std::size_t kUnits = 64;
  static constexpr std::size_t kMore = 36;  // room to extend

  void SetUp() override {
    metadata.resize(sp_pages_metadata_bytes((kUnits + kMore) * kUnit, kUnit));
    start = aligned_exactly(region, kUnit * 16);
    ASSERT_EQ(sp_pages_create_over(start, kUnits * kUnit, kUnit, metadata.data(), metadata.size(),
                                   SP_PAGES_METADATA_ZERO | SP_PAGES_REGION_ZERO, &pages),
              SP_PAGES_OK);
  }
  void TearDown() override {
    if (pages != nullptr) {
      EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK);
    }
  }
  char* allocate(std::size_t units) {
    void* block = nullptr;
    EXPECT_EQ(sp_pages_allocate(pages, units * kUnit, &block, nullptr), SP_PAGES_OK);
    return static_cast<char*>(block);
  }
  // What a refused call must have left as it was.
  void expect_all_free() {
    const sp_pages_statistics stats = stats_of(pages);
    EXPECT_EQ(stats.free_bytes, stats.region_bytes);
    EXPECT_EQ(stats.free_blocks, 1u);
    EXPECT_EQ(stats.used_blocks, 0u);
  }

  Mapping region{4096 * kUnit, PROT_NONE};
  std::vector<char> metadata;
  char* start = nullptr;
  sp_pages* pages = nullptr;
};

TEST_F(Untouchable, AllIsOneFreeBlockAtFirst) {
  const sp_pages_statistics stats = stats_of(pages);
  EXPECT_EQ(stats.unit_bytes, kUnit);
  EXPECT_EQ(stats.region_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.limit_bytes, (kUnits + kMore) * kUnit);
  EXPECT_EQ(stats.used_bytes, 0u);
  EXPECT_EQ(stats.free_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.free_zero_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.moving_bytes, 0u);
  EXPECT_EQ(stats.largest_free_bytes, kUnits * kUnit);
  EXPECT_EQ(stats.used_blocks, 0u);
  EXPECT_EQ(stats.free_blocks, 1u);
  EXPECT_EQ(stats.metadata_bytes, metadata.size());
  EXPECT_EQ(sp_pages_region(pages), start);
}

TEST_F(Untouchable, BlocksAreWholeUnits) {
  void* block = nullptr;
  ASSERT_EQ(sp_pages_allocate(pages, 1, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, block), kUnit);
  ASSERT_EQ(sp_pages_allocate(pages, kUnit, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, block), kUnit);
  ASSERT_EQ(sp_pages_allocate(pages, kUnit + 1, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, block), 2 * kUnit);
}

TEST_F(Untouchable, RefusesWhatIsNoRequest) {
  void* block = start + 1;
  int zero = 4711;
  EXPECT_EQ(sp_pages_allocate(pages, 0, &block, &zero), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_allocate(pages, kUnit, nullptr, &zero), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_allocate(nullptr, kUnit, &block, &zero), SP_PAGES_NULL);
  for (const std::size_t bytes :
       {(kUnits + 1) * kUnit, kUnits * kUnit + 1, SIZE_MAX, SIZE_MAX - kUnit + 1}) {
    EXPECT_EQ(sp_pages_allocate(pages, bytes, &block, &zero), SP_PAGES_NO_ROOM) << bytes;
  }
  EXPECT_EQ(sp_pages_allocate_aligned(pages, 0, kUnit, &block, &zero), SP_PAGES_BAD_SIZE);
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, 3 * kUnit, 48 * kUnit}) {
    EXPECT_EQ(sp_pages_allocate_aligned(pages, kUnit, alignment, &block, &zero),
              SP_PAGES_BAD_ALIGNMENT)
        << alignment;
  }
  EXPECT_EQ(block, start + 1);
  EXPECT_EQ(zero, 4711);
  expect_all_free();
}

TEST_F(Untouchable, AlignsAddressesAndWastesNothing) {
  // The region itself begins at an odd multiple of 16 units.
  void* block = nullptr;
  for (std::size_t alignment = 1; alignment <= 16 * kUnit; alignment *= 2) {
    ASSERT_EQ(sp_pages_allocate_aligned(pages, kUnit, alignment, &block, nullptr), SP_PAGES_OK)
        << alignment;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0u) << alignment;
  }
  std::size_t covered = 0;
  for (const Seen& seen : blocks_of(pages)) covered += seen.bytes;
  EXPECT_EQ(covered, kUnits * kUnit);
  EXPECT_EQ(stats_of(pages).used_bytes, 17 * kUnit);
}

TEST_F(Untouchable, FreesOnlyWhatIsABlock) {
  char* const first = allocate(2);
  char* const second = allocate(3);
  EXPECT_EQ(sp_pages_free(pages, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_free(nullptr, first), SP_PAGES_NULL);
  char* const wrong[] = {first + 1,
                         first + kUnit,
                         second + kUnit,
                         second + 3 * kUnit,  // free
                         start - kUnit,
                         start - 1,
                         start + kUnits * kUnit,
                         start + (kUnits + kMore) * kUnit,
                         reinterpret_cast<char*>(kUnit),
                         reinterpret_cast<char*>(~std::uintptr_t{0} - kUnit + 1)};
  for (char* const address : wrong) {
    EXPECT_EQ(sp_pages_free(pages, address), SP_PAGES_NOT_A_BLOCK) << address - start;
    EXPECT_EQ(sp_pages_grow(pages, address, 9 * kUnit, nullptr), SP_PAGES_NOT_A_BLOCK)
        << address - start;
    EXPECT_EQ(sp_pages_shrink(pages, address, kUnit), SP_PAGES_NOT_A_BLOCK) << address - start;
    EXPECT_EQ(sp_pages_size_of(pages, address), 0u) << address - start;
  }
  EXPECT_EQ(stats_of(pages).used_bytes, 5 * kUnit);
  EXPECT_EQ(sp_pages_free(pages, first), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_free(pages, first), SP_PAGES_NOT_A_BLOCK) << "twice";
  EXPECT_EQ(sp_pages_free(pages, second), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_free(pages, second), SP_PAGES_NOT_A_BLOCK) << "twice";
  expect_all_free();
}

TEST_F(Untouchable, GrowsWhereThereIsRoomBehind) {
  char* const first = allocate(2);
  char* const second = allocate(2);
  EXPECT_EQ(sp_pages_grow(pages, first, 3 * kUnit, nullptr), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_grow(pages, second, (kUnits - 1) * kUnit, nullptr), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_grow(pages, second, SIZE_MAX, nullptr), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_grow(pages, second, 0, nullptr), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_grow(pages, second, kUnit, nullptr), SP_PAGES_BAD_SIZE)
      << "smaller than it is";
  EXPECT_EQ(sp_pages_grow(pages, nullptr, kUnit, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_size_of(pages, second), 2 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, kUnit + 1, nullptr), SP_PAGES_OK) << "the size it has";
  EXPECT_EQ(sp_pages_size_of(pages, second), 2 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, 2 * kUnit + 1, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, second), 3 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, (kUnits - 2) * kUnit, nullptr), SP_PAGES_OK)
      << "all there is";
  EXPECT_EQ(stats_of(pages).free_blocks, 0u);
  EXPECT_EQ(sp_pages_free(pages, second), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_grow(pages, first, kUnits * kUnit, nullptr), SP_PAGES_OK);
}

TEST_F(Untouchable, ShrinksAndGivesTheTailBack) {
  char* const block = allocate(kUnits);
  EXPECT_EQ(sp_pages_shrink(pages, block, 0), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_shrink(pages, block, kUnits * kUnit + 1), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_shrink(pages, block, SIZE_MAX), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_shrink(pages, nullptr, kUnit), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_size_of(pages, block), kUnits * kUnit);
  EXPECT_EQ(sp_pages_shrink(pages, block, (kUnits - 1) * kUnit + 1), SP_PAGES_OK)
      << "the size it has";
  EXPECT_EQ(sp_pages_size_of(pages, block), kUnits * kUnit);
  EXPECT_EQ(sp_pages_shrink(pages, block, 1), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, block), kUnit);
  EXPECT_EQ(stats_of(pages).largest_free_bytes, (kUnits - 1) * kUnit);
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
  expect_all_free();
}

TEST_F(Untouchable, TellsWhatIsKnownToBeZero) {
  void* block = nullptr;
  int zero = 4711;
  ASSERT_EQ(sp_pages_allocate(pages, 8 * kUnit, &block, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 1);
  zero = 4711;
  EXPECT_EQ(sp_pages_grow(pages, block, 10 * kUnit, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 1);
  EXPECT_EQ(sp_pages_shrink(pages, block, 4 * kUnit), SP_PAGES_OK);
  zero = 4711;
  EXPECT_EQ(sp_pages_grow(pages, block, 5 * kUnit, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 0) << "what it gained it had before";
  zero = 4711;
  EXPECT_EQ(sp_pages_grow(pages, block, 5 * kUnit, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 1) << "it gained nothing";
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
  zero = 4711;
  ASSERT_EQ(sp_pages_allocate(pages, kUnit, &block, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 0);
  EXPECT_EQ(stats_of(pages).free_zero_bytes, 0u) << "the free block has dirty units too";
}

TEST_F(Untouchable, IsExtendedUpToItsLimit) {
  char* const block = allocate(kUnits - 1);
  EXPECT_EQ(sp_pages_extend(pages, 0, 0), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_extend(pages, kUnit + 1, 0), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_extend(pages, kUnit, SP_PAGES_METADATA_ZERO), SP_PAGES_BAD_FLAGS);
  EXPECT_EQ(sp_pages_extend(pages, (kMore + 1) * kUnit, 0), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_extend(pages, SIZE_MAX / kUnit * kUnit, 0), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_extend(nullptr, kUnit, 0), SP_PAGES_NULL);
  EXPECT_EQ(stats_of(pages).region_bytes, kUnits * kUnit);
  EXPECT_EQ(sp_pages_extend(pages, 2 * kUnit, SP_PAGES_REGION_ZERO), SP_PAGES_OK);
  const sp_pages_statistics stats = stats_of(pages);
  EXPECT_EQ(stats.region_bytes, (kUnits + 2) * kUnit);
  EXPECT_EQ(stats.free_blocks, 1u) << "joined with the last unit";
  void* fresh = nullptr;
  int zero = 4711;
  ASSERT_EQ(sp_pages_allocate(pages, 3 * kUnit, &fresh, &zero), SP_PAGES_OK);
  EXPECT_EQ(fresh, block + (kUnits - 1) * kUnit);
  EXPECT_EQ(zero, 1);
  EXPECT_EQ(sp_pages_extend(pages, (kMore - 2) * kUnit, 0), SP_PAGES_OK);
  ASSERT_EQ(sp_pages_allocate(pages, kUnit, &fresh, &zero), SP_PAGES_OK);
  EXPECT_EQ(zero, 0);
  EXPECT_EQ(sp_pages_extend(pages, kUnit, 0), SP_PAGES_NO_ROOM);
}

TEST_F(Untouchable, IsExtendedByOneThreadAtATime) {
  std::atomic<std::size_t> added{0};
  test::in_threads(4, [&](unsigned) {
    for (;;) {
      const sp_pages_status status = sp_pages_extend(pages, kUnit, 0);
      if (status == SP_PAGES_NO_ROOM) return;
      if (status == SP_PAGES_OK) ++added;
      if (status != SP_PAGES_OK && status != SP_PAGES_BUSY)
        ADD_FAILURE() << sp_pages_status_text(status);
    }
  });
  EXPECT_EQ(added, kMore);
  expect_all_free();
}

TEST_F(Untouchable, CannotBePurged) {
  std::size_t bytes = 4711;
  EXPECT_EQ(sp_pages_free(pages, allocate(1)), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_purge(pages, 0, &bytes), SP_PAGES_UNSUPPORTED);
  EXPECT_EQ(sp_pages_purge(pages, 2, &bytes), SP_PAGES_BAD_FLAGS);
  EXPECT_EQ(sp_pages_purge(nullptr, 0, &bytes), SP_PAGES_NULL);
  EXPECT_EQ(bytes, 4711u);
}

TEST_F(Untouchable, WalksInOrderOfAddress) {
  char* const a = allocate(1);
  char* const b = allocate(2);
  char* const c = allocate(3);
  EXPECT_EQ(sp_pages_free(pages, b), SP_PAGES_OK);
  const std::vector<Seen> seen = blocks_of(pages);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].start, a);
  EXPECT_EQ(seen[0].state, SP_PAGES_USED);
  EXPECT_EQ(seen[1].start, b);
  EXPECT_EQ(seen[1].bytes, 2 * kUnit);
  EXPECT_EQ(seen[1].state, SP_PAGES_FREE);
  EXPECT_EQ(seen[1].zero, 0);
  EXPECT_EQ(seen[2].start, c);
  EXPECT_EQ(seen[3].bytes, (kUnits - 6) * kUnit);
  EXPECT_EQ(seen[3].zero, 1);
  EXPECT_EQ(sp_pages_walk(pages, nullptr, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_walk(nullptr, [](const sp_pages_block*, void*) {}, nullptr), SP_PAGES_NULL);
}

TEST_F(Untouchable, StatisticsSuitOlderAndNewerCallers) {
  struct {
    sp_pages_statistics known;
    std::size_t later;
  } newer;
  std::memset(&newer, 0x55, sizeof newer);
  EXPECT_EQ(sp_pages_stats(pages, &newer.known, sizeof newer), SP_PAGES_OK);
  EXPECT_EQ(newer.known.unit_bytes, kUnit);
  EXPECT_EQ(newer.later, 0u);
  sp_pages_statistics older;
  std::memset(&older, 0x55, sizeof older);
  EXPECT_EQ(sp_pages_stats(pages, &older, 2 * sizeof(std::size_t)), SP_PAGES_OK);
  EXPECT_EQ(older.region_bytes, kUnits * kUnit);
  EXPECT_EQ(older.limit_bytes, 0x5555555555555555u);
  EXPECT_EQ(sp_pages_stats(pages, nullptr, 0), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_stats(nullptr, &older, sizeof older), SP_PAGES_NULL);
}

TEST_F(Untouchable, IsNoManagerAfterItsEnd) {
  char* const block = allocate(1);
  EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK) << "with a block handed out";
  void* out = nullptr;
  sp_pages_statistics stats;
  EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_allocate(pages, kUnit, &out, nullptr), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_allocate_aligned(pages, kUnit, kUnit, &out, nullptr), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_grow(pages, block, 2 * kUnit, nullptr), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_shrink(pages, block, kUnit), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_size_of(pages, block), 0u);
  EXPECT_EQ(sp_pages_region(pages), nullptr);
  EXPECT_EQ(sp_pages_extend(pages, kUnit, 0), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_purge(pages, 0, nullptr), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(
      sp_pages_walk(pages, [](const sp_pages_block*, void*) {}, nullptr), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_stats(pages, &stats, sizeof stats), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_after_fork(pages), SP_PAGES_BAD_MANAGER);
  EXPECT_EQ(sp_pages_destroy(nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_size_of(nullptr, block), 0u);
  EXPECT_EQ(sp_pages_region(nullptr), nullptr);
  // The buffer, no longer zero, may hold a manager again.
  ASSERT_EQ(sp_pages_create_over(start, kUnit, kUnit, metadata.data(), metadata.size(), 0, &pages),
            SP_PAGES_OK);
  expect_all_free();
}

TEST(PagesStatus, EachHasATextOfItsOwn) {
  std::set<std::string> texts;
  for (int status = SP_PAGES_OK; status <= SP_PAGES_UNSUPPORTED; ++status) {
    texts.insert(sp_pages_status_text(static_cast<sp_pages_status>(status)));
  }
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(SP_PAGES_UNSUPPORTED) + 1);
}

}  // namespace
}  // namespace spanalloc::test
