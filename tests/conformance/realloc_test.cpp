// realloc: contents, addresses, failure.
#include <errno.h>

#include <cstdint>
#include <vector>

#include "engines.hpp"
#include "memory_pattern.hpp"
#include "sanitizers.hpp"
#include "sizes.hpp"

namespace spanalloc::test {
namespace {

constexpr int kMarker = 4711;

template <class E>
class Realloc : public EngineTest<E> {
 protected:
  // One block from `before` to `after` bytes; the common part must stay and the rest be usable.
  static void change_size(std::size_t before, std::size_t after) {
    using Api = MallocApi<E>;
    void* p = Api::malloc(before);
    ASSERT_NE(p, nullptr);
    fill_pattern(p, before, before);
    errno = kMarker;
    p = Api::realloc(p, after);
    ASSERT_EQ(errno, kMarker);
    ASSERT_NE(p, nullptr) << before << " -> " << after;
    ASSERT_EQ(address_of(p) % 16, 0u);
    ASSERT_GE(Api::malloc_usable_size(p), after);
    const std::size_t kept = min_of(before, after);
    ASSERT_EQ(first_mismatch(p, kept, before), kept) << before << " -> " << after;
    memset(p, 0x5A, after);
    Api::free(p);
  }
};
TYPED_TEST_SUITE(Realloc, AllEngines, EngineNames);

TYPED_TEST(Realloc, KeepsContentsOverEveryClassBoundary) {
  const std::vector<std::size_t> ends = class_ends<TypeParam>(3 * kMiB);
  for (std::size_t i = 1; i < ends.size(); ++i) {
    this->change_size(ends[i - 1], ends[i - 1] + 1);
    this->change_size(ends[i - 1] + 1, ends[i - 1]);
    this->change_size(ends[i - 1], ends[i]);
    this->change_size(ends[i], ends[i - 1]);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(Realloc, KeepsContentsBetweenDistantSizes) {
  const std::size_t sizes[] = {1,        15,   16,       17,           100,     500,   513,
                               2000,     4097, 9000,     32769,        65536,   65537, 300 * kKiB,
                               kMiB - 1, kMiB, kMiB + 1, 2 * kMiB + 5, 5 * kMiB};
  for (std::size_t before : sizes) {
    for (std::size_t after : sizes) {
      this->change_size(before, after);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(Realloc, GrowingStepByStepKeepsEverything) {
  using Api = MallocApi<TypeParam>;
  std::size_t n = 1;
  auto* p = static_cast<unsigned char*>(Api::malloc(n));
  p[0] = pattern_byte(0, 9);
  while (n < 6 * kMiB) {
    const std::size_t next = n + n / 3 + 1;
    p = static_cast<unsigned char*>(Api::realloc(p, next));
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(first_mismatch(p, n, 9), n);
    for (std::size_t i = n; i < next; ++i) p[i] = pattern_byte(i, 9);
    n = next;
  }
  while (n > 1) {
    n = n * 2 / 3;
    p = static_cast<unsigned char*>(Api::realloc(p, n));
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(first_mismatch(p, n, 9), n);
  }
  Api::free(p);
}

TYPED_TEST(Realloc, SmallChangesStayInPlace) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : class_ends<TypeParam>(2 * kMiB)) {
    void* p = Api::malloc(n);
    EXPECT_EQ(Api::realloc(p, n), p);
    // (An engine that draws by lot where a large block begins has no fixed ends of classes.)
    const std::size_t whole = Api::malloc_usable_size(p);
    EXPECT_EQ(Api::realloc(p, whole - whole / 4), p);
    void* const again = Api::realloc(p, whole);
    // (Where a block's end went back to the kernel, an emulator may have
    // mapped something of its own.)
    if (!test::kEmulated) {
      EXPECT_EQ(again, p);
    }
    Api::free(again);
  }
}

TYPED_TEST(Realloc, HardShrinkGivesTheMemoryBack) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : {std::size_t{1024}, std::size_t{20000}, 200 * kKiB, 900 * kKiB, 3 * kMiB}) {
    void* p = Api::malloc(n);
    p = Api::realloc(p, n / 8);
    ASSERT_NE(p, nullptr);
    EXPECT_GE(Api::malloc_usable_size(p), n / 8);
    EXPECT_LT(Api::malloc_usable_size(p), n / 2) << n;
    Api::free(p);
  }
}

TYPED_TEST(Realloc, NullIsMalloc) {
  using Api = MallocApi<TypeParam>;
  void* p = Api::realloc(nullptr, 100);
  ASSERT_NE(p, nullptr);
  EXPECT_GE(Api::malloc_usable_size(p), 100u);
  Api::free(p);
}

TYPED_TEST(Realloc, SizeZeroFreesAndReturnsNull) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : {std::size_t{64}, 2 * kMiB}) {
    // Leaking them would show: all of this in one block's place.
    const std::size_t before = TypeParam::statistics().large_bytes;
    for (int i = 0; i < 50; ++i) {
      errno = kMarker;
      EXPECT_EQ(Api::realloc(Api::malloc(n), 0), nullptr);
      EXPECT_EQ(errno, kMarker);
    }
    EXPECT_EQ(TypeParam::statistics().large_bytes, before);
  }
}

TYPED_TEST(Realloc, FailureLeavesTheBlockAsItWas) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : {std::size_t{100}, std::size_t{5000}, 2 * kMiB}) {
    void* p = Api::malloc(n);
    fill_pattern(p, n, 3);
    for (std::size_t huge : {kMaxRequest, kMaxRequest + 1, SIZE_MAX, std::size_t{1} << 60}) {
      errno = 0;
      EXPECT_EQ(Api::realloc(p, huge), nullptr);
      EXPECT_EQ(errno, ENOMEM);
    }
    EXPECT_EQ(first_mismatch(p, n, 3), n);
    Api::free(p);
  }
}

