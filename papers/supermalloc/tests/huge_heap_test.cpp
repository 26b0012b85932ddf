// Huge objects: ranges of a power of two of chunks, decommitted when they are
// freed, used again, halved.
#include "papers/supermalloc/engine/huge_heap.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using supermalloc::ChunkEntry;
using supermalloc::ChunkNumber;
using supermalloc::ChunkTable;
using supermalloc::HugeHeap;
using supermalloc::kChunk;
using supermalloc::kPage;
using test::checked;
using test::fill_pattern;
using test::first_mismatch;
using test::first_nonzero;
using test::OwnHeap;
using test::resident_pages;
using Bins = test::SupermallocBins;

class SupermallocHuge : public test::SupermallocTest {
 protected:
  // Free ranges by the logarithm of their length in chunks.
  std::vector<std::size_t> free_ranges() {
    std::vector<std::size_t> counts(ChunkTable::kMaxOrder + 1);
    for (unsigned order = 0; order <= ChunkTable::kMaxOrder; ++order) {
      for (ChunkNumber n = heap_->huge().first_free(order); n != 0;
           n = heap_->chunks().entry(n).next()) {
        ++counts[order];
      }
    }
    while (!counts.empty() && counts.back() == 0) counts.pop_back();
    return counts;
  }
  char* allocate(std::size_t n, std::size_t alignment = 1) {
    void* p = heap_->allocate_aligned(n, alignment);
    EXPECT_NE(p, nullptr);
    EXPECT_EQ(address_of(p) % alignment, 0u);
    EXPECT_TRUE(heap_->chunks().at(p).is_huge());
    return static_cast<char*>(p);
  }
  test::OwnHeap<> heap_;
};
using Counts = std::vector<std::size_t>;

TEST_F(SupermallocHuge, TakeRangesOfAPowerOfTwoOfChunks) {
  struct {
    std::size_t bytes;
    std::size_t chunks;
  } const sizes[] = {{supermalloc::Bins<Supermalloc>::kLargest + 1, 1},
                     {kChunk, 1},
                     {kChunk + 1, 2},
                     {2 * kChunk, 2},
                     {5 * kMiB, 4},  // the paper's example
                     {8 * kMiB, 4},
                     {8 * kMiB + 1, 8},
                     {100 * kMiB, 64}};
  std::size_t chunks = 0;
  std::size_t bytes = 0;
  std::vector<char*> objects;
  for (const auto& size : sizes) {
    char* p = allocate(size.bytes);
    objects.push_back(p);
    EXPECT_EQ(address_of(p) % (size.chunks * kChunk), 0u) << "ranges are aligned to their length";
    // As many whole pages as it has asked for: what lies behind is address space.
    EXPECT_EQ(heap_->usable_size(p), align_up(size.bytes, kPage));
    EXPECT_EQ(heap_->chunks().at(p).pages(), align_up(size.bytes, kPage) / kPage);
    chunks += size.chunks;
    bytes += align_up(size.bytes, kPage);
    const supermalloc::Census census = checked(heap_);
    EXPECT_EQ(census.huge_chunks, chunks);
    EXPECT_EQ(census.huge_objects, objects.size());
    EXPECT_EQ(heap_->huge().bytes(), bytes);
    EXPECT_EQ(heap_->huge().objects(), objects.size());
  }
  for (char* p : objects) heap_->deallocate(p);
  EXPECT_EQ(heap_->huge().bytes(), 0u);
  EXPECT_EQ(heap_->huge().objects(), 0u);
  EXPECT_TRUE(checked(heap_).all_returned());
}

