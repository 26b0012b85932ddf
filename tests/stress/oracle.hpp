// The oracle: a map of all live ranges. Whatever the heap does, no two live
// blocks may share a byte.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "heap_user.hpp"
#include "threads.hpp"

namespace spanalloc::stress {

class Oracle {
 public:
  explicit Oracle(Report& report) : report_(report) {}

  /// Called after the allocation and before the free: a range is live at least while it is listed.
  void add(const void* start, std::size_t size) {
    const auto begin = reinterpret_cast<std::uintptr_t>(start);
    // malloc(0) is unique: it takes up a byte
    const std::uintptr_t end = begin + (size == 0 ? 1 : size);
    std::lock_guard guard(lock_);
    const auto next = live_.lower_bound(begin);
    const bool hits_next = next != live_.end() && next->first < end;
    const bool hits_previous = next != live_.begin() && std::prev(next)->second > begin;
    if (hits_next || hits_previous) {
      const auto& other = hits_next ? *next : *std::prev(next);
      report_.error("[%zx, %zx) overlaps the live block [%zx, %zx)", begin, end, other.first,
                    other.second);
    }
    live_[begin] = end;
  }
  void remove(const void* start) {
    std::lock_guard guard(lock_);
    live_.erase(reinterpret_cast<std::uintptr_t>(start));
  }
  std::size_t live() {
    std::lock_guard guard(lock_);
    return live_.size();
  }

 private:
  Report& report_;
  std::mutex lock_;
  std::map<std::uintptr_t, std::uintptr_t> live_;
};

/// `steps` random requests from each of several threads, remote frees included, each
/// entered into one oracle.
template <class E>
void oracle_of_ranges(unsigned thread_count, std::size_t steps, Report& report) {
  Oracle oracle(report);
  struct Shared {
    std::mutex lock;
    Block block;
  };
  std::vector<Shared> shared(64);
  auto release = [&](HeapUser<E>& user, Block& block) {
    if (block.start != nullptr) oracle.remove(block.start);
    user.free(block);
  };
  test::in_threads(thread_count, [&](unsigned k) {
    HeapUser<E> user(k, report);
    std::array<Block, 200> blocks;
    for (std::size_t i = 0; i < steps && report.errors() == 0; ++i) {
      Block& block = blocks[user.random().below(blocks.size())];
      if (block.start == nullptr) {
        block = user.allocate();
        oracle.add(block.start, block.size);
      } else if (user.random().one_in(4)) {
        Shared& other = shared[user.random().below(shared.size())];
        std::lock_guard guard(other.lock);
        std::swap(block, other.block);
      } else if (user.random().one_in(4)) {
        oracle.remove(block.start);
        user.resize(block);
        oracle.add(block.start, block.size);
      } else {
        release(user, block);
      }
    }
    for (Block& block : blocks) release(user, block);
  });
  HeapUser<E> last(1, report);
  for (Shared& one : shared) release(last, one.block);
  if (oracle.live() != 0) report.error("%zu ranges are still listed", oracle.live());
  expect_everything_returned<E>(report);
}

}  // namespace spanalloc::stress
