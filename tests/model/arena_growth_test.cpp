// pages/coalescing_arena.hpp grows where nothing is reserved, under the checker: two threads grow
// at once, the kernel refuses, something foreign is in the way, memory comes back meanwhile.
// Nothing is handed out twice, nothing foreign ever, and the books add up.
//
// The kernel is a row of slices, each nobody's, ours or foreign. There is real memory behind them
// all, as the arena marks what it decommits, and behind the manager's tables.
#include "pages/coalescing_arena.hpp"

#include <sys/mman.h>

#include <cstring>

#include "model_test.hpp"
#include "pages/address_range.hpp"

namespace spanalloc::model {
namespace {

constexpr std::size_t kSlice = 64 * kKiB;
constexpr std::size_t kPage = 4 * kKiB;
constexpr std::size_t kSlices = 8;
// random_bits() is 0 here: the first place of the first window
constexpr std::uintptr_t kBase = 5 * kTiB;

// What the kernel has at each page of the arena's first slices. Changed only under the arena's
// lock, as the checker finds out: the pages are Plain.
struct Kernel {
  enum : int { kNobodys, kReserved, kOpen, kForeign };
  static constexpr std::size_t kPages = kSlices * kSlice / kPage;
  int pages[kPages] = {};
  std::size_t growing_calls = 0;
  std::size_t refused_call = SIZE_MAX;
  bool unmaps = true;
  std::size_t tables = 0;
  bool replaces = false;  // a planted fault: maps over what is there
};
inline Kernel kernel;

struct ModelCalls {
  static bool is_arena(std::uintptr_t a) {
    return a >= kBase && a < kBase + (std::uintptr_t{1} << 40);
  }
  static int* page(std::uintptr_t a) {
    const std::size_t page = (a - kBase) / kPage;
    return page < Kernel::kPages ? &kernel.pages[page] : nullptr;
  }
  template <class F>
  static bool for_pages(void* address, std::size_t bytes, F f) {
    for (std::uintptr_t a = address_of(address); a < address_of(address) + bytes; a += kPage) {
      if (a < kBase) continue;  // the page before the arena: nobody's
      if (int* p = page(a); p == nullptr || !f(*p)) return false;
    }
    return true;
  }

  // Each table of its own: far more is asked for than a model touches.
  static void* reserve(std::size_t bytes, std::size_t) {
    static unsigned char memory[8][64 * kKiB];
    if (bytes > kGiB * 1024) return nullptr;  // the arena is placed, never reserved
    if (kernel.tables == 8) return nullptr;
    void* p = memory[kernel.tables++];
    std::memset(p, 0, sizeof memory[0]);
    return p;
  }
  static os::Placed reserve_at(void* address, std::size_t bytes) {
    if (address == nullptr) return os::Placed::kTaken;  // anywhere: there is no limit
    if (!is_arena(address_of(address) + kPage)) return os::Placed::kRefused;
    if (kernel.growing_calls++ == kernel.refused_call) return os::Placed::kRefused;
    bool taken = false;
    const bool there = for_pages(address, bytes, [&](int page) {
      taken = taken || page != Kernel::kNobodys;
      return true;
    });
    if (taken && !kernel.replaces) return os::Placed::kTaken;
    if (!there) return os::Placed::kRefused;  // the model's address space ends
    for_pages(address, bytes, [](int& page) { return page = Kernel::kReserved, true; });
    return os::Placed::kYes;
  }
  static bool open(void* address, std::size_t bytes) {
    if (!is_arena(address_of(address))) return true;  // a table's
    if (kernel.growing_calls++ == kernel.refused_call) return false;
    return for_pages(address, bytes, [](int& page) {
      MODEL_CHECK(page == Kernel::kReserved);
      return page = Kernel::kOpen, true;
    });
  }
  static os::Placed open_at(void* address, std::size_t bytes) {
    const os::Placed placed = reserve_at(address, bytes);
    if (placed == os::Placed::kYes) {
      for_pages(address, bytes, [](int& page) { return page = Kernel::kOpen, true; });
    }
    return placed;
  }
  static bool release(void* address, std::size_t bytes) {
    if (!kernel.unmaps) return false;
    return for_pages(address, bytes, [](int& page) {
      MODEL_CHECK(page != Kernel::kForeign);
      return page = Kernel::kNobodys, true;
    });
  }
  static bool close(void*, std::size_t) { return false; }
  static bool purge(void*, std::size_t) { return false; }
  static bool renew(void*, std::size_t) { return false; }
  static void* remap(void*, std::size_t, std::size_t) { return nullptr; }
  static void prefer_huge_pages(void*, std::size_t) {}
  static void forbid_huge_pages(void*, std::size_t) {}
  static bool can_be_read(const std::uint32_t* word) {
    const int* const p = page(address_of(word));
    return p != nullptr && *p == Kernel::kOpen;
  }
  static std::size_t resident_pages(void*, std::size_t) { return 0; }
  static bool would_grant(std::size_t) { return true; }
};

struct Plan {
  std::size_t counts[2][2];  // what each thread takes, one after the other; 0: nothing
  bool gives[2];             // and gives the first one back between the two
  std::size_t foreign;       // slice; 0: none
  std::size_t refused;       // call of the kernel
  bool decommits;            // the second thread decommits what is free at its end
  bool replaces = false;     // the kernel's planted fault
};
inline const Plan* running_plan = nullptr;

struct GrowingArena {
  static constexpr unsigned kThreads = 2;
  // Steps of one slice: growth is what is modelled.
  using Arena = CoalescingArena<16, HugePages::kKernelDefault, ModelCalls, kSlice>;

