// The only door to atomic memory. Every operation carries its memory order in its name; there are
// no defaults, no operator overloads and no standalone fences (thread sanitizer does not see
// fences), so that each call site shows what it relies on and a reviewer can ask why.
//
// Model tests replace this file as a whole: when SPANALLOC_ATOMIC_BACKEND names a header, that
// header supplies all that is defined here, and every structure built on it runs under the model
// scheduler.
#pragma once

#ifdef SPANALLOC_ATOMIC_BACKEND
#include SPANALLOC_ATOMIC_BACKEND
#else

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/compiler.hpp"

namespace spanalloc {

/// One atomic variable of a lock-free machine type of at most 8 bytes.
template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  static_assert(std::atomic<T>::is_always_lock_free);

 public:
  constexpr Atomic() noexcept : cell_{} {}
  constexpr explicit Atomic(T initial) noexcept : cell_(initial) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load_relaxed() const noexcept {
    if constexpr (kPlainRelaxed) return *reinterpret_cast<const volatile T*>(&cell_);
    return cell_.load(std::memory_order_relaxed);
  }
  T load_acquire() const noexcept { return cell_.load(std::memory_order_acquire); }
  /// Of the value its lowest byte alone: compilers narrow no atomic load. (Both machines store that
  /// byte first, and show a byte of a word that is stored at once as they show the word.)
  std::uint8_t load_low_byte_relaxed() const noexcept {
    return __atomic_load_n(reinterpret_cast<const std::uint8_t*>(&cell_), __ATOMIC_RELAXED);
  }
  T load_seq_cst() const noexcept { return cell_.load(std::memory_order_seq_cst); }

  void store_relaxed(T value) noexcept {
    if constexpr (kPlainRelaxed) {
      *reinterpret_cast<volatile T*>(&cell_) = value;
    } else {
      cell_.store(value, std::memory_order_relaxed);
    }
  }
  void store_release(T value) noexcept { cell_.store(value, std::memory_order_release); }
  void store_seq_cst(T value) noexcept { cell_.store(value, std::memory_order_seq_cst); }

  T exchange_acquire(T value) noexcept { return cell_.exchange(value, std::memory_order_acquire); }
  T exchange_acq_rel(T value) noexcept { return cell_.exchange(value, std::memory_order_acq_rel); }

  // A failed compare-exchange stores the value seen in `expected`; its order is
  // the load half of the name.
  bool compare_exchange_weak_relaxed(T& expected, T desired) noexcept {
    return cell_.compare_exchange_weak(expected, desired, std::memory_order_relaxed,
                                       std::memory_order_relaxed);
  }
  bool compare_exchange_weak_release(T& expected, T desired) noexcept {
    return cell_.compare_exchange_weak(expected, desired, std::memory_order_release,
                                       std::memory_order_relaxed);
  }
  bool compare_exchange_weak_acq_rel(T& expected, T desired) noexcept {
    return cell_.compare_exchange_weak(expected, desired, std::memory_order_acq_rel,
                                       std::memory_order_acquire);
  }
  bool compare_exchange_strong_acquire(T& expected, T desired) noexcept {
    return cell_.compare_exchange_strong(expected, desired, std::memory_order_acquire,
                                         std::memory_order_acquire);
  }
  bool compare_exchange_strong_acq_rel(T& expected, T desired) noexcept {
    return cell_.compare_exchange_strong(expected, desired, std::memory_order_acq_rel,
                                         std::memory_order_acquire);
  }
  bool compare_exchange_strong_seq_cst(T& expected, T desired) noexcept {
    return cell_.compare_exchange_strong(expected, desired, std::memory_order_seq_cst,
                                         std::memory_order_seq_cst);
  }

  T fetch_add_relaxed(T value) noexcept {
    return cell_.fetch_add(value, std::memory_order_relaxed);
  }
  T fetch_sub_relaxed(T value) noexcept {
    return cell_.fetch_sub(value, std::memory_order_relaxed);
  }
  T fetch_add_acq_rel(T value) noexcept {
    return cell_.fetch_add(value, std::memory_order_acq_rel);
  }
  T fetch_sub_acq_rel(T value) noexcept {
    return cell_.fetch_sub(value, std::memory_order_acq_rel);
  }
  T fetch_add_seq_cst(T value) noexcept {
    return cell_.fetch_add(value, std::memory_order_seq_cst);
  }

