// What every free looks at first: which virtual spans there are, and what each one is used for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engine/operators.hpp"
#include "papers/scalloc/engine/numbers.hpp"
#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/scalloc/engine/span.hpp"

namespace spanalloc::scalloc {

/// What a virtual span is used for. It may index every table with an entry for each class: the
/// entries of the marks that are no class belong to no span. As wide as an index: a ClassId would
/// cost malloc's fast path a conversion.
class Mark {
 public:
  static constexpr Mark nothing() { return Mark(0); }  ///< no span was ever carved there
  static constexpr Mark free() { return Mark(kFreeClass); }
  static constexpr Mark of_class(ClassId size_class) { return Mark(index_of(size_class)); }
  /// Of class_of(size), size <= kSmallMax; nothing for size 0.
  static constexpr Mark of_small(std::size_t size) { return Mark(small_class_index(size)); }

  constexpr bool is_nothing() const { return value_ == 0; }
  constexpr bool is_free() const { return value_ == kFreeClass; }
  constexpr bool is_class() const { return value_ - 1 < kClasses - 1; }
  constexpr ClassId size_class() const {
    SPANALLOC_ASSERT(is_class());
    return ClassId{static_cast<std::uint32_t>(value_)};
  }
  constexpr std::size_t index() const { return value_; }
  constexpr bool operator==(const Mark&) const = default;

 private:
  friend class MarkByte;
  explicit constexpr Mark(std::size_t value) : value_(value) {}

  std::size_t value_;
};

/// A mark as it stands in memory.
class MarkByte {
 public:
  Mark load() const { return Mark(byte_.load_relaxed()); }
  void store(Mark mark) {
    SPANALLOC_ASSERT(mark.index() < kClassEntries);
    // Release: a fork's child that sees the mark sees what was written of the span before it.
    byte_.store_release(static_cast<std::uint8_t>(mark.index()));
  }

 private:
  Atomic<std::uint8_t> byte_;
};
static_assert(sizeof(MarkByte) == 1);

/// For what slice_of() made, once it is known to lie below the limit.
constexpr SliceNumber known_slice(std::size_t slice) {
  return SliceNumber{static_cast<std::uint32_t>(slice)};
}

/// All constant once started but limit (which grows) and the marks.
struct Directory {
  Atomic<std::uintptr_t> base{0};  // of the arena; virtual span g starts at base + g * kVirtualSpan
  Atomic<std::size_t> limit{0};    // marks below this number may be read
  // One byte a virtual span. Keeps a free of a wild pointer from touching memory that was never
  // opened or that is not ours.
  Atomic<MarkByte*> marks{nullptr};

  /// Of any address: no SliceNumber before it has been compared with the limit, which a foreign
  /// address could pass if it were cut to 32 bits first.
  std::size_t slice_of(std::uintptr_t address) const {
    return (address - base.load_relaxed()) >> kVirtualSpanBits;
  }
  SliceNumber number_of(const Span* span) const { return known_slice(slice_of(span->address())); }
  Mark mark(SliceNumber number) const { return marks.load_relaxed()[index_of(number)].load(); }
  void set_mark(SliceNumber number, Mark mark) const {
    marks.load_relaxed()[index_of(number)].store(mark);
  }
  Span* span(SliceNumber number) const {
    return pointer_to<Span>(base.load_relaxed() +
                            (std::size_t{index_of(number)} << kVirtualSpanBits));
  }
  /// Nothing for every address outside spans.
  Mark mark_of(const void* p) const {
    const std::size_t slice = slice_of(address_of(p));
    return slice < limit.load_relaxed() ? mark(known_slice(slice)) : Mark::nothing();
  }
  /// f(Span*, Mark) for every slice known so far in which a span was carved.
  template <class F>
  void for_each_span(F&& f) const {
    const std::size_t end = limit.load_acquire();  // acquire: the marks below it are open
    for (std::size_t slice = 0; slice < end; ++slice) {
      const SliceNumber number = known_slice(slice);
      if (const Mark found = mark(number); !found.is_nothing()) f(span(number), found);
    }
  }
};

/// A thread's copy of the directory: plain words that nobody else writes.
struct DirectoryView {
  std::uintptr_t base = 0;
  // May lag behind: what seems to lie outside is looked up in the directory itself
  std::size_t limit = 0;
  const MarkByte* marks = nullptr;
  std::size_t limit_of_delete = 0;  // the same; 0 where operator delete leaves the engine

  void set_limit(std::size_t slices) {
    limit = slices;
    limit_of_delete = operators_leave.read() ? 0 : slices;
  }
  template <class Caller>
  std::size_t limit_for() const {
    if constexpr (OperatorDelete<Caller>) return limit_of_delete;
    return limit;
  }
  std::size_t slice_of(std::uintptr_t address) const {
    return (address - base) >> kVirtualSpanBits;
  }
  /// Of a slice below the limit: known_slice() would cost the fast path an instruction.
  Mark mark(std::size_t slice) const { return marks[slice].load(); }
};

/// The start of the virtual span, and so the header of the span, that an address
/// in the arena belongs to.
inline Span* span_at(const void* p) {
  return pointer_to<Span>(align_down(address_of(p), kVirtualSpan));
}

}  // namespace spanalloc::scalloc
