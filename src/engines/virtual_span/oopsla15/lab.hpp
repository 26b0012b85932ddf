// Local allocation buffers (LABs): for each class a hot span and a set of reusable spans (Listing 3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "engines/virtual_span/oopsla15/span.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::oopsla15 {

/// Identifies one life of one LAB: {generation : 16, address of the LAB : 48}.
using OwnerWord = std::uint64_t;
inline constexpr OwnerWord kTerminated = 0;

/// A doubly linked list through Span::set_next/set_previous; constant-time insert and remove of any span.
class SpanList {
 public:
  Span* first() const { return first_; }
  void forget() { first_ = nullptr; }
  void push_front(Span* span) {
    span->set_previous = nullptr;
    span->set_next = first_;
    if (first_ != nullptr) first_->set_previous = span;
    first_ = span;
  }
  void remove(Span* span) {
    (span->set_previous != nullptr ? span->set_previous->set_next : first_) = span->set_next;
    if (span->set_next != nullptr) span->set_next->set_previous = span->set_previous;
  }

 private:
  Plain<Span*> first_{nullptr};
};

/// Spans of one LAB and one class that its owner can find again.
///
/// Linking happens under the lock together with the compare-and-swap that sets `listed` (and reusable);
/// a thread that makes a listed span free afterwards takes the lock and finds it linked, or already taken
/// out. Hence no span is ever both in the pool and in a set.
struct ReusableSet {
  SpinLock lock;
  // Under the lock; read without it as a hint. kTerminated: closed, nothing is linked.
  Atomic<OwnerWord> owner{kTerminated};
  SpanList reusable;  // state reusable
  SpanList suspects;  // state floating: may be empty without anybody having noticed
  // Mirrors suspects.first() != nullptr, readable without the lock (as a hint).
  Atomic<std::uint32_t> has_suspects{0};

  void link(Span* span, bool suspect) {
    (suspect ? suspects : reusable).push_front(span);
    span->in_suspects = suspect;
    span->in_reusable = !suspect;
    if (suspect) has_suspects.store_relaxed(1);
  }
  /// In a fork's child: nothing is linked.
  void forget() {
    reusable.forget();
    suspects.forget();
    has_suspects.store_relaxed(0);
  }
  /// Takes the span out if it is in; false if not.
  bool unlink(Span* span) {
    if (span->in_reusable) {
      reusable.remove(span);
    } else if (span->in_suspects) {
      suspects.remove(span);
      has_suspects.store_relaxed(suspects.first() != nullptr);
    } else {
      return false;
    }
    span->in_reusable = span->in_suspects = false;
    return true;
  }
};

/// What the fast paths touch, indexed by a mark of the class table: entries 0 and kFreeClass stay null, so
/// that no mark but a class ever matches. Invariant: list[c] is a chain of free blocks of hot[c].
struct HotSpans {
  FreeBlock* list[kClassEntries];
  Span* hot[kClassEntries];
};

struct alignas(kCacheLine) Lab {
  // Shared: whose life this is; kTerminated between lives. Written by whoever begins or ends the life.
  Atomic<OwnerWord> owner{kTerminated};
  // Constant during a life.
  HotSpans* hot = nullptr;
  std::uint32_t core = 0;  // index of this LAB's stacks in the span-pool
  bool shared = false;     // used by any thread that holds `lock`
  // Only for shared LABs; taken before any set's lock.
  SpinLock lock;
  // Written by whoever begins a life: between lives nobody else has the LAB.
  std::uint16_t generation = 0;
  // Under the registry's lock.
  Lab* next_free = nullptr;
  // Constant once the LAB is in the registry's list of all.
  Lab* next_of_all = nullptr;

  ReusableSet sets[kClasses];

  OwnerWord owner_word() const { return owner.load_relaxed(); }  // for the owner itself
};

inline Lab* lab_of(OwnerWord owner) {
  return pointer_to<Lab>(owner & ((std::uintptr_t{1} << 48) - 1));
}
inline OwnerWord make_owner(const Lab* lab, std::uint16_t generation) {
  return address_of(lab) | OwnerWord{generation} << 48;
}

struct SharedLab : Lab {
  HotSpans own_hot{};
};

/// Every LAB there ever was. LABs are reused and never given back: an owner word stays readable for ever.
class LabRegistry {
 public:
  /// A LAB without a life; the caller opens it. nullptr when memory is out.
  Lab* take() {
    LockGuard guard(lock_);
    if (Lab* lab = free_; lab != nullptr) {
      free_ = lab->next_free;
      return lab;
    }
    // A fork's child may find this half done: then a LAB or a chunk is lost, none is handed out twice.
    std::uintptr_t place = chunk_.load_relaxed();
    if (place % kChunk + sizeof(Lab) > kChunk || place == 0) {
      place = address_of(os::map(kChunk, kChunk));
      if (place == 0) return nullptr;
    }
    chunk_.store_release(place + sizeof(Lab));
    Lab* lab = new (pointer_to(place)) Lab;
    publish_locked(lab);
    return lab;
  }

  void give_back(Lab* lab) {
    LockGuard guard(lock_);
    lab->next_free = free_;
    free_ = lab;
  }

  /// Makes a LAB that lives elsewhere visible to walkers, once.
  void publish(Lab* lab) {
    LockGuard guard(lock_);
    bool known = false;
    for_each([&](const Lab& other) { known = known || &other == lab; });
    if (!known) publish_locked(lab);
  }

  /// Calls f(Lab&) for every LAB, living or not; LABs made meanwhile may be missed.
  template <class F>
  void for_each(F&& f) const {
    for (Lab* lab = all_.load_acquire(); lab != nullptr; lab = lab->next_of_all) f(*lab);
  }

  /// In a fork's child: unused is every LAB for which `unused(lab)` says so, whatever a vanished thread was
  /// about to do here.
  template <class Unused>
  void recover_in_child(Unused&& unused) {
    if (lock_.owner_died()) lock_.reset();
    free_ = nullptr;
    for_each([&](Lab& lab) {
      if (unused(lab)) give_back(&lab);
    });
  }

 private:
  static constexpr std::size_t kChunk = 64 * kKiB;
  static_assert(kChunk % sizeof(Lab) != 0);  // the end of a full chunk must not look like the start of one

  void publish_locked(Lab* lab) {
    lab->next_of_all = all_.load_relaxed();
    all_.store_release(lab);  // release: walkers find a constructed LAB
  }

  SpinLock lock_;  // guards everything below
  Lab* free_ = nullptr;
  Atomic<std::uintptr_t> chunk_{0};  // where the next one goes, in a chunk aligned to its size
  Atomic<Lab*> all_{nullptr};        // read without the lock: LABs are only added
};

}  // namespace spanalloc::oopsla15
