// Plain behaviour of the scalloc engine: sizes, alignments, bad input, memory
// returned, threads, fork.
#include "papers/scalloc/engine/engine.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <type_traits>

#include "address_limit.hpp"
#include "child.hpp"
#include "engine_list.hpp"
#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "papers/scalloc/tests/test_support.hpp"
#include "reported.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

template <class E>
class Scalloc : public testing::Test {};
template <class T>
using EngineOf = ScallocEngine<T>;

struct Paper : spanalloc::Scalloc {};
struct Clab : ScallocClab {};
struct Lazy : ScallocLazyReclaim {};
struct NoMadvise : ScallocNoMadvise {};
using Engines = test::Joined<testing::Types<EngineOf<Paper>>,
                             test::TypesIf<SPANALLOC_TEST_SCALLOC_ABLATIONS, EngineOf<Clab>,
                                           EngineOf<Lazy>, EngineOf<NoMadvise>>>;
TYPED_TEST_SUITE(Scalloc, Engines);

static_assert(Engine<EngineOf<Paper>> && Engine<EngineOf<Clab>>);

TYPED_TEST(Scalloc, EverySizeIsServedByTheSmallestClass) {
  using E = TypeParam;
  for (std::size_t size = 0; size <= 2 * kMiB; size += size < 300 ? 1 : size / 7) {
    void* p = E::allocate(size);
    ASSERT_NE(p, nullptr) << size;
    EXPECT_EQ(address_of(p) % 16, 0u);
    EXPECT_TRUE(E::owns(p));
    const std::size_t usable = E::usable_size(p);
    EXPECT_GE(usable, size);
    if (size >= 16 && size <= scalloc::kSpanMax) {
      EXPECT_LE(usable, size <= 256 ? size + 15 : 2 * size);
    }
    std::memset(p, 0x5A, size);
    E::deallocate(p);
  }
  E::deallocate(nullptr);
  EXPECT_EQ(E::usable_size(nullptr), 0u);
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, BlocksOfAClassAreDistinctAndInTheirSpan) {
  using E = TypeParam;
  for (const scalloc::ClassId c : scalloc::kAllClasses) {
    const scalloc::SizeClass& k = scalloc::info(c);
    const auto blocks = make_floating_span<E>(k.block_size);
    std::set<void*> distinct(blocks.begin(), blocks.end());
    EXPECT_EQ(distinct.size(), blocks.size());
    for (std::size_t i = 0; i + 1 < blocks.size(); ++i) {
      const std::size_t offset = span_of(blocks[i])->offset_of(blocks[i]);
      EXPECT_GE(offset, scalloc::kHeaderBytes);
      EXPECT_LE(offset + k.block_size, k.real_span);
    }
    for (void* p : blocks) E::deallocate(p);
  }
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, EveryAlignment) {
  using E = TypeParam;
  for (std::size_t alignment = 1; alignment <= 8 * kMiB; alignment *= 2) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{40}, std::size_t{96}, std::size_t{200},
          std::size_t{3000}, std::size_t{70000}, std::size_t{1000000}, 3 * kMiB}) {
      auto* p = static_cast<char*>(E::allocate_aligned(size, alignment));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(address_of(p) % alignment, 0u) << size << " at " << alignment;
      EXPECT_GE(E::usable_size(p), size);
      std::memset(p, 1, size);
      E::deallocate(p);
    }
  }
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, ZeroedMemoryIsZeroAlsoWhenUsedBefore) {
  using E = TypeParam;
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{1000},
                                 std::size_t{5000}, std::size_t{100000}, kMiB, 2 * kMiB}) {
    for (int round = 0; round < 4; ++round) {
      std::vector<unsigned char*> blocks;
      for (int i = 0; i < 12; ++i) {
        auto* p = static_cast<unsigned char*>(E::allocate_zeroed(size));
        ASSERT_NE(p, nullptr);
        ASSERT_EQ(test::first_nonzero(p, size), size);
        std::memset(p, 0xFF, E::usable_size(p));
        blocks.push_back(p);
      }
      for (unsigned char* p : blocks) E::deallocate(p);
    }
  }
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, ResizeInPlaceOrByPages) {
  using E = TypeParam;
  auto* p = static_cast<char*>(E::allocate(1000));
  EXPECT_EQ(E::resize(p, 1024).block, p);
  EXPECT_EQ(E::resize(p, 600).block, p);
  EXPECT_EQ(E::resize(p, 1025).block, nullptr);
  EXPECT_EQ(E::resize(p, 100).block, nullptr) << "would keep a kilobyte for 100 bytes";
  E::deallocate(p);
  auto* large = static_cast<char*>(E::allocate(3 * kMiB));
  std::memset(large, 7, 3 * kMiB);
  auto* larger = static_cast<char*>(E::resize(large, 64 * kMiB).block);
  ASSERT_NE(larger, nullptr);
  EXPECT_EQ(larger[3 * kMiB - 1], 7);
  EXPECT_EQ(E::resize(larger, 1000).block, nullptr);
  E::deallocate(larger);
}

