// What goes back to the kernel while some of a span's blocks are out, what of a thread that sleeps,
// and what is made of that memory afterwards. Where it matters what is resident a process of its
// own begins with nothing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "heap_walk.hpp"
#include "os_calls.hpp"
#include "seed_report.hpp"
#include "span_access.hpp"
#include "standard/partial_purge.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

using standard::Block;
using standard::no_block;
using standard::PageMask;

constexpr std::size_t kSizes[] = {16, 48, 200, 1024, 1500, 4096, 5000, 12'000, 20'000, 32'768};

struct Live {
  void* p;
  std::size_t size;
  std::uint64_t seed;
};

Live allocate(std::size_t size, std::uint64_t seed) {
  void* p = E::allocate(size);
  EXPECT_NE(p, nullptr);
  fill_pattern(p, size, seed);
  return {p, size, seed};
}
void check(const Live& b) {
  ASSERT_EQ(first_mismatch(b.p, b.size, b.seed), b.size) << b.size;
}
void drop(const Live& b) {
  check(b);
  E::deallocate(b.p);
}

// Of no file's: which pages of those are mapped is the page cache's affair. (Not of statm: its
// counts may be some pages a CPU behind.)
std::size_t resident_bytes() {
  std::ifstream lines("/proc/self/smaps_rollup");
  std::size_t kib = 0;
  bool is_told = false;
  for (std::string word; lines >> word;) {
    if (word != "Anonymous:" && word != "Swap:") continue;
    std::size_t more = 0;
    if (lines >> more) is_told = true;
    kib += more;
  }
  EXPECT_TRUE(is_told) << "/proc/self/smaps_rollup does not tell";
  return kib * kKiB;
}
// There may even be less: libc, too, gives memory back.
std::size_t grown_since(std::size_t before) {
  const std::size_t now = resident_bytes();
  return now > before ? now - before : 0;
}
// Pages are counted one by one, and by a kernel.
void expect_at_most(std::size_t bytes, std::size_t most) {
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated) return;
  EXPECT_LE(bytes, most);
}

// `mib` MiB in blocks of `size`, of which one in `keep` stays.
std::vector<Live> fill_and_thin(std::size_t mib, std::size_t size, std::size_t keep) {
  std::vector<Live> all;
  for (std::size_t i = 0; i < mib * kMiB / size; ++i) all.push_back(allocate(size, i));
  std::vector<Live> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % keep == keep / 2) {
      kept.push_back(all[i]);
    } else {
      drop(all[i]);
    }
  }
  return kept;
}

// What the kept blocks' pages may be, and what is nobody's in particular.
std::size_t bound(const std::vector<Live>& kept) {
  std::size_t pages = 0;
  for (const Live& b : kept) pages += (b.size + kPage - 1) / kPage + 1;
  return pages * kPage + 2 * kMiB;
}

// Once more as many, and nothing is handed out twice.
void use_again(std::vector<Live>& kept, std::size_t mib, std::size_t size) {
  for (std::size_t i = 0; i < mib * kMiB / size; ++i) kept.push_back(allocate(size, 7777777 + i));
  std::set<void*> different;
  for (const Live& b : kept) EXPECT_TRUE(different.insert(b.p).second);
  for (const Live& b : kept) drop(b);
  kept.clear();
}

TEST(StandardThinning, TrimGivesBackPagesWithoutLiveBlocks) {
  for (const std::size_t size : kSizes) {
    in_fresh_process([size] {
      const std::size_t keep = max_of(8 * kPage / size, 24);
      E::deallocate(E::allocate(size));
      const std::size_t before = resident_bytes();
      std::vector<Live> kept = fill_and_thin(16, size, keep);
      EXPECT_TRUE(E::trim());
      expect_at_most(grown_since(before), bound(kept));
      EXPECT_FALSE(E::trim()) << "there is nothing more";
      use_again(kept, 16, size);
      expect_nothing_out();
    });
  }
}

