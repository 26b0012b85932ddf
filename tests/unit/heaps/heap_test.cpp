// Heaps of a program's own through spanalloc.h: what they hand out, what they keep, and what is
// left when they are gone. (With malloc's functions and forks:
// tests/integration/program_heaps.cpp.)
#include <errno.h>
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "child.hpp"
#include "heaps/heap.hpp"
#include "random.hpp"
#include "runs_test_access.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc::heaps {
namespace {

constexpr std::size_t kPiece = HeapsConfig::kSlice;

class OwnHeap {
 public:
  explicit OwnHeap(std::size_t limit = 0) {
    sp_heap_options options{};
    options.limit_bytes = limit;
    heap_ = sp_heap_create(&options, sizeof options);
    EXPECT_NE(heap_, nullptr);
  }
  ~OwnHeap() { sp_heap_destroy(heap_); }
  OwnHeap(const OwnHeap&) = delete;
  OwnHeap& operator=(const OwnHeap&) = delete;
  operator sp_heap*() const { return heap_; }  // NOLINT(google-explicit-constructor)
  sp_heap_statistics statistics() const {
    sp_heap_statistics s{};
    sp_heap_stats(heap_, &s, sizeof s);
    return s;
  }

 private:
  sp_heap* heap_;
};

std::map<char*, std::size_t> visited(sp_heap* heap) {
  std::map<char*, std::size_t> blocks;
  sp_heap_visit(
      heap,
      [](void* block, std::size_t size, void* context) {
        (*static_cast<std::map<char*, std::size_t>*>(context))[static_cast<char*>(block)] = size;
      },
      &blocks);
  return blocks;
}

TEST(Heaps, HandOutAlignedBlocksOfAllSizes) {
  const OwnHeap heap;
  std::vector<std::pair<char*, std::size_t>> blocks;
  for (std::size_t n = 0; n < 3 * kMiB; n += n / 7 + 1) {
    auto* const p = static_cast<char*>(sp_heap_malloc(heap, n));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(address_of(p) % 16, 0u);
    std::memset(p, static_cast<int>(n), n);
    blocks.emplace_back(p, n);
  }
  for (const auto& [p, n] : blocks) {
    EXPECT_TRUE(std::all_of(p, p + n, [n = n](char c) { return c == static_cast<char>(n); })) << n;
    sp_heap_free(heap, p);
  }
  EXPECT_EQ(heap.statistics().used_blocks, 0u);
}

TEST(Heaps, AlignAsAsked) {
  const OwnHeap heap;
  for (std::size_t alignment = 1; alignment <= 4 * kMiB; alignment *= 2) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{100}, 5 * kKiB,
                                255 * kKiB, 256 * kKiB, kMiB}) {
      auto* const p = static_cast<char*>(sp_heap_aligned_alloc(heap, alignment, n));
      ASSERT_NE(p, nullptr) << alignment << ' ' << n;
      EXPECT_EQ(address_of(p) % max_of(alignment, 16), 0u);
      std::memset(p, 1, n);
      if (n != 100) sp_heap_free(heap, p);
    }
  }
  EXPECT_EQ(visited(heap).size(), 23u);
}

