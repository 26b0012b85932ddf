// Threads that allocate, resize and free large objects of each other, and
// forks in the middle of it.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include "address_limit.hpp"
#include "heap_walk.hpp"
#include "os_calls.hpp"
#include "seed_report.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc::large {
namespace {

// An object that tells its size and owner-to-be in the first word of each 64 KiB, and in its last.
struct Object {
  unsigned char* p = nullptr;
  std::size_t n = 0;

  static constexpr std::size_t kStep = 64 * kKiB;
  void mark() const {
    for (std::size_t at = 0; at + 8 <= n; at += kStep) word(at) = address_of(p) ^ at ^ n;
    word((n - 8) & ~std::size_t{7}) = n;
  }
  // As marked at `old`, when it was of `size`: each word that lies in it whole, before and now.
  bool is_marked(const unsigned char* old, std::size_t size) const {
    for (std::size_t at = 0; at + 8 <= min_of(n, size); at += kStep) {
      const bool last = size - at <= 16;  // the last word may stand there
      if (!last && word(at) != (address_of(old) ^ at ^ size)) return false;
    }
    return n < size || word((size - 8) & ~std::size_t{7}) == size;
  }

 private:
  std::uint64_t& word(std::size_t at) const { return *reinterpret_cast<std::uint64_t*>(p + at); }
};

// Of whatever sizes: what a copy of the bytes that both have in common takes along is enough.
TEST(StandardLargeThreads, AnObjectIsAsMarkedWhereverItsBytesAreCopied) {
  constexpr std::size_t kFirst = 2 * Object::kStep - 20;
  constexpr std::size_t kLast = 2 * Object::kStep + 20;
  const std::vector<std::uint64_t> zeros(kLast / 8 + 2);
  std::vector<std::uint64_t> from = zeros;
  std::vector<std::uint64_t> to = zeros;
  Object object{reinterpret_cast<unsigned char*>(from.data()), 0};
  Object copy{reinterpret_cast<unsigned char*>(to.data()), 0};
  for (object.n = kFirst; object.n <= kLast; ++object.n) {
    object.mark();
    for (copy.n = kFirst - Object::kStep; copy.n <= kLast; ++copy.n) {
      if (copy.n == kLast - Object::kStep) copy.n = kFirst;
      const std::size_t common = min_of(copy.n, object.n);
      std::memcpy(copy.p, object.p, common);
      std::memset(copy.p + common, 0, copy.n - common);
      std::memset(copy.p + copy.n, 0, 8);
      ASSERT_TRUE(copy.is_marked(object.p, object.n)) << object.n << " -> " << copy.n;
    }
  }
}

// Objects that all threads have in common; what is in a slot is whole.
class Market {
 public:
  static constexpr std::size_t kSlots = 16;

  // One call of the engine or two, on somebody's object. False: it was not what it should be.
  bool trade(std::mt19937& random) {
    Slot& slot = slots_[random() % kSlots];
    if (slot.taken.exchange(true)) return true;
    Object& object = slot.object;
    bool good = true;
    if (object.p == nullptr) {
      object.n = size(random);
      const bool zeroed = random() % 4 == 0;
      object.p = static_cast<unsigned char*>(zeroed ? E::allocate_zeroed(object.n)
                                                    : E::allocate(object.n));
      good = object.p != nullptr;
      for (std::size_t at = 0; zeroed && good && at < object.n; at += kPage)
        good = object.p[at] == 0;
    } else {
      good = object.is_marked(object.p, object.n);
      if (random() % 3 != 0) {
        const Object old = object;
        object.n = size(random);
        object.p = static_cast<unsigned char*>(Api::realloc(old.p, object.n));
        good = good && object.p != nullptr && object.is_marked(old.p, old.n);
      } else {
        E::deallocate(object.p);
        object = {};
      }
    }
    if (good && object.p != nullptr) object.mark();
    slot.taken = false;
    return good;
  }
  // Everything that lies in a slot is checked and freed.
  bool close() {
    bool good = true;
    for (Slot& slot : slots_) {
      if (slot.taken || slot.object.p == nullptr) continue;
      good = good && slot.object.is_marked(slot.object.p, slot.object.n);
      E::deallocate(slot.object.p);
      slot.object = {};
    }
    return good;
  }