  GrowingArena() {
    static void* const memory = mmap(pointer_to(kBase), kSlices * kSlice, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MODEL_CHECK(memory == pointer_to(kBase));
    kernel = {};
    MODEL_CHECK(arena.start(4 * kSlice) && arena.base() == kBase);
    kernel.growing_calls = 0;
    kernel.refused_call = running_plan->refused;
    kernel.replaces = running_plan->replaces;
    if (running_plan->foreign != 0) {
      for (std::size_t i = 0; i < kSlice / kPage; ++i) {
        kernel.pages[running_plan->foreign * kSlice / kPage + i] = Kernel::kForeign;
      }
    }
  }

  static TableReach reach(std::size_t end) { return {end, end}; }

  void thread(unsigned self) {
    for (unsigned i = 0; i < 2; ++i) {
      const std::size_t count = running_plan->counts[self][i];
      if (count == 0) continue;
      const std::uint32_t first = arena.take_growing(count, 1, reach).first;
      if (first == 0) continue;
      for (std::size_t n = first; n < first + count; ++n) {
        MODEL_CHECK(n < kSlices && owner[n].get() == 0);
        owner[n].set(static_cast<int>(self) + 1);
        for (std::size_t p = 0; p < kSlice / kPage; ++p) {
          MODEL_CHECK(kernel.pages[n * kSlice / kPage + p] == Kernel::kOpen);
        }
      }
      taken += count;
      if (i == 0 && running_plan->gives[self]) {
        for (std::size_t n = first; n < first + count; ++n) owner[n].set(0);
        taken -= count;
        arena.give(first);
      }
    }
    if (self == 1 && running_plan->decommits) arena.decommit_free();
  }

  void at_rest() {
    std::size_t seen = 0;
    arena.walk([&](std::uint32_t first, std::size_t count, bool free) {
      MODEL_CHECK(first + count <= arena.limit());
      if (!free) seen += count;
    });
    MODEL_CHECK(seen == taken);
    for (std::size_t p = 0; running_plan->foreign != 0 && p < kSlice / kPage; ++p) {
      MODEL_CHECK(kernel.pages[running_plan->foreign * kSlice / kPage + p] == Kernel::kForeign);
    }
    // A guard of ours stands behind what is open, wherever something foreign begins.
    for (std::size_t p = 1; p < Kernel::kPages; ++p) {
      MODEL_CHECK(!(kernel.pages[p - 1] == Kernel::kOpen && kernel.pages[p] == Kernel::kForeign));
      MODEL_CHECK(!(kernel.pages[p - 1] == Kernel::kForeign && kernel.pages[p] == Kernel::kOpen));
    }
    const ArenaStatistics books = arena.statistics();
    MODEL_CHECK(books.opened_bytes + books.lost_bytes >= (taken + 1) * kSlice);
  }

  Arena arena;
  Plain<int> owner[kSlices];
  std::size_t taken = 0;  // not part of the modelled memory
};

// One thread decommits what is free, which the kernel grants or refuses, and vanishes at any step.
template <bool kUnmaps>
struct VanishedDecommit : GrowingArena {
  static constexpr unsigned kThreads = 1;