TEST(Heaps, RefuseWhatCannotBeAndSaySo) {
  const OwnHeap heap;
  volatile std::size_t huge = SIZE_MAX;
  errno = 0;
  EXPECT_EQ(sp_heap_malloc(heap, huge), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  for (const std::size_t n : {huge - 20, huge / 2, huge / 2 + 1, std::size_t{1} << 46}) {
    EXPECT_EQ(sp_heap_malloc(heap, n), nullptr);
    EXPECT_EQ(sp_heap_calloc(heap, 1, n), nullptr);
    EXPECT_EQ(sp_heap_aligned_alloc(heap, 16, n), nullptr);
  }
  EXPECT_EQ(sp_heap_calloc(heap, huge / 2, 4), nullptr) << "the product overflows";
  EXPECT_EQ(sp_heap_aligned_alloc(heap, huge / 2 + 1, huge / 2), nullptr);
  errno = 0;
  EXPECT_EQ(sp_heap_aligned_alloc(heap, 24, 8), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(sp_heap_aligned_alloc(heap, 0, 8), nullptr);
  void* const p = sp_heap_malloc(heap, 10);
  EXPECT_EQ(sp_heap_realloc(heap, p, huge), nullptr);
  EXPECT_EQ(heap.statistics().used_blocks, 1u);
  errno = 7;
  sp_heap_free(heap, p);
  sp_heap_free(heap, nullptr);
  sp_heap_free(heap, sp_heap_malloc(heap, 10 * kMiB));
  EXPECT_EQ(errno, 7);
}

TEST(Heaps, KnowTheirOptions) {
  errno = 0;
  const sp_heap_options small{kPiece - 1, nullptr};
  EXPECT_EQ(sp_heap_create(&small, sizeof small), nullptr);
  EXPECT_EQ(errno, EINVAL);
  struct {
    sp_heap_options known;
    std::size_t later;
  } options{{kPiece, nullptr}, 0};
  sp_heap* const heap = sp_heap_create(&options.known, sizeof options);
  EXPECT_NE(heap, nullptr);
  sp_heap_destroy(heap);
  options.later = 1;
  errno = 0;
  EXPECT_EQ(sp_heap_create(&options.known, sizeof options), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // A size that is of no version would lose the limit, or part of it.
  const sp_heap_options least{kPiece, nullptr};
  for (std::size_t size = 0; size < sizeof least; ++size) {
    if (size == sizeof least.limit_bytes) continue;
    errno = 0;
    EXPECT_EQ(sp_heap_create(&least, size), nullptr) << size;
    EXPECT_EQ(errno, EINVAL) << size;
  }
  for (const std::size_t size : {std::size_t{0}, sizeof least}) {
    sp_heap* const plain = sp_heap_create(nullptr, size);
    EXPECT_NE(plain, nullptr);
    sp_heap_destroy(plain);
  }
  sp_heap_destroy(nullptr);
}

TEST(Heaps, CallocClearsMemoryThatWasUsed) {
  const OwnHeap heap;
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, 100 * kKiB, kMiB}) {
      auto* const p = static_cast<char*>(sp_heap_calloc(heap, n, 1));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(std::count(p, p + n, 0), static_cast<std::ptrdiff_t>(n)) << n;
      std::memset(p, 0x77, n);
      auto* const q = static_cast<char*>(sp_heap_malloc(heap, n / 3));
      std::memset(q, 0x78, n / 3);
      sp_heap_free(heap, q);
      if (round != 1) sp_heap_free(heap, p);
    }
    if (round == 1) sp_heap_reset(heap);
  }
}

TEST(Heaps, ReallocKeepsContents) {
  const OwnHeap heap;
  test::Random random(test::seed_of(3));
  char* p = nullptr;
  std::size_t size = 0;
  std::vector<void*> others;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t n = 1 + random.below(random.one_in(8) ? 2 * kMiB : 4 * kKiB);
    p = static_cast<char*>(sp_heap_realloc(heap, p, n));
    ASSERT_NE(p, nullptr);
    const std::size_t kept = min_of(n, size);
    ASSERT_EQ(std::count(p, p + kept, static_cast<char>(i)), static_cast<std::ptrdiff_t>(kept));
    std::memset(p, i + 1, n);
    size = n;
    if (random.one_in(3)) others.push_back(sp_heap_malloc(heap, random.below(3000)));
    if (random.one_in(3) && !others.empty()) {
      sp_heap_free(heap, others.back());
      others.pop_back();
    }
  }
  EXPECT_EQ(sp_heap_realloc(heap, p, 0), nullptr);
  EXPECT_EQ(heap.statistics().used_blocks, others.size());
}