TYPED_TEST(Realloc, AlignedBlocksCanBeResized) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t alignment : {std::size_t{64}, std::size_t{4096}, 4 * kMiB}) {
    for (std::size_t n : {std::size_t{40}, std::size_t{3000}, 2 * kMiB}) {
      for (std::size_t after : {n / 10 + 1, n + 1, 3 * n, std::size_t{1}, 5 * kMiB}) {
        void* p = Api::aligned_alloc(alignment, n);
        ASSERT_NE(p, nullptr);
        fill_pattern(p, n, n);
        p = Api::realloc(p, after);
        ASSERT_NE(p, nullptr);
        ASSERT_EQ(first_mismatch(p, min_of(n, after), n), min_of(n, after))
            << alignment << " " << after;
        memset(p, 0, after);
        Api::free(p);
      }
    }
  }
}

// What the API does when the engine says no: only the test double can be told to.
TEST(ReallocOutOfMemory, ShrinkingCannotFailAndGrowingKeepsTheBlock) {
  using Api = MallocApi<ReferenceEngine>;
  void* p = Api::malloc(100 * kKiB);
  fill_pattern(p, 100 * kKiB, 1);
  ReferenceEngine::limit_bytes(0);
  errno = kMarker;
  EXPECT_EQ(Api::realloc(p, 10), p);
  EXPECT_EQ(errno, kMarker);
  EXPECT_EQ(Api::realloc(p, 200 * kKiB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(Api::malloc(1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(Api::calloc(1, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = 0;
  EXPECT_EQ(Api::memalign(64, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  errno = kMarker;
  void* out = p;
  EXPECT_EQ(Api::posix_memalign(&out, 64, 1), ENOMEM);
  EXPECT_EQ(out, p);
  EXPECT_EQ(errno, ENOMEM);
  ReferenceEngine::limit_bytes(SIZE_MAX);
  EXPECT_EQ(first_mismatch(p, 100 * kKiB, 1), 100 * kKiB);
  Api::free(p);
}

}  // namespace
}  // namespace spanalloc::test
