// The page manager of spanalloc.h over memory of the operating system.
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "api/pages_api_test_support.hpp"
#include "child.hpp"
#include "sanitizers.hpp"

namespace spanalloc::test {
namespace {

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
  // The system call itself: sanitizers make nothing of mlock.
  if (syscall(SYS_mlock, block, unit) != 0) GTEST_SKIP() << "no memory may be locked here";
  block[0] = 1;
  EXPECT_EQ(sp_pages_free(pages, block), SP_PAGES_OK);
  std::size_t bytes = 4711;
  EXPECT_EQ(sp_pages_purge(pages, 0, &bytes), SP_PAGES_OK);
  EXPECT_EQ(bytes, 0u);
  int zero = 4711;
  EXPECT_EQ(allocate(1, &zero), block);
  EXPECT_EQ(zero, 0);
  EXPECT_EQ(block[0], 1);
  syscall(SYS_munlock, block, unit);
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
  const int code = run_in_child([&] {
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
  const int rounds = kEmulated ? 5 : 200;  // the emulator records every page of the region
  for (int round = 0; round < rounds; ++round) {
    ASSERT_EQ(
        sp_pages_create(std::size_t{1} << 20, std::size_t{1} << 34, std::size_t{1} << 20, &pages),
        SP_PAGES_OK);
    char* const region = static_cast<char*>(sp_pages_region(pages));
    ASSERT_EQ(sp_pages_destroy(pages), SP_PAGES_OK);
    pages = nullptr;
    unsigned char resident = 0;
    ASSERT_EQ(mincore(region, unit, &resident), -1) << "still mapped";
  }
}

}  // namespace
}  // namespace spanalloc::test