TYPED_TEST(Scalloc, ThreadsWithoutALabOfTheirOwn) {
  using E = TypeParam;
  using Config = std::conditional_t<
      std::is_same_v<E, EngineOf<Paper>>, Paper,
      std::conditional_t<std::is_same_v<E, EngineOf<Clab>>, Clab,
                         std::conditional_t<std::is_same_v<E, EngineOf<Lazy>>, Lazy, NoMadvise>>>;
  void* early = nullptr;
  void* late = nullptr;
  on_another_thread([&] {
    early = E::allocate(100);
    void* other = E::allocate(100);
    // Its teardown; what follows runs in later destructors
    ScallocTestAccess::leave_thread<Config>();
    late = E::allocate(100);
    ASSERT_NE(late, nullptr);
    std::memset(late, 1, 100);
    E::deallocate(other);
    for (int i = 0; i < 5000; ++i) {
      void* p = E::allocate(64);
      void* q = E::allocate(70000);
      E::deallocate(p);
      E::deallocate(q);
    }
  });
  E::deallocate(early);
  E::deallocate(late);
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, ManyShortThreadsReuseLabs) {
  using E = TypeParam;
  std::vector<void*> left;
  for (int i = 0; i < 300; ++i) {
    on_another_thread([&] { left.push_back(E::allocate(16)); });
  }
  EXPECT_LE(E::statistics().live_threads, 1u);
  for (void* p : left) E::deallocate(p);
  expect_nothing_held<E>();
}

TYPED_TEST(Scalloc, StatisticsAddUp) {
  using E = TypeParam;
  void* small = E::allocate(10);
  void* large = E::allocate(5 * kMiB);
  const EngineStatistics statistics = E::statistics();
  EXPECT_GE(statistics.reserved_bytes, statistics.opened_bytes);
  EXPECT_GE(statistics.opened_bytes, statistics.small_bytes_carved);
  EXPECT_GE(statistics.small_bytes_carved, 32 * kKiB);
  EXPECT_EQ(statistics.large_bytes, 5 * kMiB);
  EXPECT_EQ(statistics.large_objects, 1u);
  E::deallocate(small);
  E::deallocate(large);
}

// --- Memory.

template <class E>
std::size_t resident_after_free() {
  auto blocks = make_floating_span<E>(65536);
  for (void* p : blocks) std::memset(p, 1, 65536);
  const auto* span = span_of(blocks[0]);
  for (void* p : blocks) E::deallocate(p);
  return test::resident_pages(span, 516 * kKiB);
}

TEST(ScallocMemory, EmptySpansAboveTheThresholdGiveTheirPagesBack) {
  if (os::memory_is_locked()) GTEST_SKIP() << "memory is locked";
  EXPECT_LE(resident_after_free<EngineOf<Paper>>(), 1u);
  EXPECT_GT(resident_after_free<EngineOf<NoMadvise>>(), 100u);
}

TEST(ScallocMemory, SmallSpansKeepThemUntilTrim) {
  if (os::memory_is_locked()) GTEST_SKIP() << "memory is locked";
  OwnHeap<Paper> heap;
  const auto blocks = make_floating_span(*heap, 256);
  for (void* p : blocks) std::memset(p, 1, 256);
  const auto* span = span_of(blocks[0]);
  for (void* p : blocks) heap->deallocate(p);
  EXPECT_EQ(test::resident_pages(span, 32 * kKiB), 32 * kKiB / os::page_size());
  EXPECT_TRUE(heap->trim());
  EXPECT_EQ(test::resident_pages(span, 32 * kKiB), 1u);
  EXPECT_FALSE(heap->trim()) << "nothing is left to return";
}

