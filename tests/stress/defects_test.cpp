// Do the scenarios find what they are for? Engines with one planted defect each; every scenario
// must pass on the sound one, and some scenario must fail on each defective one.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstring>

#include "oracle.hpp"
#include "papers/a2alloc/engine/engine.hpp"
#include "sanitizers.hpp"
#include "scenarios.hpp"

namespace spanalloc::stress {
namespace {

enum class Defect {
  kNone,
  kBlockTwice,
  kOverlap,
  kDirtyCalloc,
  kWritesOnFree,
  kMisaligned,
  kForeign,
  kLosesLarge
};

/// libc's malloc as an engine, with a defect that shows once in a few thousand operations.
template <Defect kDefect>
struct LibcEngine {
  static constexpr const char* kName = "libc";

  template <OutOfMemory Policy = ReturnNull>
  static void* allocate(std::size_t n) {
    // The planted ones stay inside the other block, which is bigger: libc's
    // own books are not harmed.
    const bool small = n >= 32 && n <= 128;
    void* other = last_.load();
    if (kDefect == Defect::kBlockTwice && small && other != nullptr && now())
      return noted(other, n);
    if (kDefect == Defect::kOverlap && small && other != nullptr && now()) {
      return noted(static_cast<char*>(other) + 16, n);
    }
    char* p = static_cast<char*>(::malloc((n < 16 ? 16 : n) + 16));
    if (kDefect == Defect::kMisaligned && now()) return noted(p + 4, n);
    if (n >= 160 && n < 512) last_.store(p);
    return noted(p, n);
  }
  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return noted(::memalign(alignment, n < 16 ? 16 : n), n);
  }
  static void* allocate_zeroed(std::size_t n) {
    void* p = ::calloc(1, n < 16 ? 16 : n);
    if (kDefect == Defect::kDirtyCalloc && n > 0 && now()) static_cast<char*>(p)[n / 2] = 1;
    return noted(p, n);
  }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return std::memcpy(allocate(n), from, bytes);
  }
  // A defective heap's blocks are leaked: libc must not see a block twice.
  static void deallocate(void* p) {
    void* other = last_.load();
    if (kDefect == Defect::kWritesOnFree && other != nullptr && now())
      static_cast<char*>(other)[16] ^= 1;
    if constexpr (kDefect == Defect::kNone) {
      std::lock_guard guard(lock_);
      sizes_.erase(p);
      ::free(p);
    }
  }
  static std::size_t usable_size(const void* p) {
    std::lock_guard guard(lock_);
    return sizes_[p];
  }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    const std::size_t usable = usable_size(p);
    return {Policy::leaves_alone(n, usable) ? p : nullptr, usable};
  }
  static bool owns(const void*) { return kDefect != Defect::kForeign || !now(); }
  static bool trim() { return false; }
  static EngineStatistics statistics() {
    EngineStatistics s;
    s.large_objects = kDefect == Defect::kLosesLarge ? 1 : 0;
    return s;
  }
  static void process_start() {}

 private:
  static void* noted(void* p, std::size_t n) {
    std::lock_guard guard(lock_);
    sizes_[p] = n;
    return p;
  }
  static bool now() { return count_.fetch_add(1) % 3000 == 2999; }
  static inline std::mutex lock_;
  static inline std::map<const void*, std::size_t> sizes_;
  static inline std::atomic<unsigned> count_{0};
  static inline std::atomic<void*> last_{nullptr};
};

TEST(StressItself, PassesOnASoundHeap) {
  using Sound = LibcEngine<Defect::kNone>;
  Report report;
  thread_pool<Sound>(4, 5000, 10, report);
  producer_consumer<Sound>(10000, report);
  larson<Sound>(2, 5, report);
  each_leaves_one<Sound>(100, report);
  race_for_last_block<Sound>(20, report);
  exits_race_frees<Sound>(20, report);
  oracle_of_ranges<Sound>(3, 30000, report);
  EXPECT_EQ(report.errors(), 0u) << report.first();
  EXPECT_GT(report.operations.load(), 1000u);
}

template <Defect kDefect>
std::string first_error() {
  Report report;
  // One thread: the planted defects are data races only where several threads use one block.
  oracle_of_ranges<LibcEngine<kDefect>>(1, kDefect == Defect::kLosesLarge ? 10'000 : 1'000'000,
                                        report);
  return report.first();
}

// Sanitizers would report some of the planted defects themselves.
#define SKIP_UNDER_SANITIZERS()                                \
  if (test::kUnderAsan || test::kUnderTsan)                    \
  GTEST_SKIP() << "the sanitizer itself stops at the planted " \
                  "defect"

TEST(StressItself, FindsABlockHandedOutTwice) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kBlockTwice>(), "");
}
TEST(StressItself, FindsOverlappingBlocks) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kOverlap>(), "");
}
TEST(StressItself, FindsDirtyCalloc) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kDirtyCalloc>().find("not zero"), std::string::npos);
}
TEST(StressItself, FindsAStrayWrite) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kWritesOnFree>().find("was changed"), std::string::npos);
}
TEST(StressItself, FindsMisalignment) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kMisaligned>().find("not aligned"), std::string::npos);
}
TEST(StressItself, FindsAForeignBlock) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kForeign>().find("not the engine's"), std::string::npos);
}
TEST(StressItself, FindsLostLargeObjects) {
  SKIP_UNDER_SANITIZERS();
  EXPECT_NE(first_error<Defect::kLosesLarge>().find("are left"), std::string::npos);
}

// --- Does the census find what only it can see? The a2alloc engine with a defect in its books. The
// defect is planted by trim(), which each scenario calls before the census.

template <class Tag>
struct Planted : A2allocReport {};

// A header that is sealed, and leads out of its superblock.
struct Mistiled : A2allocEngine<Planted<Mistiled>> {
  static bool trim() {
    const bool any = A2allocEngine::trim();
    auto* header = a2alloc::Block::of(allocate(100));
    header->write(2 * a2alloc::kSuperblockBytes<A2allocReport>, header->left_size, false);
    return any;
  }
};

// A block that is out for ever.
struct Leaking : A2allocEngine<Planted<Leaking>> {
  static bool trim() {
    const bool any = A2allocEngine::trim();
    return allocate(100) != nullptr && any;
  }
};

struct Sound : A2allocEngine<Planted<Sound>> {};

template <class E>
std::string census_after_threads() {
  Report report;
  thread_pool<E>(4, 3000, 10, report);
  return report.first();
}

TEST(StressItself, FindsNothingInASoundA2allocEngine) {
  EXPECT_EQ(census_after_threads<Sound>(), "");
}
TEST(StressItself, FindsASuperblockThatBlocksDoNotTile) {
  EXPECT_NE(census_after_threads<Mistiled>().find("blocks do not tile their superblock"),
            std::string::npos);
}
TEST(StressItself, FindsABlockThatIsLeftOut) {
  EXPECT_NE(census_after_threads<Leaking>().find("live blocks 1"), std::string::npos);
}

}  // namespace
}  // namespace spanalloc::stress