  /// By the only thread that writes it: takes one off, with a release store. True: that makes it 0.
  /// One instruction where the machine has it, which compilers make of no two atomic operations.
  [[gnu::always_inline]] bool count_down_release() noexcept {
    static_assert(sizeof(T) == 4);
#if defined(__x86_64__)
    if constexpr (!kThreadSanitizer) {
      bool zero;
      asm volatile("subl $1, %0" : "+m"(cell_), "=@ccz"(zero) : : "memory");
      return zero;
    }
#endif
    const T left = load_relaxed() - 1;
    store_release(left);
    return left == 0;
  }

  T fetch_or_relaxed(T value) noexcept { return cell_.fetch_or(value, std::memory_order_relaxed); }
  T fetch_and_relaxed(T value) noexcept {
    return cell_.fetch_and(value, std::memory_order_relaxed);
  }
  T fetch_or_seq_cst(T value) noexcept { return cell_.fetch_or(value, std::memory_order_seq_cst); }
  T fetch_and_seq_cst(T value) noexcept {
    return cell_.fetch_and(value, std::memory_order_seq_cst);
  }

 private:
  // On 64-bit Arm GCC computes the address of an atomic access in a register of its own, also
  // where the load or store that it is could add an offset. A volatile access of a machine word is
  // the same one instruction.
#if defined(__aarch64__)
  static constexpr bool kPlainRelaxed = std::is_scalar_v<T> && !kThreadSanitizer;
#else
  static constexpr bool kPlainRelaxed = false;
#endif

  std::atomic<T> cell_;
};

/// A variable of a shared structure that is not atomic: its owner or a lock guards it, as its
/// comment says. Nothing but T itself here; the models check each access for data races.
template <class T>
using Plain = T;

/// Stores to a word that is not atomic, of memory that its thread alone uses, after all stores
/// before: for a fork's child, which finds memory as it was at one instant.
inline void store_in_order(unsigned long& word, unsigned long value) noexcept {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

/// A word that one thread at a time writes, and reads by instructions that take it as
/// their operand, which compilers allow of no atomic; others read it atomically at any
/// time.
class OwnersWord {
 public:
  unsigned long long read_own() const noexcept { return kThreadSanitizer ? load_relaxed() : word_; }
  unsigned long long load_relaxed() const noexcept {
    return __atomic_load_n(&word_, __ATOMIC_RELAXED);
  }
  void store_relaxed(unsigned long long value) noexcept {
    __atomic_store_n(&word_, value, __ATOMIC_RELAXED);
  }

  // By its owner, in one instruction where the machine has it: adds one,
  [[gnu::always_inline]] void count_up() noexcept {
    if constexpr (kThreadSanitizer) {
      store_relaxed(load_relaxed() + 1);
    } else {
      ++word_;
    }
  }
  /// adds so many (or takes them off: modulo 2^64),
  [[gnu::always_inline]] void add(unsigned long long value) noexcept {
    if constexpr (kThreadSanitizer) {
      store_relaxed(load_relaxed() + value);
    } else {
      word_ += value;
    }
  }
  /// takes one off. False: it is 0, and nothing is written.
  [[gnu::always_inline]] bool take_one() noexcept {
#if defined(__x86_64__)
    // Compilers load, compare, subtract and store. (And what is read again behind it, they read
    // again: by the instruction that needs it.)
    if constexpr (!kThreadSanitizer) {
      asm goto("cmpq $0, %0\n\tje %l[none]\n\tsubq $1, %0" : : "m"(word_) : "cc", "memory" : none);
      return true;
    none:
      return false;
    }
#endif
    const unsigned long long word = read_own();
    if (word == 0) return false;
    store_relaxed(word - 1);
    return true;
  }

 private:
  unsigned long long word_ = 0;
};

/// A word that is 0 until somebody sets it, and constant from then on; read by instructions
/// that take it as their operand, which compilers allow of no atomic. A reader that races
/// with the setting gets either value, and must be content with both.
class SetOnce {
 public:
  unsigned long long read() const noexcept {
    return kThreadSanitizer ? __atomic_load_n(&word_, __ATOMIC_RELAXED) : word_;
  }
  /// The first one's value stays.
  void set(unsigned long long value) noexcept {
    unsigned long long unset = 0;
    __atomic_compare_exchange_n(&word_, &unset, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

 private:
  unsigned long long word_ = 0;
};

/// Tells the core that this is a spin-wait.
inline void spin_hint() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` is nothing on most cores: waiters would be through with their spins in a microsecond.
  // This waits for the pipeline, some tens of cycles, like `pause` on x86-64.
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace spanalloc
#endif
