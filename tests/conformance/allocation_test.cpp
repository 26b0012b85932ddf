// malloc, calloc, free and their kin: alignment, uniqueness, limits, zeroing, errno.
#include <errno.h>
#include <limits.h>
#include <malloc.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engines.hpp"
#include "memory_pattern.hpp"
#include "sizes.hpp"

namespace spanalloc::test {
namespace {

constexpr int kMarker = 4711;  // no errno that any system call sets

template <class E>
class Allocation : public EngineTest<E> {};
TYPED_TEST_SUITE(Allocation, AllEngines, EngineNames);

TYPED_TEST(Allocation, EverySizeIsAlignedUsableAndKeepsErrno) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : sample_sizes(4 * kMiB)) {
    errno = kMarker;
    void* p = Api::malloc(n);
    ASSERT_EQ(errno, kMarker) << n;
    ASSERT_NE(p, nullptr) << n;
    ASSERT_EQ(address_of(p) % 16, 0u) << n;
    ASSERT_TRUE(TypeParam::owns(p)) << n;
    ASSERT_GE(Api::malloc_usable_size(p), n);
    Api::free(p);
    ASSERT_EQ(errno, kMarker) << n;
  }
}

TYPED_TEST(Allocation, WholeUsableSizeCanBeWrittenWithoutTouchingNeighbours) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : class_ends<TypeParam>(5 * kMiB / 4)) {
    void* blocks[3] = {Api::malloc(n), Api::malloc(n), Api::malloc(n - n / 16)};
    for (std::uint64_t i = 0; i < 3; ++i) {
      ASSERT_NE(blocks[i], nullptr);
      fill_pattern(blocks[i], Api::malloc_usable_size(blocks[i]), n + i);
    }
    for (std::uint64_t i = 0; i < 3; ++i) {
      const std::size_t usable = Api::malloc_usable_size(blocks[i]);
      ASSERT_EQ(first_mismatch(blocks[i], usable, n + i), usable) << n;
    }
    for (void* p : blocks) Api::free(p);
  }
}