TEST_F(SupermallocHuge, AFreedRangeGoesBackAndServesTheNextOfItsLength) {
  char* p = allocate(5 * kMiB);
  std::memset(p, 0xA5, 5 * kMiB);
  EXPECT_EQ(resident_pages(p, 5 * kMiB), 5 * kMiB / os::page_size());
  heap_->deallocate(p);
  EXPECT_EQ(resident_pages(p, 8 * kMiB), 0u);
  EXPECT_EQ(free_ranges(), (Counts{0, 0, 1}));
  EXPECT_FALSE(heap_->owns(p));
  // Another length of that range; it is zero without being cleared.
  void* again = heap_->allocate_zeroed(7 * kMiB);
  EXPECT_EQ(again, p);
  EXPECT_EQ(resident_pages(p, 7 * kMiB), 0u);
  EXPECT_EQ(first_nonzero(p, 7 * kMiB), 7 * kMiB);
  EXPECT_EQ(free_ranges(), Counts{});
  heap_->deallocate(again);
  // The last one that was freed comes first.
  char* a = allocate(3 * kMiB);
  char* b = allocate(3 * kMiB);
  heap_->deallocate(a);
  heap_->deallocate(b);
  EXPECT_EQ(allocate(4 * kMiB), b);
  EXPECT_EQ(allocate(4 * kMiB), a);
  checked(heap_);
}

TEST_F(SupermallocHuge, AlignmentIsThatOfALargerRangeWhoseRestIsHalved) {
  char* p = allocate(kChunk, 16 * kMiB);  // 1 of 8 chunks
  EXPECT_EQ(free_ranges(), (Counts{1, 1, 1}));
  EXPECT_EQ(checked(heap_).free_chunks, 7u);
  // The rest serves others, each as far behind as its length says.
  EXPECT_EQ(allocate(kChunk), p + kChunk);
  EXPECT_EQ(allocate(2 * kChunk), p + 2 * kChunk);
  EXPECT_EQ(allocate(4 * kChunk), p + 4 * kChunk);
  EXPECT_EQ(free_ranges(), Counts{});
  checked(heap_);
  for (std::size_t alignment = 1; alignment <= 64 * kMiB; alignment *= 2) {
    char* q = allocate(3 * kMiB, alignment);
    EXPECT_EQ(heap_->usable_size(q), 3 * kMiB);
    heap_->deallocate(q);
    // Small ones of an alignment that no page has.
    if (alignment <= kPage) continue;
    q = allocate(100, alignment);
    EXPECT_EQ(heap_->usable_size(q), kPage);
    heap_->deallocate(q);
  }
  checked(heap_);
}