TEST(ScallocMemory, FreshBlocksAreCarvedAPageAtATime) {
  OwnHeap<Paper> heap;
  void* p = heap->allocate(256);
  EXPECT_LE(test::resident_pages(span_of(p), 32 * kKiB), max_of(1, 4096 / os::page_size()));
  heap->deallocate(p);
}

// At the limit a single freed block can be had again, although its span is not reusable by far.
TEST(ScallocMemory, OneFreeAtTheLimitServesTheNextRequest) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("SPANALLOC_ARENA_BITS", "30", 1);
    OwnHeap<Paper> heap;
    void* orphan = nullptr;
    on_another_thread([&] {
      orphan = heap->allocate(4096);
      for (int i = 0; i < 31; ++i) {
        if (heap->allocate(4096) == nullptr) _exit(1);
      }
    });
    void* own = heap->allocate(4096);
    for (int count = 0; heap->allocate(4096) != nullptr; ++count) {
      if (count > 100000) _exit(2);
    }
    for (void* p : {own, orphan, own}) {
      heap->deallocate(p);
      if (heap->allocate(4096) != p) _exit(3);
      if (heap->allocate(4096) != nullptr) _exit(4);
    }
    // A smaller request takes a larger block rather than none.
    heap->deallocate(own);
    if (heap->allocate(4096) != own) _exit(5);
    heap->deallocate(own);
    if (heap->allocate(16) != own) _exit(6);
    heap->deallocate(own);
    heap->deallocate(orphan);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Other heaps of this process may have reserved terabytes: a limit counts from there. Allocates
// until nothing is left, frees all, three times over; 0 if the heap is as good as new after that.
int exhaust(scalloc::Heap<Paper>& heap) {
  for (int round = 0; round < 3; ++round) {
    void* chain = nullptr;
    std::size_t count = 0;
    while (void* p = heap.allocate(100000)) {
      *static_cast<void**>(p) = chain;
      chain = p;
      if (++count > 20000) return 2;
    }
    if (count < 50) return 3;
    if (heap.allocate_zeroed(200000) != nullptr) return 4;
    while (chain != nullptr) {
      void* next = *static_cast<void**>(chain);
      heap.deallocate(chain);
      chain = next;
    }
    void* p = heap.allocate(300000);  // another class: the same spans serve it
    if (p == nullptr) return 5;
    heap.deallocate(p);
  }
  heap.trim();
  return heap.census().nothing_held() ? 0 : 6;
}

void expect_child_succeeds(pid_t child) {
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ScallocMemory, ExhaustedArenaIsSurvived) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("SPANALLOC_ARENA_BITS", "30", 1);
    OwnHeap<Paper> heap;
    _exit(exhaust(*heap));
  }
  expect_child_succeeds(child);
}

TEST(ScallocMemory, OutOfMemoryIsSurvived) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a limit on address space does not go with sanitizers";
#endif
  const pid_t child = fork();
  if (child == 0) {
    if (!test::leave_address_space(512 * kMiB)) _exit(9);
    OwnHeap<Paper> heap;
    if (heap->allocate(2 * kGiB) != nullptr) _exit(1);
    _exit(exhaust(*heap));
  }
  expect_child_succeeds(child);
}

// Under a limit a span takes its real span of address space, not 2 MiB; and grows
// again when it is reused.
TEST(ScallocMemory, LimitOnAddressSpaceCountsRealSpans) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a limit on address space does not go with sanitizers";
#endif
  const pid_t child = fork();
  if (child == 0) {
    OwnHeap<Paper> heap;
    if (!test::leave_address_space(256 * kMiB)) _exit(9);
    void* chain = nullptr;
    for (std::size_t bytes = 0; bytes < 64 * kMiB; bytes += 256) {
      void* p = heap->allocate(256);
      if (p == nullptr) _exit(1);
      *static_cast<void**>(p) = chain;
      chain = p;
    }
    while (chain != nullptr) {
      void* next = *static_cast<void**>(chain);
      heap->deallocate(chain);
      chain = next;
    }
    const std::size_t carved = heap->census().carved;
    for (int i = 0; i < 100; ++i) {
      void* p = heap->allocate(kMiB);
      if (p == nullptr) _exit(2);
      std::memset(p, 1, kMiB);
      *static_cast<void**>(p) = chain;
      chain = p;
    }
    if (heap->census().carved > carved) _exit(3);
    while (chain != nullptr) {
      void* next = *static_cast<void**>(chain);
      heap->deallocate(chain);
      chain = next;
    }
    heap->trim();
    _exit(heap->census().nothing_held() ? 0 : 4);
  }
  expect_child_succeeds(child);
}

