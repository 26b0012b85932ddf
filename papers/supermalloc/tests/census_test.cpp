// The walker of the supermalloc engine must itself notice what is broken, and say what. (The
// self-check of the original returns on its first line.)
#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "papers/supermalloc/tests/test_support.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::BinNumber;
using supermalloc::Census;
using supermalloc::Chain;
using supermalloc::ChunkEntry;
using supermalloc::ChunkHead;
using supermalloc::ChunkNumber;
using supermalloc::FolioCell;
using supermalloc::FolioChunk;
using supermalloc::FolioState;
using supermalloc::FreeObject;
using supermalloc::kChunk;
using supermalloc::kPage;
using supermalloc::ObjectList;
using test::checked;
using test::own_cache;
using Bins = test::SupermallocBins;

// Of three folios of 64-byte objects one is full, one has objects free, one is empty; and there is
// something of everything else.
class SupermallocWalker : public test::SupermallocTest {
 protected:
  static constexpr std::size_t kN = 64;
  const BinNumber b_ = Bins::for_folios(kN);
  const Bin& bin_ = Bins::of(b_);

  void SetUp() override {
    for (int i = 0; i < 3 * 64; ++i) objects_.push_back(heap_->allocate(kN));
    for (int i = 0; i < 64 + 10; ++i) {
      heap_->deallocate(objects_.back());
      objects_.pop_back();
    }
    heap_->trim();
    for (void*& p : large_) p = heap_->allocate_aligned(Bins::of(Bins::kFirstLarge).size, kPage);
    heap_->deallocate(large_[2]);
    heap_->trim();
    for (void*& p : huge_) p = heap_->allocate(5 * kMiB);
    heap_->deallocate(huge_[1]);
    // In the thread's lists and in the CPU's.
    std::vector<void*> cached(3 * Bins::of(cached_).list_objects);
    for (void*& p : cached) p = heap_->allocate(1000);
    for (void* p : cached) heap_->deallocate(p);
  }
  void TearDown() override { checked(heap_); }

  FolioChunk chunk() { return FolioChunk::of(objects_[0], bin_); }
  std::uint32_t number(const void* p) { return chunk().object_at(p); }
  FolioCell* cell_of(const void* p) { return chunk().cell(chunk().folio_of(number(p))); }
  FolioCell* full() { return cell_of(objects_[0]); }
  FolioCell* partial() { return cell_of(objects_[64]); }
  FolioCell* empty() { return heap_->folios().head_of(b_, 64); }
  ChunkHead* large_head() { return FolioChunk::of(large_[0], Bins::of(Bins::kFirstLarge)).head(); }
  FreeObject* first_cached() { return own_cache(heap_).first[cached_ + 1].load_relaxed(); }
  // Sets or clears an object's bit, and nothing else.
  static void set_bit(const FolioChunk& chunk, std::uint32_t object, bool out) {
    auto& word = chunk.bits(object / 64);
    const std::uint64_t bit = std::uint64_t{1} << (object % 64);
    word.store_relaxed(out ? word.load_relaxed() | bit : word.load_relaxed() & ~bit);
  }
  // In the CPU's cache for as long as the walker looks.
  void put(BinNumber b, ObjectList list) { ASSERT_TRUE(heap_->cpu_caches().put(b, list)); }
  void take(BinNumber b) { ASSERT_FALSE(heap_->cpu_caches().take(b).is_empty()); }

  // The census after `harm`, which must be undone by what it returns.
  template <class Harm>
  void expect_noticed(const char* what, Harm harm) {
    ASSERT_TRUE(checked(heap_).consistent());
    auto undo = harm();
    const Census census = heap_->census();
    EXPECT_FALSE(census.consistent()) << what;
    EXPECT_STREQ(census.first_problem, what);
    undo();
    ASSERT_TRUE(checked(heap_).consistent()) << "after " << what;
  }
  template <class T>
  auto changed(T& what, T value) {
    const T before = what;
    what = value;
    return [&what, before] { what = before; };
  }
  auto changed(ChunkNumber chunk, ChunkEntry entry) {
    const ChunkEntry before = heap_->chunks().entry(chunk);
    heap_->chunks().set(chunk, entry);
    return [this, chunk, before] { heap_->chunks().set(chunk, before); };
  }

  const BinNumber cached_ = Bins::for_folios(1000);
  test::OwnHeap<> heap_;
  std::vector<void*> objects_;
  void* large_[3] = {};
  void* huge_[3] = {};
};

