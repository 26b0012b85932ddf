// A thread's own cache: two lists of free objects a bin, each of up to 8 KiB (section 8). Only its
// thread touches it, so that nothing is locked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/object_list.hpp"

namespace spanalloc::supermalloc {

/// A list's first object, of a list that is empty at first.
struct FirstObject : Atomic<FreeObject*> {
  constexpr FirstObject() : Atomic(&end_of_list) {}
};

/// A list that waits. Its count anybody may read, for statistics.
struct SpareList {
  FirstObject first;
  Atomic<std::uint32_t> count{0};

  bool is_empty() const { return is_end(first.load_relaxed()); }
  ObjectList get() const { return {first.load_relaxed(), count.load_relaxed()}; }
  void set(ObjectList list) {
    first.store_release(list.first);
    count.store_relaxed(list.count);
  }
};

/// Objects come from and go to a bin's first list; its spare one waits. Invariant T1,
/// between calls: the first list has (most of a list - room) objects; spare[b].count of
/// them are in the spare one.
///
/// A fork's child may find any step of these functions half done: a store to `first` comes after
/// what it publishes. At worst one list is in both places, or the room is off by one (clean_up()).
template <class Config>
struct alignas(kCacheLine) ThreadCache {  // no other thread's on its lines
  using TheBins = Bins<Config>;
  static constexpr BinNumber kBins = TheBins::kFirstLarge;

  // By bin + 1, the tag that the chunk table says. That of 0 is nobody's. Its thread's; atomic
  // for the order of stores.
  FirstObject first[kBins + 1];
  OwnersWord room[kBins + 1];  // objects that the first list still takes; as far apart as `first`s

  SpareList spare[kBins];

  std::uint64_t random = 0;      // for large objects' first lines
  std::uint32_t flushed_at = 0;  // the last wish for memory that was followed
  Atomic<bool> has_thread{false};
  bool is_left_behind = false;  // by a fork: to be cleaned up
  std::uint8_t exit_round = 0;  // thread::ExitKey's
  void* owner = nullptr;        // its ThreadCaches; constant

  // thread::RecordRegistry's.
  ThreadCache* next_idle = nullptr;
  ThreadCache* next_of_all = nullptr;

  /// The cache of a thread that has none: empty, and full.
  constexpr ThreadCache() = default;
  explicit ThreadCache(void* its_owner) : owner(its_owner) {
    for (BinNumber b = 0; b < kBins; ++b) room[b + 1].store_relaxed(most(b));
  }

  static constexpr std::uint32_t most(BinNumber b) { return TheBins::of(b).list_objects; }

  /// An object off the first list of a bin. nullptr: that is empty, or its first object was written
  /// to; slow paths find out which.
  SPANALLOC_INLINE FreeObject* pop(std::size_t tag, Secret secret) {
    FreeObject* object = first[tag].load_relaxed();
    keep_in_result_register(object);
    const std::uintptr_t link = object->link_of_seal(secret);
    if (SPANALLOC_UNLIKELY(link != address_of(object->next))) return nullptr;
    tag = opaque(tag);  // or its slot's address is computed for both uses, in an instruction more
    first[tag].store_relaxed(pointer_to<FreeObject>(link));
    room[tag].count_up();
    // Last: a fork's child takes an object for written to that is on the list and has no seal.
    store_in_order(object->seal, 0);
    return object;
  }
  /// False: the first list is full.
  SPANALLOC_INLINE bool push(std::size_t tag, FreeObject* object, const SetOnce& secret) {
    FirstObject* const slot = opaque(&first[tag]);  // the one address that all of this needs
    // (Nothing is written where there is none: the cache may be the one of all
    // threads that have none.)
    if (SPANALLOC_UNLIKELY(!room_beside(slot).take_one())) return false;
    object->push_on(slot->load_relaxed(), secret);
    slot->store_release(object);
    return true;
  }

  bool has_room(BinNumber b) const { return room[b + 1].load_relaxed() != 0; }
  bool is_empty(BinNumber b) const { return is_end(first[b + 1].load_relaxed()); }
  /// The spare list becomes the first one, which is empty. False: there is none.
  bool use_spare(BinNumber b) {
    SPANALLOC_ASSERT(is_empty(b));
    if (spare[b].is_empty()) return false;
    const ObjectList list = spare[b].get();
    set_first(b, list);
    spare[b].set({});
    // Once more, behind that: a fork's child that finds it changed finds that the
    // spare list is gone, too.
    first[b + 1].store_release(list.first);
    return true;
  }
  /// The first list becomes the spare one. False: there is one.
  bool put_aside(BinNumber b) {
    if (!spare[b].is_empty()) return false;
    spare[b].set({first[b + 1].load_relaxed(), count_of_first(b)});
    first[b + 1].store_release(&end_of_list);
    room[b + 1].store_relaxed(most(b));
    return true;
  }
  void set_first(BinNumber b, ObjectList list) {
    SPANALLOC_ASSERT(is_empty(b) && list.count <= most(b));
    room[b + 1].store_relaxed(most(b) - list.count);
    first[b + 1].store_release(list.first);
  }
  ObjectList take_first(BinNumber b) {
    const ObjectList list{first[b + 1].load_relaxed(), count_of_first(b)};
    first[b + 1].store_relaxed(&end_of_list);
    room[b + 1].store_relaxed(most(b));
    return list;
  }
  ObjectList take_spare(BinNumber b) {
    const ObjectList list = spare[b].get();
    spare[b].set({});
    return list;
  }

  std::uint32_t count_of_first(BinNumber b) const {
    return static_cast<std::uint32_t>(most(b) - room[b + 1].load_relaxed());
  }
  std::size_t objects(BinNumber b) const {
    return count_of_first(b) + std::size_t{spare[b].count.load_relaxed()};
  }

  /// A number from 0 to 63.
  std::uint32_t random_line() {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(random >> 58);
  }

  /// Of a thread that a fork left behind: whatever it was doing, the lists are whole again. An
  /// object it had in its hands is lost.
  void clean_up(Secret secret) {
    for (BinNumber b = 0; b < kBins; ++b) {
      FreeObject* const serving = first[b + 1].load_relaxed();
      FreeObject* const spare_one = spare[b].first.load_relaxed();
      FreeObject* const waiting = spare_one == serving ? &end_of_list : spare_one;
      spare[b].set({waiting, length(waiting, most(b), secret)});
      room[b + 1].store_relaxed(most(b) - length(serving, most(b), secret));
    }
    is_left_behind = false;
  }

 private:
  /// room[i], by the address of first[i]: as far from it as the arrays are from each other.
  SPANALLOC_INLINE static OwnersWord& room_beside(FirstObject* slot) {
    static_assert(sizeof(FirstObject) == sizeof(OwnersWord) &&
                  alignof(FirstObject) == alignof(OwnersWord));
    return *pointer_to<OwnersWord>(address_of(slot) + sizeof(first));
  }

  static std::uint32_t length(const FreeObject* list, std::uint32_t most, Secret secret) {
    std::uint32_t count = 0;
    for (; !is_end(list) && count < most; list = next_of(list, secret)) ++count;
    return count;
  }
};

}  // namespace spanalloc::supermalloc
