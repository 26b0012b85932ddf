// The model checker's stand-in for base/atomic.hpp: the same class template with the same
// operations, each of which asks the running exploration what happens.
//
// An Atomic<T> here is as large and as aligned as T, so that production structs keep their layout;
// what the model knows about a variable (who has read and written it, its clocks, its older values)
// stands in a side table keyed by address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace spanalloc::model {

enum class Order : std::uint8_t { relaxed, acquire, release, acq_rel, seq_cst };

/// True while a thread of an exploration runs. Everybody else (constructors, checks at rest)
/// acts on memory directly.
inline bool modelled = false;
/// How often they may read before that counts as an endless loop.
inline std::uint64_t loads_left = UINT64_MAX;
[[noreturn]] void endless_loop();

// One operation of the running thread on `bytes` bytes at `cell`.
std::uint64_t atomic_load(const void* cell, unsigned bytes, Order order);
void atomic_store(void* cell, unsigned bytes, std::uint64_t value, Order order);
// A read-modify-write is read_for_update, then exactly one of write_update and
// keep; nothing comes between.
std::uint64_t atomic_read_for_update(void* cell, unsigned bytes, Order order);
void atomic_write_update(void* cell, unsigned bytes, std::uint64_t value, Order order);
void atomic_keep(void* cell, unsigned bytes, Order order);
bool fails_spuriously();

// One access to a variable that no two threads may touch without ordering between them; see Plain.
void plain_access(const void* cell, bool write);

void yield();

/// Before a store that a fork's child finds behind all before it: in an exploration of forks the
/// running thread's stores arrive.
void store_in_order(const void* cell);

}  // namespace spanalloc::model

namespace spanalloc {

template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  using Order = model::Order;

 public:
  constexpr Atomic() noexcept : cell_{} {}
  constexpr explicit Atomic(T initial) noexcept : cell_(initial) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  bool count_down_release() noexcept {
    const T left = load_relaxed() - 1;
    store_release(left);
    return left == 0;
  }
  T load_relaxed() const noexcept { return load(Order::relaxed); }
  T load_acquire() const noexcept { return load(Order::acquire); }
  T load_seq_cst() const noexcept { return load(Order::seq_cst); }
  std::uint8_t load_low_byte_relaxed() const noexcept {
    return static_cast<std::uint8_t>(load_relaxed());
  }

  void store_relaxed(T value) noexcept { store(value, Order::relaxed); }
  void store_release(T value) noexcept { store(value, Order::release); }
  void store_seq_cst(T value) noexcept { store(value, Order::seq_cst); }

  T exchange_acquire(T value) noexcept { return exchange(value, Order::acquire); }
  T exchange_acq_rel(T value) noexcept { return exchange(value, Order::acq_rel); }
  /// Only models try this one.
  T exchange_seq_cst(T value) noexcept { return exchange(value, Order::seq_cst); }

