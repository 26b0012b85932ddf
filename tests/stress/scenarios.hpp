// The stress scenarios: how threads share a heap. Each is a function of an engine, so that the same
// code runs over the shipped engines and over engines with a planted defect, which it must find.
#pragma once

#include <array>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "heap_user.hpp"
#include "threads.hpp"

namespace spanalloc::stress {

/// Parcels on their way from one thread to another.
template <class E>
class Mailboxes {
 public:
  explicit Mailboxes(std::size_t count) : slots_(count) {}

  /// Leaves `block` and frees what lay there: usually another thread's block.
  void swap(HeapUser<E>& user, Block& block) {
    Block* parcel = user.pack(block);
    if (parcel == nullptr) return user.free(block);
    take(user, slots_[user.random().below(slots_.size())], parcel);
    block = {};
  }
  void drain(HeapUser<E>& user) {
    for (auto& slot : slots_) take(user, slot, nullptr);
  }

 private:
  void take(HeapUser<E>& user, std::atomic<Block*>& slot, Block* replacement) {
    // Acquire and release: the parcel's and the block's contents travel with the pointer.
    user.free_parcel(slot.exchange(replacement, std::memory_order_acq_rel));
  }

  std::vector<std::atomic<Block*>> slots_;
};

/// One thread's life: a working set with random requests, a part of the blocks sent to others.
template <class E>
void live(std::uint64_t seed, std::size_t operations, Mailboxes<E>& mailboxes, Report& report) {
  HeapUser<E> user(seed, report);
  std::array<Block, 256> blocks;
  for (std::size_t i = 0; i < operations && report.errors() == 0; ++i) {
    Block& block = blocks[user.random().below(blocks.size())];
    if (block.start == nullptr) {
      block = user.allocate();
      continue;
    }
    switch (user.random().below(8)) {
      case 0:
        user.resize(block);
        break;
      case 1:
      case 2:
        mailboxes.swap(user, block);
        break;
      default:
        user.free(block);
    }
  }
  // Half of the threads leave their blocks behind, for others to free when this thread is gone.
  if (user.random().one_in(2)) {
    for (Block& block : blocks) {
      if (block.start != nullptr) mailboxes.swap(user, block);
    }
  }
  user.free_all(blocks);
}

/// `places` threads at any time, each soon replaced by a new one, `lives` of them at each place.
template <class E>
void thread_pool(unsigned places, std::size_t operations, std::size_t lives, Report& report) {
  Mailboxes<E> mailboxes(places * 64);
  test::in_threads(places, [&](unsigned place) {
    for (std::uint64_t age = 0; age < lives && report.errors() == 0; ++age) {
      // Lives of very different lengths, so that exits fall into every phase of the others.
      const std::size_t length = operations >> (age % 5 * 2);
      test::on_another_thread([&] { live<E>(place * 100003 + age, length, mailboxes, report); });
    }
  });
  HeapUser<E> last(1, report);
  mailboxes.drain(last);
  expect_everything_returned<E>(report);
}

/// Some threads only allocate, `parcels` each, the others only free.
template <class E>
void producer_consumer(std::size_t parcels, Report& report) {
  constexpr unsigned kPairs = 3;
  constexpr std::size_t kRing = 1024;
  struct Ring {
    std::array<std::atomic<Block*>, kRing> cells{};
    std::atomic<bool> closed{false};
  };
  std::vector<Ring> rings(kPairs);
  const auto produce = [&](unsigned k) {
    HeapUser<E> user(k, report);
    for (std::size_t i = 0; i < parcels && report.errors() == 0;) {
      auto& cell = rings[k].cells[i % kRing];
      if (cell.load(std::memory_order_relaxed) != nullptr) {
        std::this_thread::yield();
        continue;
      }
      Block* parcel = user.pack(user.allocate());
      if (parcel == nullptr) break;
      cell.store(parcel, std::memory_order_release);
      ++i;
    }
    rings[k].closed.store(true, std::memory_order_release);
  };
  // Each ring is read by two consumers, which race for each cell.
  const auto consume = [&](unsigned k) {
    HeapUser<E> user(100 + k, report);
    Ring& ring = rings[k / 2];
    for (bool last_round = false;;) {
      const bool closed = ring.closed.load(std::memory_order_acquire);
      for (auto& cell : ring.cells)
        user.free_parcel(cell.exchange(nullptr, std::memory_order_acquire));
      if (last_round) break;
      last_round = closed;
      std::this_thread::yield();
    }
  };
  test::in_threads(3 * kPairs, [&](unsigned k) { k < kPairs ? produce(k) : consume(k - kPairs); });
  expect_everything_returned<E>(report);
}

/// As in Larson and Krishnan's server simulation: a thread replaces random blocks of an array, then
/// hands the array to a new thread and ends; so in `generations`.
template <class E>
void larson(unsigned arrays, std::size_t generations, Report& report) {
  test::in_threads(arrays, [&](unsigned k) {
    std::vector<Block> blocks(1000);
    for (std::uint64_t generation = 1; generation <= generations && report.errors() == 0;
         ++generation) {
      test::on_another_thread([&] {
        HeapUser<E> user(k * 7919 + generation, report);
        for (int i = 0; i < 3000; ++i) {
          Block& block = blocks[user.random().below(blocks.size())];
          user.free(block);
          block = user.allocate(10 + user.random().below(500));
        }
      });
    }
    HeapUser<E>(k, report).free_all(blocks);
  });
  expect_everything_returned<E>(report);
}

/// Threads in sequence that each leave one small block behind; then threads that
/// each free a share of them.
template <class E>
void each_leaves_one(unsigned count, Report& report) {
  std::vector<Block> left(count);
  for (unsigned i = 0; i < count; ++i) {
    test::on_another_thread([&] {
      HeapUser<E> user(i, report);
      left[i] = user.allocate(16 + i % 3 * 100);
      Block gone = user.allocate(16);
      user.free(gone);
    });
  }
  expect_consistent<E>(report);
  test::in_threads(4, [&](unsigned k) {
    HeapUser<E> user(k, report);
    for (unsigned i = k; i < count; i += 4) user.free(left[i]);
  });
  expect_everything_returned<E>(report);
}

/// Rounds in which all threads free the blocks of the same spans at once, down to the last block,
/// while the owner goes on allocating or has just exited. Few blocks a span and many: every
/// transition is raced for.
template <class E>
void race_for_last_block(std::size_t rounds, Report& report) {
  static constexpr std::size_t kSizes[] = {16,    48,    256,    1000,   4000,
                                           12000, 30000, 120000, 500000, 1000000};
  static constexpr unsigned kThreads = 4;
  for (std::uint64_t round = 0; round < rounds && report.errors() == 0; ++round) {
    const std::size_t size = kSizes[round % std::size(kSizes)];
    std::vector<Block> blocks(size < 1000 ? 2000 : size < 40000 ? 200 : 24);
    const bool owner_exits_first = round / std::size(kSizes) % 2 == 0;
    std::barrier start(kThreads);
    auto free_share = [&](unsigned k) {
      HeapUser<E> user(round * 10 + k, report);
      start.arrive_and_wait();
      for (std::size_t i = k; i < blocks.size(); i += kThreads) {
        user.free(blocks[i]);
        if (i % 7 == k) {
          Block own = user.allocate(size);
          user.free(own);
        }
      }
    };
    auto allocate_all = [&] {
      HeapUser<E> user(round, report);
      for (Block& block : blocks) block = user.allocate(size);
    };
    if (owner_exits_first) test::on_another_thread(allocate_all);
    std::atomic<bool> allocated{owner_exits_first};
    test::in_threads(kThreads, [&](unsigned k) {
      if (k == 0 && !owner_exits_first) {
        allocate_all();
        allocated.store(true);
      }
      while (!allocated.load()) std::this_thread::yield();
      free_share(k);
    });
    expect_everything_returned<E>(report);
  }
}

/// Threads exit at the very moment at which others free their blocks.
template <class E>
void exits_race_frees(std::size_t rounds, Report& report) {
  for (std::uint64_t round = 0; round < rounds && report.errors() == 0; ++round) {
    constexpr unsigned kOwners = 3;
    constexpr std::size_t kBlocks = 300;
    std::vector<std::atomic<Block*>> handed(kOwners * kBlocks);
    const auto allocate = [&](unsigned k) {
      HeapUser<E> user(round * 31 + k, report);
      const std::size_t size = std::size_t{16} << ((round + k) % 12);
      for (std::size_t i = 0; i < kBlocks; ++i) {
        Block* parcel = user.pack(user.allocate(size));
        if (parcel == nullptr) return report.error("a parcel was refused");
        // Handed over at once: the freer is at work while this thread
        // allocates, and while it exits.
        handed[k * kBlocks + i].store(parcel, std::memory_order_release);
      }
    };
    const auto free = [&](unsigned k) {
      HeapUser<E> user(round * 37 + k, report);
      for (std::size_t i = k; i < handed.size() && report.errors() == 0;) {
        Block* parcel = handed[i].exchange(nullptr, std::memory_order_acquire);
        if (parcel == nullptr) {
          std::this_thread::yield();
          continue;
        }
        user.free_parcel(parcel);
        i += 2;
      }
    };
    test::in_threads(kOwners + 2,
                     [&](unsigned k) { k < kOwners ? allocate(k) : free(k - kOwners); });
    if (report.errors() == 0) expect_everything_returned<E>(report);
  }
}

}  // namespace spanalloc::stress