// --- Fork.

TEST(ScallocFork, ChildOwnsAUsableHeap) {
  using E = EngineOf<HookedConfig<1>>;
  E::process_start();
  std::promise<void> ready;
  std::promise<void> done;
  std::vector<void*> theirs;
  std::thread other([&] {
    for (int i = 0; i < 3000; ++i) theirs.push_back(E::allocate(64));
    ready.set_value();
    done.get_future().wait();
  });
  ready.get_future().wait();
  void* mine = E::allocate(64);
  const pid_t child = fork();
  if (child == 0) {
    E::deallocate(mine);
    for (void* p : theirs) E::deallocate(p);
    for (int i = 0; i < 10000; ++i) {
      void* p = E::allocate(64);
      if (p == nullptr) _exit(1);
      theirs.push_back(p);
    }
    for (std::size_t i = 3000; i < theirs.size(); ++i) E::deallocate(theirs[i]);
    E::trim();
    const EngineStatistics statistics = E::statistics();
    if (statistics.live_threads != 1) _exit(2);
    // The one in which the other thread was allocating
    if (statistics.spans_lost_to_fork != 1) _exit(3);
    // What it had on its list counts as out, and may be free.
    _exit(statistics.live_blocks == 0 && statistics.unsure_blocks != 0 ? 0 : 4);
  }
  done.set_value();
  other.join();
  expect_child_succeeds(child);
  for (void* p : theirs) E::deallocate(p);
  E::deallocate(mine);
  expect_nothing_held<E>();
}

TEST(ScallocFork, WhileOtherThreadsAllocate) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
#endif
  using E = EngineOf<HookedConfig<2>>;
  E::process_start();
  Atomic<std::uint32_t> stop{0};
  std::vector<std::thread> threads;
  std::latch begun(3);
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&stop, &begun, t] {
      std::vector<void*> live(200);
      begun.count_down();
      for (unsigned i = t; stop.load_relaxed() == 0; ++i) {
        E::deallocate(live[i % 200]);
        live[i % 200] = E::allocate(16 + i * 37 % 3000);
      }
      for (void* p : live) E::deallocate(p);
    });
  }
  begun.wait();
  constexpr int kForks = test::kEmulated ? 4 : 20;  // a second each where code is emulated
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (int k = 0; k < 2000; ++k) E::deallocate(E::allocate(static_cast<std::size_t>(16 + k)));
      E::trim();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop.store_relaxed(1);
  for (auto& thread : threads) thread.join();
  expect_nothing_held<E>();
}

// --- Bad input ends the process with a line that names it.

class ScallocDeathTest : public testing::Test {
 protected:
  OwnHeap<Paper> heap;
};

// Keeps the compiler from reasoning about what the pointer points to.
void* hidden(void* p) {
  asm volatile("" : "+r"(p));
  return p;
}

TEST_F(ScallocDeathTest, ForeignPointers) {
  int variable = 0;
  void* foreign = hidden(&variable);
  EXPECT_DEATH(heap->deallocate(foreign), "spanalloc: .*not an object's 0x");
  auto* p = static_cast<char*>(heap->allocate(100));
  char* span = reinterpret_cast<char*>(span_of(p));
  EXPECT_DEATH(heap->deallocate(span - 16), "holds no objects|not an object's");
  EXPECT_DEATH(heap->deallocate(span - (std::size_t{1} << 21)), "holds no objects|not an object's");
  EXPECT_DEATH(heap->deallocate(span + (std::size_t{1} << 21)), "holds no objects|not an object's");
  EXPECT_DEATH(heap->deallocate(span + (std::size_t{1} << 30)), "holds no objects|not an object's");
  EXPECT_DEATH(heap->deallocate(pointer_to(std::uintptr_t{1} << 63)), "not an object's");
  EXPECT_DEATH(heap->usable_size(foreign), "not an object's");
  EXPECT_DEATH(heap->resize(foreign, 10), "not an object's");
  EXPECT_FALSE(heap->owns(foreign));
  heap->deallocate(p);
}