TEST_F(SupermallocWalker, CountsWhatThereIs) {
  const Census census = checked(heap_);
  const std::size_t cached = 3 * Bins::of(cached_).list_objects;
  EXPECT_EQ(census.live_objects, objects_.size());
  EXPECT_EQ(census.cached_objects, cached);
  EXPECT_EQ(census.empty_folios, 1u);
  EXPECT_EQ(census.large_objects, 2u);
  EXPECT_EQ(census.huge_objects, 2u);
  EXPECT_EQ(census.folio_chunks, 2u);
  EXPECT_EQ(census.large_chunks, 1u);
  EXPECT_EQ(census.huge_chunks, 8u);
  EXPECT_EQ(census.free_chunks, 4u);
  EXPECT_EQ(census.chunks, census.no_chunks + 15u);
  EXPECT_EQ(census.broken, 0u);
  EXPECT_FALSE(census.all_returned());
  ASSERT_EQ(full()->out, 64u);
  ASSERT_EQ(partial()->out, 54u);
  ASSERT_EQ(empty()->out, 0u);
}

TEST_F(SupermallocWalker, NamesWhatIsWrongWithFolios) {
  expect_noticed("a folio does not count its bits", [&] {
    const std::uint32_t object = number(objects_[70]);
    set_bit(chunk(), object, false);
    return [=, this] { set_bit(chunk(), object, true); };
  });
  expect_noticed("a folio does not count its bits",
                 [&] { return changed(partial()->out, std::uint16_t{55}); });
  expect_noticed("an object lies in the wilderness", [&] {
    const std::uint32_t object = bin_.objects - 1;
    set_bit(chunk(), object, true);
    return [=, this] { set_bit(chunk(), object, false); };
  });
  expect_noticed("a folio is in no list",
                 [&] { return changed(partial()->state, FolioState::kEmptying); });
  expect_noticed("an object lies in the wilderness", [&] {
    return changed(chunk().cell(bin_.folios - 1)->state, FolioState::kListed);
  });
  expect_noticed("a folio in use is said to be given back",
                 [&] { return changed(partial()->is_committed, false); });
  expect_noticed("a bin's folios in use are miscounted", [&] {
    FolioCell* cell = empty();
    const std::uint32_t object = chunk().folio_of(cell) * bin_.folio_objects;
    set_bit(chunk(), object, true);
    cell->out = 1;
    cell->is_committed = true;
    return [=, this] {
      set_bit(chunk(), object, false);
      cell->out = 0;
      cell->is_committed = false;
    };
  });
  expect_noticed("committed folios are miscounted",
                 [&] { return changed(empty()->is_committed, true); });
  expect_noticed("a chunk has used more folios than it has",
                 [&] { return changed(chunk().head()->used_folios, bin_.folios + 1); });
}

TEST_F(SupermallocWalker, NamesWhatIsWrongWithLists) {
  // Mark and list disagree: the list is another one, of the test's own.
  FolioCell* heads[65] = {};
  FolioCell cell{};
  expect_noticed("a list is marked as what it is not", [&] {
    heap_->folios().lists(b_).add(heads, &cell, 20);
    return [&] { heap_->folios().lists(b_).remove(heads, &cell, 20); };
  });
  expect_noticed("a list is marked as what it is not", [&] {
    cell = {};
    heads[10] = nullptr;
    heap_->folios().lists(b_).add(heads, &cell, 10);
    heap_->folios().lists(b_).remove(heads, &cell, 10);
    return [&] {
      cell = {};
      heap_->folios().lists(b_).add(heads, &cell, 10);
    };
  });
  expect_noticed("a folio is in the wrong list", [&] {
    const std::uint32_t object = number(objects_[70]);
    set_bit(chunk(), object, false);
    --partial()->out;
    return [=, this] {
      set_bit(chunk(), object, true);
      ++partial()->out;
    };
  });
  expect_noticed("a list's links disagree", [&] { return changed(partial()->previous, full()); });
  // A circle, which the walker comes out of.
  expect_noticed("a list's links disagree", [&] { return changed(partial()->next, partial()); });
  expect_noticed("a folio is in the wrong list", [&] { return changed(partial()->next, full()); });
  // Two of one fullness: the second one is dropped.
  for (int i = 0; i < 64; ++i) objects_.push_back(heap_->allocate(kN));
  while (heap_->folios().head_of(b_, 0)->next == nullptr) objects_.push_back(heap_->allocate(kN));
  heap_->trim();
  FolioCell* first = heap_->folios().head_of(b_, 0);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(first->next, nullptr);
  expect_noticed("a folio is in no list",
                 [&] { return changed<FolioCell*>(first->next, nullptr); });
  expect_noticed("a list's links disagree",
                 [&] { return changed<FolioCell*>(first->next->previous, nullptr); });
}