// While its owner sleeps, who then goes on in it.
TEST(StandardThinning, TrimGivesBackWhatASleepingThreadHasParked) {
  for (const std::size_t size : kSizes) {
    in_fresh_process([size] {
      std::vector<Live> kept;
      std::binary_semaphore worked{0};
      std::binary_semaphore go_on{0};
      const std::size_t before = resident_bytes();
      std::jthread owner([&] {
        kept = fill_and_thin(16, size, max_of(8 * kPage / size, 24));
        worked.release();
        go_on.acquire();
        // It frees some onto lists whose beginnings are gone, and needs all of it again.
        for (std::size_t i = 0; i < kept.size(); i += 2) {
          drop(kept[i]);
          kept[i] = allocate(size, kept[i].seed);
        }
        for (std::size_t i = kept.size() / 2; i < kept.size(); ++i) drop(kept[i]);
        kept.resize(kept.size() / 2);
        use_again(kept, 16, size);
      });
      worked.acquire();
      EXPECT_TRUE(E::trim());
      expect_at_most(grown_since(before), bound(kept) + kMiB);
      for (const Live& b : kept) check(b);
      go_on.release();
      owner.join();
      expect_nothing_out();
    });
  }
}

// The same where what is freed later is freed by others, into remote lists
// whose beginnings are gone.
TEST(StandardThinning, OthersFreeIntoSpansThatWereThinned) {
  for (const std::size_t size : kSizes) {
    in_fresh_process([size] {
      std::vector<Live> kept;
      std::binary_semaphore worked{0};
      std::binary_semaphore go_on{0};
      std::jthread owner([&] {
        for (std::size_t i = 0; i < 8 * kMiB / size; ++i) kept.push_back(allocate(size, i));
        worked.release();
        go_on.acquire();
        use_again(kept, 8, size);
      });
      worked.acquire();
      const auto free_some = [&](std::size_t of, std::size_t which) {
        std::vector<Live> rest;
        for (std::size_t i = 0; i < kept.size(); ++i) {
          if (i % of == which) {
            drop(kept[i]);
          } else {
            rest.push_back(kept[i]);
          }
        }
        kept = rest;
      };
      for (const unsigned of : {9u, 5u, 3u, 2u, 2u, 2u}) {
        free_some(of, of - 1);
        E::trim();
        for (const Live& b : kept) check(b);
      }
      go_on.release();
      owner.join();
      expect_nothing_out();
    });
  }
}

TEST(StandardThinning, TicksGiveBackWhatNobodyHasFreedIntoForATick) {
  in_fresh_process(
      [] {
        const std::size_t before = resident_bytes();
        std::vector<Live> kept = fill_and_thin(16, 1024, 64);
        for (int i = 0; i < 10 && grown_since(before) > bound(kept); ++i) {
          test::advance_clock(10);
          for (int n = 0; n < 64; ++n) E::deallocate(E::allocate(100 * kKiB));
        }
        expect_at_most(grown_since(before), bound(kept));
        use_again(kept, 16, 1024);
        expect_nothing_out();
      },
      "40");
}

// A thread that frees most of what it had, and sleeps: nothing of it is left where
// nobody else can give it back.
TEST(StandardThinning, AThreadThatFreesItsBurstKeepsLittle) {
  for (const bool keep : {false, true}) {
    in_fresh_process([keep] {
      constexpr std::size_t kThreads = 40;
      std::vector<Live> all(8192);  // only one thread works at a time
      std::vector<std::vector<Live>> all_kept(kThreads);
      for (std::vector<Live>& kept : all_kept) kept.reserve(std::size(kSizes));
      const std::size_t before = resident_bytes();
      std::counting_semaphore<> worked{0};
      std::counting_semaphore<> go_on{0};
      {
        std::vector<std::jthread> threads;
        for (std::size_t t = 0; t < kThreads; ++t) {
          threads.emplace_back([&, t] {
            std::vector<Live>& kept = all_kept[t];
            all.clear();
            for (const std::size_t size : kSizes) {
              for (std::size_t i = 0; i < 60 * kKiB / size; ++i)
                all.push_back(allocate(size, i + t));
            }
            std::size_t last = 0;
            for (const Live& b : all) {
              if (keep && b.size != last) {
                kept.push_back(b);
              } else {
                drop(b);
              }
              last = b.size;
            }
            worked.release();
            go_on.acquire();
            for (const Live& b : kept) drop(b);
          });
          worked.acquire();
        }
        E::trim();
        // Stacks, the heap's records; and what is kept, a block of each size, which are 76 KiB,
        // with what is batched and in current spans. It is 45 and 200 KiB with few CPUs, and 10 KiB
        // more with 64, which have queues and stacks of their own.
        const std::size_t allowed = (keep ? 230 : 70) * kKiB;
        expect_at_most(grown_since(before) / kThreads, allowed);
        go_on.release(kThreads);
      }
      expect_nothing_out();
    });
  }
}

