// Local allocation buffers (LABs): for each class a hot span and a set of
// reusable spans (Listing 3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/intrusive_list.hpp"
#include "papers/scalloc/engine/hot_spans.hpp"
#include "papers/scalloc/engine/numbers.hpp"
#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/scalloc/engine/span.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::scalloc {

/// Identifies one life of one LAB: {generation : 16, address of the LAB : 48}.
using OwnerWord = std::uint64_t;
inline constexpr OwnerWord kTerminated = 0;

/// Spans of one LAB and one class that its owner can find again.
///
/// Invariant O6: a span is linked into a set exactly while its word says listed; it is the set
/// of the span's owner and class. Linking happens under the lock together with the
/// compare-and-swap that sets `listed` (and reusable); a thread that makes a listed span free
/// afterwards takes the lock and finds it linked, or already taken out. Hence no span is ever
/// both in the pool and in a set.
class ReusableSet {
 public:
  SpinLock lock;
  // Under the lock; read without it as a hint. kTerminated: closed, nothing is linked. (But what a
  // fork has interrupted while it was closing: then its child's repair links what was.)
  Atomic<OwnerWord> owner{kTerminated};

  Span* first_reusable() const { return reusable_.first(); }
  /// Floating spans that may be empty without anybody having noticed. Readable
  /// without the lock as a hint.
  Span* first_suspect() const { return suspects_.first(); }
  /// Of either list, nullptr when both are empty.
  Span* first() const { return suspects_.is_empty() ? reusable_.first() : suspects_.first(); }

  void link(Span* span, SetList list) {
    SPANALLOC_ASSERT(lock.is_mine());                                              // O6
    SPANALLOC_ASSERT(span->set_list == SetList::kNone && list != SetList::kNone);  // O6
    if (list == SetList::kSuspects) {
      suspects_.push_front(span, kLinks);
    } else {
      reusable_.push_front(span, kLinks);
    }
    span->set_list = list;
  }
  /// Takes the span out if it is in; false if not.
  bool unlink(Span* span) {
    SPANALLOC_ASSERT(lock.is_mine());  // O6
    const SetList list = span->set_list;
    if (list == SetList::kNone) return false;
    if (list == SetList::kSuspects) {
      suspects_.remove(span, kLinks);
    } else {
      reusable_.remove(span, kLinks);
    }
    span->set_list = SetList::kNone;
    return true;
  }
  /// In a fork's child: nothing is linked.
  void forget() {
    reusable_.forget();
    suspects_.forget();
  }

 private:
  static constexpr MemberLinks<Span, &Span::set_next, &Span::set_previous> kLinks{};

  IntrusiveList<Span*> reusable_;                 // state reusable
  IntrusiveList<Span*, Atomic<Span*>> suspects_;  // state floating
};

struct alignas(kCacheLine) Lab {
  // Shared: whose life this is; kTerminated between lives. Written by whoever
  // begins or ends the life.
  Atomic<OwnerWord> owner{kTerminated};
  // Constant during a life.
  HotSpans* hot = nullptr;
  std::uint32_t core = 0;  // index of this LAB's stacks in the span-pool
  bool shared = false;     // used by any thread that holds `lock`
  // Written by whoever begins a life, first of all: the heap's `forks_`, as long as
  // the life's thread is there.
  Atomic<std::uint32_t> forks{0};
  // Only for shared LABs; taken before any set's lock.
  SpinLock lock;
  // Written by whoever begins a life: between lives nobody else has the LAB.
  std::uint16_t generation = 0;
  // thread::RecordRegistry's: every LAB there ever was. LABs are reused and go away with their heap
  // only: an owner word stays readable as long.
  Lab* next_idle = nullptr;
  Lab* next_of_all = nullptr;

  ReusableSet sets[kClasses];

  ReusableSet& set(ClassId c) { return sets[index_of(c)]; }

  OwnerWord owner_word() const { return owner.load_relaxed(); }  // for the owner itself
};

inline Lab* lab_of(OwnerWord owner) {
  return pointer_to<Lab>(owner & ((std::uintptr_t{1} << 48) - 1));
}
inline OwnerWord make_owner(const Lab* lab, std::uint16_t generation) {
  SPANALLOC_ASSERT(address_of(lab) >> 48 == 0);
  return address_of(lab) | OwnerWord{generation} << 48;
}

struct SharedLab : Lab {
  HotSpans own_hot{};
};

}  // namespace spanalloc::scalloc