  VanishedDecommit() : free(arena.take_growing(2, 1, reach).first) {
    MODEL_CHECK(free != 0 && arena.take_growing(1, 1, reach).first == free + 2);
    arena.give(free);
    kernel.unmaps = kUnmaps;
  }
  void thread(unsigned) { arena.decommit_free(); }
  // In the child, in which the kernel refuses nothing.
  void at_rest() {
    SpinLock::enter_child();
    kernel.unmaps = true;
    arena.recover_lock();
    arena.recover_in_child();
    const ArenaStatistics books = arena.statistics();
    std::size_t free_slices = 0;
    arena.walk([&](std::uint32_t, std::size_t count, bool is_free) {
      if (is_free) free_slices += count;
    });
    MODEL_CHECK(books.opened_bytes == (1 + 1 + free_slices) * kSlice);
    MODEL_CHECK(books.lost_bytes == 0);
    const bool is_free = free_slices == 2;
    MODEL_CHECK(books.decommitted_bytes == (is_free ? 0 : 2 * kSlice));
    // What counts as decommitted is unmapped, what is free is memory.
    const int expected = is_free ? Kernel::kOpen : Kernel::kNobodys;
    for (std::size_t p = 0; p < 2 * kSlice / kPage; ++p) {
      MODEL_CHECK(kernel.pages[free * kSlice / kPage + p] == expected);
    }
  }

  const std::uint32_t free;
};

void holds(const char* name, const Plan& plan, unsigned preemptions) {
  running_plan = &plan;
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    if (!adds_something(memory)) continue;
    const unsigned fewer = memory == MemoryModel::views && preemptions > 1 ? 1 : 0;
    expect_holds<GrowingArena>(name, {.memory = memory,
                                      .preemptions = bound(preemptions - fewer, preemptions),
                                      .max_steps = 20'000});
  }
}

constexpr std::size_t kNever = SIZE_MAX;

TEST(ArenaGrowth, TwoThreadsGrow) {
  holds("one each", {{{1, 0}, {1, 0}}, {}, 0, kNever, false}, 3);
  holds("two each, given back", {{{1, 2}, {2, 1}}, {true, true}, 0, kNever, false}, 2);
  holds("more than there is", {{{3, 2}, {2, 3}}, {}, 0, kNever, false}, 2);
}

TEST(ArenaGrowth, SomethingForeignIsInTheWay) {
  for (const std::size_t foreign : {1u, 2u, 3u}) {
    // Every day one of the three places is explored as far as all are with the larger bounds.
    const unsigned preemptions = foreign == 2 ? 2 : bound(1, 2);
    holds("foreign", {{{1, 1}, {1, 1}}, {true, false}, foreign, kNever, false}, preemptions);
    holds("foreign, larger ranges", {{{2, 1}, {2, 0}}, {false, true}, foreign, kNever, false},
          preemptions);
  }
}

TEST(ArenaGrowth, EachCallOfTheKernelIsRefused) {
  for (std::size_t call = 0; call < 6; ++call) {
    holds("refused", {{{1, 2}, {1, 1}}, {true, false}, 0, call, false}, 1);
    holds("refused, foreign", {{{1, 1}, {2, 0}}, {false, true}, 2, call, false}, 1);
  }
}

TEST(ArenaGrowth, MappingOverWhatIsThereIsFoundOut) {
  const Plan plan{{{1, 1}, {1, 1}}, {}, 2, kNever, false, true};
  running_plan = &plan;
  EXPECT_FINDS(GrowingArena, "kForeign",
               {.memory = MemoryModel::interleaving, .max_steps = 20'000});
}

TEST(ArenaGrowth, WhatIsFreeIsClosedMeanwhile) {
  holds("decommitted", {{{1, 1}, {1, 0}}, {true, true}, 0, kNever, true}, 2);
}

TEST(ArenaGrowth, AThreadVanishesWhileItDecommits) {
  static constexpr Plan plan{{}, {}, 0, kNever, true};
  running_plan = &plan;
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso}) {
    const Options options{.memory = memory, .max_steps = 20'000, .forks = true};
    expect_holds<VanishedDecommit<true>>("granted", options);
    expect_holds<VanishedDecommit<false>>("refused", options);
  }
}

}  // namespace
}  // namespace spanalloc::model