// A thread that serves requests of many classes, each of which takes some hundred KiB at times, and
// then only a little now and then of one class: what it does not use any more is not kept for it.
TEST(StandardThinning, HotSpansThatRestAreGivenBack) {
  in_fresh_process([] {
    std::vector<Live> all;
    std::vector<Live> kept;
    const std::size_t before = resident_bytes();
    for (std::size_t size = 16; size <= 2048; size += size < 256 ? 16 : 128) {
      for (std::size_t i = 0; i < 60 * kKiB / size; ++i) all.push_back(allocate(size, i));
      // In use beyond the burst: so the span is not given up by its emptying.
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i % 3 != 2) {
          kept.push_back(all[i]);
        } else {
          drop(all[i]);
        }
      }
      all.clear();
    }
    const auto hot_spans = [&] {
      std::set<const void*> owned;
      for (const Live& b : kept) {
        const standard::SpanRef span = E::pages.span_of(E::pages.any_slice_at(address_of(b.p)));
        if (span->load_word().state() == standard::SpanState::kOwned) owned.insert(span.record);
      }
      return owned.size();
    };
    EXPECT_GE(hot_spans(), 20u) << grown_since(before);
    std::vector<Live> working;
    for (int i = 0; i < 150 && hot_spans() > 2; ++i) {
      test::advance_clock(10);
      for (std::size_t n = 0; n < 1000; ++n) working.push_back(allocate(100, n));
      for (const Live& b : working) drop(b);
      working.clear();
    }
    EXPECT_LE(hot_spans(), 2u);
    for (const Live& b : kept) drop(b);
    expect_nothing_out();
  });
}

TEST(StandardThinning, ABlockFreedTwiceAfterItsPageWasDroppedIsRefused) {
  const auto free_twice = [] {
    std::vector<Live> kept = fill_and_thin(1, 64, 1024);
    void* freed = static_cast<char*>(kept[0].p) + 128 * 64;
    E::trim();
    E::deallocate(freed);
    use_again(kept, 2, 64);
  };
  EXPECT_DEATH(free_twice(), "double free");
}

// Owners, others and a thinner at once: what is out stays as it was, and at the end nothing is.
TEST(StandardThinning, NothingIsLostWhileEverybodyWorks) {
  constexpr unsigned kThreads = 3;
  std::atomic<bool> done{false};
  std::jthread thinner([&] {
    while (!done) E::trim();
  });
  struct Shelf {
    std::atomic<Live*> places[512] = {};
  };
  const auto shelf = std::make_unique<Shelf>();
  test::in_threads(kThreads, [&](unsigned k) {
    std::mt19937_64 random(test::seed_of(k));
    std::vector<Live> mine;
    for (std::uint64_t i = 0; i < (test::kUnderTsan || test::kEmulated ? 20'000u : 150'000u); ++i) {
      const std::size_t size = kSizes[random() % 7];
      const bool grows = i / 5000 % 2 == 0;
      if (grows ? random() % 8 != 0 : random() % 8 == 0) {
        mine.push_back(allocate(size, i * kThreads + k));
      } else if (!mine.empty()) {
        std::swap(mine[random() % mine.size()], mine.back());
        const Live b = mine.back();
        mine.pop_back();
        if (random() % 4 != 0) {
          drop(b);
        } else if (Live* other = shelf->places[random() % 512].exchange(new Live(b));
                   other != nullptr) {
          drop(*other);  // another thread's
          delete other;
        }
      }
      while (mine.size() > 6000) {
        drop(mine.back());
        mine.pop_back();
      }
    }
    for (const Live& b : mine) drop(b);
  });
  done = true;
  thinner.join();
  for (auto& place : shelf->places) {
    if (Live* b = place.load(); b != nullptr) {
      drop(*b);
      delete b;
    }
  }
  expect_nothing_out();
}

