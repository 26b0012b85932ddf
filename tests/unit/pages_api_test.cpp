// The page manager of spanalloc.h: every function's answers, to good input and to bad.
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child.hpp"

namespace {

constexpr std::size_t kUnit = 4096;

// A mapping for as long as the object lives.
class Mapping {
 public:
  Mapping(std::size_t bytes, int protection)
      : bytes_(bytes),
        start_(mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(start_, MAP_FAILED);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(start_, bytes_); }
  char* at(std::size_t offset) const { return static_cast<char*>(start_) + offset; }

 private:
  std::size_t bytes_;
  void* start_;
};

// The first address in the mapping that is a multiple of `alignment` and not of twice as much.
char* aligned_exactly(const Mapping& mapping, std::size_t alignment) {
  auto address = reinterpret_cast<std::uintptr_t>(mapping.at(0));
  address = (address + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  return mapping.at(address - reinterpret_cast<std::uintptr_t>(mapping.at(0)));
}

struct Seen {
  char* start;
  std::size_t bytes;
  sp_pages_state state;
  int zero;
};
std::vector<Seen> blocks_of(const sp_pages* pages) {
  std::vector<Seen> seen;
  const auto visit = [](const sp_pages_block* block, void* context) {
    static_cast<std::vector<Seen>*>(context)->push_back(
        {static_cast<char*>(block->start), block->bytes, block->state, block->zero});
  };
  EXPECT_EQ(sp_pages_walk(pages, visit, &seen), SP_PAGES_OK);
  return seen;
}
sp_pages_statistics stats_of(const sp_pages* pages) {
  sp_pages_statistics stats;
  EXPECT_EQ(sp_pages_stats(pages, &stats, sizeof stats), SP_PAGES_OK);
  return stats;
}

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
  for (const std::size_t bytes : {(kUnits + 1) * kUnit, kUnits * kUnit + 1, SIZE_MAX, SIZE_MAX - kUnit + 1}) {
    EXPECT_EQ(sp_pages_allocate(pages, bytes, &block, &zero), SP_PAGES_NO_ROOM) << bytes;
  }
  EXPECT_EQ(sp_pages_allocate_aligned(pages, 0, kUnit, &block, &zero), SP_PAGES_BAD_SIZE);
  for (const std::size_t alignment :
       {std::size_t{0}, std::size_t{3}, 3 * kUnit, 32 * kUnit, ~(SIZE_MAX >> 1)}) {
    EXPECT_EQ(sp_pages_allocate_aligned(pages, kUnit, alignment, &block, &zero), SP_PAGES_BAD_ALIGNMENT)
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
    ASSERT_EQ(sp_pages_allocate_aligned(pages, kUnit, alignment, &block, nullptr), SP_PAGES_OK) << alignment;
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
    EXPECT_EQ(sp_pages_grow(pages, address, 9 * kUnit, nullptr), SP_PAGES_NOT_A_BLOCK) << address - start;
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
  EXPECT_EQ(sp_pages_grow(pages, second, kUnit, nullptr), SP_PAGES_BAD_SIZE) << "smaller than it is";
  EXPECT_EQ(sp_pages_grow(pages, nullptr, kUnit, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_size_of(pages, second), 2 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, kUnit + 1, nullptr), SP_PAGES_OK) << "the size it has";
  EXPECT_EQ(sp_pages_size_of(pages, second), 2 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, 2 * kUnit + 1, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_size_of(pages, second), 3 * kUnit);
  EXPECT_EQ(sp_pages_grow(pages, second, (kUnits - 2) * kUnit, nullptr), SP_PAGES_OK) << "all there is";
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
  EXPECT_EQ(sp_pages_shrink(pages, block, (kUnits - 1) * kUnit + 1), SP_PAGES_OK) << "the size it has";
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
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (;;) {
        const sp_pages_status status = sp_pages_extend(pages, kUnit, 0);
        if (status == SP_PAGES_NO_ROOM) return;
        if (status == SP_PAGES_OK) ++added;
        if (status != SP_PAGES_OK && status != SP_PAGES_BUSY) ADD_FAILURE() << sp_pages_status_text(status);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
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
  EXPECT_EQ(sp_pages_walk(pages, [](const sp_pages_block*, void*) {}, nullptr), SP_PAGES_BAD_MANAGER);
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

// ---- creation over a caller's region ----

TEST(PagesCreateOver, SaysHowMuchMetadataItTakes) {
  EXPECT_EQ(sp_pages_metadata_bytes(0, kUnit), 0u);
  EXPECT_EQ(sp_pages_metadata_bytes(kUnit, 0), 0u);
  EXPECT_EQ(sp_pages_metadata_bytes(kUnit, 3), 0u);
  EXPECT_EQ(sp_pages_metadata_bytes(kUnit + 1, kUnit), 0u);
  EXPECT_EQ(sp_pages_metadata_bytes(kUnit / 2, kUnit), 0u);
  EXPECT_EQ(sp_pages_metadata_bytes((std::size_t{1} << 47) + 1, 1), 0u);
  EXPECT_NE(sp_pages_metadata_bytes(std::size_t{1} << 47, 1), 0u);
  std::size_t before = 0;
  for (std::size_t units = 1; units < 5000; ++units) {
    const std::size_t bytes = sp_pages_metadata_bytes(units * kUnit, kUnit);
    EXPECT_GE(bytes, before);
    EXPECT_EQ(bytes, sp_pages_metadata_bytes(units, 1)) << "units count, not bytes";
    before = bytes;
  }
  EXPECT_LT(sp_pages_metadata_bytes(std::size_t{1} << 40, kUnit), std::size_t{1} << 34);
}

TEST(PagesCreateOver, RefusesWhatCannotBeAndChangesNothing) {
  const Mapping region(16 * kUnit, PROT_NONE);
  const std::size_t needed = sp_pages_metadata_bytes(8 * kUnit, kUnit);
  std::vector<char> metadata(needed, 'm');
  sp_pages* out = nullptr;
  const auto create = [&](char* start, std::size_t bytes, std::size_t unit, void* buffer, std::size_t size,
                          unsigned flags) {
    return sp_pages_create_over(start, bytes, unit, buffer, size, flags, &out);
  };
  char* const good = region.at(0);
  char* const last = reinterpret_cast<char*>(~std::uintptr_t{0} - 4 * kUnit + 1);
  void* const books = metadata.data();
  EXPECT_EQ(create(nullptr, 8 * kUnit, kUnit, books, needed, 0), SP_PAGES_NULL);
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, nullptr, needed, 0), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_create_over(good, 8 * kUnit, kUnit, books, needed, 0, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(create(good, 8 * kUnit, 0, books, needed, 0), SP_PAGES_BAD_UNIT);
  EXPECT_EQ(create(good, 8 * kUnit, 3 * kUnit, books, needed, 0), SP_PAGES_BAD_UNIT);
  EXPECT_EQ(create(good, 0, kUnit, books, needed, 0), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(create(good, 8 * kUnit - 1, kUnit, books, needed, 0), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(create(good, ~(SIZE_MAX >> 1), 1, books, needed, 0), SP_PAGES_BAD_SIZE) << "too many units";
  EXPECT_EQ(create(good + 1, 8 * kUnit, kUnit, books, needed, 0), SP_PAGES_BAD_REGION);
  EXPECT_EQ(create(last, 5 * kUnit, kUnit, books, needed, 0), SP_PAGES_BAD_REGION)
      << "beyond the last address";
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, books, needed - 1, 0), SP_PAGES_SMALL_METADATA);
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, books, 0, 0), SP_PAGES_SMALL_METADATA);
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, good + 8 * kUnit - 1, needed, 0), SP_PAGES_BAD_REGION);
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, good - needed + 1, needed, 0), SP_PAGES_BAD_REGION);
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, books, needed, 4), SP_PAGES_BAD_FLAGS);
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(std::count(metadata.begin(), metadata.end(), 'm'), static_cast<std::ptrdiff_t>(needed));
  EXPECT_EQ(create(good, 8 * kUnit, kUnit, books, needed, 0), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_destroy(out), SP_PAGES_OK);
}