// Any sequence, against a map of what is out: no two blocks overlap, contents stay, a visit finds
// exactly them, and when all is freed, all is free.
// `alone`: nobody else uses the heap.
void do_anything(sp_heap* heap, std::uint64_t seed, std::size_t largest, int steps, bool alone) {
  test::Random random(seed);
  struct Out {
    std::size_t size;
    unsigned char mark;
  };
  std::map<unsigned char*, Out> out;
  const auto fill = [&](void* block, std::size_t n) {
    auto* const p = static_cast<unsigned char*>(block);
    ASSERT_NE(p, nullptr);
    const auto behind = out.lower_bound(p);
    ASSERT_TRUE(behind == out.end() || p + n <= behind->first);
    ASSERT_TRUE(behind == out.begin() ||
                std::prev(behind)->first + std::prev(behind)->second.size <= p);
    const auto mark = static_cast<unsigned char>(random.next());
    std::memset(p, mark, n);
    out[p] = {n, mark};
  };
  const auto check = [&](auto at) {
    const auto& [p, o] = *at;
    ASSERT_EQ(std::count(p, p + o.size, o.mark), static_cast<std::ptrdiff_t>(o.size));
  };
  const auto any = [&] {
    return std::next(out.begin(), static_cast<long>(random.below(out.size())));
  };
  for (int step = 0; step < steps; ++step) {
    // Sizes over all doublings alike.
    const std::size_t n = random.below(std::size_t{1} << random.below(log2_floor(largest) + 1)) + 1;
    const std::size_t what = random.below(out.size() > 300 ? 8 : 11);
    if (what < 4 && !out.empty()) {
      const auto at = any();
      check(at);
      sp_heap_free(heap, at->first);
      out.erase(at);
    } else if (what < 6 && !out.empty()) {
      const auto at = any();
      check(at);
      const auto [p, o] = *at;
      out.erase(at);
      auto* const moved = static_cast<unsigned char*>(sp_heap_realloc(heap, p, n));
      ASSERT_NE(moved, nullptr);
      const std::size_t kept = min_of(n, o.size);
      ASSERT_EQ(std::count(moved, moved + kept, o.mark), static_cast<std::ptrdiff_t>(kept));
      fill(moved, n);
    } else if (what == 7) {
      const std::size_t alignment = std::size_t{1} << random.below(18);
      void* const p = sp_heap_aligned_alloc(heap, alignment, n);
      ASSERT_EQ(address_of(p) % alignment, 0u);
      fill(p, n);
    } else if (what == 8) {
      auto* const p = static_cast<char*>(sp_heap_calloc(heap, 1, n));
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(std::count(p, p + n, 0), static_cast<std::ptrdiff_t>(n));
      fill(p, n);
    } else {
      fill(sp_heap_malloc(heap, n), n);
    }
    if (alone && step % 1000 == 0) {
      const auto seen = visited(heap);
      ASSERT_EQ(seen.size(), out.size());
      for (const auto& [p, o] : out) {
        const auto at = seen.find(reinterpret_cast<char*>(p));
        ASSERT_TRUE(at != seen.end() && at->second >= o.size);
      }
    }
  }
  for (auto at = out.begin(); at != out.end(); ++at) {
    check(at);
    sp_heap_free(heap, at->first);
  }
}

TEST(Heaps, ServeAnySequence) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const OwnHeap heap;
    do_anything(heap, test::seed_of(100 + seed), seed % 3 == 0 ? kMiB : 8 * kKiB, 8000, true);
    const sp_heap_statistics left = heap.statistics();
    EXPECT_EQ(left.used_blocks, 0u);
    EXPECT_EQ(left.used_bytes, 0u);
    // The home; and of each shard the top's run and a spare one.
    EXPECT_LE(left.taken_bytes, (1 + 2 * HeapsConfig::kMostRunSlices) * kPiece);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Heaps, ServeManyThreadsAtOnce) {
  const OwnHeap heap;
  test::in_threads(
      4, [&](unsigned k) { do_anything(heap, test::seed_of(200 + k), 4 * kKiB, 5000, false); });
  std::vector<std::atomic<void*>> slots(64);
  test::in_threads(4, [&](unsigned k) {
    test::Random random(test::seed_of(300 + k));
    for (int i = 0; i < 20'000; ++i) {
      const std::size_t n = 8 + random.below(random.one_in(500) ? 600 * kKiB : 700);
      auto* const p = static_cast<std::size_t*>(sp_heap_malloc(heap, n));
      ASSERT_NE(p, nullptr);
      *p = n;
      void* const other = slots[random.below(slots.size())].exchange(p);
      if (other == nullptr) continue;
      ASSERT_GE(*static_cast<std::size_t*>(other), 8u);
      sp_heap_free(heap, other);
    }
  });
  for (auto& slot : slots) sp_heap_free(heap, slot.load());
  EXPECT_EQ(heap.statistics().used_blocks, 0u);
}

