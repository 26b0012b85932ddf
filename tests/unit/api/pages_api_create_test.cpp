// The page manager of spanalloc.h: what regions and buffers a manager can be made of.
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "api/pages_api_test_support.hpp"

namespace spanalloc::test {
namespace {

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
  const auto create = [&](char* start, std::size_t bytes, std::size_t unit, void* buffer,
                          std::size_t size, unsigned flags) {
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
  EXPECT_EQ(create(good, ~(SIZE_MAX >> 1), 1, books, needed, 0), SP_PAGES_BAD_SIZE)
      << "too many units";
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
    ASSERT_EQ(sp_pages_create_over(region.at(0), kUnits * kUnit, kUnit, buffer.data() + offset,
                                   needed, 0, &pages),
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
    for (std::size_t i = offset + needed; i < buffer.size(); ++i)
      ASSERT_EQ(buffer[i], 'x') << offset;
  }
}

TEST(PagesCreateOver, RoomToExtendEndsAtTheMetadata) {
  // [ region 4 units | 2 units unused | metadata ... ]
  const Mapping memory(64 * kUnit, PROT_READ | PROT_WRITE);
  sp_pages* pages = nullptr;
  ASSERT_EQ(sp_pages_create_over(memory.at(0), 4 * kUnit, kUnit, memory.at(6 * kUnit + 100),
                                 57 * kUnit, SP_PAGES_METADATA_ZERO, &pages),
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

}  // namespace
}  // namespace spanalloc::test
