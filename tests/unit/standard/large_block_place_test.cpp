// Where the only block of its span begins: on many cache lines and pages, within its span, as
// aligned as was asked, and nowhere else for whoever frees or grows it. And what lies around
// it in memory is bounded.
#include "standard/large_block_place.hpp"
#include "heap_walk.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "standard/test_support.hpp"

namespace spanalloc::large {
namespace {

using Singles = standard::LargeBlockPlace<Standard>;
using standard::SpanNumber;

std::uintptr_t span_of(const void* p) {
  return align_down(address_of(p), Classes::kSlice);
}
standard::SpanRef record_of(const void* p) {
  return E::pages.any_slice_at(address_of(p));
}
std::size_t span_bytes(const void* p) {
  return E::pages.slices_of(record_of(p)).count * Classes::kSlice;
}
std::size_t offset_of(const void* p) {
  return address_of(p) - span_of(p);
}
// Any of the size whose block does not begin where its span begins.
char* allocate_with_offset(std::size_t n, std::vector<void*>& others) {
  for (int i = 0; i < 1000; ++i) {
    auto* p = static_cast<char*>(E::allocate(n));
    if (offset_of(p) != 0) return p;
    others.push_back(p);
  }
  return nullptr;
}

// --- The place -----------------------------------------------------------------------------------

TEST(StandardSingleBlocks, EveryPlaceIsInTheFirstGranuleAndLeavesRoomForTheRequest) {
  for (std::size_t n = Standard::kMaxSmall + 1; n <= 3 * kMiB; n += n / 60 + 1) {
    const std::size_t most = n <= Standard::kMaxBlock ? Classes::info(Classes::of(n)).virtual_span
                                                      : align_up(n, Classes::kSlice);
    for (std::uint32_t number = 1; number < 600; ++number) {
      const std::size_t offset = Singles::offset(SpanNumber{number}, most, {n});
      ASSERT_LT(offset, Classes::kSlice) << n << " in " << number;
      ASSERT_LE(offset + n, most) << n << " in " << number;
      ASSERT_EQ(offset % kCacheLine, 0u) << n << " in " << number;
      ASSERT_EQ(Singles::offset(SpanNumber{number}, most, {n, 2 * kCacheLine}), 0u);
    }
  }
  EXPECT_EQ(Singles::offset(SpanNumber{77}, Classes::kSlice, {Classes::kSlice}), 0u);
}

TEST(StandardSingleBlocks, SpansInARowBeginOnAllLinesAndManyPages) {
  for (const std::size_t n : {40'000u, 70'000u, 300'000u, 600'000u}) {
    const std::size_t slices = Classes::info(Classes::of(n)).slices;
    std::array<unsigned, 64> of_line{};
    std::array<unsigned, 256> of_page{};
    for (std::size_t i = 0; i < 1024; ++i) {
      const SpanNumber number{static_cast<std::uint32_t>(1 + i * slices)};
      const std::size_t at = index_of(number) * Classes::kSlice +
                             Singles::offset(number, slices * Classes::kSlice, {n});
      ++of_line[at / kCacheLine % of_line.size()];
      ++of_page[at / kPage % of_page.size()];
    }
    EXPECT_LE(*std::max_element(of_line.begin(), of_line.end()), 1024 / 64 * 2) << n;
    EXPECT_LE(*std::max_element(of_page.begin(), of_page.end()), 12) << n;
  }
}

// --- Blocks --------------------------------------------------------------------------------------

TEST(StandardSingleBlocks, BlocksStayWithinTheirSpans) {
  in_fresh_process([] {
    std::vector<void*> blocks;
    std::vector<std::size_t> usable;
    // Before and after other sizes have used the memory.
    for (int round = 0; round < 3; ++round) {
      std::size_t moved = 0;
      for (std::size_t n = Standard::kMaxSmall + 1; n <= 2 * kMiB; n += n / 40 + 1) {
        auto* p = static_cast<char*>(E::allocate(n));
        ASSERT_NE(p, nullptr);
        usable.push_back(E::usable_size(p));
        ASSERT_GE(usable.back(), n);
        ASSERT_LE(offset_of(p) + usable.back(), span_bytes(p)) << n;
        ASSERT_EQ(address_of(p) % kCacheLine, 0u);
        moved += offset_of(p) != 0;
        std::memset(p, static_cast<int>(blocks.size() % 251), usable.back());
        blocks.push_back(p);
      }
      EXPECT_GT(moved, usable.size() / 2);
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const auto* bytes = static_cast<const unsigned char*>(blocks[i]);
        ASSERT_EQ(std::count(bytes, bytes + usable[i], static_cast<unsigned char>(i % 251)),
                  static_cast<std::ptrdiff_t>(usable[i]));
      }
      EXPECT_TRUE(test::walk_heap<E>().consistent());
      if (round == 1) std::reverse(blocks.begin(), blocks.end());
      free_all(blocks);
      usable.clear();
      auto small = fill(8 * kMiB, 700);
      free_all(small);
    }
    expect_nothing_out();
  });
}

// A spare, and a span from the pool, may begin too late for what is asked of it next.
TEST(StandardSingleBlocks, ASpareServesLargerRequestsOfItsClass) {
  in_fresh_process([] {
    std::vector<void*> others;
    char* p = allocate_with_offset(61'500, others);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(Classes::of(61'500), Classes::of(64 * kKiB));
    ASSERT_LT(E::usable_size(p), 64 * kKiB);
    E::deallocate(p);
    auto* q = static_cast<char*>(E::allocate(64 * kKiB));
    EXPECT_EQ(span_of(q), span_of(p)) << "it is the cached one";
    EXPECT_EQ(offset_of(q), 0u);
    EXPECT_EQ(E::usable_size(q), 64 * kKiB);
    std::memset(q, 1, 64 * kKiB);
    expect_named([=] { E::deallocate(p); }, "not the start of a live block");
    E::deallocate(q);
    // Calloc, too.
    q = static_cast<char*>(E::allocate_zeroed(64 * kKiB));
    EXPECT_EQ(first_nonzero(q, 64 * kKiB), 64 * kKiB);
    E::deallocate(q);
    free_all(others);
    expect_nothing_out();
  });
}

