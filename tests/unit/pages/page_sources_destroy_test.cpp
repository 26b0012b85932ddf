// What page sources hold goes back to the kernel with destroy(), and they can start again.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "os/os.hpp"
#include "pages/address_range.hpp"
#include "pages/growing_table.hpp"
#include "pages/large_objects.hpp"
#include "papers/shared/bump_arena.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

bool is_mapped(const void* p) {
  unsigned char resident = 0;
  void* page = pointer_to(align_down(address_of(p), os::page_size()));
  return mincore(page, 1, &resident) == 0 || errno != ENOMEM;
}

// No reservation is granted, and what is opened may be refused as somebody else's.
struct UnreservedCalls : PageCalls {
  static inline std::uintptr_t foreign = 0;  // the slice that begins here is somebody else's
  static void* reserve(std::size_t, std::size_t) { return nullptr; }
  static os::Placed reserve_at(void* address, std::size_t bytes) {
    if (foreign - address_of(address) < bytes) return os::Placed::kTaken;
    return PageCalls::reserve_at(address, bytes);
  }
};

using Reserved = AddressRange<16, HugePages::kKernelDefault, kMiB, 1>;
using Unreserved =
    AddressRange<16, HugePages::kKernelDefault, kMiB, 1, Claim::kPlace, UnreservedCalls>;

TEST(PageSourcesDestroy, AReservedRangeGoesBackWhole) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  auto range = std::make_unique<Reserved>();
  ASSERT_TRUE(range->start(Reserved::kSlice));
  ASSERT_EQ(range->open_up_to(4), os::Placed::kYes);
  const void* first = range->address(0);
  const void* last = range->address(range->capacity() - 1);
  ASSERT_TRUE(is_mapped(first));
  range->destroy();
  EXPECT_FALSE(is_mapped(first));
  EXPECT_FALSE(is_mapped(last));
  EXPECT_FALSE(range->started());
  EXPECT_EQ(range->reserved_bytes(), 0u);
  ASSERT_TRUE(range->start(Reserved::kSlice)) << "and it starts again";
  EXPECT_EQ(range->opened(), 1u);
  ASSERT_EQ(range->open_up_to(4), os::Placed::kYes);
  std::memset(range->address(3), 1, Reserved::kSlice);
  range->destroy();
  range->destroy();  // nothing is left to do
}

TEST(PageSourcesDestroy, OfAnUnreservedRangeOnlyWhatIsOurs) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  if (test::kUnderAsan || test::kUnderTsan)
    GTEST_SKIP() << "a sanitizer's shadow is where the arena would be";
  auto range = std::make_unique<Unreserved>();
  ASSERT_TRUE(range->start(Unreserved::kSlice));
  ASSERT_FALSE(range->reserved());
  UnreservedCalls::foreign = address_of(range->address(3));
  void* theirs = mmap(range->address(3), Unreserved::kSlice, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(theirs, range->address(3));
  std::size_t skipped = 0;
  while (range->opened() < 8) {
    const auto result = range->open_up_to(8);
    ASSERT_NE(result, os::Placed::kRefused);
    skipped += result == os::Placed::kTaken;
  }
  ASSERT_GT(skipped, 0u);
  const std::size_t end = range->opened();
  // The owner has unmapped the end of slice 5, where somebody else maps now.
  char* fifth = static_cast<char*>(range->address(5));
  const std::size_t left = Unreserved::kSlice / 2;
  ASSERT_NE(mmap(fifth + left, Unreserved::kSlice - left, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  range->destroy([&](std::size_t slice) { return slice == 5 ? left : Unreserved::kSlice; });
  UnreservedCalls::foreign = 0;
  const char* base = fifth - 5 * Unreserved::kSlice;
  for (std::size_t slice = 1; slice < end; ++slice) {
    EXPECT_EQ(is_mapped(base + slice * Unreserved::kSlice), slice == 3) << slice;
  }
  EXPECT_TRUE(is_mapped(fifth + left));
  munmap(theirs, Unreserved::kSlice);
  munmap(fifth + left, Unreserved::kSlice - left);
}

TEST(PageSourcesDestroy, ABumpArenaStartsAgain) {
  using Arena = BumpArena<16, 4, HugePages::kKernelDefault>;
  auto arena = std::make_unique<Arena>();
  for (int life = 0; life < 3; ++life) {
    ASSERT_TRUE(arena->start());
    EXPECT_EQ(arena->allocate(0), 1u);
    EXPECT_EQ(arena->allocate(4), 16u);  // leaves spares
    char* block = pointer_to<char>(arena->base() + 16 * Arena::kSlice);
    EXPECT_EQ(block[0], 0);
    block[0] = 1;
    arena->destroy();
    EXPECT_FALSE(is_mapped(block));
    EXPECT_EQ(arena->allocate(0), 0u) << "there is nothing before start()";
    EXPECT_EQ(arena->limit(), 0u);
    EXPECT_EQ(arena->statistics().reserved_bytes, 0u);
    EXPECT_EQ(arena->statistics().lost_bytes, 0u);
  }
}

TEST(PageSourcesDestroy, LargeObjectsThatStillLiveAreUnmapped) {
  auto objects = std::make_unique<LargeObjects<>>();
  objects->destroy();  // nothing to do yet
  for (int life = 0; life < 2; ++life) {
    std::vector<void*> living;
    for (int i = 0; i < 300; ++i) living.push_back(objects->allocate(10000, 1));  // the table grows
    for (std::size_t i = 0; i < 100; ++i) EXPECT_TRUE(objects->free(living[i]));
    objects->destroy();
    for (const void* p : living) EXPECT_FALSE(is_mapped(p));
    EXPECT_EQ(objects->statistics().objects, 0u);
    EXPECT_EQ(objects->statistics().bytes, 0u);
    EXPECT_EQ(objects->usable_size(living[200]), 0u);
  }
}

TEST(PageSourcesDestroy, AGrowingTableStartsAgain) {
  GrowingTable<std::uint64_t> table;
  table.destroy();  // nothing to do yet
  for (int life = 0; life < 2; ++life) {
    ASSERT_TRUE(table.start(1'000'000));
    ASSERT_TRUE(table.ensure(100'000));
    EXPECT_EQ(table[99'999], 0u);
    table[99'999] = 1;
    const void* first = &table[0];
    const void* last = &table[99'999];
    table.destroy();
    EXPECT_FALSE(is_mapped(first));
    EXPECT_FALSE(is_mapped(last));
  }
}

}  // namespace
}  // namespace spanalloc
