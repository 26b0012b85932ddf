// Which heaps there are: their names, the largest ones, what a reader outside of the process finds,
// and all of that while other threads make and destroy heaps.
#include <errno.h>
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "child.hpp"
#include "heaps/heap.hpp"
#include "pages/program_heaps.hpp"
#include "runs_test_access.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc::heaps {
namespace {

constexpr std::size_t kPiece = HeapsConfig::kSlice;
using Largest = ProgramHeaps::Largest;
using Description = ProgramHeaps::Description;

sp_heap* make(const char* name, std::size_t limit = 0) {
  const sp_heap_options options{limit, name};
  sp_heap* const heap = sp_heap_create(&options, sizeof options);
  EXPECT_NE(heap, nullptr);
  return heap;
}
Description described(const sp_heap* heap) {
  Description found{};
  EXPECT_TRUE(ProgramHeaps::describe(address_of(heap), found));
  return found;
}
std::string name_of(const char* given) {
  sp_heap* const heap = make(given);
  const std::string found = described(heap).name;
  sp_heap_destroy(heap);
  return found;
}
Largest largest() {
  Largest found;
  ProgramHeaps::find_largest(found);
  return found;
}

TEST(HeapList, KeepsNames) {
  EXPECT_EQ(name_of(nullptr), "");
  EXPECT_EQ(name_of(""), "");
  EXPECT_EQ(name_of("query \"7\"\n"), "query \"7\"\n");
  std::string given = "of a moment";
  sp_heap* const heap = make(given.c_str());
  given.assign(given.size(), 'x');
  EXPECT_STREQ(described(heap).name, "of a moment");
  std::memset(sp_heap_malloc(heap, 100), 0xFF, 100);
  sp_heap_reset(heap);
  EXPECT_STREQ(described(heap).name, "of a moment");
  sp_heap_destroy(heap);
  Description gone{};
  EXPECT_FALSE(ProgramHeaps::describe(address_of(heap), gone));
}

TEST(HeapList, CutsLongNamesBetweenCharacters) {
  for (std::size_t length = 60; length < 70; ++length)
    EXPECT_EQ(name_of(std::string(length, 'a').c_str()), std::string(min_of(length, 63), 'a'));
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001F600"}) {
    for (std::size_t before = 56; before < 64; ++before) {
      const std::string start(before, 'a');
      const std::string whole = start + character;
      EXPECT_EQ(name_of((whole + "zzzzzzzz").c_str()).substr(0, before), start);
      EXPECT_EQ(name_of((whole + "zzzzzzzz").c_str()),
                whole.size() > 63 ? start : whole + std::string(63 - whole.size(), 'z'));
    }
  }
  // What is no UTF-8 is not lost for that.
  EXPECT_GE(name_of(std::string(100, '\x80').c_str()).size(), 60u);
}