TEST(Heaps, KeepToTheirLimit) {
  constexpr std::size_t kLimit = 10 * kPiece;
  const OwnHeap heap(kLimit);
  EXPECT_EQ(heap.statistics().limit_bytes, kLimit);
  std::vector<void*> blocks;
  errno = 0;
  while (void* const p = sp_heap_malloc(heap, 1000)) {
    blocks.push_back(p);
    ASSERT_LE(heap.statistics().taken_bytes, kLimit);
  }
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_GT(blocks.size() * 1008, kLimit - kPiece / 4) << "nearly all of it can be had";
  EXPECT_EQ(sp_heap_malloc(heap, 300 * kKiB), nullptr);
  EXPECT_EQ(sp_heap_realloc(heap, blocks[0], 300 * kKiB), nullptr);
  const std::size_t count = blocks.size();
  for (void* const p : blocks) sp_heap_free(heap, p);
  blocks.clear();
  void* const large = sp_heap_malloc(heap, 400 * kKiB);
  EXPECT_NE(large, nullptr) << "free memory serves large blocks again";
  sp_heap_free(heap, large);
  sp_heap_reset(heap);
  while (void* const p = sp_heap_malloc(heap, 1000)) blocks.push_back(p);
  EXPECT_EQ(blocks.size(), count);
}

// What shards keep for their next blocks is no loss to other requests.
TEST(Heaps, WithoutABlockServeOneOfNearlyTheirLimit) {
  for (const std::size_t pieces : {2, 3, 6, 10, 40, 400}) {
    const OwnHeap heap(pieces * kPiece);
    std::vector<void*> blocks;
    while (void* const p = sp_heap_malloc(heap, 1000)) blocks.push_back(p);
    for (void* const p : blocks) sp_heap_free(heap, p);
    // (A shared block has a header, and so has the end of its run.)
    void* const large = sp_heap_malloc(heap, (pieces - 1) * kPiece - 64);
    EXPECT_NE(large, nullptr) << pieces;
    sp_heap_free(heap, large);
    EXPECT_LE(heap.statistics().taken_bytes, pieces * kPiece);
    const std::size_t before = blocks.size();
    blocks.clear();
    while (void* const p = sp_heap_malloc(heap, 1000)) blocks.push_back(p);
    EXPECT_GE(blocks.size(), before - before / 16) << pieces;
    EXPECT_EQ(visited(heap).size(), blocks.size());
  }
}

TEST(Heaps, OfOnePieceServeUpToIt) {
  const OwnHeap heap(kPiece);
  std::size_t bytes = 0;
  while (sp_heap_malloc(heap, 24) != nullptr) bytes += 32;
  EXPECT_GT(bytes, kPiece - 4 * kKiB);
  EXPECT_EQ(heap.statistics().taken_bytes, kPiece);
}

TEST(Heaps, OwnWhatTheyHandOut) {
  const OwnHeap one;
  const OwnHeap other;
  void* const p = sp_heap_malloc(one, 10);
  void* const large = sp_heap_malloc(one, kMiB);
  EXPECT_TRUE(sp_heap_owns(one, p));
  EXPECT_TRUE(sp_heap_owns(one, static_cast<char*>(large) + kMiB - 1));
  EXPECT_FALSE(sp_heap_owns(other, p));
  EXPECT_FALSE(sp_heap_owns(one, &one));
  EXPECT_FALSE(sp_heap_owns(one, nullptr));
}

// --- Many ----------------------------------------------------------------------------------------

std::size_t arena_bytes() {
  return runs.statistics().opened_bytes;
}

