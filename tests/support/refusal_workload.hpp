// A program that uses every way into an allocator, for a kernel that refuses (kernel_refusals.hpp).
// It takes refusals as they come, asks once more, goes on without; and checks at every step what
// must hold whatever the kernel does:
//   - every block's contents are as they were written, calloc's are zero
//   - nullptr comes with ENOMEM, only while a call of the kernel was refused, and changes nothing
//   - what succeeds, and what frees, leaves errno alone
//   - a block can always be made smaller
//   - once nothing is refused any more, everything that was refused is granted
// It allocates nothing for itself. `Api`: static malloc, calloc, realloc, aligned_alloc,
// free, trim, and huge_bytes: where only blocks of hundreds of MiB are mappings of their own,
// the least of them; else 0.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel_refusals.hpp"
#include "memory_pattern.hpp"
#include "random.hpp"

namespace spanalloc::test {

/// Why the process ends: into the books, where its parent reads it.
[[noreturn, gnu::format(printf, 2, 3)]] inline void end_with(kernel::Books& books,
                                                             const char* format, ...) {
  kernel::disarm();
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(books.failure, sizeof books.failure, format, arguments);
  va_end(arguments);
  _exit(1);
}

template <class Api>
class RefusalUser {
 public:
  static constexpr std::size_t kKiB = 1024;
  static constexpr std::size_t kMiB = 1024 * kKiB;

  /// `exact`: nobody else makes calls of the kernel, so that each nullptr can
  /// be held against a refusal.
  RefusalUser(kernel::Books& books, std::uint64_t seed, bool exact)
      : books_(books), seed_(seed), exact_(exact) {}

  struct Block {
    char* start = nullptr;
    std::size_t size = 0;
    std::uint64_t seed = 0;
    // What was asked for last; 0: nothing, the block is free.
    std::size_t wanted = 0;
    std::size_t alignment = 0;
    bool zeroed = false;
  };

  void take(Block& block, std::size_t size) { request(block, size, 0, false); }
  void take_zeroed(Block& block, std::size_t size) { request(block, size, 0, true); }
  void take_aligned(Block& block, std::size_t alignment, std::size_t size) {
    request(block, size, alignment, false);
  }

  void resize(Block& block, std::size_t size) {
    block.wanted = size;
    if (block.start == nullptr) return;
    if (!try_resize(block) && !try_resize(block)) return;
  }

  void give(Block& block) {
    block.wanted = 0;
    if (block.start == nullptr) return;
    check(block);
    errno = kUntouched;
    Api::free(block.start);
    if (errno != kUntouched) fail("free changed errno");
    block.start = nullptr;
  }

  void check(const Block& block) {
    if (block.start != nullptr) check_part(block, block.size);
  }

  /// Asks again for what was refused. Once the kernel refuses nothing any
  /// more, all of it must be had.
  void ask_again(Block& block) {
    if (block.wanted == 0) return;
    if (block.start == nullptr) {
      if (!try_take(block)) fail("%zu bytes are still refused", block.wanted);
    } else if (block.size != block.wanted && !try_resize(block)) {
      fail("growing from %zu to %zu bytes is still refused", block.size, block.wanted);
    }
  }

  /// A block larger than all that is free together: address space that was opened and then refused
  /// its books is found again with the next step.
  void take_most() {
    Block block;
    take(block, 200 * kMiB);
    ask_again(block);
    give(block);
  }

  [[noreturn, gnu::format(printf, 2, 3)]] void fail(const char* format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    end_with(books_, "step %u: %s", step, text);
  }

  unsigned step = 0;

 private:
  static constexpr int kUntouched = EDOM;  // no function of an allocator sets it

  void request(Block& block, std::size_t size, std::size_t alignment, bool zeroed) {
    block = Block{};
    block.wanted = size;
    block.alignment = alignment;
    block.zeroed = zeroed;
    if (!try_take(block)) try_take(block);
  }

  // The result of f(), nullptr only for a reason, and not if `always`.
  template <class F>
  char* attempt(const char* what, std::size_t size, bool always, F f) {
    const std::size_t refused = kernel::refusals();
    errno = kUntouched;
    char* p = static_cast<char*>(f());
    const int error = errno;
    if (p != nullptr) {
      if (error != kUntouched) fail("%s(%zu) succeeded and set errno to %d", what, size, error);
      return p;
    }
    if (error != ENOMEM) fail("%s(%zu) failed with errno %d", what, size, error);
    if (always) fail("%s(%zu), fewer bytes than there were, failed", what, size);
    if (exact_ && kernel::refusals() == refused) {
      fail("%s(%zu) failed although the kernel refused nothing", what, size);
    }
    return nullptr;
  }