TEST_F(ScallocDeathTest, NotTheStartOfABlock) {
  auto* p = static_cast<char*>(heap->allocate(100));
  char* span = reinterpret_cast<char*>(span_of(p));
  for (const int offset : {1, 8, 16, 32, 111}) {
    EXPECT_DEATH(heap->deallocate(p + offset), "not the start of an object") << offset;
  }
  EXPECT_DEATH(heap->deallocate(span), "not the start");
  EXPECT_DEATH(heap->deallocate(span + 64), "not the start");
  EXPECT_DEATH(heap->deallocate(span + 32 * kKiB), "not the start");
  on_another_thread([&] { EXPECT_DEATH(heap->deallocate(p + 16), "not the start"); });
  auto* aligned = static_cast<char*>(heap->allocate_aligned(40000, 65536));
  EXPECT_DEATH(heap->deallocate(aligned + 16), "not the start");
  EXPECT_DEATH(heap->deallocate(aligned + 4096), "not the start");
  heap->deallocate(aligned);
  heap->deallocate(p);
}

TEST_F(ScallocDeathTest, DoubleFree) {
  void* p = heap->allocate(100);
  const std::string bytes = std::to_string(heap->usable_size(p));
  heap->deallocate(p);
  EXPECT_DEATH(heap->deallocate(p), "double free of 0x[0-9a-f]+ \\(block of " + bytes +
                                        " bytes; span [0-9]+ at 0x[0-9a-f]+: hot\\)");
  auto floating = make_floating_span(*heap, 256);
  heap->deallocate(floating[0]);
  EXPECT_DEATH(heap->deallocate(floating[0]), "double free of 0x");
  // In the child of a thread other than the owner the span would be an orphan, and adopted.
  EXPECT_DEATH(on_another_thread([&] {
                 heap->deallocate(floating[1]);
                 heap->deallocate(floating[1]);
               }),
               "double free of 0x");
  auto single = make_floating_span(*heap, kMiB);
  heap->deallocate(single[0]);
  EXPECT_DEATH(heap->deallocate(single[0]), "free already");
  EXPECT_DEATH(heap->usable_size(single[0]), "free");
  void* large = heap->allocate(5 * kMiB);
  heap->deallocate(large);
  EXPECT_DEATH(heap->deallocate(large), "not an object's");
}

// Two blocks freed in turns, twice each: more frees than blocks, caught at the
// latest when the span is full.
TEST_F(ScallocDeathTest, AlternatingDoubleFreesOverflowTheCount) {
  auto floating = make_floating_span(*heap, 512 * kKiB);
  on_another_thread([&] {
    EXPECT_DEATH(
        {
          for (int i = 0; i < 4; ++i) {
            heap->deallocate(floating[0]);
            heap->deallocate(floating[1]);
          }
        },
        "free");
  });
}

TEST_F(ScallocDeathTest, WrittenAfterFree) {
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(heap->allocate(200));
  for (void* p : blocks) heap->deallocate(p);
  int local = 0;
  void* old = *static_cast<void**>(blocks[3]);
  for (void* wild : {hidden(&local), pointer_to(0x4141414141414141u),
                     static_cast<void*>(static_cast<char*>(blocks[3]) + kMiB)}) {
    *static_cast<void**>(blocks[3]) = wild;
    EXPECT_DEATH({ heap->allocate(200); }, "written after free");
  }
  *static_cast<void**>(blocks[3]) = old;
}

// The hot span's list is its thread's alone: another thread does not find the
// first free, but doubts it.
TEST_F(ScallocDeathTest, FreedByItsThreadThenByAnother) {
  const auto use_up_the_span = [&] {
    void* p = heap->allocate(200);
    for (std::uint32_t i = 1; i < span_of(p)->blocks; ++i) heap->allocate(200);
    heap->deallocate(p);
    on_another_thread([&] { heap->deallocate(p); });
    for (int i = 0; i < 2; ++i) heap->allocate(200);
  };
  EXPECT_DEATH(use_up_the_span(), "freed twice");
  // All are freed but the last one, and the count says: all.
  const auto free_all_but_one = [&] {
    void* blocks[8];
    on_another_thread([&] {
      for (void*& p : blocks) p = heap->allocate(8192);
      heap->deallocate(blocks[3]);
      on_another_thread([&] { heap->deallocate(blocks[3]); });
    });
    for (int i : {0, 1, 2, 4, 5, 6}) heap->deallocate(blocks[i]);
  };
  EXPECT_DEATH(free_all_but_one(), "freed twice|double free");
}

