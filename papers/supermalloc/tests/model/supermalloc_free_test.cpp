// What a free of the supermalloc engine looks at without a lock
// (papers/supermalloc/engine/chunk_table.hpp, folios.hpp): its chunk's entry in the table, and the
// object's bit. Who frees an object in use must see both as they are, whatever happens meanwhile
// to objects whose bits are in the same word, and to other chunks. And what a fork leaves of a
// bin's books (folio_heap.hpp).
#include <cstring>
#include <new>

#include "model_test.hpp"
#include "os_stub.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/folio_heap.hpp"

namespace spanalloc::model {
namespace {

using supermalloc::BinNumber;
using supermalloc::ChunkEntry;
using supermalloc::ChunkNumber;
using supermalloc::ChunkTable;
using supermalloc::Claim;
using supermalloc::FolioCell;
using supermalloc::FolioChunk;
using supermalloc::FreeObject;
using supermalloc::ObjectList;

using Folios = supermalloc::FolioHeap<Supermalloc>;
using Bins = supermalloc::Bins<Supermalloc>;

constexpr BinNumber bin_of_size(std::size_t size) {
  for (BinNumber b = 0; b < Bins::kFirstLarge; ++b) {
    if (Bins::of(b).size == size) return b;
  }
  return Bins::kCount;
}
// Two objects a folio: folios become empty and full at once, and many have their bits in one word.
constexpr BinNumber kBin = bin_of_size(2048);
constexpr BinNumber kOtherBin = bin_of_size(4096);
static_assert(kBin < Bins::kFirstLarge && Bins::of(kBin).folio_objects == 2 &&
              kOtherBin < Bins::kFirstLarge);
constexpr supermalloc::Secret kSecret = 0x5a5a5a5a5a5a5a5a;

struct FolioWorld {
  static constexpr ChunkNumber kMostChunks = 3;

  ChunkTable table;
  Folios folios{table};
  Atomic<FreeObject*> passed{nullptr};  // from one thread to another

  FolioWorld() {
    forget_memory();
    if (!table.start()) fail("no memory to start with");
    // What is there is another execution's.
    for (ChunkNumber n = 1; n <= kMostChunks; ++n) {
      table.set(n, ChunkEntry::nothing());
      std::memset(pointer_to(table.address(n)), 0, 8 * supermalloc::kPage);
    }
    name_variable(&passed, "passed");
  }

  FreeObject* take(BinNumber b) {
    const ObjectList list = folios.take(b, 1, kSecret);
    MODEL_CHECK(list.count == 1);
    return list.first;
  }
  // What free does that has no cache.
  void put(BinNumber b, FreeObject* object) {
    check_it_is_out(b, object);
    object->push_on(&supermalloc::end_of_list, kSecret);
    folios.put(b, {object, 1}, kSecret);
  }
  void check_it_is_out(BinNumber b, const FreeObject* object) const {
    const std::size_t tag = table.tag_at(object);
    MODEL_CHECK(tag == b + 1);
    MODEL_CHECK(Folios::is_out_by_tag(tag, object));
  }

  // The program's own order.
  void pass(FreeObject* object) { passed.store_release(object); }
  FreeObject* receive() {
    for (;;) {
      if (FreeObject* object = passed.load_acquire(); object != nullptr) return object;
      spin_hint();
    }
  }

