// A coalescing manager over simulated memory, and tenants who check every
// answer that they get from it.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "pages/coalescing/manager.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

namespace spanalloc::coalescing {

/// Rounds of a test with threads: fewer where each costs many times as much.
constexpr unsigned rounds(unsigned full) {
  return test::kUnderAsan || test::kUnderTsan || test::kEmulated ? full / 20 : full;
}

/// What the manager is told by its surroundings. A byte stands for the contents of a unit; not
/// atomic, so that thread sanitizer sees whether each owner's accesses come before the next one's.
class Kernel {
 public:
  explicit Kernel(std::size_t units) : bytes_(units) {}

  bool pause() {
    std::this_thread::yield();
    return true;
  }
  bool purge(Block block) {
    const std::size_t call = purges_.fetch_add(1);
    asked_units_ += block.size;
    const bool refused = refuses && refuses(call);
    // A call of the kernel takes a while, and the block is held meanwhile
    std::this_thread::yield();
    // A refusal may come after a part was done.
    const std::size_t done = refused ? block.size / 2 : block.size;
    for (std::size_t u = block.first; u < block.first + done; ++u) bytes_[u] = 0;
    return !refused;
  }
  unsigned char& operator[](std::size_t unit) { return bytes_[unit]; }
  std::size_t purges() const { return purges_.load(); }
  /// Units in all those calls.
  std::size_t asked_units() const { return asked_units_.load(); }

  /// Does the kernel refuse the call of this number? Set before threads start.
  std::function<bool(std::size_t)> refuses;

 private:
  std::vector<unsigned char> bytes_;
  std::atomic<std::size_t> purges_{0};
  std::atomic<std::size_t> asked_units_{0};
};
using Manager = CoalescingManager<Kernel>;

/// A manager over `units` free, clean units that can grow to `capacity`.
struct Region {
  explicit Region(std::size_t units, std::size_t capacity = 0)
      : kernel(max_of(units, capacity)),
        metadata(Manager::metadata_bytes(max_of(units, capacity)) / 8) {
    manager.attach(metadata.data(), max_of(units, capacity));
    EXPECT_TRUE(manager.extend(units, true));
  }
  std::vector<std::pair<Block, BlockState>> blocks() const {
    std::vector<std::pair<Block, BlockState>> found;
    manager.walk([&](Block block, BlockState state, bool) { found.emplace_back(block, state); });
    return found;
  }

  Kernel kernel;
  std::vector<std::uint64_t> metadata;
  Manager manager{kernel};
};

/// Blocks that are handed out: first unit -> size.
using Live = std::map<std::size_t, std::size_t>;

/// At rest: blocks tile the range, `live` are handed out and nothing else, no two free
/// neighbours are left; and a search finds every free block, which this tries by taking
/// them all, largest first.
inline void expect_census(Region& region, const Live& live) {
  std::size_t at = 0;
  std::size_t used = 0;
  bool free_before = false;
  std::vector<std::size_t> free_sizes;
  for (const auto& [block, state] : region.blocks()) {
    ASSERT_EQ(block.first, at) << "blocks do not tile the range";
    at = block.end();
    const auto known = live.find(block.first);
    ASSERT_EQ(state, known == live.end() ? BlockState::kFree : BlockState::kUsed)
        << "at " << block.first;
    if (known != live.end()) {
      ASSERT_EQ(known->second, block.size) << "at " << block.first;
      ++used;
    } else {
      ASSERT_FALSE(free_before) << "free neighbours at " << block.first;
      free_sizes.push_back(block.size);
    }
    free_before = known == live.end();
  }
  ASSERT_EQ(at, region.manager.limit());
  ASSERT_EQ(used, live.size());
  std::sort(free_sizes.rbegin(), free_sizes.rend());
  std::vector<std::size_t> taken;
  for (const std::size_t size : free_sizes) {
    const Allocation got = region.manager.allocate(size);
    ASSERT_TRUE(got) << "a free block of " << size << " units cannot be found";
    taken.push_back(got.block.first);
  }
  ASSERT_FALSE(region.manager.allocate(1));
  for (const std::size_t first : taken) ASSERT_TRUE(region.manager.free(first));
}

/// One who takes blocks, writes into them and finds what he wrote when he gives them back.
class Tenant {
 public:
  /// Any number but 0; no two tenants have the same.
  Tenant(Region& region, unsigned char mark, std::uint64_t seed)
      : region_(region), mark_(mark), random_(test::seed_of(seed)) {}

  const Live& live() const { return live_; }
  std::size_t refused() const { return refused_; }
  std::uint64_t draw() { return random_(); }