// Once that is told the span is out of use, and in no set; and what is out of it can be freed.
TEST_F(ScallocDeathTest, WhatIsOutOfASpanThatPassedForFreeCanBeFreed) {
  static void* blocks[8];
  const auto is_told_once = [this] {
    on_another_thread([&] {
      for (void*& p : blocks) p = heap->allocate(8192);
      heap->deallocate(blocks[3]);
      on_another_thread([&] { heap->deallocate(blocks[3]); });
    });
    const bool told = test::is_reported([&] {
      for (const int i : {0, 1, 2, 4, 5, 6}) heap->deallocate(blocks[i]);
    });
    if (!told) return 1;
    const scalloc::Span* span = span_of(blocks[7]);
    if (span->load_word().state() != scalloc::State::kLost) return 2;
    if (span->set_list != scalloc::SetList::kNone) return 3;
    heap->deallocate(blocks[7]);
    heap->trim();
    for (int i = 0; i < 100; ++i) {
      if (span_of(heap->allocate(8192)) == span) return 4;
    }
    return 0;
  };
  EXPECT_EXIT(_exit(is_told_once()), testing::ExitedWithCode(0), "freed twice|double free");
}

// It is told when the others that were found empty in the same set are in the pool.
TEST_F(ScallocDeathTest, AReportLosesNoSpanThatWasFoundOnTheWay) {
  const auto loses_one = [this] {
    constexpr std::size_t kSpans = 3;
    std::vector<void*> blocks[kSpans];
    for (auto& of_span : blocks) {
      do of_span.push_back(heap->allocate(8192));
      while (of_span.size() != span_of(of_span[0])->blocks);
    }
    (void)heap->allocate(8192);
    // Set aside with all but the last one or two free; what is freed then goes unseen, so that they
    // pass for empty. The damaged one was set aside first: it is looked at last.
    const std::size_t last = blocks[0].size() - 1;
    for (std::size_t i = 0; i < last - 1; ++i) heap->deallocate(blocks[0][i]);
    on_another_thread([&] { heap->deallocate(blocks[0][0]); });
    for (const std::size_t s : {std::size_t{1}, std::size_t{2}}) {
      for (std::size_t i = 0; i < last; ++i) heap->deallocate(blocks[s][i]);
    }
    for (void* p : {blocks[0][last - 1], blocks[1][last], blocks[2][last]}) {
      ScallocTestAccess::push_local_unseen<Paper>(p);
    }
    if (heap->census().empty_idle != kSpans) return 2;
    if (!test::is_reported([&] { heap->trim(); })) return 3;
    const auto census = heap->census();
    return census.lost == 1 && census.pooled == kSpans - 1 ? 0 : 4;
  };
  EXPECT_EXIT(_exit(loses_one()), testing::ExitedWithCode(0), "freed twice|double free");
}