TEST(Heaps, AreAliveByTheThousands) {
  constexpr std::size_t kCount = 20'000;
  std::vector<sp_heap*> heaps(kCount);
  std::set<sp_heap*> names;
  for (std::size_t i = 0; i < kCount; ++i) {
    heaps[i] = sp_heap_create(nullptr, 0);
    ASSERT_NE(heaps[i], nullptr);
    auto* const p = static_cast<std::size_t*>(sp_heap_malloc(heaps[i], 100));
    ASSERT_NE(p, nullptr);
    *p = i;
    names.insert(heaps[i]);
  }
  EXPECT_EQ(names.size(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto blocks = visited(heaps[i]);
    ASSERT_EQ(blocks.size(), 1u);
    ASSERT_EQ(*reinterpret_cast<std::size_t*>(blocks.begin()->first), i);
    sp_heap_destroy(heaps[i]);
  }
}

// Bounded by what was open before and what few heaps take, however many come and go.
TEST(Heaps, LeaveNothingBehindByTheMillion) {
  const std::size_t before = arena_bytes();
  const int count = test::kUnderTsan || test::kUnderAsan ? 50'000 : 1'000'000;
  for (int i = 0; i < count; ++i) {
    sp_heap* const heap = sp_heap_create(nullptr, 0);
    for (std::size_t n = 10; n < 1000; n *= 3) {
      void* const p = sp_heap_malloc(heap, n);
      ASSERT_NE(p, nullptr);
      static_cast<char*>(p)[0] = 1;
    }
    if (i % 1000 == 0) std::ignore = sp_heap_malloc(heap, 3 * kMiB);
    sp_heap_destroy(heap);
  }
  EXPECT_LE(arena_bytes(), before + 64 * kMiB);
}

TEST(Heaps, ComeAndGoInManyThreads) {
  const std::size_t before = arena_bytes();
  test::in_threads(4, [](unsigned k) {
    test::Random random(test::seed_of(400 + k));
    for (int i = 0; i < ((test::kUnderTsan || test::kUnderAsan) ? 500 : 5000); ++i) {
      sp_heap* const heap = sp_heap_create(nullptr, 0);
      ASSERT_NE(heap, nullptr);
      for (int j = 0; j < 50; ++j) ASSERT_NE(sp_heap_malloc(heap, random.below(5000)), nullptr);
      if (random.one_in(2)) sp_heap_reset(heap);
      sp_heap_destroy(heap);
    }
  });
  EXPECT_LE(arena_bytes(), before + 256 * kMiB);
}

TEST(Heaps, ResetGivesBackAllButTheFirstPiece) {
  const OwnHeap heap;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 1000; ++i) ASSERT_NE(sp_heap_malloc(heap, 3000), nullptr);
    ASSERT_NE(sp_heap_malloc(heap, kMiB), nullptr);
    EXPECT_GE(heap.statistics().taken_bytes, 3000 * kKiB);
    sp_heap_reset(heap);
    EXPECT_EQ(heap.statistics().taken_bytes, kPiece);
    EXPECT_EQ(heap.statistics().used_blocks, 0u);
    EXPECT_TRUE(visited(heap).empty());
  }
}

// Under contention a heap gets more shards, which end with it.
TEST(Heaps, ShardsEndWithTheHeap) {
  if (os::cpu_count() == 1) GTEST_SKIP() << "one CPU has one shard";
  sp_heap* const name = sp_heap_create(nullptr, 0);
  Heap& heap = *Heap::named(reinterpret_cast<std::uint64_t>(name));
  std::ignore = sp_heap_malloc(name, 40);
  // One thread keeps the lock until each of so many others has found it taken once. (They begin
  // when it has it: who waits for it elsewhere than in malloc does not count.)
  std::atomic<bool> has_lock{false};
  test::in_threads(1 + HeapsConfig::kTakenToGrow, [&](unsigned n) {
    if (n != 0) {
      while (!has_lock) std::this_thread::yield();
      while (heap.shards() == 1) std::ignore = sp_heap_malloc(name, 40);
      return;
    }
    heap.visit([&](void*, std::size_t) {
      has_lock = true;
      while (heap.shards() == 1) std::this_thread::yield();
    });
  });
  EXPECT_GT(heap.shards(), 1u);
  sp_heap_reset(name);
  sp_heap_statistics left{};
  sp_heap_stats(name, &left, sizeof left);
  EXPECT_EQ(left.taken_bytes, kPiece);
  sp_heap_destroy(name);
}

TEST(Heaps, AreCountedTogether) {
  test::in_fresh_process([] {
    runs.trim();
    RunsTestAccess::begin_epoch();
    const OwnHeap heap;
    EXPECT_EQ(runs.figures().heaps, 1u);
    EXPECT_EQ(runs.figures().taken_bytes, kPiece);
    {
      const OwnHeap heaps[3];
      void* const large = sp_heap_malloc(heaps[1], 10 * kPiece);
      std::memset(large, 1, 10 * kPiece);
      EXPECT_EQ(runs.figures().heaps, 4u);
      EXPECT_EQ(runs.figures().taken_bytes, 14 * kPiece);
    }
    EXPECT_EQ(runs.figures().heaps, 1u);
    EXPECT_EQ(runs.figures().taken_bytes, kPiece);
    EXPECT_EQ(runs.figures().kept_bytes, 13 * kPiece);
    runs.trim();
    EXPECT_EQ(runs.figures().kept_bytes, 0u);
  });
}