 private:
  // Of all kinds: blocks of their own with a class and without.
  static std::size_t size(std::mt19937& random) {
    switch (random() % 8) {
      case 0:
        return 2 * kMiB + random() % (2 * kMiB);
      case 1:
      case 2:
        return kMiB - 64 * kKiB + random() % (kMiB / 2);
      case 3:  // about a mark
        return Object::kStep * (1 + random() % 40) + random() % 32 - 16;
      default:
        return 33 * kKiB + random() % (300 * kKiB);
    }
  }
  struct Slot {
    std::atomic<bool> taken{false};
    Object object;
  };
  std::array<Slot, kSlots> slots_;
};

TEST(StandardLargeThreads, TradeObjectsOfAllSizes) {
  in_fresh_process(
      [] {
        test::let_clock_go();
        Market market;
        test::in_threads(4, [&](unsigned t) {
          std::mt19937 random(test::seed_of(t));
          const int rounds = test::kUnderAsan || test::kUnderTsan || test::kEmulated ? 300 : 3000;
          for (int i = 0; i < rounds; ++i) {
            ASSERT_TRUE(market.trade(random));
            if (i % 512 == 0) E::trim();
          }
        });
        EXPECT_TRUE(test::walk_heap<E>().consistent());
        EXPECT_TRUE(market.close());
        expect_nothing_out();
        EXPECT_LE(opened(), 256 * kMiB) << "what is free serves all";
      },
      "4");
}

// In a fork's child: the slots of threads that were in the middle of something
// may be lost, nothing else.
int use_after_fork(Market& market, unsigned workers) {
  alarm(540);
  const test::HeapWalk walk = test::walk_heap<E>();
  if (!walk.consistent() || walk.lost != 0) return 2;
  if (!market.close()) return 3;
  E::trim();
  const test::HeapWalk later = test::walk_heap<E>();
  // In one's hands may be an object, and the new place of it.
  if (!later.consistent() || later.carved > 2 * workers + later.owned_empty) return 4;
  std::mt19937 random(test::seed_of(1));
  for (int i = 0; i < 60; ++i) {
    if (!market.trade(random)) return 5;
  }
  std::vector<void*> small;
  for (int i = 0; i < 2000; ++i) small.push_back(E::allocate(1000));
  auto* large = static_cast<unsigned char*>(E::allocate_zeroed(6 * kMiB));
  if (large == nullptr || first_nonzero(large, 6 * kMiB) != 6 * kMiB) return 6;
  E::deallocate(large);
  free_all(small);
  if (!market.close()) return 7;
  E::trim();
  const test::HeapWalk last = test::walk_heap<E>();
  return last.consistent() && last.carved <= 2 * workers + last.owned_empty ? 0 : 8;
}

TEST(StandardLargeThreads, AForkInTheMiddleLeavesAConsistentHeap) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  in_fresh_process(
      [] {
        test::let_clock_go();
        constexpr unsigned kWorkers = 2;
        // As a library does: a fork in the middle of the start has no handlers yet
        E::process_start();
        Market market;
        std::atomic<bool> stop{false};
        test::Progress trades;
        std::vector<std::thread> workers;
        std::latch begun(kWorkers);
        for (unsigned t = 0; t < kWorkers; ++t) {
          workers.emplace_back([&, t] {
            std::mt19937 random(test::seed_of(t + 100));
            begun.count_down();
            // Counts on after a failure: the test waits for trades.
            for (bool good = true; !stop; trades.step()) {
              if (!good) continue;
              good = market.trade(random);
              EXPECT_TRUE(good);
            }
          });
        }
        begun.wait();
        for (int round = 0; round < 25; ++round) {
          trades.wait_for_more(1 + static_cast<std::size_t>(round % 7));
          const pid_t child = fork();
          ASSERT_GE(child, 0);
          if (child == 0) _exit(use_after_fork(market, kWorkers));
          int status = 0;
          ASSERT_EQ(waitpid(child, &status, 0), child);
          EXPECT_EQ(status, 0) << "round " << round << ": signal " << WTERMSIG(status)
                               << ", status " << WEXITSTATUS(status);
        }
        stop = true;
        for (std::thread& worker : workers) worker.join();
        EXPECT_TRUE(market.close());
        expect_nothing_out();
      },
      "4");
}

// A mapping of another's that the arena has stepped over is no memory of the child's either.
TEST(StandardLargeThreads, AForkLeavesForeignMappingsAlone) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  in_fresh_process([] {
    const rlimit limit{kGiB, kGiB};
    ASSERT_TRUE(test::limit_address_space(limit));
    std::vector<void*> blocks = fill(6 * kMiB, 2 * kMiB);
    char* foreign = static_cast<char*>(blocks[0]) + 20 * kMiB;
    ASSERT_EQ(mmap(foreign, kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              foreign);
    fill_pattern(foreign, kPage, 1);
    const auto use_all = [&] {
      auto more = fill(40 * kMiB, 2 * kMiB);
      EXPECT_TRUE(test::walk_heap<E>().consistent());
      EXPECT_EQ(test::walk_heap<E>().single, blocks.size() + more.size());
      free_all(more);
      E::trim();
      EXPECT_EQ(first_mismatch(foreign, kPage, 1), kPage);
      EXPECT_FALSE(E::owns(foreign));
    };
    use_all();
    std::atomic<bool> stop{false};
    std::thread other([&] {  // recovery is for processes with threads
      while (!stop) usleep(100);
    });
    const pid_t child = fork();
    if (child == 0) {
      use_all();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    stop = true;
    other.join();
    free_all(blocks);
    expect_nothing_out();
  });
}

}  // namespace
}  // namespace spanalloc::large