  // At rest: F1 to F3. Returns how many objects are out.
  std::uint32_t check_books(BinNumber b) {
    const supermalloc::Bin& bin = Bins::of(b);
    std::uint32_t used = 0;
    std::uint32_t out = 0;
    folios.for_each_chunk(b, [&](supermalloc::ChunkHead* head) {
      const FolioChunk chunk = FolioChunk::of(head, bin);
      MODEL_CHECK(table.at(head).bin() == b);
      for (std::uint32_t folio = bin.first_folio; folio < head->used_folios; ++folio) {
        MODEL_CHECK(chunk.cell(folio)->out == chunk.count_out(folio));
        out += chunk.count_out(folio);
        ++used;
      }
    });
    std::uint32_t listed = 0;
    for (std::uint32_t free = 0; free <= bin.folio_objects; ++free) {
      MODEL_CHECK(folios.lists(b).is_marked(free) == (folios.head_of(b, free) != nullptr));
      for (const FolioCell* cell = folios.head_of(b, free); cell != nullptr; cell = cell->next) {
        MODEL_CHECK(bin.folio_objects - cell->out == free);
        MODEL_CHECK(++listed <= used);
      }
    }
    MODEL_CHECK(listed == used);
    return out;
  }
};

// --- Naive variants ------------------------------------------------------------------------------

// Bits are changed without the lock: of two objects in one word, of different folios.
struct ClaimsWithoutTheLock : FolioWorld {
  static constexpr unsigned kThreads = 2;
  FolioChunk chunk = FolioChunk::of(take(kBin), Bins::of(kBin));
  void thread(unsigned self) {
    Claim claims[1];
    Claim* end = claims;
    chunk.claim(Bins::of(kBin).first_folio + 1 + self, 1, end);
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(claims[0].bits));
    MODEL_CHECK(chunk.is_out(claims[0].word * 64 + bit));
  }
  void at_rest() {}
};

// A chunk's entry is written when its first object is in use already.
struct EntryLast : FolioWorld {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 1) return check_it_is_out(kBin, receive());
    const supermalloc::Bin& bin = Bins::of(kBin);
    const ChunkNumber number = table.carve(0);
    const FolioChunk chunk(table.address(number), bin);
    Claim claims[1];
    Claim* end = claims;
    chunk.claim(bin.first_folio, 1, end);
    pass(static_cast<FreeObject*>(chunk.object(bin.first)));
    table.set(number, ChunkEntry::of_bin(kBin));
  }
  void at_rest() {}
};

// The program's threads pass an object on with nothing that orders them: no
// allocator could know it then.
struct PassedWithoutOrder : FolioWorld {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 0) return passed.store_relaxed(take(kBin));
    if (FreeObject* object = passed.load_relaxed(); object != nullptr)
      check_it_is_out(kBin, object);
  }
  void at_rest() {}
};

// --- As it is ------------------------------------------------------------------------------------

// An object is passed on and freed; its giver allocates and frees the neighbour
// meanwhile, in the same word.
struct FreedElsewhere : FolioWorld {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 1) return put(kBin, receive());
    pass(take(kBin));
    put(kBin, take(kBin));
  }
  void at_rest() { MODEL_CHECK(check_books(kBin) == 0); }
};
// So does its receiver: both threads make the bin's first chunk, or find it.
struct BothAllocate : FolioWorld {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    FreeObject* mine = take(kBin);
    if (self == 0) return pass(mine);
    check_it_is_out(kBin, mine);
    put(kBin, receive());
    put(kBin, mine);
  }
  void at_rest() { MODEL_CHECK(check_books(kBin) == 0); }
};
// A third thread makes a chunk of another bin: the table grows.
struct TheTableGrows : FolioWorld {
  static constexpr unsigned kThreads = 3;
  void thread(unsigned self) {
    if (self == 0) return pass(take(kBin));
    if (self == 1) return put(kBin, receive());
    put(kOtherBin, take(kOtherBin));
  }
  void at_rest() { MODEL_CHECK(check_books(kBin) == 0 && check_books(kOtherBin) == 0); }
};
// It goes from hand to hand; who has it last frees it.
struct PassedOnTwice : FolioWorld {
  static constexpr unsigned kThreads = 3;
  Atomic<FreeObject*> passed_on{nullptr};
  void thread(unsigned self) {
    if (self == 0) return pass(take(kBin));
    if (self == 1) return passed_on.store_release(receive());
    for (;;) {
      if (FreeObject* object = passed_on.load_acquire(); object != nullptr)
        return put(kBin, object);
      spin_hint();
    }
  }
  void at_rest() { MODEL_CHECK(check_books(kBin) == 0); }
};