  bool try_take(Block& block) {
    const std::size_t n = block.wanted;
    char* p = nullptr;
    if (block.zeroed) {
      p = attempt("calloc", n, false, [n] { return Api::calloc(1, n); });
    } else if (block.alignment != 0) {
      p = attempt("aligned_alloc", n, false,
                  [&] { return Api::aligned_alloc(block.alignment, n); });
    } else {
      p = attempt("malloc", n, false, [n] { return Api::malloc(n); });
    }
    if (p == nullptr) return false;
    const std::size_t alignment = std::max<std::size_t>(block.alignment, n >= 16 ? 16 : 1);
    if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0)
      fail("%zu bytes at %p are not aligned to %zu", n, static_cast<void*>(p), alignment);
    if (block.zeroed) check_zero(p, n);
    block.start = p;
    block.size = n;
    fill(block);
    return true;
  }

  bool try_resize(Block& block) {
    const std::size_t n = block.wanted;
    char* p = attempt("realloc", n, n <= block.size, [&] { return Api::realloc(block.start, n); });
    if (p == nullptr) {
      check(block);
      return false;
    }
    block.start = p;
    check_part(block, std::min(n, block.size));
    block.size = n;
    fill(block);
    return true;
  }

  // Small blocks are written and checked whole, larger ones in windows, at pages or slices and at
  // the end: what a kernel call does wrong it does to pages.
  template <class F>
  static void windows(std::size_t size, F f) {
    constexpr std::size_t kWindow = 64;
    if (size <= kKiB) return f(std::size_t{0}, size);
    const std::size_t stride = size <= 256 * kKiB ? 4 * kKiB : size <= 2 * kMiB ? 64 * kKiB : kMiB;
    for (std::size_t at = 0; at + kWindow <= size; at += stride) f(at, kWindow);
    f(size - kWindow, kWindow);
  }

  void fill(Block& block) {
    block.seed = ++seed_ << 20;
    windows(block.size, [&](std::size_t at, std::size_t n) {
      fill_pattern(block.start + at, n, block.seed + at);
    });
  }

  // Of what was written, the part below `end`.
  void check_part(const Block& block, std::size_t end) {
    windows(block.size, [&](std::size_t at, std::size_t n) {
      if (at >= end) return;
      n = std::min(n, end - at);
      const std::size_t bad = first_mismatch(block.start + at, n, block.seed + at);
      if (bad != n) fail("a block of %zu bytes was changed at %zu", block.size, at + bad);
    });
  }

  void check_zero(const char* p, std::size_t size) {
    const std::size_t stride = size <= 64 * kKiB ? size : size <= 256 * kKiB ? 4 * kKiB : 16 * kKiB;
    for (std::size_t at = 0; at < size; at += stride) {
      const std::size_t n = std::min(size - at, stride == size ? size : std::size_t{64});
      const std::size_t bad = first_nonzero(p + at, n);
      if (bad != n) fail("calloc(%zu) is not zero at %zu", size, at + bad);
    }
  }

  kernel::Books& books_;
  std::uint64_t seed_;
  bool exact_;
};

/// The fixed program of one thread (and a second one, which runs while the first one waits).
template <class Api>
class RefusalProgram {
  using User = RefusalUser<Api>;
  using Block = typename User::Block;
  static constexpr std::size_t kKiB = User::kKiB;
  static constexpr std::size_t kMiB = User::kMiB;

 public:
  explicit RefusalProgram(kernel::Books& books) : user_(books, 1, true) {}

  /// Everything under refusals, then without: at its end nothing is allocated.
  void run() {
    fill_sizes();
    resize();
    decay();
    second_thread(false);
    return_and_reuse();
    kernel::disarm();
    for (Block& block : blocks_) user_.ask_again(block);
    next_step();
    second_thread(true);
    return_and_reuse();
    for (Block& block : blocks_) user_.give(block);
    user_.take_most();
    Api::trim();
  }

 private:
  static constexpr unsigned kBlocks = 160;
  // More than any hole that is left: such blocks lie one behind the other.
  static constexpr std::size_t kWide = 16 * kMiB;
  static constexpr std::size_t kWidest = kWide + 6 * kMiB;

  void next_step() {
    ++user_.step;
    kernel::advance_clock(1);
    for (const Block& block : blocks_) user_.check(block);
  }