// A fork while another thread gives pages back: the child goes on with every block, and loses no
// span for good but those that were in the thinner's hands.
TEST(StandardThinning, AForksChildHasWhatWasBeingThinned) {
  if (test::kUnderAsan || test::kUnderTsan) {
    GTEST_SKIP()
        << "the child would wait for a lock of the sanitizer's own malloc, whose thread is gone";
  }
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  in_fresh_process([] {
    std::vector<Live> kept = fill_and_thin(8, 256, 32);
    std::atomic<bool> done{false};
    std::jthread thinner([&] {
      std::mt19937_64 random(test::seed_of(1));
      while (!done) {
        // There is always something to thin.
        std::vector<Live> more = fill_and_thin(1, 512, 16);
        E::trim();
        for (const Live& b : more) drop(b);
      }
    });
    for (int i = 0; i < 100 && !testing::Test::HasFailure(); ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(540);
        std::vector<Live> all = kept;
        use_again(all, 4, 256);
        E::trim();
        std::_Exit(testing::Test::HasFailure() || test::walk_heap<E>().broken != 0 ? 1 : 0);
      }
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << i;
      // Something new to thin of the main thread's, too.
      for (std::size_t n = static_cast<std::size_t>(i) % 4; n < kept.size(); n += 40) {
        drop(kept[n]);
        kept[n] = allocate(256, kept[n].seed);
      }
    }
    done = true;
    thinner.join();
    for (const Live& b : kept) drop(b);
    expect_nothing_out();
  });
}

// --- One span, step by step ----------------------------------------------------------------------

// 32 blocks of 2 KiB in 16 pages.
class OneSpan {
 public:
  OneSpan() {
    standard::link_key.choose(12345);
    span.free_list().clear();
    standard::SpanTestAccess::carved(span).store_relaxed(kBlocks);
  }
  static constexpr std::uint32_t kBlocks = 32;
  static constexpr standard::SizeClass kInfo{2048, 64 * kKiB, 64 * kKiB, kBlocks};
  Block* at(std::uint32_t i) { return reinterpret_cast<Block*>(memory + i * kInfo.block_size); }
  std::uint64_t first_word(std::uint32_t i) {
    return *reinterpret_cast<std::uint64_t*>(memory + i * kInfo.block_size);
  }
  void push(std::uint32_t i) {
    at(i)->link_to(span.free_list().first());
    span.free_list().set(at(i));
  }
  standard::PartialPurge thinning() { return {span, memory, kInfo}; }
  bool purge(char* from, std::size_t bytes) {
    std::memset(from, 0, bytes);
    purged += bytes;
    return true;
  }
  std::vector<std::uint32_t> list(Block* block) {
    std::vector<std::uint32_t> blocks;
    for (; !block->is_end(); block = block->next()) {
      EXPECT_TRUE(block->has_link(kInfo.virtual_span));
      blocks.push_back(static_cast<std::uint32_t>(reinterpret_cast<char*>(block) - memory) /
                       kInfo.block_size);
      if (blocks.size() > kBlocks) break;
    }
    return blocks;
  }
  standard::Span span{};
  std::size_t purged = 0;
  alignas(64 * kKiB) char memory[64 * kKiB] = {};
};

using Numbers = std::vector<std::uint32_t>;

TEST(PartialPurge, TheFirstBlockOfTheRemoteListStays) {
  const auto s = std::make_unique<OneSpan>();
  for (const std::uint32_t i : {0u, 1u, 12u, 2u, 3u}) s->push(i);
  Block* const remotes = s->span.free_list().first();
  s->span.free_list().clear();
  s->thinning().purge_pages(remotes, 4096,
                            [&](char* from, std::size_t bytes) { return s->purge(from, bytes); });
  EXPECT_EQ(s->span.purged(), 0b11u);
  EXPECT_EQ(s->list(s->span.free_list().first()), (Numbers{12}));
  EXPECT_EQ(s->thinning().cut_lists(remotes), no_block());
  s->at(20)->link_to(remotes);  // freed meanwhile
  EXPECT_EQ(s->thinning().cut_lists(s->at(20)), s->at(20));
  EXPECT_EQ(s->list(s->at(20)), (Numbers{20}));
}

TEST(PartialPurge, TheSpansOwnListLosesItsFirstBlock) {
  const auto s = std::make_unique<OneSpan>();
  for (const std::uint32_t i : {9u, 4u, 5u, 10u, 6u, 7u}) s->push(i);
  s->thinning().purge_pages(no_block(), 4096,
                            [&](char* from, std::size_t bytes) { return s->purge(from, bytes); });
  EXPECT_EQ(s->list(s->span.free_list().first()), (Numbers{10, 9}));
  EXPECT_EQ(s->purged, 2 * kPage);
}