// Counts how often a span is about to be listed: that who settles one goes round for
// ever shows without a clock.
struct CountsListings : spanalloc::Scalloc {
  static inline std::atomic<unsigned> listings{0};
  static void at(scalloc::Step step, scalloc::Span*) {
    if (step == scalloc::Step::kBeforeListing && ++listings > 100'000) _exit(6);
  }
};

// A thread's end finds a list damaged, of a class whose turn comes after that of another.
// That is told when the LAB is given back: until then the thread's word owns spans whose sets
// are closed, and a handler that frees their blocks would neither find a set that takes them
// nor a LAB that adopts them.
TEST_F(ScallocDeathTest, AReportAtAThreadsEndComesWhenItHasEnded) {
  if (test::kUnderTsan) GTEST_SKIP() << "the handler calls the sanitizer's own malloc";
  static OwnHeap<CountsListings> own;
  static void* blocks[2000];
  const auto ends = [] {
    struct sigaction action{};
    action.sa_handler = [](int) {
      const auto use = [] {
        void* fresh[2000];
        for (void*& p : fresh) p = own->allocate(64);
        for (void* p : fresh) own->deallocate(p);
      };
      // Most by the thread itself, so that its spans come to be reusable; the rest by another one.
      for (int i = 0; i < 2000; ++i) {
        if (i % 16 != 0) own->deallocate(blocks[i]);
      }
      use();
      on_another_thread([&] {
        for (int i = 0; i < 2000; i += 16) own->deallocate(blocks[i]);
        use();
      });
      own->trim();
      if (ScallocTestAccess::lab(*own) != nullptr) _exit(2);
      if (own->statistics().live_threads != 0) _exit(3);
      const scalloc::Census census = own->census();
      if (census.empty_idle != 0) _exit(4);
      // What holds the damaged list, and the blocks of its class that are out,
      // is all that is not free.
      _exit(census.carved == census.pooled + 1 ? 0 : 5);
    };
    sigaction(SIGABRT, &action, nullptr);
    on_another_thread([] {
      for (void*& p : blocks) p = own->allocate(64);
      void* larger[8];
      for (void*& p : larger) p = own->allocate(1024);
      for (int i = 0; i < 4; ++i) own->deallocate(larger[i]);
      std::memset(hidden(larger[3]), 0x41, sizeof(void*));
    });
    return 1;
  };
  EXPECT_EXIT(_exit(ends()), testing::ExitedWithCode(0), "free list corrupted");
}

// Nor does it come back in a fork's child that its owner's thread has not come along to.
TEST_F(ScallocDeathTest, ASpanThatMisuseWasFoundInStaysOutOfUseInAForksChild) {
  static void* blocks[1000];
  const auto is_lost_in_child = [this] {
    std::latch told(1);
    std::thread([&] {
      const bool was_told = test::is_reported([&] {
        blocks[0] = heap->allocate(200);
        const std::uint32_t count = span_of(blocks[0])->blocks;
        for (std::uint32_t i = 1; i < count; ++i) blocks[i] = heap->allocate(200);
        heap->deallocate(blocks[0]);
        on_another_thread([&] { heap->deallocate(blocks[0]); });
        for (int i = 0; i < 2; ++i) (void)heap->allocate(200);
      });
      if (!was_told) _exit(1);
      told.count_down();
      for (;;) pause();
    }).detach();
    told.wait();
    return test::run_in_child([&] {
      const scalloc::Span* span = span_of(blocks[0]);
      (void)heap->allocate(8192);  // buries the thread
      if (span->load_word().state() != scalloc::State::kLost) return 3;
      for (std::uint32_t i = 1; i < span->blocks; ++i) heap->deallocate(blocks[i]);
      heap->trim();
      for (int i = 0; i < 1000; ++i) {
        if (span_of(heap->allocate(200)) == span) return 4;
      }
      return 0;
    });
  };
  EXPECT_EXIT(_exit(is_lost_in_child()), testing::ExitedWithCode(0), "freed twice");
}

// A program may copy what it never wrote: a block that looks free for that is freed like any other.
TEST_F(ScallocDeathTest, ACopiedLinkIsNoDoubleFree) {
  auto floating = make_floating_span(*heap, 2048);
  void* freed = heap->allocate(2048);
  heap->deallocate(freed);
  std::memcpy(floating[0], freed, sizeof(void*));
  EXPECT_EQ(heap->usable_size(floating[0]), 2048u);
  heap->deallocate(floating[0]);
  std::memcpy(floating[1], freed, sizeof(void*));
  on_another_thread([&] { heap->deallocate(floating[1]); });
  // And the count that such a free has cast doubt on is found right.
  const scalloc::Span* span = span_of(floating[2]);
  for (std::size_t i = 2; i < floating.size(); ++i) heap->deallocate(floating[i]);
  EXPECT_EQ(span->load_word().state(), scalloc::State::kFree);
}

TEST_F(ScallocDeathTest, SizeOfABlockFreedEarlier) {
  void* blocks[3];
  for (void*& p : blocks) p = heap->allocate(200);
  for (void* p : blocks) heap->deallocate(p);
  for (void* p : blocks) EXPECT_DEATH(heap->usable_size(p), "size asked of memory that is free");
  auto floating = make_floating_span(*heap, 2048);
  for (int i = 0; i < 3; ++i) heap->deallocate(floating[i]);
  for (int i = 0; i < 3; ++i)
    EXPECT_DEATH(heap->usable_size(floating[i]), "size asked of memory that is free");
}

}  // namespace
}  // namespace spanalloc