TEST(StandardSingleBlocks, AlignedBlocksAreAligned) {
  in_fresh_process([] {
    std::vector<void*> blocks;
    for (int round = 0; round < 4; ++round) {
      for (const std::size_t n :
           {33'000u, 40'000u, 61'500u, 70'000u, 131'100u, 700'000u, 1'100'000u}) {
        for (std::size_t alignment = 16; alignment <= 256 * kKiB; alignment *= 2) {
          // Between the aligned ones some that are not, which leave their places to them.
          void* plain = E::allocate(n);
          void* p = E::allocate_aligned(n, alignment);
          ASSERT_EQ(address_of(p) % alignment, 0u) << n;
          ASSERT_GE(E::usable_size(p), n);
          ASSERT_LE(offset_of(p) + E::usable_size(p), span_bytes(p));
          std::memset(p, 1, n);
          E::deallocate(plain);
          if (round % 2 == 0) {
            E::deallocate(p);
            p = E::allocate_aligned(n, alignment);
            ASSERT_EQ(address_of(p) % alignment, 0u) << n << ", a cached one";
          }
          blocks.push_back(p);
        }
      }
      free_all(blocks);
    }
    expect_nothing_out();
  });
}

TEST(StandardSingleBlocks, CallocZeroesWhatBeginsAnywhere) {
  in_fresh_process([] {
    for (const std::size_t n : {40'000u, 61'500u, 70'000u, 300'000u, 1'100'000u, 9'000'000u}) {
      for (int i = 0; i < 5; ++i) {
        auto* p = static_cast<char*>(E::allocate_zeroed(n));
        ASSERT_EQ(first_nonzero(p, n), n);
        std::memset(p, 0xff, E::usable_size(p));
        E::deallocate(p);
        if (i == 2) E::trim();
      }
    }
    expect_nothing_out();
  });
}