TEST(PartialPurge, WhatTheKernelDoesNotTakeBackHasNoLinks) {
  const auto s = std::make_unique<OneSpan>();
  for (const std::uint32_t i : {9u, 4u, 5u}) s->push(i);
  s->thinning().purge_pages(no_block(), 4096, [&](char*, std::size_t) { return false; });
  EXPECT_EQ(s->span.purged(), 0b100u);
  EXPECT_EQ(s->first_word(4), 0u);
  EXPECT_EQ(s->first_word(5), 0u);
}

TEST(PartialPurge, LargerPagesOfTheKernelGoTogether) {
  const auto s = std::make_unique<OneSpan>();
  for (std::uint32_t i = 0; i < 16; ++i) {
    if (i != 3) s->push(i);
  }
  s->thinning().purge_pages(no_block(), 16384,
                            [&](char* from, std::size_t bytes) { return s->purge(from, bytes); });
  EXPECT_EQ(s->span.purged(), 0b11110000u);
}

TEST(PartialPurge, BlocksThatWereNeverCarvedAreNotDropped) {
  const auto s = std::make_unique<OneSpan>();
  standard::SpanTestAccess::carved(s->span).store_relaxed(5);
  for (std::uint32_t i = 0; i < 5; ++i) s->push(i);
  s->thinning().purge_pages(no_block(), 4096,
                            [&](char* from, std::size_t bytes) { return s->purge(from, bytes); });
  EXPECT_EQ(s->span.purged(), 0b11u) << "the page of block 4 ends in one that was never carved";
  EXPECT_EQ(s->purged, 2 * kPage + 13 * kPage) << "and those behind";
  EXPECT_EQ(s->list(s->span.free_list().first()), (Numbers{4}));
}

// A child finds the mask, and a thinner cut short anywhere behind it.
TEST(PartialPurge, AForksChildEndsWhatWasBegun) {
  const auto s = std::make_unique<OneSpan>();
  for (const std::uint32_t i : {9u, 4u, 5u, 10u, 6u, 7u, 14u}) s->push(i);
  s->span.set_purged(0b1100);
  s->at(10)->link_to(s->at(4));  // one had left
  s->thinning().unlink_purged(no_block());
  EXPECT_EQ(s->list(s->span.free_list().first()), (Numbers{14, 10, 9}));
  EXPECT_EQ(s->thinning().length(s->span.free_list().first(), 32), 3u);
}

// --- The background thread -----------------------------------------------------------------------

int threads_of_process() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") {
      int count = 0;
      status >> count;
      return count;
    }
  }
  return 0;
}

TEST(StandardBackground, ThereIsNoneUnlessAskedFor) {
  if (test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "these have threads of their own";
  in_fresh_process([] {
    const int before = threads_of_process();
    std::vector<Live> kept = fill_and_thin(16, 4096, 16);
    EXPECT_EQ(threads_of_process(), before);
    for (const Live& b : kept) drop(b);
  });
}

TEST(StandardBackground, GivesBackWhatIsFreeWhileTheProgramSleeps) {
  if (test::kUnderTsan || test::kEmulated) GTEST_SKIP() << "these have threads of their own";
  in_fresh_process(
      [] {
        test::let_clock_go();
        setenv("SPANALLOC_BACKGROUND", "1", 1);
        const int before = threads_of_process();
        const std::size_t resident = resident_bytes();
        E::deallocate(E::allocate(100));
        EXPECT_EQ(threads_of_process(), before) << "there is nothing to give back yet";
        std::vector<Live> kept = fill_and_thin(32, 4096, 16);
        EXPECT_EQ(threads_of_process(), before + 1);
        // Its ticks are the machine's. (A sanitizer's own pages stay.)
        while (!test::kUnderAsan && grown_since(resident) > bound(kept)) usleep(1000);
        // A fork's child has none, until it needs one.
        const pid_t child = fork();
        if (child == 0) {
          alarm(540);
          const int alone = threads_of_process();
          std::vector<Live> more = fill_and_thin(16, 1024, 32);
          const int together = threads_of_process();
          for (const Live& b : more) drop(b);
          for (const Live& b : kept) drop(b);
          std::_Exit(alone == 1 && together == 2 && !testing::Test::HasFailure() ? 0 : 1);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        use_again(kept, 32, 4096);
      },
      "40");
}

}  // namespace
}  // namespace spanalloc::large