  bool compare_exchange_weak_relaxed(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::relaxed, Order::relaxed, true);
  }
  bool compare_exchange_weak_release(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::release, Order::relaxed, true);
  }
  bool compare_exchange_weak_acq_rel(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::acq_rel, Order::acquire, true);
  }
  bool compare_exchange_strong_acquire(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::acquire, Order::acquire, false);
  }
  bool compare_exchange_strong_acq_rel(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::acq_rel, Order::acquire, false);
  }
  bool compare_exchange_strong_seq_cst(T& expected, T desired) noexcept {
    return compare_exchange(expected, desired, Order::seq_cst, Order::seq_cst, false);
  }

  T fetch_add_relaxed(T value) noexcept { return fetch_add(value, Order::relaxed); }
  T fetch_sub_relaxed(T value) noexcept { return fetch_sub(value, Order::relaxed); }
  T fetch_add_acq_rel(T value) noexcept { return fetch_add(value, Order::acq_rel); }
  T fetch_sub_acq_rel(T value) noexcept { return fetch_sub(value, Order::acq_rel); }
  T fetch_add_seq_cst(T value) noexcept { return fetch_add(value, Order::seq_cst); }

  T fetch_or_relaxed(T value) noexcept { return fetch_or(value, Order::relaxed); }
  T fetch_and_relaxed(T value) noexcept { return fetch_and(value, Order::relaxed); }
  T fetch_or_seq_cst(T value) noexcept { return fetch_or(value, Order::seq_cst); }
  T fetch_and_seq_cst(T value) noexcept { return fetch_and(value, Order::seq_cst); }

 private:
  static std::uint64_t to_bits(T value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    return bits;
  }
  static T from_bits(std::uint64_t bits) {
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    return value;
  }

  T load(Order order) const {
    if (!model::modelled) {
      if (model::loads_left-- == 0) model::endless_loop();
      return cell_;
    }
    return from_bits(model::atomic_load(&cell_, sizeof(T), order));
  }
  void store(T value, Order order) {
    if (!model::modelled) {
      cell_ = value;
    } else {
      model::atomic_store(&cell_, sizeof(T), to_bits(value), order);
    }
  }

  T exchange(T value, Order order) {
    return update([value](T) { return value; }, order);
  }

  bool compare_exchange(T& expected, T desired, Order success, Order failure, bool weak) {
    if (!model::modelled) {
      if (to_bits(cell_) != to_bits(expected)) {
        expected = cell_;
        return false;
      }
      cell_ = desired;
      return true;
    }
    const std::uint64_t old = model::atomic_read_for_update(&cell_, sizeof(T), success);
    if (old == to_bits(expected) && !(weak && model::fails_spuriously())) {
      model::atomic_write_update(&cell_, sizeof(T), to_bits(desired), success);
      return true;
    }
    model::atomic_keep(&cell_, sizeof(T), failure);
    expected = from_bits(old);
    return false;
  }

  T fetch_add(T value, Order order) {
    return update([value](T old) { return static_cast<T>(old + value); }, order);
  }
  T fetch_sub(T value, Order order) {
    return update([value](T old) { return static_cast<T>(old - value); }, order);
  }
  T fetch_or(T value, Order order) {
    return update([value](T old) { return static_cast<T>(old | value); }, order);
  }
  T fetch_and(T value, Order order) {
    return update([value](T old) { return static_cast<T>(old & value); }, order);
  }
  template <class Change>
  T update(Change change, Order order) {
    if (!model::modelled) return std::exchange(cell_, change(cell_));
    const T old = from_bits(model::atomic_read_for_update(&cell_, sizeof(T), order));
    model::atomic_write_update(&cell_, sizeof(T), to_bits(change(old)), order);
    return old;
  }
  T cell_;
};

/// A variable that is not atomic, watched for data races.
///
/// Two accesses by different threads, at least one a write, must be ordered by a chain of release
/// and acquire operations (happens-before, kept as vector clocks); otherwise the execution fails.
/// So a missing acquire or release is reported even where the values happen to come out right.
template <class T>
class Plain {
 public:
  constexpr Plain() = default;
  constexpr explicit Plain(T initial) : value_(initial) {}
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain& other) {
    set(other.get());
    return *this;
  }
  Plain& operator=(T value) {
    set(value);
    return *this;
  }
  Plain& operator+=(T value) {
    set(static_cast<T>(get() + value));
    return *this;
  }
  operator T() const { return get(); }
  T operator->() const
    requires std::is_pointer_v<T>
  {
    return get();
  }

  T get() const {
    if (model::modelled) model::plain_access(this, false);
    return value_;
  }
  void set(T value) {
    if (model::modelled) model::plain_access(this, true);
    value_ = value;
  }

 private:
  T value_{};
};

/// Ahead of every store behind it, too: more than the library promises, but what a kernel that
/// stops threads for a fork finds.
inline void store_in_order(unsigned long& word, unsigned long value) noexcept {
  if (model::modelled) model::store_in_order(&word);
  word = value;
}

/// A single instruction of its owner's is a load and a store here, and another thread may come
/// between.
class OwnersWord {
 public:
  unsigned long long read_own() const noexcept { return word_.load_relaxed(); }
  unsigned long long load_relaxed() const noexcept { return word_.load_relaxed(); }
  void store_relaxed(unsigned long long value) noexcept { word_.store_relaxed(value); }
  void count_up() noexcept { add(1); }
  void add(unsigned long long value) noexcept { store_relaxed(load_relaxed() + value); }
  bool take_one() noexcept {
    const unsigned long long word = load_relaxed();
    if (word == 0) return false;
    store_relaxed(word - 1);
    return true;
  }

 private:
  Atomic<unsigned long long> word_{0};
};

class SetOnce {
 public:
  unsigned long long read() const noexcept { return word_.load_relaxed(); }
  void set(unsigned long long value) noexcept {
    unsigned long long unset = 0;
    while (unset == 0 && !word_.compare_exchange_weak_relaxed(unset, value)) {
    }
  }

 private:
  Atomic<unsigned long long> word_{0};
};

inline void spin_hint() noexcept {
  model::yield();
}

}  // namespace spanalloc