TEST_F(SupermallocWalker, NamesWhatIsWrongWithLargeObjects) {
  const BinNumber b = Bins::kFirstLarge;
  const FolioChunk chunk = FolioChunk::of(large_[0], Bins::of(b));
  expect_noticed("a large object lies in the wilderness", [&] {
    set_bit(chunk, Bins::of(b).objects - 1, true);
    return [&] { set_bit(chunk, Bins::of(b).objects - 1, false); };
  });
  expect_noticed("a large object in use is in the list of free ones", [&] {
    set_bit(chunk, chunk.object_at(large_[2]), true);
    return [&] { set_bit(chunk, chunk.object_at(large_[2]), false); };
  });
  expect_noticed("a large object is in no list", [&] {
    set_bit(chunk, chunk.object_at(large_[0]), false);
    return [&] { set_bit(chunk, chunk.object_at(large_[0]), true); };
  });
  expect_noticed("a large object is in no list",
                 [&] { return changed(large_head()->used_folios, large_head()->used_folios + 1); });
  expect_noticed("large objects that the kernel did not take back are miscounted", [&] {
    auto* cells = reinterpret_cast<supermalloc::ObjectCell*>(
        &chunk.bits(0) + chunk.bits_bytes() / sizeof(std::uint64_t));
    return changed(cells[chunk.object_at(large_[2])].is_dirty, true);
  });
  expect_noticed("large objects are miscounted", [&] {
    const std::uint32_t object = large_head()->used_folios++;
    set_bit(chunk, object, true);
    return [=, this] {
      set_bit(chunk, object, false);
      --large_head()->used_folios;
    };
  });
}

TEST_F(SupermallocWalker, NamesWhatIsWrongWithTheChunkTable) {
  const ChunkNumber folios = heap_->chunks().number_of(objects_[0]);
  const ChunkNumber large = heap_->chunks().number_of(large_[0]);
  const ChunkNumber huge = heap_->chunks().number_of(huge_[0]);
  const ChunkNumber free = heap_->chunks().number_of(huge_[1]);
  ASSERT_TRUE(heap_->chunks().entry(free).is_free());
  for (const ChunkEntry wrong :
       {ChunkEntry::of_bin(b_ + 1), ChunkEntry::nothing(), ChunkEntry::of_huge(3)}) {
    expect_noticed("a bin's chunk is another's", [&] { return changed(folios, wrong); });
    expect_noticed("a bin's chunk is another's", [&] { return changed(large, wrong); });
  }
  expect_noticed("a bin's chunk is another's",
                 [&] { return changed(chunk().head()->bin, b_ + 1); });
  expect_noticed("a range is out of place, or has another's chunk in it",
                 [&] { return changed(huge + 2, ChunkEntry::of_huge(1)); });
  expect_noticed("a range is out of place, or has another's chunk in it",
                 [&] { return changed(huge, ChunkEntry::of_huge(9 * kMiB / kPage)); });
  expect_noticed("huge objects are miscounted",
                 [&] { return changed(huge, ChunkEntry::nothing()); });
  expect_noticed("huge objects are miscounted",
                 [&] { return changed(huge, ChunkEntry::of_huge(5 * kMiB / kPage + 1)); });
  expect_noticed("what is not free is in a list of free ranges",
                 [&] { return changed(free, ChunkEntry::nothing()); });
  expect_noticed("ranges that the kernel did not take back are miscounted",
                 [&] { return changed(free, ChunkEntry::of_free(0, true)); });
  expect_noticed("what is not free is in a list of free ranges", [&] {
    return changed(free, ChunkEntry::of_free(heap_->chunks().limit(), false));
  });
  expect_noticed("a free range is in two lists",
                 [&] { return changed(free, ChunkEntry::of_free(free, false)); });
  // A free range's second chunk is one, too.
  expect_noticed("a range is out of place, or has another's chunk in it", [&] {
    auto first = changed(free + 1, ChunkEntry::of_free(0, false));
    auto second = changed(free + 2, ChunkEntry::of_free(0, false));
    auto third = changed(free + 3, ChunkEntry::of_free(0, false));
    return [=] {
      first();
      second();
      third();
    };
  });
  expect_noticed("a bin lacks chunks", [&] { return changed(huge, ChunkEntry::of_bin(b_)); });
  expect_noticed("a chunk is nothing that there is",
                 [&] { return changed(huge, ChunkEntry::of_bin(Bins::kCount)); });
}