  /// A random call that changes no more than `most` units.
  void step(std::size_t most) {
    if (live_.empty() || random_() % 2 == 0) {
      allocate(1 + random_() % most, std::size_t{1} << random_() % 3);
      return;
    }
    auto at = live_.lower_bound(random_() % region_.manager.limit());
    if (at == live_.end()) at = live_.begin();
    switch (random_() % 4) {
      case 0:
        grow(at->first, at->second + 1 + random_() % 4);
        return;
      case 1:
        return shrink(at->first, 1 + random_() % at->second);
      default:
        return free(at->first);
    }
  }
  bool allocate(std::size_t size, std::size_t alignment = 1) {
    const Allocation got = region_.manager.allocate(size, alignment);
    if (!got) {
      ++refused_;
      return false;
    }
    EXPECT_EQ(got.block.size, size);
    EXPECT_EQ(got.block.first % alignment, 0u);
    EXPECT_LE(got.block.end(), region_.manager.limit());
    occupy(got.block, got.zero);
    EXPECT_TRUE(live_.emplace(got.block.first, size).second) << "handed out twice";
    return true;
  }
  void free(std::size_t first) {
    vacate({first, live_.at(first)});
    EXPECT_TRUE(region_.manager.free(first));
    live_.erase(first);
  }
  bool grow(std::size_t first, std::size_t size) {
    const std::size_t old = live_.at(first);
    const auto grown = region_.manager.grow(first, size);
    if (!grown) return false;
    if (size > old) occupy({first + old, size - old}, grown.zero);
    live_[first] = size;
    return true;
  }
  void shrink(std::size_t first, std::size_t size) {
    const std::size_t old = live_.at(first);
    vacate({first + size, old - size});
    EXPECT_TRUE(region_.manager.shrink(first, size));
    live_[first] = size;
  }
  void free_all() {
    while (!live_.empty()) free(live_.begin()->first);
  }

 private:
  void occupy(Block block, bool zero) {
    for (std::size_t u = block.first; u < block.end(); ++u) {
      if (zero) {
        EXPECT_EQ(region_.kernel[u], 0) << "unit " << u << " is said to be zero";
      }
      region_.kernel[u] = mark_;
    }
  }
  void vacate(Block block) {
    for (std::size_t u = block.first; u < block.end(); ++u)
      EXPECT_EQ(region_.kernel[u], mark_) << "unit " << u;
  }

  Region& region_;
  unsigned char mark_;
  std::mt19937_64 random_;
  Live live_;
  std::size_t refused_ = 0;
};

/// Threads that meet before each round and start it within the same microsecond: who waits spins
/// for a while, and then lets others have the processor (there may be fewer of them than threads).
class Rounds {
 public:
  explicit Rounds(unsigned threads) : threads_(threads) {}
  void meet() {
    const unsigned round = round_.load();
    if (present_.fetch_add(1) + 1 == threads_) {
      present_ = 0;
      ++round_;
      return;
    }
    for (unsigned spins = 0; round_.load() == round; ++spins) {
      if (spins > 200) std::this_thread::yield();
    }
  }

 private:
  const unsigned threads_;
  std::atomic<unsigned> present_{0};
  std::atomic<unsigned> round_{0};
};

/// While it lives, the calling thread gives the processor away every now and then, wherever it
/// is: so threads meet in the middle of calls that last a fraction of a microsecond, even on
/// one processor. (Thread sanitizer holds signals back until they do no harm, emulators are
/// slow enough without them.)
class Interruptions {
 public:
  Interruptions() {
    if (test::kUnderTsan || test::kEmulated) return;
    struct sigaction action{};
    action.sa_handler = [](int) { sched_yield(); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    running_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    const itimerspec often = {{0, 150'000}, {0, 150'000}};
    if (running_) timer_settime(timer_, 0, &often, nullptr);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;
  ~Interruptions() {
    if (running_) timer_delete(timer_);
  }

 private:
  timer_t timer_{};
  bool running_ = false;
};

/// Leite & Rocha, ISMM'19, Figure 8: the region's `threads * each` units are dealt to the threads,
/// which then give back everything at once. In every second round they are dealt at random, as in
/// the paper; in the others in turn, so that each thread's next unit has neighbours that the others
/// are about to free. `prepare()` returns the units in order; `free(unit)` is called by the
/// threads; `look(round)` when all is back: false ends the test.
template <class Prepare, class Free, class Look>
void free_everything_at_once(unsigned threads, std::size_t each, unsigned times, Prepare prepare,
                             Free free, Look look) {
  Rounds meeting(threads);
  std::vector<std::size_t> units;
  std::atomic<bool> go_on{true};
  const auto give_back = [&](std::size_t thread) {
    for (std::size_t i = 0; i < each; ++i) free(units[i * threads + thread]);
  };
  test::in_threads(threads, [&](unsigned t) {
    const Interruptions interruptions;
    if (t != 0) {
      for (meeting.meet(); go_on; meeting.meet()) {
        give_back(t);
        meeting.meet();
      }
      return;
    }
    for (unsigned round = 0; round < times && go_on; ++round) {
      units = prepare();
      if (round % 2 == 0)
        std::shuffle(units.begin(), units.end(), std::mt19937(test::seed_of(round)));
      meeting.meet();
      give_back(0);
      meeting.meet();
      go_on = look(round);
    }
    go_on = false;
    meeting.meet();
  });
}

}  // namespace spanalloc::coalescing