  void fill_sizes() {
    static constexpr std::size_t kSizes[] = {
        1,         24,        100,        1000,       3000, 8192,     20000,    32 * kKiB,
        33 * kKiB, 70 * kKiB, 130 * kKiB, 300 * kKiB, kMiB, kMiB + 1, 3 * kMiB, 20 * kMiB};
    // An aligned block of a class of its own size, beside blocks of a larger one
    // that has not its alignment.
    user_.take(blocks_[90], 70);
    user_.take_aligned(blocks_[91], 64, 30);
    next_step();
    unsigned slot = 0;
    for (const std::size_t size : kSizes) {
      user_.take(blocks_[slot++], size);
      user_.take_zeroed(blocks_[slot++], std::min(size, kMiB));
      next_step();
    }
    user_.take_aligned(blocks_[slot++], 64, 100);
    user_.take_aligned(blocks_[slot++], 4096, 5000);
    user_.take_aligned(blocks_[slot++], 64 * kKiB, 70 * kKiB);
    next_step();
    user_.take_aligned(blocks_[slot++], kMiB, 3 * kMiB);
    user_.take(blocks_[slot++], 64 * kMiB);
    user_.take_aligned(blocks_[slot++], 2 * kMiB, 100);
    next_step();
    // More than one span of a class.
    while (slot < 60) user_.take(blocks_[slot++], 9000);
    next_step();
    // Every second one is free again.
    for (slot = 1; slot < 60; slot += 2) user_.give(blocks_[slot]);
    next_step();
  }

  void resize() {
    Block& block = blocks_[100];
    user_.take(block, 100);
    for (const std::size_t size : {kKiB, 40 * kKiB, 200 * kKiB, 3 * kMiB / 2, 6 * kMiB}) {
      user_.resize(block, size);
      user_.take(blocks_[101], 70 * kKiB);  // something may be in the way next time
      next_step();
      user_.give(blocks_[101]);
    }
    user_.take(blocks_[102], 2 * kMiB);
    user_.resize(block, 12 * kMiB);
    next_step();
    for (const std::size_t size : {9 * kMiB, 600 * kKiB, 50 * kKiB, std::size_t{64}}) {
      user_.resize(block, size);
      next_step();
    }
    if (Api::huge_bytes() == 0) move_pages();
    if (Api::huge_bytes() != 0) {
      user_.take(blocks_[103], Api::huge_bytes());
      user_.resize(blocks_[103], Api::huge_bytes() + 2 * kMiB);
      user_.resize(blocks_[103], Api::huge_bytes() + kMiB);
      next_step();
    }
    for (unsigned slot = 100; slot < 105; ++slot) user_.give(blocks_[slot]);
    Api::trim();
    next_step();
  }

  // Two that are in each other's way, with no warm memory that would make copying
  // cheaper than moving pages.
  void move_pages() {
    Api::trim();
    user_.take(blocks_[103], kWide);
    user_.take(blocks_[104], kWide);
    Api::trim();
    user_.resize(blocks_[103], kWide + 5 * kMiB);
    next_step();
    user_.resize(blocks_[104], kWidest);
    next_step();
    user_.give(blocks_[103]);
    Api::trim();
    next_step();
  }

  // Frees, time, frees: whoever passes by purges what has been free for long.
  void decay() {
    for (unsigned round = 0; round < 4; ++round) {
      for (unsigned i = 0; i < 6; ++i) {
        Block& block = blocks_[110 + i];
        user_.take(block, (40 * kKiB) << i);
        next_step();
      }
      for (unsigned i = 0; i < 6; i += 1 + round % 2) user_.give(blocks_[110 + i]);
      kernel::advance_clock(30);
      user_.take(blocks_[117], 50 * kKiB);
      user_.give(blocks_[117]);
      for (unsigned i = 0; i < 6; i += 1 + round % 2) user_.give(blocks_[110 + i]);
      user_.take_zeroed(blocks_[116], 250 * kKiB << round);
      next_step();
      user_.give(blocks_[116]);
      for (unsigned i = 0; i < 6; ++i) user_.give(blocks_[110 + i]);
    }
  }

  // Frees half, gives it to the kernel, and takes it at other sizes.
  void return_and_reuse() {
    for (unsigned slot = 0; slot < 60; slot += 4) user_.give(blocks_[slot]);
    Api::trim();
    next_step();
    for (unsigned i = 0; i < 6; ++i)
      user_.take_zeroed(blocks_[120 + i], (std::size_t{13} << (3 * i)) + 1);
    next_step();
    for (unsigned i = 0; i < 6; ++i) user_.give(blocks_[120 + i]);
    Api::trim();
    Api::trim();
    for (unsigned i = 0; i < 4; ++i) user_.take(blocks_[120 + i], (i + 1) * 5 * kMiB);
    next_step();
    for (unsigned i = 0; i < 4; ++i) user_.give(blocks_[120 + i]);
    next_step();
  }