// Up and down, in place, by pages moved and by copies.
TEST(StandardSingleBlocks, ContentsSurviveEveryResize) {
  in_fresh_process([] {
    os::start();
    std::vector<void*> others;
    const std::size_t sizes[] = {34'000,    61'500,    65'536,    70'000,  131'072,   66'000,
                                 131'100,   250'000,   1'000'000, 800'000, 1'048'576, 1'100'000,
                                 5'000'000, 5'200'000, 2'000'000, 70'001,  40'000};
    for (const bool walled : {false, true}) {
      for (const std::size_t from : sizes) {
        for (const std::size_t to : sizes) {
          char* p = allocate_with_offset(from, others);
          if (p == nullptr) p = static_cast<char*>(E::allocate(from));
          free_all(others);
          void* wall = walled ? E::allocate(100'000) : nullptr;
          fill_pattern(p, from, 5);
          auto* q = static_cast<char*>(Api::realloc(p, to));
          ASSERT_NE(q, nullptr);
          ASSERT_EQ(first_mismatch(q, std::min(from, to), 5), std::min(from, to))
              << from << " -> " << to;
          ASSERT_GE(E::usable_size(q), to);
          ASSERT_LE(offset_of(q) + E::usable_size(q), span_bytes(q)) << from << " -> " << to;
          std::memset(q, 1, to);
          E::deallocate(q);
          E::deallocate(wall);
        }
      }
    }
    EXPECT_TRUE(test::walk_heap<E>().consistent());
    expect_nothing_out();
  });
}

TEST(StandardSingleBlocks, MovedPagesKeepTheirOffset) {
  in_fresh_process([] {
    std::vector<void*> others;
    char* p = allocate_with_offset(8'000'000, others);
    ASSERT_NE(p, nullptr);
    void* wall = E::allocate(100'000);
    fill_pattern(p, 8'000'000, 3);
    auto* q = static_cast<char*>(E::resize(p, 9'000'000).block);
    ASSERT_NE(q, nullptr);
    ASSERT_NE(q, p);
    EXPECT_EQ(address_of(q) % kPage, address_of(p) % kPage);
    EXPECT_EQ(first_mismatch(q, 8'000'000, 3), 8'000'000u);
    const std::size_t usable = E::usable_size(q);
    EXPECT_GE(usable, 9'000'000u);
    std::memset(q, 1, usable);
    E::deallocate(q);
    E::deallocate(wall);
    free_all(others);
    expect_nothing_out();
  });
}

TEST(StandardSingleBlocks, AForkedChildFreesAndAllocates) {
  in_fresh_process([] {
    std::vector<void*> blocks;
    for (std::size_t n = 33'000; n < 2'000'000; n += n / 10) blocks.push_back(E::allocate(n));
    std::thread other([&] { E::deallocate(blocks.back()); });  // a spare of a thread that vanishes
    other.join();
    blocks.pop_back();
    const pid_t child = fork();
    if (child == 0) {
      for (void* p : blocks) E::deallocate(p);
      std::vector<void*> again;
      for (std::size_t n = 33'000; n < 2'000'000; n += n / 10) {
        again.push_back(E::allocate(n));
        std::memset(again.back(), 1, n);
      }
      const bool good =
          test::walk_heap<E>().consistent() && test::walk_heap<E>().single == again.size();
      for (void* p : again) E::deallocate(p);
      _exit(good && test::walk_heap<E>().single == 0 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    free_all(blocks);
    expect_nothing_out();
  });
}

// --- Mistakes ------------------------------------------------------------------------------------

TEST(StandardSingleBlocks, NothingButTheBlocksStartIsFreed) {
  for (const std::size_t n : {40'000u, 70'000u, 600'000u, 1'100'000u}) {
    std::vector<void*> others;
    char* p = allocate_with_offset(n, others);
    ASSERT_NE(p, nullptr);
    auto* span = pointer_to<char>(span_of(p));
    const std::string freed = "free of a pointer that is not the start of a live block";
    for (char* a :
         {span, span + 64, p - 64, p - 16, p + 1, p + 16, p + 64, p + kPage, p + n - 64}) {
      if (a == p) continue;
      SCOPED_TRACE(std::to_string(n) + ": " + std::to_string(a - p));
      expect_named([=] { E::deallocate(a); }, freed);
      expect_named([=] { std::thread([=] { E::deallocate(a); }).join(); }, freed);
      expect_named([=] { E::usable_size(a); },
                   "size asked of a pointer that is not the start of a live block");
    }
    EXPECT_TRUE(E::owns(p));
    E::deallocate(p);
    expect_named([=] { E::deallocate(p); }, freed);
    expect_named([=] { E::deallocate(span); }, freed);
    free_all(others);
  }
}

// --- What lies around blocks ---------------------------------------------------------------------

TEST(StandardSingleBlocks, LittleStaysInMemoryAroundBlocks) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated || os::page_size() != kPage) {
    GTEST_SKIP() << "pages are counted that others have as well";
  }
  for (const std::size_t n : {33'000u, 66'000u, 70'000u, 131'100u, 200'000u}) {
    in_fresh_process([=] {
      constexpr std::size_t kLive = 128 * kMiB;
      auto small = fill(2 * kLive, 1000);
      free_all(small);
      std::vector<void*> blocks = fill(kLive, n);
      std::size_t around = 0;
      for (void* p : blocks) {
        const std::uintptr_t end = align_up(address_of(p) + n, kPage);
        around += resident_pages(pointer_to(span_of(p)), align_down(offset_of(p), kPage)) +
                  resident_pages(pointer_to(end), span_of(p) + span_bytes(p) - end);
      }
      EXPECT_LE(around * kPage, kLive / 5) << n;
      EXPECT_LE(E::pages.memory_return.slack_bound.idle_bytes(), kLive / 5) << n;
      free_all(blocks);
      E::trim();
      EXPECT_EQ(E::pages.memory_return.slack_bound.idle_bytes(), 0u) << n;
      expect_nothing_out();
    });
  }
}

TEST(StandardSingleBlocks, LittleIsLeftAsItIs) {
  in_fresh_process([] {
    auto small = fill(16 * kMiB, 1000);
    free_all(small);
    std::vector<void*> blocks = fill(2 * kMiB, 70'000);
    EXPECT_GT(E::pages.memory_return.slack_bound.idle_bytes(), kMiB);
    // Of what a larger block has around it less than a quarter is left.
    for (void*& p : blocks) p = Api::realloc(p, 130'000);
    EXPECT_LT(E::pages.memory_return.slack_bound.idle_bytes(), kMiB / 2);
    free_all(blocks);
    E::trim();
    EXPECT_EQ(E::pages.memory_return.slack_bound.idle_bytes(), 0u);
    expect_nothing_out();
  });
}

}  // namespace
}  // namespace spanalloc::large