TEST(HeapList, KnowsOptionsOfBothVersions) {
  // As compiled with the first version of the structure: what is behind it is not read.
  const struct {
    std::size_t limit_bytes;
    std::uintptr_t behind;
  } first{kPiece, 1};
  const auto* const options = reinterpret_cast<const sp_heap_options*>(&first);
  sp_heap* const heap = sp_heap_create(options, sizeof first.limit_bytes);
  ASSERT_NE(heap, nullptr);
  EXPECT_EQ(described(heap).limit_bytes, kPiece);
  EXPECT_STREQ(described(heap).name, "");
  sp_heap_destroy(heap);
  // A part of an address is none.
  for (std::size_t size = 9; size < 16; ++size) {
    errno = 0;
    EXPECT_EQ(sp_heap_create(options, size), nullptr) << size;
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST(HeapList, HasTheLargestInOrder) {
  test::in_fresh_process([] {
    EXPECT_EQ(largest().count, 0u);
    std::vector<sp_heap*> heaps;
    for (std::size_t i = 0; i < 80; ++i) {
      heaps.push_back(make(std::to_string(i).c_str()));
      // Neither ascending nor descending.
      (void)!sp_heap_malloc(heaps.back(), (i * 37 % 80 + 5) * kPiece);
    }
    const Largest found = largest();
    ASSERT_EQ(found.count, Largest::kMost);
    EXPECT_EQ(found.unlisted, 80 - Largest::kMost);
    std::size_t listed = 0;
    for (std::size_t i = 0; i < found.count; ++i) {
      Description heap;
      ASSERT_TRUE(ProgramHeaps::describe(found.entries[i].handle, heap));
      EXPECT_EQ(std::stoul(heap.name) * 37 % 80, 79 - i);
      EXPECT_EQ(heap.taken_bytes, found.entries[i].taken_bytes);
      EXPECT_EQ(heap.used_blocks, 1u);
      EXPECT_EQ(heap.used_bytes, (79 - i + 5) * kPiece);
      listed += heap.taken_bytes;
    }
    EXPECT_EQ(listed + found.unlisted_bytes, runs.figures().taken_bytes);
    for (sp_heap* const heap : heaps) sp_heap_destroy(heap);
    EXPECT_EQ(largest().count, 0u);
  });
}

// Blocks of all shards count.
TEST(HeapList, AgreesWithTheHeapsOwnStatistics) {
  sp_heap* const heap = make("shared", 512 * kPiece);
  test::in_threads(4, [heap](unsigned) {
    for (int i = 0; i < 2000; ++i) (void)!sp_heap_malloc(heap, 100);
  });
  sp_heap_statistics exact{};
  sp_heap_stats(heap, &exact, sizeof exact);
  const Description seen = described(heap);
  EXPECT_EQ(seen.used_blocks, exact.used_blocks);
  EXPECT_EQ(seen.used_bytes, exact.used_bytes);
  EXPECT_EQ(seen.taken_bytes, exact.taken_bytes);
  EXPECT_EQ(seen.limit_bytes, 512 * kPiece);
  sp_heap_destroy(heap);
}

// At a limit what a heap gives back can be read no more: who reads one that has gone ends.
TEST(HeapList, IsReadWhileHeapsComeAndGo) {
  test::in_fresh_process([] {
    sp_heap* const stays = make("stays");
    RunsTestAccess::set_at_limit(true);
    constexpr unsigned kMakers = 3;
    const unsigned rounds = test::kUnderTsan || test::kUnderAsan ? 300 : 5000;
    std::atomic<unsigned> done{0};
    test::in_threads(kMakers + 1, [&](unsigned thread) {
      if (thread != 0) {
        for (unsigned i = 0; i < rounds; ++i) {
          sp_heap* const heap = make("comes and goes");
          (void)!sp_heap_malloc(heap, 100'000);
          if (i % 3 == 0) sp_heap_reset(heap);
          (void)!sp_heap_malloc(stays, 16);
          sp_heap_destroy(heap);
        }
        done.fetch_add(1);
        return;
      }
      do {
        const Largest found = largest();
        bool has_stayed = false;
        for (std::size_t i = 0; i < found.count; ++i) {
          Description heap;
          if (!ProgramHeaps::describe(found.entries[i].handle, heap)) continue;
          const bool is_the_one = found.entries[i].handle == address_of(stays);
          EXPECT_STREQ(heap.name, is_the_one ? "stays" : "comes and goes");
          EXPECT_EQ(heap.limit_bytes, 0u);
          has_stayed |= is_the_one;
        }
        EXPECT_TRUE(has_stayed);
      } while (done.load() != kMakers);
    });
    RunsTestAccess::set_at_limit(false);
    EXPECT_EQ(described(stays).used_blocks, std::size_t{kMakers} * rounds);
    sp_heap_destroy(stays);
  });
}

// Shards of a heap that is being reset go, too.
TEST(HeapList, IsReadWhileAHeapIsReset) {
  test::in_fresh_process([] {
    sp_heap* const heap = make("reset");
    RunsTestAccess::set_at_limit(true);
    const int rounds = test::kUnderTsan || test::kUnderAsan ? 50 : 500;
    std::atomic<bool> done{false};
    std::thread reader([&] {
      while (!done.load()) EXPECT_STREQ(described(heap).name, "reset");
    });
    for (int i = 0; i < rounds; ++i) {
      // (They meet at its lock often enough that it gets more shards.)
      test::in_threads(3, [heap](unsigned) {
        for (int k = 0; k < 200; ++k) sp_heap_free(heap, sp_heap_malloc(heap, 100));
      });
      sp_heap_reset(heap);
    }
    done.store(true);
    reader.join();
    RunsTestAccess::set_at_limit(false);
    sp_heap_destroy(heap);
  });
}

// What is being read stays memory until it was read: who ends it waits.
void ends_only_when_read(sp_heap* heap, void (*end)(sp_heap*)) {
  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_ended{false};
  bool ended_early = false;
  std::thread other;
  {
    const Inside inside;
    LockGuard guard(runs.homes_lock());
    other = std::thread([&] {
      has_begun.store(true);
      end(heap);
      has_ended.store(true);
    });
    while (!has_begun.load()) std::this_thread::yield();
    for (int i = 0; i < 2000; ++i) {
      std::this_thread::yield();
      ended_early = ended_early || has_ended.load();
    }
  }
  other.join();
  EXPECT_FALSE(ended_early);
}
TEST(HeapList, KeepsAHeapFromEndingWhileItIsRead) {
  ends_only_when_read(make("ends"), &sp_heap_destroy);
}
TEST(HeapList, KeepsShardsFromEndingWhileTheyAreRead) {
  if (os::cpu_count() == 1) GTEST_SKIP() << "one CPU has one shard";
  sp_heap* const name = make("is reset");
  Heap& heap = *Heap::named(address_of(name));
  std::ignore = sp_heap_malloc(name, 40);
  std::atomic<bool> has_lock{false};
  std::atomic<unsigned> at_work{HeapsConfig::kTakenToGrow};
  // As in Heaps.ShardsEndWithTheHeap. All threads are there until each has allocated, so that no
  // two have one identity: some find a place without a shard, and make it.
  test::in_threads(1 + HeapsConfig::kTakenToGrow, [&](unsigned n) {
    if (n != 0) {
      while (!has_lock) std::this_thread::yield();
      while (heap.shards() == 1) std::ignore = sp_heap_malloc(name, 40);
      std::ignore = sp_heap_malloc(name, 40);
      at_work.fetch_sub(1);
      while (at_work.load() != 0) std::this_thread::yield();
      return;
    }
    heap.visit([&](void*, std::size_t) {
      has_lock = true;
      while (heap.shards() == 1) std::this_thread::yield();
    });
  });
  if (described(name).taken_bytes == kPiece) GTEST_SKIP() << "all threads share a place";
  ends_only_when_read(name, &sp_heap_reset);
  sp_heap_destroy(name);
}

// The lock that the visitor's caller holds is none that statistics wait for.
TEST(HeapList, MayBeReadByAVisitor) {
  sp_heap* const heap = make("visited");
  (void)!sp_heap_malloc(heap, 100);
  int visits = 0;
  sp_heap_visit(
      heap,
      [](void*, std::size_t, void* context) {
        EXPECT_NE(largest().count, 0u);
        ++*static_cast<int*>(context);
      },
      &visits);
  EXPECT_EQ(visits, 1);
  sp_heap_destroy(heap);
}

// A thread that has vanished was reading a heap, and was inside.
TEST(HeapList, AChildReadsAndDestroysHeaps) {
  sp_heap* const heap = make("of the parent");
  std::atomic<int> step{0};
  std::thread other([&] {
    const Inside inside;
    LockGuard guard(runs.homes_lock());
    step.store(1);
    while (step.load() != 2) {
    }
  });
  while (step.load() != 1) {
  }
  const int code = test::run_in_child([heap] {
    alarm(540);  // should it hang
    if (std::strcmp(described(heap).name, "of the parent") != 0) return 1;
    const std::size_t before = runs.figures().heaps;
    sp_heap* const own = make("of the child");
    sp_heap_destroy(heap);
    Description gone;
    if (ProgramHeaps::describe(address_of(heap), gone)) return 2;
    if (runs.figures().heaps != before) return 3;
    sp_heap_destroy(own);
    return 0;
  });
  step.store(2);
  other.join();
  EXPECT_EQ(code, 0);
  EXPECT_STREQ(described(heap).name, "of the parent");
  sp_heap_destroy(heap);
}

// --- From outside --------------------------------------------------------------------------------

template <class T>
T read(const void* at, std::size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(at) + offset, sizeof value);
  return value;
}
std::uint64_t word(const void* at) {
  return read<std::uint64_t>(at, 0);
}

TEST(HeapInspection, LeadsToAHeap) {
  sp_heap* const heap = make("looked at", 100 * kPiece);
  for (int i = 0; i < 10; ++i) (void)!sp_heap_malloc(heap, 1000);
  (void)!sp_heap_malloc(heap, 5 * kPiece);
  const auto* const i = pointer_to<const HeapsInspection>(word(ProgramHeaps::inspection_place()));
  ASSERT_NE(i, nullptr);
  EXPECT_EQ(i->version, 1u);
  EXPECT_EQ(i->bytes, sizeof *i);
  ASSERT_EQ(word(i->base), runs.base());
  const std::uint64_t slice = (address_of(heap) - word(i->base)) >> i->slice_bits;
  ASSERT_LT(slice, word(i->end));
  const char* const records = pointer_to<const char>(word(i->records));
  const auto run = [&](std::uint64_t number) { return records + number * i->run_stride; };
  EXPECT_NE(read<std::uint64_t>(run(slice), i->run_owner), 0u);
  EXPECT_EQ(read<std::uint32_t>(run(slice), i->run_first), slice);
  EXPECT_EQ(read<std::uint32_t>(run(slice), i->run_count), 1u);
  EXPECT_EQ(read<std::uint32_t>(run(slice), i->run_heap), slice);
  std::size_t slices = 0;
  for (std::uint64_t n = 1; n < word(i->end); ++n) {
    if (read<std::uint64_t>(run(n), i->run_owner) != 0 &&
        read<std::uint32_t>(run(n), i->run_heap) == slice)
      slices += read<std::uint32_t>(run(n), i->run_count);
  }
  const Description exact = described(heap);
  EXPECT_EQ(slices * kPiece, exact.taken_bytes);

  const char* const at = pointer_to<const char>(word(i->base) + (slice << i->slice_bits));
  EXPECT_EQ(read<std::uint64_t>(at, i->heap_handle), address_of(heap));
  EXPECT_EQ(read<std::uint64_t>(at, i->heap_limit), 100 * kPiece);
  EXPECT_STREQ(at + i->heap_name, "looked at");
  EXPECT_EQ(i->name_bytes, ProgramHeaps::kNameBytes);
  EXPECT_EQ(read<std::uint64_t>(at + i->heap_first_shard, i->shard_blocks), exact.used_blocks);
  EXPECT_EQ(read<std::uint64_t>(at + i->heap_first_shard, i->shard_bytes), exact.used_bytes);
  for (std::uint32_t n = 0; n < i->shard_count; ++n)
    EXPECT_EQ(read<std::uint64_t>(at, i->heap_shards + 8 * n), 0u);
  const std::uint64_t held = word(i->held) - word(i->decommitted) - word(i->lost) - 1;
  const ProgramHeaps::Figures figures = runs.figures();
  EXPECT_EQ(held * kPiece, figures.taken_bytes + figures.kept_bytes);
  sp_heap_destroy(heap);
}

// The command, which unpacks it, has its fields in a list: no gap may be between them.
TEST(HeapInspection, HasItsFieldsOneBehindTheOther) {
  EXPECT_EQ(offsetof(HeapsInspection, base), 8u);
  EXPECT_EQ(offsetof(HeapsInspection, slice_bits), 8u + 6 * 8);
  EXPECT_EQ(sizeof(HeapsInspection), 8u + 6 * 8 + 16 * 4);
}

}  // namespace
}  // namespace spanalloc::heaps
