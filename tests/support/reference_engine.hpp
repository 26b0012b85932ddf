// The simplest engine that satisfies the concept: one mapping a block, one lock, one table. It is
// the test double for tests of api/ (it can be told to run out of memory) and the yardstick of what
// they demand of an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bits.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::test {

class ReferenceEngine {
 public:
  static constexpr const char* kName = "reference";

  template <OutOfMemory Policy = ReturnNull>
  static void* allocate(std::size_t n) {
    void* p = allocate_aligned(n, 16);
    return p != nullptr ? p : Policy::out_of_memory(n);
  }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    void* p = allocate(n);
    return p != nullptr ? std::memcpy(p, from, bytes) : nullptr;
  }

  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    const std::size_t usable = align_up(max_of(n, 1), 16);
    LockGuard guard(lock_);
    if (n > kMaxRequest || usable > bytes_left_) return nullptr;
    Block* slot = find(0);
    if (slot == nullptr) return nullptr;
    void* p = os::map(mapped_bytes(usable), max_of(alignment, os::page_size()));
    if (p == nullptr) return nullptr;
    *slot = {address_of(p), usable};
    bytes_left_ -= usable;
    bytes_live_ += usable;
    ++blocks_live_;
    return p;
  }

  static void* allocate_zeroed(std::size_t n) { return allocate(n); }  // mappings are zero

  static void deallocate(void* p) {
    if (p == nullptr) return;
    LockGuard guard(lock_);
    Block& block = demand(p);
    account_freed(block.usable);
    os::release(p, mapped_bytes(block.usable));
    block = {kTombstone, 0};
  }

  static std::size_t usable_size(const void* p) {
    if (p == nullptr) return 0;
    LockGuard guard(lock_);
    return demand(p).usable;
  }

  // In place only, within the pages that the block has: so that both outcomes of
  // resize are met in tests.
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    LockGuard guard(lock_);
    Block& block = demand(p);
    const Resized as_it_was{nullptr, block.usable};
    if (Policy::leaves_alone(n, block.usable)) return {p, block.usable};
    const std::size_t usable = align_up(max_of(n, 1), 16);
    if (usable < n || mapped_bytes(usable) != mapped_bytes(block.usable)) return as_it_was;
    if (usable > block.usable && usable - block.usable > bytes_left_) return as_it_was;
    account_freed(block.usable);
    bytes_left_ -= usable;
    bytes_live_ += usable;
    ++blocks_live_;
    block.usable = usable;
    return {p, as_it_was.usable};
  }

  static bool owns(const void* p) {
    LockGuard guard(lock_);
    const std::uintptr_t a = address_of(p);
    for (const Block& block : blocks_) {
      if (block.address > kTombstone && a >= block.address && a - block.address < block.usable)
        return true;
    }
    return false;
  }

  static bool trim() { return false; }

  static EngineStatistics statistics() {
    LockGuard guard(lock_);
    EngineStatistics s;
    s.large_bytes = bytes_live_;
    s.large_objects = blocks_live_;
    return s;
  }

  static void process_start() { thread::watch_forks(fork_watch_); }

  /// From now on at most `bytes` more are handed out (freed ones count again).
  /// SIZE_MAX: as many as there are.
  static void limit_bytes(std::size_t bytes) {
    LockGuard guard(lock_);
    bytes_left_ = bytes;
  }

 private:
  // Open addressing over a table that is mostly empty. Address 0: never used.
  // Tombstones end no search.
  struct Block {
    std::uintptr_t address;
    std::size_t usable;
  };
  static constexpr std::uintptr_t kTombstone = 1;
  static constexpr std::size_t kSlots = std::size_t{1} << 15;

  static std::size_t mapped_bytes(std::size_t usable) { return align_up(usable, os::page_size()); }

  static void account_freed(std::size_t usable) {
    if (bytes_left_ != SIZE_MAX) bytes_left_ += usable;
    bytes_live_ -= usable;
    --blocks_live_;
  }

  // The slot of a block, or of room for one (address 0); nullptr when there is none.
  static Block* find(std::uintptr_t address) {
    for (Block& block : blocks_) {
      if (block.address == address) return &block;
      if (address == 0 && block.address == kTombstone) return &block;
      if (address != 0 && block.address == 0) return nullptr;
    }
    return nullptr;
  }

  static Block& demand(const void* p) {
    Block* block = address_of(p) > kTombstone ? find(address_of(p)) : nullptr;
    if (block == nullptr) os::fatal("invalid free or use of", p);
    return *block;
  }

  // A test double: what a vanished thread was changing stays as it is.
  static void enter_child(thread::ForkWatch*) { lock_.abandon_if_owner_died(); }

  static inline constinit thread::ForkWatch fork_watch_{&enter_child};
  static inline constinit SpinLock lock_;
  static inline constinit Block blocks_[kSlots] = {};
  static inline constinit std::size_t bytes_left_ = SIZE_MAX;
  static inline constinit std::size_t bytes_live_ = 0;
  static inline constinit std::size_t blocks_live_ = 0;
};

static_assert(Engine<ReferenceEngine>);

}  // namespace spanalloc::test