// --- Forks ---------------------------------------------------------------------------------------

// Two threads allocate and free, and vanish at any step. The child's books are right; what a
// program's variable says it has is out; of what is out else a thread had one object in its hands.
template <bool kHearsOfEmptying>
struct Forked : FolioWorld {
  static constexpr unsigned kThreads = 2;
  Atomic<FreeObject*> had[kThreads];

  Forked() { put(kBin, take(kBin)); }

  void thread(unsigned self) {
    had[self].store_release(take(kBin));
    FreeObject* object = had[self].load_relaxed();
    had[self].store_relaxed(nullptr);
    put(kBin, object);
  }
  void at_rest() {
    SpinLock::enter_child();
    table.enter_child();
    if (kHearsOfEmptying) folios.enter_child();
    folios.repair(kBin);
    const std::uint32_t out = check_books(kBin);
    std::uint32_t known = 0;
    for (Atomic<FreeObject*>& variable : had) {
      FreeObject* object = variable.load_relaxed();
      if (object == nullptr) continue;
      ++known;
      put(kBin, object);
    }
    MODEL_CHECK(out >= known && out <= kThreads);
    // It goes on from there.
    FreeObject* object = take(kBin);
    MODEL_CHECK(check_books(kBin) == out - known + 1);
    put(kBin, object);
    MODEL_CHECK(check_books(kBin) == out - known);
  }
};
using ForkedBooks = Forked<true>;
using EmptyingIsForgotten = Forked<false>;
// The bin's first chunk is made.
struct ForkedFirstChunk : FolioWorld {
  static constexpr unsigned kThreads = 1;
  void thread(unsigned) { pass(take(kBin)); }
  void at_rest() {
    SpinLock::enter_child();
    table.enter_child();
    folios.enter_child();
    folios.repair(kBin);
    const std::uint32_t out = check_books(kBin);
    MODEL_CHECK(out <= 1);
    if (FreeObject* object = passed.load_relaxed(); object != nullptr) put(kBin, object);
    put(kBin, take(kBin));
    MODEL_CHECK(check_books(kBin) <= out);
  }
};

TEST(SupermallocFree, BitsThatAreChangedWithoutTheLockAreFoundOut) {
  EXPECT_FINDS(ClaimsWithoutTheLock, "is_out", {.memory = MemoryModel::interleaving});
}

TEST(SupermallocFree, AnEntryThatComesAfterTheObjectIsFoundOut) {
  EXPECT_FINDS(EntryLast, "tag == b + 1", {.memory = MemoryModel::interleaving});
}

TEST(SupermallocFree, TheProgramOrdersItAfterTheAllocation) {
  EXPECT_FINDS(PassedWithoutOrder, "check failed", {.memory = MemoryModel::pso});
  EXPECT_FINDS(PassedWithoutOrder, "check failed", {.memory = MemoryModel::views});
}

TEST(SupermallocFree, WhatIsInUseIsSeenToBeOut) {
  EXPECT_HOLDS_EVERYWHERE(FreedElsewhere, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(BothAllocate, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(TheTableGrows, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(PassedOnTwice, 2, 1);
}

TEST(SupermallocFree, AForksChildFindsTheBooksInItsBits) {
  EXPECT_FINDS(EmptyingIsForgotten, "listed == used", {.memory = MemoryModel::tso, .forks = true});
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso}) {
    // (Of so many stores that nothing waits for, any may have arrived: a million executions.)
    if (memory == MemoryModel::tso || full_bounds()) {
      EXPECT_HOLDS(ForkedFirstChunk, {.memory = memory, .forks = true});
    }
    EXPECT_HOLDS(ForkedBooks, {.memory = memory, .preemptions = bound(2, 3), .forks = true});
  }
}

}  // namespace
}  // namespace spanalloc::model