TEST(PagesCreateOver, AManagerMayLieAnywhereInItsBufferAndStaysInIt) {
  constexpr std::size_t kUnits = 130;
  const Mapping region(kUnits * kUnit, PROT_NONE);
  const std::size_t needed = sp_pages_metadata_bytes(kUnits * kUnit, kUnit);
  for (std::size_t offset = 0; offset < 70; ++offset) {
    std::vector<char> buffer(needed + 200, 'x');
    sp_pages* pages = nullptr;
    ASSERT_EQ(
        sp_pages_create_over(region.at(0), kUnits * kUnit, kUnit, buffer.data() + offset, needed, 0, &pages),
        SP_PAGES_OK);
    for (std::size_t i = 0; i < kUnits; ++i) {
      void* block = nullptr;
      ASSERT_EQ(sp_pages_allocate(pages, kUnit, &block, nullptr), SP_PAGES_OK);
    }
    for (std::size_t i = 0; i < kUnits; ++i)
      ASSERT_EQ(sp_pages_free(pages, region.at(i * kUnit)), SP_PAGES_OK);
    EXPECT_EQ(stats_of(pages).free_blocks, 1u);
    EXPECT_EQ(stats_of(pages).limit_bytes, kUnits * kUnit) << "no room for more";
    EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK);
    for (std::size_t i = 0; i < offset; ++i) ASSERT_EQ(buffer[i], 'x') << offset;
    for (std::size_t i = offset + needed; i < buffer.size(); ++i) ASSERT_EQ(buffer[i], 'x') << offset;
  }
}