// Where many chunks have been lost their number says nothing about the ranges that are free.
TEST_F(SupermallocWalker, NamesFreeRangesThatAreNone) {
  const ChunkNumber free = heap_->chunks().number_of(huge_[1]);
  const ChunkNumber lost = heap_->chunks().carve(3);
  // Four chunks, of which the second one is a bin's.
  const ChunkNumber first = heap_->chunks().carve(0);
  const ChunkNumber bins = heap_->chunks().number_of(heap_->allocate(3000));
  heap_->chunks().carve(1);
  ASSERT_EQ(first, lost + 8);
  ASSERT_EQ(bins, first + 1);
  ASSERT_EQ(heap_->chunks().limit(), first + 4);
  // The last one in the list of ranges of four chunks.
  const auto listed = [&](ChunkNumber range) {
    auto its_own = changed(range, ChunkEntry::of_free(0, false));
    auto link = changed(free, ChunkEntry::of_free(range, false));
    return [=] {
      link();
      its_own();
    };
  };
  const auto undo = listed(lost + 4);
  EXPECT_EQ(checked(heap_).free_chunks, 8u) << "this one is a range";
  undo();
  for (const ChunkNumber range : {lost + 1, lost + 2, lost + 3, first, first + 3}) {
    expect_noticed("a range is out of place, or has another's chunk in it",
                   [&] { return listed(range); });
  }
}

TEST_F(SupermallocWalker, NamesWhatIsWrongWithCaches) {
  FreeObject* cached = first_cached();
  ASSERT_FALSE(is_end(cached));
  expect_noticed("a free object is overwritten",
                 [&] { return changed(cached->seal, cached->seal ^ 1); });
  expect_noticed("a free object is overwritten", [&] {
    FreeObject* before = cached->next;
    cached->next = cached;
    return [=] { cached->next = before; };
  });
  auto& cache = own_cache(heap_);
  expect_noticed("a list has more objects than it counts", [&] {
    cache.room[cached_ + 1].count_up();
    return [&] { EXPECT_TRUE(cache.room[cached_ + 1].take_one()); };
  });
  expect_noticed("a list has fewer objects than it counts", [&] {
    void* const p = heap_->allocate(1000);  // or the list would count more than it may
    EXPECT_TRUE(cache.room[cached_ + 1].take_one());
    return [&cache, p, this] {
      cache.room[cached_ + 1].count_up();
      heap_->deallocate(p);
    };
  });
  expect_noticed("a list counts too many objects", [&] {
    const std::uint32_t count = cache.spare[cached_].count.load_relaxed();
    cache.spare[cached_].count.store_relaxed(count + 1);
    return [&cache, count, this] { cache.spare[cached_].count.store_relaxed(count); };
  });
  expect_noticed("a chain has too many lists", [&] {
    supermalloc::ChainPlace& place = heap_->cpu_caches().first_chain(cached_);
    const Chain before = place.get();
    EXPECT_EQ(before.count(), 1u);
    while (place.get().count() <= Bins::of(cached_).chain_lists) place.set(place.get().longer());
    return [&place, before] { place.set(before); };
  });
  expect_noticed("a global cache miscounts its chains", [&] {
    heap_->cpu_caches().filled(cached_).store_relaxed(1);
    return [&] { heap_->cpu_caches().filled(cached_).store_relaxed(0); };
  });
  // Another object, not sealed, of the program's.
  expect_noticed("a free object is overwritten", [&] {
    auto* object = static_cast<FreeObject*>(objects_[0]);
    object->seal = 0;
    put(b_, {object, 1});
    return [&] { take(b_); };
  });
  expect_noticed("a cache has another bin's object", [&] {
    put(b_ + 1, {cached, 1});
    return [&] { take(b_ + 1); };
  });
  expect_noticed("an object is in two places", [&] {
    put(cached_, {cached, cache.count_of_first(cached_)});
    return [&] { take(cached_); };
  });
  // A list that has an object twice is a circle, or leads into one.
  expect_noticed("an object is in two places", [&] {
    FreeObject* last = cached;
    while (!is_end(last->next)) last = last->next;
    last->push_on(cached, heap_->secret());
    return [=, this] { last->push_on(&supermalloc::end_of_list, heap_->secret()); };
  });
  // In its folio, and in a cache.
  heap_->trim();
  auto* object = static_cast<FreeObject*>(objects_[80]);
  object->push_on(&supermalloc::end_of_list, heap_->secret());
  heap_->folios().put(b_, {object, 1}, heap_->secret());
  expect_noticed("a cache has an object that is free", [&] {
    put(b_, {object, 1});
    return [&] { take(b_); };
  });
  // A large one that is in nobody's hands.
  expect_noticed("a cache has an object that is free", [&] {
    put(Bins::kFirstLarge, {static_cast<FreeObject*>(large_[2]), 1});
    return [&] { take(Bins::kFirstLarge); };
  });
}

}  // namespace
}  // namespace spanalloc