  // A thread that takes its own blocks, sleeps while the first one frees some of them, frees some
  // of the first one's, and leaves the rest behind.
  void second_thread(bool must) {
    for (unsigned i = 0; i < 8; ++i) user_.take(blocks_[130 + i], std::size_t{200} << (i % 4));
    sem_init(&wakes_, 0, 0);
    sem_init(&sleeps_, 0, 0);
    pthread_t thread{};
    // Of a library that replaces malloc libc asks for the thread's memory, too.
    const int error = pthread_create(
        &thread, nullptr,
        [](void* self) -> void* {
          static_cast<RefusalProgram*>(self)->second();
          return nullptr;
        },
        this);
    if (error != 0 && (must || error != EAGAIN)) user_.fail("pthread_create: error %d", error);
    if (error == 0) {
      sem_wait(&sleeps_);
      next_step();
      for (unsigned i = 0; i < 12; i += 2) user_.give(blocks_[140 + i]);
      for (unsigned i = 12; i < 16; ++i) user_.take(blocks_[140 + i], 150);
      next_step();
      sem_post(&wakes_);
      pthread_join(thread, nullptr);
      next_step();
    }
    for (unsigned i = 0; i < 30; ++i) user_.give(blocks_[130 + i]);
    sem_destroy(&wakes_);
    sem_destroy(&sleeps_);
  }

  void second() {
    static constexpr std::size_t kSizes[] = {64,   64,        1000,      1000,     8000,
                                             8000, 50 * kKiB, 50 * kKiB, 2 * kMiB, 2 * kMiB};
    for (unsigned i = 0; i < 10; ++i) user_.take(blocks_[140 + i], kSizes[i]);
    for (unsigned i = 10; i < 12; ++i) user_.take(blocks_[140 + i], 300);
    sem_post(&sleeps_);
    sem_wait(&wakes_);
    for (unsigned i = 0; i < 8; i += 2) user_.give(blocks_[130 + i]);
    user_.take(blocks_[158], 70);
    user_.take_zeroed(blocks_[159], 90 * kKiB);
  }

  User user_;
  Block blocks_[kBlocks];
  sem_t wakes_;
  sem_t sleeps_;
};

/// Some threads at once, all on the same blocks, each of which one thread has at a time: what one
/// takes another resizes and frees.
template <class Api>
class RefusalThreads {
  using User = RefusalUser<Api>;
  static constexpr std::size_t kKiB = User::kKiB;
  static constexpr std::size_t kMiB = User::kMiB;

 public:
  RefusalThreads(kernel::Books& books, std::uint64_t seed) : books_(books), seed_(seed) {}

  void run() {
    // Two generations: threads end under refusals, too.
    for (unsigned generation = 0; generation < 2; ++generation) {
      pthread_t threads[kThreads];
      bool runs[kThreads];
      for (unsigned i = 0; i < kThreads; ++i)
        runs[i] = pthread_create(&threads[i], nullptr, start, this) == 0;
      for (unsigned i = 0; i < kThreads; ++i) {
        if (runs[i]) pthread_join(threads[i], nullptr);
      }
    }
    kernel::disarm();
    User user(books_, seed_ << 32, true);
    for (Slot& slot : slots_) user.check(slot.block);
    for (Slot& slot : slots_) user.ask_again(slot.block);
    for (Slot& slot : slots_) user.give(slot.block);
    user.take_most();
    Api::trim();
  }

 private:
  static constexpr unsigned kThreads = 3;
  static constexpr unsigned kSlots = 48;
  static constexpr unsigned kSteps = 150;

  struct Slot {
    std::atomic<bool> taken{false};
    typename User::Block block;
  };

  static void* start(void* self) {
    static_cast<RefusalThreads*>(self)->work();
    return nullptr;
  }

  void work() {
    const std::uint64_t number = started_.fetch_add(1) + 1;
    Random random(seed_ * 64 + number);
    const auto any_size = [&] {
      return 1 + random.below(std::size_t{16} << random.below(20));
    };  // up to 8 MiB
    User user(books_, (seed_ << 32) + (number << 24), false);
    for (user.step = 0; user.step < kSteps; ++user.step) {
      Slot& slot = slots_[random.below(kSlots)];
      if (slot.taken.exchange(true)) continue;
      user.check(slot.block);
      if (slot.block.wanted != 0 && slot.block.start != nullptr) {
        random.one_in(3) ? user.resize(slot.block, any_size()) : user.give(slot.block);
      } else if (const std::size_t way = random.below(8); way == 0) {
        user.take_aligned(slot.block, std::size_t{16} << random.below(17), any_size());
      } else {
        way < 3 ? user.take_zeroed(slot.block, any_size()) : user.take(slot.block, any_size());
      }
      slot.taken.store(false);
      if (random.one_in(8)) kernel::advance_clock(5);
      if (random.one_in(32)) Api::trim();
    }
  }

  kernel::Books& books_;
  std::uint64_t seed_;
  std::atomic<std::uint64_t> started_{0};
  Slot slots_[kSlots];
};

}  // namespace spanalloc::test