TEST(PagesCreateOver, RoomToExtendEndsAtTheMetadata) {
  // [ region 4 units | 2 units unused | metadata ... ]
  const Mapping memory(64 * kUnit, PROT_READ | PROT_WRITE);
  sp_pages* pages = nullptr;
  ASSERT_EQ(sp_pages_create_over(memory.at(0), 4 * kUnit, kUnit, memory.at(6 * kUnit + 100), 57 * kUnit,
                                 SP_PAGES_METADATA_ZERO, &pages),
            SP_PAGES_OK);
  EXPECT_EQ(stats_of(pages).limit_bytes, 6 * kUnit);
  EXPECT_EQ(sp_pages_extend(pages, 3 * kUnit, 0), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_extend(pages, 2 * kUnit, 0), SP_PAGES_OK);
}

TEST(PagesCreateOver, TheLastAddressesAreARegionToo) {
  constexpr std::size_t kUnits = 16;
  char* const start = reinterpret_cast<char*>(~std::uintptr_t{0} - kUnits * kUnit + 1);
  std::vector<char> metadata(sp_pages_metadata_bytes(2 * kUnits * kUnit, kUnit));
  sp_pages* pages = nullptr;
  ASSERT_EQ(sp_pages_create_over(start, kUnits * kUnit, kUnit, metadata.data(), metadata.size(),
                                 SP_PAGES_METADATA_ZERO, &pages),
            SP_PAGES_OK);
  EXPECT_EQ(stats_of(pages).limit_bytes, kUnits * kUnit) << "nothing follows it";
  void* block = nullptr;
  ASSERT_EQ(sp_pages_allocate(pages, kUnits * kUnit, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(block, start);
  EXPECT_EQ(sp_pages_shrink(pages, block, kUnit), SP_PAGES_OK);
  ASSERT_EQ(sp_pages_allocate(pages, 15 * kUnit, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
}

TEST(PagesCreateOver, UnitsMayBeBytesOrGibibytes) {
  for (const std::size_t unit : {std::size_t{1}, std::size_t{256}, std::size_t{1} << 30}) {
    char* const device = reinterpret_cast<char*>(std::uintptr_t{1} << 40);
    std::vector<char> metadata(sp_pages_metadata_bytes(1024 * unit, unit));
    sp_pages* pages = nullptr;
    ASSERT_EQ(sp_pages_create_over(device, 1024 * unit, unit, metadata.data(), metadata.size(),
                                   SP_PAGES_METADATA_ZERO, &pages),
              SP_PAGES_OK);
    std::set<void*> blocks;
    void* block = nullptr;
    while (sp_pages_allocate(pages, unit, &block, nullptr) == SP_PAGES_OK) blocks.insert(block);
    EXPECT_EQ(blocks.size(), 1024u);
    EXPECT_EQ(*blocks.rbegin(), device + 1023 * unit);
    for (void* each : blocks) EXPECT_EQ(sp_pages_free(pages, each), SP_PAGES_OK);
    EXPECT_EQ(stats_of(pages).free_blocks, 1u);
  }
}

TEST(PagesCreateOver, MemoryThatIsNoManagerIsNotTakenForOne) {
  std::vector<std::uint64_t> nothing(sp_pages_metadata_bytes(kUnit, kUnit) / 8 + 8);
  void* block = nullptr;
  EXPECT_EQ(sp_pages_allocate(reinterpret_cast<sp_pages*>(nothing.data()), 1, &block, nullptr),
            SP_PAGES_BAD_MANAGER);
}

TEST(PagesStatus, EachHasATextOfItsOwn) {
  std::set<std::string> texts;
  for (int status = SP_PAGES_OK; status <= SP_PAGES_UNSUPPORTED; ++status) {
    texts.insert(sp_pages_status_text(static_cast<sp_pages_status>(status)));
  }
  EXPECT_EQ(texts.size(), static_cast<std::size_t>(SP_PAGES_UNSUPPORTED) + 1);
}

// ---- memory of the operating system ----

class SystemPages : public ::testing::Test {
 protected:
  const std::size_t unit = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void create(std::size_t units, std::size_t limit) {
    ASSERT_EQ(sp_pages_create(units * unit, limit * unit, unit, &pages), SP_PAGES_OK);
  }
  char* allocate(std::size_t units, int* zero = nullptr) {
    void* block = nullptr;
    EXPECT_EQ(sp_pages_allocate(pages, units * unit, &block, zero), SP_PAGES_OK);
    return static_cast<char*>(block);
  }
  bool reads_as_zero(const char* block, std::size_t units) const {
    return std::all_of(block, block + units * unit, [](char c) { return c == 0; });
  }
  void TearDown() override {
    if (pages != nullptr) {
      EXPECT_EQ(sp_pages_destroy(pages), SP_PAGES_OK);
    }
  }
  sp_pages* pages = nullptr;
};

TEST_F(SystemPages, RefusesWhatCannotBe) {
  EXPECT_EQ(sp_pages_create(unit, unit, unit, nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_create(unit, unit, 0, &pages), SP_PAGES_BAD_UNIT);
  EXPECT_EQ(sp_pages_create(unit, unit, unit / 2, &pages), SP_PAGES_BAD_UNIT);
  EXPECT_EQ(sp_pages_create(3 * unit, 3 * unit, 3 * unit, &pages), SP_PAGES_BAD_UNIT);
  EXPECT_EQ(sp_pages_create(0, unit, unit, &pages), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_create(unit + 1, 2 * unit, unit, &pages), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_create(unit, 2 * unit - 1, unit, &pages), SP_PAGES_BAD_SIZE);
  EXPECT_EQ(sp_pages_create(2 * unit, unit, unit, &pages), SP_PAGES_BAD_SIZE);
  constexpr std::size_t kTebibyte = std::size_t{1} << 40;
  EXPECT_EQ(sp_pages_create(kTebibyte, kTebibyte << 22, kTebibyte, &pages), SP_PAGES_REFUSED);
  EXPECT_EQ(pages, nullptr);
}

TEST_F(SystemPages, GivesZeroMemoryToWriteTo) {
  create(100, 100);
  int zero = 4711;
  char* const block = allocate(100, &zero);
  EXPECT_EQ(zero, 1);
  EXPECT_TRUE(reads_as_zero(block, 100));
  std::memset(block, 1, 100 * unit);
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
  EXPECT_EQ(allocate(1, &zero), block);
  EXPECT_EQ(zero, 0);
  EXPECT_EQ(block[0], 1) << "nobody has touched it meanwhile";
}

TEST_F(SystemPages, IsAlignedForLargeAlignments) {
  create(1, 4096);
  ASSERT_EQ(sp_pages_extend(pages, 4095 * unit, 0), SP_PAGES_OK);
  void* block = nullptr;
  ASSERT_EQ(sp_pages_allocate_aligned(pages, unit, 2048 * unit, &block, nullptr), SP_PAGES_OK);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % (2048 * unit), 0u);
}

TEST_F(SystemPages, PurgesWhatIsFreeAndDirty) {
  create(64, 64);
  char* const kept = allocate(16);
  char* const freed = allocate(16);
  std::memset(kept, 1, 16 * unit);
  std::memset(freed, 2, 16 * unit);
  EXPECT_EQ(sp_pages_free(pages, freed), SP_PAGES_OK);
  std::size_t bytes = 4711;
  EXPECT_EQ(sp_pages_purge(pages, 2, &bytes), SP_PAGES_BAD_FLAGS);
  EXPECT_EQ(bytes, 4711u);
  EXPECT_EQ(sp_pages_purge(pages, 0, &bytes), SP_PAGES_OK);
  EXPECT_EQ(bytes, 16 * unit);
  EXPECT_TRUE(reads_as_zero(freed, 16));
  EXPECT_EQ(kept[16 * unit - 1], 1);
  EXPECT_EQ(stats_of(pages).free_zero_bytes, 48 * unit);
  int zero = 4711;
  EXPECT_EQ(allocate(48, &zero), freed);
  EXPECT_EQ(zero, 1);
  EXPECT_EQ(sp_pages_purge(pages, 0, nullptr), SP_PAGES_OK) << "nothing to do, nobody to tell";
}

TEST_F(SystemPages, DecaysWhatLayUntouched) {
  create(64, 64);
  char* const block = allocate(64);
  std::memset(block, 1, 64 * unit);
  EXPECT_EQ(sp_pages_shrink(pages, block, 32 * unit), SP_PAGES_OK);
  std::size_t bytes = 4711;
  EXPECT_EQ(sp_pages_purge(pages, SP_PAGES_PURGE_IDLE, &bytes), SP_PAGES_OK);
  EXPECT_EQ(bytes, 0u) << "it was in use a moment ago";
  EXPECT_EQ(block[32 * unit], 1);
  EXPECT_EQ(sp_pages_purge(pages, SP_PAGES_PURGE_IDLE, &bytes), SP_PAGES_OK);
  EXPECT_EQ(bytes, 32 * unit);
  EXPECT_TRUE(reads_as_zero(block + 32 * unit, 32));
}

TEST_F(SystemPages, MemoryThatIsLockedStaysAsItIs) {
  create(4, 4);
  char* const block = allocate(1);
  if (mlock(block, unit) != 0) GTEST_SKIP() << "no memory may be locked here";
  block[0] = 1;
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
  std::size_t bytes = 4711;
  EXPECT_EQ(sp_pages_purge(pages, 0, &bytes), SP_PAGES_OK);
  EXPECT_EQ(bytes, 0u);
  int zero = 4711;
  EXPECT_EQ(allocate(1, &zero), block);
  EXPECT_EQ(zero, 0);
  EXPECT_EQ(block[0], 1);
  munlock(block, unit);
}

TEST_F(SystemPages, IsExtendedInItsReservation) {
  create(1, 1000);
  EXPECT_EQ(stats_of(pages).limit_bytes, 1000 * unit);
  void* block = nullptr;
  EXPECT_EQ(sp_pages_allocate(pages, 2 * unit, &block, nullptr), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_extend(pages, unit, SP_PAGES_REGION_ZERO), SP_PAGES_BAD_FLAGS) << "it knows";
  EXPECT_EQ(sp_pages_extend(pages, 1000 * unit, 0), SP_PAGES_NO_ROOM);
  EXPECT_EQ(sp_pages_extend(pages, 999 * unit, 0), SP_PAGES_OK);
  int zero = 4711;
  char* const all = allocate(1000, &zero);
  EXPECT_EQ(zero, 1);
  std::memset(all, 1, 1000 * unit);
}

TEST_F(SystemPages, AForkedChildGoesOnWithItsCopy) {
  create(64, 64);
  char* const block = allocate(8);
  std::memset(block, 1, 8 * unit);
  const int code = spanalloc::test::run_in_child([&] {
    if (sp_pages_after_fork(pages) != SP_PAGES_OK) return 1;
    if (block[0] != 1 || sp_pages_size_of(pages, block) != 8 * unit) return 2;
    void* other = nullptr;
    if (sp_pages_allocate(pages, 57 * unit, &other, nullptr) != SP_PAGES_NO_ROOM) return 3;
    if (sp_pages_allocate(pages, 56 * unit, &other, nullptr) != SP_PAGES_OK) return 4;
    return sp_pages_free(pages, block) == SP_PAGES_OK ? 0 : 5;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(sp_pages_after_fork(nullptr), SP_PAGES_NULL);
  EXPECT_EQ(sp_pages_size_of(pages, block), 8 * unit);
  EXPECT_EQ(block[0], 1);
}

TEST_F(SystemPages, LeavesNothingBehind) {
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(sp_pages_create(std::size_t{1} << 20, std::size_t{1} << 34, std::size_t{1} << 20, &pages),
              SP_PAGES_OK);
    char* const region = static_cast<char*>(sp_pages_region(pages));
    ASSERT_EQ(sp_pages_destroy(pages), SP_PAGES_OK);
    pages = nullptr;
    unsigned char resident = 0;
    ASSERT_EQ(mincore(region, unit, &resident), -1) << "still mapped";
  }
}

}  // namespace