// Of the empty runs that a heap has none is lost to a request that needs them all.
TEST(Heaps, GiveUpEachEmptyRun) {
  const OwnHeap heap(12 * kPiece);
  for (const std::size_t n : {70'000, 140'000, 200'000})
    sp_heap_free(heap, sp_heap_malloc(heap, n));
  void* const large = sp_heap_malloc(heap, 11 * kPiece);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(sp_heap_malloc(heap, 13 * kPiece), nullptr);
}

TEST(Heaps, GrowABlockInItsPlaceAtTheLimit) {
  const OwnHeap heap(15 * kPiece);
  void* const p = sp_heap_malloc(heap, 400'000);
  sp_heap_free(heap, sp_heap_malloc(heap, 70'000));
  // What is behind it may be another heap's by now: then it has to move, and there is no room.
  void* const first = sp_heap_realloc(heap, p, 800'000);
  if (first == nullptr) {
    EXPECT_EQ(sp_heap_realloc(heap, p, 800'000), nullptr) << "the same again is the same";
  }
}

// However many threads meet, most of a small heap is for blocks.
TEST(Heaps, OfALimitHaveFewShards) {
  const OwnHeap heap(16 * kPiece);
  Heap& inner = *Heap::named(reinterpret_cast<std::uint64_t>(static_cast<sp_heap*>(heap)));
  inner.visit([](void*, std::size_t) {});
  test::in_threads(8, [&](unsigned) {
    for (int i = 0; i < 20'000; ++i) sp_heap_free(heap, sp_heap_malloc(heap, 40));
  });
  EXPECT_LE(inner.shards(), 2u);
  EXPECT_NE(sp_heap_malloc(heap, 13 * kPiece), nullptr);
}

// Who gets a block reads no key or address of its heap in it. (What a heap that has ended left in
// its memory may stay there.)
TEST(Heaps, LeaveNoLinksInBlocks) {
  test::in_fresh_process([] {
    const OwnHeap heap;
    std::vector<std::uint64_t*> blocks;
    for (int i = 0; i < 3000; ++i)
      blocks.push_back(static_cast<std::uint64_t*>(sp_heap_calloc(heap, 16 + i % 300, 1)));
    for (std::size_t i = 0; i < blocks.size(); i += i % 7 == 0 ? 1 : 2) {
      sp_heap_free(heap, blocks[i]);
      blocks[i] = nullptr;
    }
    for (std::uint64_t* const p : blocks) sp_heap_free(heap, p);
    // All is one free block by now, or the top: what was in it is looked for in what follows.
    constexpr std::size_t kSmall = 1u << 20;  // a size of a free block; tags are larger
    for (int i = 0; i < 3000; ++i) {
      auto* const p = static_cast<std::uint64_t*>(sp_heap_malloc(heap, 40));
      for (int word = 0; word < 5; ++word) {
        const std::uint64_t seen = p[word];
        const auto tag = static_cast<std::uint32_t>(seen);  // old headers stay
        EXPECT_TRUE(seen < kSmall || tag < kSmall) << seen;
      }
    }
  });
}

// At the bound of what is kept dirty, one heap after the other purges nothing.
TEST(Heaps, ComeAndGoWithoutSystemCallsAfterManyAtOnce) {
  std::vector<std::size_t> order(5000);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (const bool shuffled : {false, true}) {
    test::Random random{test::seed_of(3)};
    std::vector<sp_heap*> heaps(order.size());
    for (sp_heap*& heap : heaps) {
      heap = sp_heap_create(nullptr, 0);
      static_cast<char*>(sp_heap_malloc(heap, 100))[0] = 1;
    }
    for (std::size_t i = order.size(); shuffled && i > 1; --i)
      std::swap(order[i - 1], order[random.below(i)]);
    for (const std::size_t i : order) sp_heap_destroy(heaps[i]);
    RunsTestAccess::begin_epoch();
    const std::size_t before = RunsTestAccess::arena().statistics().purges;
    for (int i = 0; i < 2000; ++i) {
      sp_heap* const heap = sp_heap_create(nullptr, 0);
      static_cast<char*>(sp_heap_malloc(heap, 100))[0] = 1;
      sp_heap_destroy(heap);
    }
    EXPECT_LE(RunsTestAccess::arena().statistics().purges, before + 100) << shuffled;
  }
}

// A name leads to a heap, not to what the program has written where one stood.
TEST(Heaps, AreNotWhatABlockSays) {
  test::in_fresh_process([] {
    const OwnHeap other;
    sp_heap* const name = sp_heap_create(nullptr, 0);
    sp_heap_destroy(name);
    const auto number = reinterpret_cast<std::uint64_t>(name);
    for (int i = 0; i < 100; ++i) {
      auto* const p = static_cast<std::uint64_t*>(sp_heap_malloc(other, 300 * kKiB));
      for (std::size_t at = 0; at < 300 * kKiB / 8; at += kPiece / 8) p[at] = number;
    }
    EXPECT_EQ(Heap::named(number), nullptr);
  });
}

// A thread that has vanished was destroying a heap, at a memory limit: what the child gives back of
// it is decommitted at once, and its home is read until the end.
TEST(Heaps, AChildDestroysAHeapThatItsParentHadBegunToAtAMemoryLimit) {
  test::in_fresh_process([] {
    const OwnHeap other;
    sp_heap* const name = sp_heap_create(nullptr, 0);
    Heap& heap = *Heap::named(reinterpret_cast<std::uint64_t>(name));
    for (int i = 0; i < 200; ++i) std::memset(sp_heap_malloc(name, 300 * kKiB), 1, 300 * kKiB);
    auto* const kept = static_cast<char*>(sp_heap_malloc(other, 300 * kKiB));
    RunsTestAccess::set_at_limit(true);
    reinterpret_cast<Atomic<std::uint64_t>&>(heap).store_relaxed(0);  // as destroy() begins
    RunsTestAccess::inside().store_relaxed(1);                        // as a thread that vanishes
    const ProgramHeaps::Figures before = runs.figures();
    const pid_t child = fork();
    if (child == 0) {
      kept[0] = 1;
      const ProgramHeaps::Figures after = runs.figures();
      const bool given_back = after.heaps == before.heaps - 1 &&
                              after.taken_bytes <= before.taken_bytes - 200 * 5 * kPiece;
      _exit(given_back && sp_heap_malloc(other, 100) != nullptr ? 0 : 1);
    }
    RunsTestAccess::inside().store_relaxed(0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

// --- Misuse --------------------------------------------------------------------------------------

class HeapsDeathTest : public testing::Test {
 protected:
  OwnHeap heap;
};

TEST_F(HeapsDeathTest, NamesADoubleFree) {
  void* const before = sp_heap_malloc(heap, 100);
  void* const p = sp_heap_malloc(heap, 100);
  void* const behind = sp_heap_malloc(heap, 100);
  sp_heap_free(heap, p);
  EXPECT_DEATH(sp_heap_free(heap, p), "double free of");
  sp_heap_free(heap, before);
  EXPECT_DEATH(sp_heap_free(heap, p), "double free of") << "merged";
  sp_heap_free(heap, behind);
  EXPECT_DEATH(sp_heap_free(heap, p), "double free of") << "merged with the top";
  EXPECT_DEATH(std::ignore = sp_heap_realloc(heap, p, 10), "double free of|not the start");
  void* const large = sp_heap_malloc(heap, kMiB);
  sp_heap_free(heap, large);
  EXPECT_DEATH(sp_heap_free(heap, large), "no block of a heap");
}

TEST_F(HeapsDeathTest, NamesPointersThatAreNoBlocks) {
  auto* const p = static_cast<char*>(sp_heap_malloc(heap, 100));
  auto* const large = static_cast<char*>(sp_heap_malloc(heap, kMiB));
  std::memset(p, 0x11, 100);
  EXPECT_DEATH(sp_heap_free(heap, p + 16), "not the start of a live block");
  EXPECT_DEATH(sp_heap_free(heap, p + 1), "not the start of a live block");
  EXPECT_DEATH(sp_heap_free(heap, large + 16), "not the start of a live block");
  EXPECT_DEATH(sp_heap_free(heap, pointer_to(align_down(address_of(p), kPiece))),
               "not the start of a live block")
      << "a heap itself";
  int local = 0;
  EXPECT_DEATH(sp_heap_free(heap, &local), "no block of a heap, but of malloc or nobody");
}

TEST_F(HeapsDeathTest, NamesTheWrongHeap) {
  const OwnHeap other;
  void* const p = sp_heap_malloc(other, 100);
  void* const large = sp_heap_malloc(other, kMiB);
  EXPECT_DEATH(sp_heap_free(heap, p), "block of another heap");
  EXPECT_DEATH(sp_heap_free(heap, large), "block of another heap");
  EXPECT_DEATH(std::ignore = sp_heap_realloc(heap, p, 7), "block of another heap");
}

TEST_F(HeapsDeathTest, NamesADestroyedHeap) {
  sp_heap* const gone = sp_heap_create(nullptr, 0);
  void* const p = sp_heap_malloc(gone, 100);
  void* const large = sp_heap_malloc(gone, kMiB);
  sp_heap_destroy(gone);
  EXPECT_DEATH(std::ignore = sp_heap_malloc(gone, 1), "heap that was destroyed");
  EXPECT_DEATH(sp_heap_destroy(gone), "heap that was destroyed");
  EXPECT_DEATH(sp_heap_free(heap, p), "no block of a heap");
  EXPECT_DEATH(sp_heap_free(heap, large), "no block of a heap");
  // Also where another one stands now.
  const auto home_of = [](sp_heap* name) { return reinterpret_cast<std::uintptr_t>(name) >> 16; };
  std::vector<std::unique_ptr<OwnHeap>> others;
  do {
    ASSERT_LT(others.size(), 10'000u) << "its memory is not used again";
    others.push_back(std::make_unique<OwnHeap>());
  } while (home_of(*others.back()) != home_of(gone));
  const OwnHeap& next = *others.back();
  if (static_cast<sp_heap*>(next) == gone) return;  // one in 65,536
  EXPECT_DEATH(std::ignore = sp_heap_malloc(gone, 1), "heap that was destroyed");
  EXPECT_DEATH(sp_heap_free(next, p), "not the start of a live block");
}

TEST_F(HeapsDeathTest, NamesBlocksFromBeforeAReset) {
  void* const p = sp_heap_malloc(heap, 100);
  sp_heap_reset(heap);
  EXPECT_DEATH(sp_heap_free(heap, p), "not the start of a live block");
}

TEST_F(HeapsDeathTest, NamesAVisitorThatUsesItsHeap) {
  void* const p = sp_heap_malloc(heap, 100);
  const auto free_it = [](void* block, std::size_t, void* context) {
    sp_heap_free(static_cast<sp_heap*>(context), block);
  };
  EXPECT_DEATH(sp_heap_visit(heap, free_it, heap), "used by its own visitor");
  sp_heap_free(heap, p);
}

TEST_F(HeapsDeathTest, NamesNoHeap) {
  EXPECT_DEATH(std::ignore = sp_heap_malloc(nullptr, 1), "null where there must be a heap");
  EXPECT_DEATH(std::ignore = sp_heap_malloc(reinterpret_cast<sp_heap*>(0x1234560000), 1),
               "never was one");
}

TEST_F(HeapsDeathTest, NamesWritesBeyondABlock) {
  auto* const p = static_cast<char*>(sp_heap_malloc(heap, 24));
  void* const behind = sp_heap_malloc(heap, 24);
  p[24] = static_cast<char>(p[24] + 1);
  EXPECT_DEATH(sp_heap_free(heap, p), "write beyond the end of the block");
  EXPECT_DEATH(sp_heap_free(heap, behind), "not the start of a live block");
}

TEST_F(HeapsDeathTest, NamesWritesToFreeMemory) {
  auto* const p = static_cast<char*>(sp_heap_malloc(heap, 100));
  void* const behind = sp_heap_malloc(heap, 100);
  sp_heap_free(heap, p);
  std::memset(p, 0x21, 16);
  EXPECT_DEATH(std::ignore = sp_heap_malloc(heap, 100), "free memory overwritten");
  EXPECT_DEATH(sp_heap_free(heap, behind), "free memory overwritten");
}

}  // namespace
}  // namespace spanalloc::heaps