// An arena of 1 GiB: its largest ranges are of 512 MiB.
TEST_F(SupermallocHuge, LargerRangesServeWhenNothingElseIsLeft) {
  const test::Variable bits("SPANALLOC_ARENA_BITS", "30");
  std::vector<char*> objects;
  for (;;) {
    void* p = heap_->allocate(64 * kMiB);
    ASSERT_NE(p, nullptr);
    if (!heap_->chunks().at(p).is_huge()) {
      heap_->deallocate(p);  // a mapping of its own
      break;
    }
    objects.push_back(static_cast<char*>(p));
    ASSERT_LT(objects.size(), 20u);
  }
  ASSERT_GE(objects.size(), 8u);
  // What is left of the arena are ranges that are too small; they serve first.
  for (void* p = heap_->allocate(kChunk); heap_->chunks().at(p).is_huge();
       p = heap_->allocate(kChunk)) {
  }
  heap_->deallocate(objects[3]);
  EXPECT_EQ(free_ranges(), (Counts{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(allocate(kChunk), objects[3]);
  EXPECT_EQ(free_ranges(), (Counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(allocate(20 * kMiB), objects[3] + 32 * kMiB);
  EXPECT_EQ(free_ranges(), (Counts{1, 1, 1, 1}));
  checked(heap_);
}

TEST_F(SupermallocHuge, ResizeInPlaceWithinTheirRange) {
  char* p = allocate(5 * kMiB);
  fill_pattern(p, 5 * kMiB, 1);
  const std::size_t opened = heap_->statistics().opened_bytes;
  // Up to the end of the range, and no further.
  EXPECT_EQ(heap_->resize(p, 8 * kMiB).block, p);
  EXPECT_EQ(heap_->usable_size(p), 8 * kMiB);
  EXPECT_EQ(heap_->huge().bytes(), 8 * kMiB);
  EXPECT_EQ(heap_->resize(p, 8 * kMiB + 1).block, nullptr);
  EXPECT_EQ(heap_->usable_size(p), 8 * kMiB);
  EXPECT_EQ(first_mismatch(p, 5 * kMiB, 1), 5 * kMiB);
  fill_pattern(p, 8 * kMiB, 1);
  // Down to more than half of it: what is cut off goes back, and is zero when it comes again.
  EXPECT_EQ(heap_->resize(p, 4 * kMiB + 5000).block, p);
  EXPECT_EQ(heap_->usable_size(p), 4 * kMiB + 2 * kPage);
  EXPECT_EQ(heap_->huge().bytes(), 4 * kMiB + 2 * kPage);
  EXPECT_EQ(resident_pages(p + 4 * kMiB + 64 * kKiB, 4 * kMiB - 64 * kKiB), 0u);
  EXPECT_EQ(first_mismatch(p, 4 * kMiB + 2 * kPage, 1), 4 * kMiB + 2 * kPage);
  checked(heap_);
  EXPECT_EQ(heap_->resize(p, 6 * kMiB).block, p);
  EXPECT_EQ(first_nonzero(p + 4 * kMiB + 2 * kPage, 1 * kMiB), 1 * kMiB);
  EXPECT_EQ(heap_->huge().objects(), 1u);
  // Half of it would do: the caller moves it.
  EXPECT_EQ(heap_->resize(p, 4 * kMiB).block, nullptr);
  EXPECT_EQ(heap_->resize(p, 100).block, nullptr);
  EXPECT_EQ(heap_->usable_size(p), 6 * kMiB);
  EXPECT_EQ(heap_->statistics().opened_bytes, opened);
  checked(heap_);
  heap_->deallocate(p);
  EXPECT_EQ(heap_->huge().bytes(), 0u);
}

// A locked page makes the kernel refuse to take pages back. (The system call itself:
// sanitizers make nothing of mlock.)
bool lock(void* page) {
  return syscall(SYS_mlock, page, os::page_size()) == 0;
}
void unlock(void* page) {
  EXPECT_EQ(syscall(SYS_munlock, page, os::page_size()), 0);
}

TEST_F(SupermallocHuge, WhatTheKernelDoesNotTakeBackIsNotTakenForZero) {
  char* p = allocate(4 * kMiB);
  std::memset(p, 0xA5, 4 * kMiB);
  if (!lock(p)) GTEST_SKIP() << "no memory may be locked here";
  heap_->deallocate(p);
  EXPECT_TRUE(heap_->chunks().entry(heap_->chunks().number_of(p)).is_dirty());
  unlock(p);
  EXPECT_EQ(heap_->allocate_zeroed(3 * kMiB), p);
  EXPECT_EQ(first_nonzero(p, 3 * kMiB), 3 * kMiB);
  std::memset(p, 0xA5, 3 * kMiB);
  heap_->deallocate(p);
  // Its pages went back this time. So have those behind it, which an earlier object had left.
  EXPECT_EQ(heap_->allocate_zeroed(4 * kMiB), p);
  EXPECT_EQ(first_nonzero(p, 4 * kMiB), 4 * kMiB);
  // A dirty range's halves are dirty.
  std::memset(p, 0xA5, 4 * kMiB);
  if (!lock(p)) GTEST_SKIP() << "no memory may be locked here";
  heap_->deallocate(p);
  unlock(p);
  const supermalloc::BigObject half = heap_->huge().allocate(kChunk, 4 * kMiB);
  EXPECT_EQ(half.bytes, p);
  EXPECT_FALSE(half.is_zero);
  EXPECT_EQ(heap_->allocate_zeroed(kChunk), p + kChunk);
  EXPECT_EQ(first_nonzero(p + kChunk, kChunk), kChunk);
  checked(heap_);
}

TEST_F(SupermallocHuge, ATrimOffersAgainWhatTheKernelRefused) {
  char* objects[4];
  for (char*& p : objects) std::memset(p = allocate(3 * kMiB), 0xA5, 3 * kMiB);
  const auto is_dirty = [&](const char* p) {
    return heap_->chunks().entry(heap_->chunks().number_of(p)).is_dirty();
  };
  for (const int i : {0, 2}) {
    if (!lock(objects[i])) GTEST_SKIP() << "no memory may be locked here";
  }
  for (char* p : objects) heap_->deallocate(p);
  EXPECT_EQ(heap_->huge().kept_bytes(), 8 * kMiB);
  EXPECT_EQ(heap_->statistics().pooled_bytes, 8 * kMiB);
  EXPECT_EQ(heap_->statistics().large_bytes, 0u);
  EXPECT_FALSE(heap_->trim()) << "the kernel has taken nothing";
  checked(heap_);
  unlock(objects[0]);
  EXPECT_TRUE(heap_->trim());
  EXPECT_FALSE(is_dirty(objects[0]));
  EXPECT_TRUE(is_dirty(objects[2]));
  EXPECT_EQ(heap_->huge().kept_bytes(), 4 * kMiB);
  EXPECT_EQ(resident_pages(objects[0], 3 * kMiB), 0u);
  checked(heap_);
  // Of a range that is cut the rest is as dirty.
  unlock(objects[2]);
  const supermalloc::BigObject half = heap_->huge().allocate(kChunk, 4 * kMiB);
  EXPECT_EQ(half.bytes, objects[2]);
  EXPECT_EQ(heap_->huge().kept_bytes(), kChunk);
  checked(heap_);
  EXPECT_TRUE(heap_->trim());
  EXPECT_EQ(heap_->huge().kept_bytes(), 0u);
  EXPECT_EQ(heap_->statistics().pooled_bytes, 0u);
  EXPECT_FALSE(heap_->trim());
  EXPECT_EQ(free_ranges(), (Counts{1, 3}));
  heap_->deallocate(half.bytes);
  EXPECT_TRUE(checked(heap_).all_returned());
}

TEST_F(SupermallocHuge, WhatCannotBeCutOffStaysTheObjects) {
  char* p = allocate(8 * kMiB);
  fill_pattern(p, 8 * kMiB, 2);
  if (!lock(p + 7 * kMiB)) GTEST_SKIP() << "no memory may be locked here";
  EXPECT_EQ(heap_->resize(p, 5 * kMiB).block, p);
  EXPECT_EQ(heap_->usable_size(p), 8 * kMiB);
  EXPECT_EQ(heap_->huge().bytes(), 8 * kMiB);
  EXPECT_EQ(first_mismatch(p, 5 * kMiB, 2), 5 * kMiB);
  unlock(p + 7 * kMiB);
  EXPECT_EQ(heap_->resize(p, 5 * kMiB).block, p);
  EXPECT_EQ(heap_->usable_size(p), 5 * kMiB);
  checked(heap_);
}

TEST_F(SupermallocHuge, BeyondTheLargestRangeIsAMappingOfItsOwn) {
  void* p = heap_->allocate(HugeHeap::kLargest + 1);
  if (p == nullptr) GTEST_SKIP() << "no address space for it";
  EXPECT_EQ(heap_->chunks().at(p).word(), 0u);
  EXPECT_TRUE(heap_->owns(p));
  EXPECT_GE(heap_->usable_size(p), HugeHeap::kLargest + 1);
  EXPECT_EQ(heap_->statistics().large_objects, 1u);
  EXPECT_EQ(checked(heap_).huge_objects, 0u);
  heap_->deallocate(p);
  EXPECT_FALSE(heap_->owns(p));
  EXPECT_EQ(heap_->statistics().large_objects, 0u);
}

// The kernel moves pages, whatever the size: nothing is copied where the arena
// has no room for the object.
TEST_F(SupermallocHuge, AMappingOfItsOwnChangesItsSize) {
  const test::Variable bits("SPANALLOC_ARENA_BITS", "30");
  constexpr std::size_t kN = 2 * kGiB;  // more than the arena
  void* p = heap_->allocate(kN);
  if (p == nullptr) GTEST_SKIP() << "no address space for it";
  ASSERT_EQ(heap_->chunks().at(p).word(), 0u);
  fill_pattern(p, 5 * kMiB, 1);
  const auto expect_resized = [&](std::size_t n) {
    const std::size_t usable = heap_->usable_size(p);
    const Resized resized = heap_->resize(p, n);
    ASSERT_NE(resized.block, nullptr) << n;
    EXPECT_EQ(resized.usable, usable);
    if (n <= usable) {
      EXPECT_EQ(resized.block, p) << n;
    }
    p = resized.block;
    EXPECT_EQ(heap_->usable_size(p), align_up(n, os::page_size()));
    EXPECT_EQ(heap_->statistics().large_bytes, align_up(n, os::page_size()));
    EXPECT_EQ(first_mismatch(p, min_of(n, 5 * kMiB), 1), min_of(n, 5 * kMiB));
  };
  for (const std::size_t n : {kN / 2 + 1, kN / 4, kN / 2, 5 * kMiB, 1500 * kKiB}) expect_resized(n);
  // Of what bins have it keeps more than half, and becomes no larger.
  expect_resized(Bins::kLargest);
  expect_resized(600'000);
  EXPECT_EQ(heap_->resize(p, 300'000).block, nullptr);
  EXPECT_EQ(heap_->resize(p, Bins::kLargest).block, nullptr);
  EXPECT_EQ(first_mismatch(p, 600'000, 1), 600'000u);
  heap_->deallocate(p);
  EXPECT_EQ(heap_->statistics().large_bytes, 0u);
  // An object that is huge for its alignment, too.
  p = allocate(100, 2 * kPage);
  EXPECT_EQ(heap_->resize(p, kPage - 1000).block, p);
  heap_->deallocate(p);
}

// Allocations, frees and changes of size by chance.
TEST_F(SupermallocHuge, KeepWhatIsWritten) {
  test::Random random(test::seed_of(1));
  struct Object {
    char* p;
    std::size_t n;
  };
  std::vector<Object> objects;
  const auto some_size = [&] { return 2 * kMiB + random.below(20 * kMiB); };
  const auto mark = [](const Object& o) {
    fill_pattern(o.p, 64, o.n);
    fill_pattern(o.p + o.n - 64, 64, o.n);
  };
  const auto is_marked = [](const Object& o, std::size_t by) {
    return first_mismatch(o.p, 64, by) == 64;
  };
  std::size_t resized = 0;
  for (int step = 0; step < 3000; ++step) {
    if (objects.size() < 12 && random.one_in(3)) {
      const std::size_t n = some_size();
      const std::size_t alignment = random.one_in(4) ? kChunk << random.below(5) : 1;
      objects.push_back({allocate(n, alignment), n});
      mark(objects.back());
      continue;
    }
    if (objects.empty()) continue;
    std::swap(objects[random.below(objects.size())], objects.back());
    Object& object = objects.back();
    ASSERT_TRUE(is_marked(object, object.n));
    ASSERT_EQ(first_mismatch(object.p + object.n - 64, 64, object.n), 64u);
    if (random.one_in(2)) {
      const std::size_t n = some_size();
      if (heap_->resize(object.p, n).block == nullptr) continue;
      ASSERT_TRUE(is_marked(object, object.n));
      object.n = n;
      mark(object);
      ++resized;
    } else {
      heap_->deallocate(object.p);
      objects.pop_back();
    }
    if (step % 50 == 0) {
      EXPECT_EQ(checked(heap_).huge_objects, objects.size());
    }
  }
  EXPECT_GT(resized, 50u);
  for (const Object& object : objects) heap_->deallocate(object.p);
  EXPECT_TRUE(checked(heap_).all_returned());
}

// What the kernel says of the mapping that p lies in: "hg" huge pages are
// asked for, "nh" forbidden.
std::string flags_of(const void* p) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      inside = from <= address_of(p) && address_of(p) < to;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}
bool advised(const void* p) {
  return flags_of(p).find(" hg ") != std::string::npos;
}
bool forbidden(const void* p) {
  return flags_of(p).find(" nh ") != std::string::npos;
}

// "the last fractional part of the huge page is mapped only with normal 4 KiB page table entries"
TEST_F(SupermallocHuge, WholeChunksMayBeHugePagesAndTheRestNot) {
  const test::Variable option("SPANALLOC_THP", "auto");
  if (test::kEmulated) GTEST_SKIP() << "the emulator has mappings of its own";
  allocate(100 * kMiB);  // a small heap has none
  char* p = allocate(5 * kMiB);
  if (flags_of(p).empty()) GTEST_SKIP() << "the kernel does not tell of advice";
  if (!advised(p)) GTEST_SKIP() << "this kernel has no huge pages";
  EXPECT_TRUE(advised(p + 2 * kMiB));
  EXPECT_TRUE(forbidden(p + 4 * kMiB));
  heap_->deallocate(p);
  EXPECT_TRUE(forbidden(p)) << "a free range has lost the advice";
  // A range whose third chunk was advised: of the next object that is the fractional part.
  EXPECT_EQ(allocate(8 * kMiB), p);
  EXPECT_TRUE(advised(p + 4 * kMiB));
  // Cut short in the middle of a huge page: the advice goes with the range all the same.
  EXPECT_EQ(heap_->resize(p, 5 * kMiB).block, p);
  heap_->deallocate(p);
  EXPECT_TRUE(forbidden(p + 6 * kMiB));
  EXPECT_EQ(allocate(5 * kMiB), p);
  EXPECT_TRUE(advised(p + 2 * kMiB));
  EXPECT_TRUE(forbidden(p + 4 * kMiB));
}

TEST_F(SupermallocHuge, NoneAreHugePagesByThemselves) {
  allocate(100 * kMiB);
  char* p = allocate(5 * kMiB);
  EXPECT_FALSE(advised(p));
  heap_->deallocate(p);
  EXPECT_EQ(allocate(8 * kMiB), p);
  EXPECT_FALSE(advised(p));
}

TEST_F(SupermallocHuge, ASmallHeapHasNone) {
  const test::Variable option("SPANALLOC_THP", "auto");
  char* p = allocate(5 * kMiB);
  EXPECT_FALSE(advised(p));
  heap_->deallocate(p);
  EXPECT_EQ(allocate(8 * kMiB), p);
  EXPECT_FALSE(advised(p));
}

TEST_F(SupermallocHuge, NoneAreHugePagesWhereThatIsTheOption) {
  const test::Variable option("SPANALLOC_THP", "never");
  allocate(100 * kMiB);
  char* p = allocate(5 * kMiB);
  EXPECT_FALSE(advised(p));
  heap_->deallocate(p);
  EXPECT_EQ(allocate(8 * kMiB), p);
  EXPECT_FALSE(advised(p));
  EXPECT_FALSE(advised(p + 6 * kMiB));
}

// The environment is the program's, which may be changing it while another thread allocates: it is
// read when the heap starts, and no more. A word that is none of the option's is told then.
TEST_F(SupermallocHuge, TheOptionIsReadOnceWhenTheHeapStarts) {
  test::Variable option("SPANALLOC_THP", "sometimes");
  testing::internal::CaptureStderr();
  char* p = allocate(5 * kMiB);
  heap_->deallocate(p);
  p = allocate(5 * kMiB);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(told,
            "spanalloc: ignored SPANALLOC_THP=sometimes: want system, auto, always or never\n");
  const bool before = advised(p);
  heap_->deallocate(p);
  option.set("never");
  p = allocate(5 * kMiB);
  EXPECT_EQ(advised(p), before);
  heap_->deallocate(p);
  EXPECT_FALSE(advised(p));
}

// Folios and large objects go back a few pages at a time, which a huge page does not.
TEST_F(SupermallocHuge, OtherObjectsAreNeverInHugePages) {
  const test::Variable option("SPANALLOC_THP", "auto");
  if (test::kEmulated) GTEST_SKIP() << "the emulator has mappings of its own";
  allocate(100 * kMiB);  // a small heap has none
  char* p = allocate(5 * kMiB);
  if (!advised(p)) GTEST_SKIP() << "this kernel has no huge pages, or does not tell";
  for (const std::size_t n : {std::size_t{16}, std::size_t{10'000}, 100 * kKiB, 1000 * kKiB}) {
    EXPECT_TRUE(forbidden(heap_->allocate(n))) << n;
  }
  EXPECT_TRUE(advised(p));
}

}  // namespace
}  // namespace spanalloc
