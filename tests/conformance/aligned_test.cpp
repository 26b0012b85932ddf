// posix_memalign, aligned_alloc, memalign, valloc, pvalloc.
#include <errno.h>

#include <cstdint>
#include <vector>

#include "engines.hpp"
#include "memory_pattern.hpp"
#include "sizes.hpp"

namespace spanalloc::test {
namespace {

constexpr int kMarker = 4711;

template <class E>
class Aligned : public EngineTest<E> {};
TYPED_TEST_SUITE(Aligned, AllEngines, EngineNames);

TYPED_TEST(Aligned, EveryPowerOfTwoWithManySizes) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t alignment = 1; alignment <= 16 * kMiB; alignment *= 2) {
    for (std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{24}, std::size_t{100}, std::size_t{1000},
          alignment - 1, alignment, alignment + 1, std::size_t{5000}, 70 * kKiB, 300 * kKiB}) {
      errno = kMarker;
      void* p = Api::aligned_alloc(alignment, n);
      ASSERT_NE(p, nullptr) << alignment << " " << n;
      ASSERT_EQ(address_of(p) % alignment, 0u) << n;
      ASSERT_GE(Api::malloc_usable_size(p), n);
      ASSERT_EQ(errno, kMarker);
      fill_pattern(p, n, alignment);
      void* q = Api::memalign(alignment, n);
      ASSERT_NE(q, nullptr);
      fill_pattern(q, n, alignment + 1);
      ASSERT_EQ(first_mismatch(p, n, alignment), n) << alignment;
      ASSERT_EQ(address_of(q) % alignment, 0u);
      Api::free(p);
      Api::free(q);
      ASSERT_EQ(errno, kMarker);
    }
  }
}

TYPED_TEST(Aligned, ManyBlocksOfOneAlignmentLiveSideBySide) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t alignment : {std::size_t{32}, std::size_t{64}, std::size_t{128},
                                std::size_t{512}, std::size_t{4096}, 64 * kKiB}) {
    for (std::size_t n : {std::size_t{1}, alignment / 2 + 1, alignment + 8, 3 * alignment - 40}) {
      std::vector<void*> blocks;
      for (std::size_t i = 0; i < 40; ++i) {
        blocks.push_back(Api::aligned_alloc(alignment, n));
        ASSERT_NE(blocks.back(), nullptr);
        ASSERT_EQ(address_of(blocks.back()) % alignment, 0u);
        fill_pattern(blocks.back(), n, i);
      }
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        ASSERT_EQ(first_mismatch(blocks[i], n, i), n) << alignment;
        Api::free(blocks[i]);
      }
    }
  }
}

TYPED_TEST(Aligned, WholeUsableSizeOfAnAlignedBlockCanBeWritten) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t alignment : {std::size_t{32}, std::size_t{256}, std::size_t{8192}, 2 * kMiB}) {
    for (std::size_t n : {std::size_t{17}, std::size_t{300}, std::size_t{10000}, 1100 * kKiB}) {
      void* p = Api::aligned_alloc(alignment, n);
      void* q = Api::aligned_alloc(alignment, n);
      ASSERT_TRUE(p != nullptr && q != nullptr);
      fill_pattern(p, Api::malloc_usable_size(p), 1);
      fill_pattern(q, Api::malloc_usable_size(q), 2);
      ASSERT_EQ(first_mismatch(p, Api::malloc_usable_size(p), 1), Api::malloc_usable_size(p));
      Api::free(p);
      Api::free(q);
    }
  }
}

TYPED_TEST(Aligned, PosixMemalign) {
  using Api = MallocApi<TypeParam>;
  int here = 0;
  errno = kMarker;
  for (std::size_t alignment : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{4},
                                std::size_t{3}, std::size_t{7}, std::size_t{12}, std::size_t{24},
                                std::size_t{48}, std::size_t{4097}, SIZE_MAX, SIZE_MAX - 7}) {
    void* out = &here;
    EXPECT_EQ(Api::posix_memalign(&out, alignment, 100), EINVAL) << alignment;
    EXPECT_EQ(out, &here);
  }
  EXPECT_EQ(errno, kMarker);
  for (std::size_t alignment :
       {std::size_t{8}, std::size_t{16}, std::size_t{64}, std::size_t{1} << 62, SIZE_MAX / 2 + 1}) {
    for (std::size_t n : {kMaxRequest, kMaxRequest - 4096, kMaxRequest + 1, SIZE_MAX}) {
      void* out = &here;
      errno = kMarker;
      EXPECT_EQ(Api::posix_memalign(&out, alignment, n), ENOMEM) << alignment;
      EXPECT_EQ(errno, ENOMEM);  // glibc's own tests want that
      EXPECT_EQ(out, &here);
    }
  }
  errno = kMarker;
  for (std::size_t alignment = sizeof(void*); alignment <= kMiB; alignment *= 2) {
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
      void* out = nullptr;
      ASSERT_EQ(Api::posix_memalign(&out, alignment, n), 0);
      ASSERT_NE(out, nullptr);
      ASSERT_EQ(address_of(out) % alignment, 0u);
      Api::free(out);
    }
  }
  EXPECT_EQ(errno, kMarker);
}

TYPED_TEST(Aligned, AlignedAllocWantsAPowerOfTwo) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t alignment :
       {std::size_t{0}, std::size_t{3}, std::size_t{24}, std::size_t{4095}, SIZE_MAX}) {
    errno = 0;
    EXPECT_EQ(Api::aligned_alloc(alignment, 64), nullptr) << alignment;
    EXPECT_EQ(errno, EINVAL);
  }
  errno = 0;
  EXPECT_EQ(Api::aligned_alloc(64, kMaxRequest - 10), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(Api::aligned_alloc(SIZE_MAX / 2 + 1, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

TYPED_TEST(Aligned, MemalignRoundsTheAlignmentUp) {
  using Api = MallocApi<TypeParam>;
  const std::pair<std::size_t, std::size_t> cases[] = {{0, 1},   {1, 1},       {3, 4},
                                                       {24, 32}, {4095, 4096}, {5000, 8192}};
  for (const auto& [asked, given] : cases) {
    errno = kMarker;
    void* p = Api::memalign(asked, 100);
    ASSERT_NE(p, nullptr) << asked;
    EXPECT_EQ(address_of(p) % given, 0u) << asked;
    Api::free(p);
    EXPECT_EQ(errno, kMarker);
  }
  errno = 0;
  EXPECT_EQ(Api::memalign(SIZE_MAX / 2 + 2, 64), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(Api::memalign(4096, SIZE_MAX), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

TYPED_TEST(Aligned, VallocAndPvallocGivePages) {
  using Api = MallocApi<TypeParam>;
  const std::size_t page = os::page_size();
  for (std::size_t n :
       {std::size_t{0}, std::size_t{1}, page - 1, page, page + 1, 10 * page, 2 * kMiB}) {
    void* p = Api::valloc(n);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(address_of(p) % page, 0u);
    EXPECT_GE(Api::malloc_usable_size(p), n);
    void* q = Api::pvalloc(n);
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(address_of(q) % page, 0u);
    EXPECT_GE(Api::malloc_usable_size(q), align_up(n, page));
    Api::free(p);
    Api::free(q);
  }
}

}  // namespace
}  // namespace spanalloc::test
