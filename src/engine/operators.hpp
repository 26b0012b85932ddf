// Whether operator new and delete leave the engine: they go through the process's malloc and free
// where these are another library's, so that a tracer sees each call, and a malloc that a program
// has itself serves its operators, too. The loader has settled that before any code of this library
// runs.
//
// An engine's fast paths do not ask. For an operator they read one word that an engine keeps
// besides for this (a key, a table, a pointer), in the place of the one that malloc and free read:
// the same, or where the operator leaves one that no call passes. So such a call costs a hit
// nothing, and in the slow path the operator is asked whether it leaves.
#pragma once

#include <concepts>
#include <cstddef>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

/// Defined by a library that has operators. Elsewhere none leaves. Any thread, any time.
[[gnu::weak]] bool ask_whether_operators_leave() noexcept;

/// The answer, asked for once: a tool that attaches later may bind the names anew.
class OperatorsLeave {
 public:
  SPANALLOC_INLINE bool read() {
    const std::uint8_t answer = answer_.load_relaxed();
    return SPANALLOC_UNLIKELY(answer == kUnknown) ? ask() : answer == kYes;
  }

 private:
  enum Answer : std::uint8_t { kUnknown, kNo, kYes };

  // Relaxed: nothing else is behind it, and all who ask get the same answer.
  SPANALLOC_COLD bool ask() {
    const bool leave = &ask_whether_operators_leave != nullptr && ask_whether_operators_leave();
    answer_.store_relaxed(leave ? kYes : kNo);
    return leave;
  }

  Atomic<std::uint8_t> answer_{kUnknown};
};
inline constinit OperatorsLeave operators_leave{};

/// What links of free blocks are stored under: chosen before there is a block, and constant from
/// then on. Alone in its cache line, which nobody writes.
struct alignas(kCacheLine) LinkKey : SetOnce {
  // Bit 1 is set: no key is 0, and a cleared word is no link. Bit 0 is clear.
  void choose(std::uint64_t random) {
    set((random & ~std::uint64_t{1}) | 2);
    // Under the complement each link has bits that no link has.
    of_new.set(operators_leave.read() ? ~read() : read());
  }
  /// The key that operator new reads links under: where it leaves the engine it finds none.
  SetOnce of_new;

  template <class Caller>
  SPANALLOC_INLINE std::uint64_t read_by() const;
};

/// The caller of a function of an engine, if it may be one that leaves. What is no operator says
/// nothing.
template <class Caller>
concept OperatorNew = requires(std::size_t n) {
  { Caller::leaves() } -> std::same_as<bool>;
  { Caller::allocate_elsewhere(n) } -> std::same_as<void*>;
};
template <class Caller>
concept OperatorDelete = requires(void* p) {
  { Caller::leaves() } -> std::same_as<bool>;
  { Caller::free_elsewhere(p) };
};

template <class Caller>
SPANALLOC_INLINE std::uint64_t LinkKey::read_by() const {
  if constexpr (OperatorNew<Caller>) return of_new.read();
  return read();
}

template <class Caller>
concept Operator = OperatorNew<Caller> || OperatorDelete<Caller>;

/// free and the like.
struct NoOperator {};

}  // namespace spanalloc