TYPED_TEST(Allocation, LivingBlocksNeverOverlap) {
  using Api = MallocApi<TypeParam>;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  for (std::size_t n : sample_sizes(256 * kKiB)) {
    void* p = Api::malloc(n);
    ASSERT_NE(p, nullptr);
    ranges.emplace_back(address_of(p), address_of(p) + Api::malloc_usable_size(p));
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_GE(ranges[i].first, ranges[i - 1].second);
  for (const auto& range : ranges) Api::free(pointer_to(range.first));
}

TYPED_TEST(Allocation, SizeZeroIsUnique) {
  using Api = MallocApi<TypeParam>;
  std::set<void*> seen;
  for (int i = 0; i < 300; ++i) {
    for (void* p : {Api::malloc(0), Api::calloc(0, 8), Api::calloc(8, 0), Api::realloc(nullptr, 0),
                    Api::aligned_alloc(64, 0)}) {
      ASSERT_NE(p, nullptr);
      ASSERT_TRUE(seen.insert(p).second);
    }
  }
  for (void* p : seen) Api::free(p);
}

TYPED_TEST(Allocation, SizesAbovePtrdiffMaxAreRefused) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n :
       {kMaxRequest + 1, kMaxRequest + 4096, SIZE_MAX - 4096, SIZE_MAX - 1, SIZE_MAX}) {
    errno = 0;
    EXPECT_EQ(Api::malloc(n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::calloc(1, n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::calloc(n, 1), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::realloc(nullptr, n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::valloc(n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::pvalloc(n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
}

TYPED_TEST(Allocation, SizesThatNoMachineHasAreRefused) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n :
       {kMaxRequest, kMaxRequest - 65536, std::size_t{1} << 62, std::size_t{1} << 50}) {
    errno = 0;
    EXPECT_EQ(Api::malloc(n), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(Api::calloc(n, 1), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
  void* p = Api::malloc(100);  // and nothing is broken after that
  ASSERT_NE(p, nullptr);
  Api::free(p);
}

TYPED_TEST(Allocation, ProductsThatOverflowAreRefused) {
  using Api = MallocApi<TypeParam>;
  const std::size_t half = std::size_t{1} << 32;
  const std::pair<std::size_t, std::size_t> products[] = {
      {half, half},          {SIZE_MAX, 2},           {2, SIZE_MAX},
      {SIZE_MAX / 2 + 1, 2}, {SIZE_MAX / 16 + 1, 16}, {SIZE_MAX, SIZE_MAX}};
  for (const auto& [count, size] : products) {
    errno = 0;
    EXPECT_EQ(Api::calloc(count, size), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
}

TYPED_TEST(Allocation, CallocIsZeroAfterDirtyFrees) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : class_ends<TypeParam>(5 * kMiB / 4)) {
    for (int round = 0; round < 2; ++round) {
      void* dirty[4];
      for (void*& p : dirty) {
        p = Api::malloc(n);
        ASSERT_NE(p, nullptr);
        memset(p, 0xA5, Api::malloc_usable_size(p));
      }
      for (void* p : dirty) Api::free(p);
      errno = kMarker;
      void* clean[4];
      for (void*& p : clean) {
        p = Api::calloc(n / 2 + 1, 2);
        ASSERT_NE(p, nullptr);
        const std::size_t bytes = (n / 2 + 1) * 2;
        ASSERT_EQ(first_nonzero(p, bytes), bytes) << n;
      }
      for (void* p : clean) Api::free(p);
      ASSERT_EQ(errno, kMarker);
    }
  }
}

TYPED_TEST(Allocation, FreeTakesNullAndKeepsErrno) {
  using Api = MallocApi<TypeParam>;
  errno = kMarker;
  Api::free(nullptr);
  EXPECT_EQ(Api::malloc_usable_size(nullptr), 0u);
  Api::free(Api::malloc(3 * kMiB));
  Api::free(Api::malloc(100));
  Api::free(Api::aligned_alloc(4096, 100));
  EXPECT_EQ(errno, kMarker);
}

TYPED_TEST(Allocation, FreedMemoryIsUsedAgain) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : {16 * kKiB, 256 * kKiB, 2 * kMiB}) {
    for (std::size_t done = 0; done < 128 * kMiB; done += n) {
      void* p = Api::malloc(n);
      ASSERT_NE(p, nullptr);
      *static_cast<volatile char*>(p) = 1;
      Api::free(p);
    }
  }
  EXPECT_LT(TypeParam::statistics().small_bytes_carved + TypeParam::statistics().large_bytes,
            64 * kMiB);
}

// Every parameter of malloc.h, those that no version uses any more, and unknown ones. The answers
// were taken from glibc 2.36.
TYPED_TEST(Allocation, MalloptAnswersAsGlibc) {
  using Api = MallocApi<TypeParam>;
  errno = kMarker;
  for (int parameter : {M_NLBLKS, M_GRAIN, M_KEEP, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD,
                        M_MMAP_MAX, M_CHECK_ACTION, M_PERTURB, M_ARENA_TEST, M_ARENA_MAX, 0, 5, 100,
                        -9, -10, INT_MIN, INT_MAX}) {
    for (int value : {INT_MIN, -1, 0, 1, 160, 161, 4096, 64 << 20, INT_MAX}) {
      EXPECT_EQ(Api::mallopt(parameter, value), 1) << parameter << ", " << value;
    }
  }
  for (int value : {0, 1, 64, 159, 160}) EXPECT_EQ(Api::mallopt(M_MXFAST, value), 1) << value;
  for (int value : {INT_MIN, -1, 161, 176, 4096, INT_MAX})
    EXPECT_EQ(Api::mallopt(M_MXFAST, value), 0) << value;
  EXPECT_EQ(errno, kMarker);
}

TYPED_TEST(Allocation, TrimTellsWhetherAnythingWentBack) {
  using Api = MallocApi<TypeParam>;
  errno = kMarker;
  Api::malloc_trim(0);
  const int second = Api::malloc_trim(0);  // nothing was freed in between
  EXPECT_EQ(second, 0);
  EXPECT_EQ(errno, kMarker);
}

}  // namespace
}  // namespace spanalloc::test
