// Small and medium objects where they lie: fullest fit, and folios that go
// back to the kernel whole.
#include "papers/supermalloc/engine/folio_heap.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "memory_pattern.hpp"
#include "memory_use.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "random.hpp"
#include "reported.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::BinNumber;
using supermalloc::FolioCell;
using supermalloc::FolioChunk;
using supermalloc::FolioState;
using supermalloc::FreeObject;
using supermalloc::ObjectList;
using test::checked;
using Bins = test::SupermallocBins;

// A heap whose caches are left alone: objects are taken from its folios and put back there.
template <class Config>
class FolioHeapTest : public test::SupermallocTest {
 protected:
  void SetUp() override {
    // The heap starts with its first use.
    heap_->deallocate(heap_->allocate(1));
    heap_->trim();
  }
  // Up to `most` objects in one list, as their addresses.
  std::vector<FreeObject*> take(BinNumber b, std::uint32_t most) {
    const ObjectList list = heap_->folios().take(b, most, heap_->secret());
    std::vector<FreeObject*> objects;
    for (FreeObject* p = list.first; !is_end(p); p = p->next) {
      EXPECT_TRUE(p->is_sealed(heap_->secret()));
      EXPECT_TRUE(heap_->folios().is_out(b, p));
      objects.push_back(p);
    }
    EXPECT_EQ(objects.size(), list.count);
    return objects;
  }
  void put(BinNumber b, const std::vector<FreeObject*>& objects) {
    ObjectList list;
    for (FreeObject* p : objects) {
      p->push_on(list.first, heap_->secret());
      list.first = p;
      ++list.count;
    }
    heap_->folios().put(b, list, heap_->secret());
  }
  // Each of these in turn has objects of one folio, and all of them.
  std::vector<std::vector<FreeObject*>> take_whole_folios(BinNumber b, std::size_t count) {
    const Bin& bin = Bins::of(b);
    std::vector<std::vector<FreeObject*>> folios;
    for (std::size_t i = 0; i < count; ++i) {
      folios.push_back(take(b, bin.folio_objects));
      EXPECT_EQ(folios.back().size(), bin.folio_objects);
      for (const FreeObject* p : folios.back())
        EXPECT_EQ(cell_of(b, p), cell_of(b, folios.back()[0]));
    }
    return folios;
  }
  static FolioCell* cell_of(BinNumber b, const void* p) {
    const FolioChunk chunk = FolioChunk::of(p, Bins::of(b));
    return chunk.cell(chunk.folio_of(chunk.object_at(p)));
  }
  static char* folio_start(BinNumber b, const void* p) {
    const FolioChunk chunk = FolioChunk::of(p, Bins::of(b));
    return static_cast<char*>(chunk.folio_start(chunk.folio_of(chunk.object_at(p))));
  }
  // How many folios have how many objects free, by the lists.
  std::map<std::uint32_t, std::size_t> fullness(BinNumber b) {
    std::map<std::uint32_t, std::size_t> lists;
    heap_->folios().for_each_fullness(
        b, [&](std::uint32_t free, std::size_t folios) { lists[free] = folios; });
    return lists;
  }

  test::OwnHeap<Config> heap_;
};
using SupermallocFolioHeap = FolioHeapTest<Supermalloc>;

using Fullness = std::map<std::uint32_t, std::size_t>;

TEST_F(SupermallocFolioHeap, TheFullestFolioServes) {
  const BinNumber b = Bins::for_folios(64);
  auto folios = take_whole_folios(b, 5);
  const std::size_t objects = Bins::of(b).folio_objects;  // 64
  ASSERT_EQ(objects, 64u);
  EXPECT_EQ(fullness(b), (Fullness{{0, 5}}));
  // So many of each go back. The emptiest first: neither the order of frees
  // nor of addresses decides.
  const std::size_t freed[] = {20, 3, 50, 0, 7};
  for (const std::size_t i : {2u, 1u, 0u, 4u}) {
    put(b, {folios[i].begin(), folios[i].begin() + static_cast<std::ptrdiff_t>(freed[i])});
  }
  EXPECT_EQ(fullness(b), (Fullness{{0, 1}, {3, 1}, {7, 1}, {20, 1}, {50, 1}}));
  checked(heap_);
  for (const std::size_t i : {1u, 4u, 0u, 2u}) {
    for (std::size_t k = 0; k < freed[i]; ++k) {
      const std::vector<FreeObject*> one = take(b, 1);
      ASSERT_EQ(one.size(), 1u);
      ASSERT_EQ(cell_of(b, one[0]), cell_of(b, folios[i][0])) << i << ": " << k;
    }
  }
  EXPECT_EQ(fullness(b), (Fullness{{0, 5}}));
  checked(heap_);
}

using SupermallocFolioHeapFirstFit = FolioHeapTest<SupermallocFirstFit>;
TEST_F(SupermallocFolioHeapFirstFit, TheFolioAtTheLowestAddressServes) {
  const BinNumber b = Bins::for_folios(64);
  auto folios = take_whole_folios(b, 4);
  const std::size_t freed[] = {20, 3, 50, 7};
  for (std::size_t i = 1; i < 4; ++i) ASSERT_LT(folios[i - 1][0], folios[i][0]);
  for (const std::size_t i : {3u, 1u, 2u, 0u}) {
    put(b, {folios[i].begin(), folios[i].begin() + static_cast<std::ptrdiff_t>(freed[i])});
  }
  EXPECT_EQ(fullness(b), (Fullness{{3, 1}, {7, 1}, {20, 1}, {50, 1}}));
  checked(heap_);
  for (const std::size_t i : {0u, 1u, 2u, 3u}) {
    for (std::size_t k = 0; k < freed[i]; ++k) {
      const std::vector<FreeObject*> one = take(b, 1);
      ASSERT_EQ(one.size(), 1u);
      ASSERT_EQ(cell_of(b, one[0]), cell_of(b, folios[i][0])) << i << ": " << k;
    }
  }
  EXPECT_EQ(fullness(b), (Fullness{{0, 4}}));
  // Empty ones only when no other has an object free.
  put(b, folios[1]);
  put(b, {folios[2].begin(), folios[2].begin() + 1});
  put(b, folios[3]);
  EXPECT_EQ(cell_of(b, take(b, 1)[0]), cell_of(b, folios[2][0]));
  EXPECT_EQ(cell_of(b, take(b, 1)[0]), cell_of(b, folios[1][0]));
  checked(heap_);
}

// In whatever order they became empty, one at a time or together.
TEST_F(SupermallocFolioHeapFirstFit, TheEmptyFolioAtTheLowestAddressServes) {
  const BinNumber b = Bins::for_folios(64);
  auto folios = take_whole_folios(b, 5);
  for (const std::size_t i : {3u, 0u, 4u, 2u, 1u}) put(b, folios[i]);
  EXPECT_EQ(fullness(b), (Fullness{{Bins::of(b).folio_objects, 5}}));
  checked(heap_);
  const auto expect_in_order = [&] {
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(cell_of(b, take(b, Bins::of(b).folio_objects)[0]), cell_of(b, folios[i][0])) << i;
    }
  };
  expect_in_order();
  std::vector<FreeObject*> last;
  for (const std::size_t i : {1u, 4u, 0u, 3u, 2u}) {
    put(b, {folios[i].begin() + 1, folios[i].end()});
    last.push_back(folios[i][0]);
  }
  put(b, last);
  checked(heap_);
  expect_in_order();
}

TEST_F(SupermallocFolioHeap, OneRequestIsServedByTheFullestOnes) {
  const BinNumber b = Bins::for_folios(64);
  auto folios = take_whole_folios(b, 3);
  put(b, {folios[0].begin(), folios[0].begin() + 30});
  put(b, {folios[1].begin(), folios[1].begin() + 5});
  put(b, {folios[2].begin(), folios[2].begin() + 9});
  std::multiset<FolioCell*> from;
  for (const FreeObject* p : take(b, 20)) from.insert(cell_of(b, p));
  EXPECT_EQ(from.count(cell_of(b, folios[1][0])), 5u);
  EXPECT_EQ(from.count(cell_of(b, folios[2][0])), 9u);
  EXPECT_EQ(from.count(cell_of(b, folios[0][0])), 6u);
  // It does not open a fresh one for what is lacking; only the next one does.
  EXPECT_EQ(take(b, 100).size(), 24u);
  EXPECT_EQ(fullness(b), (Fullness{{0, 3}}));
  EXPECT_EQ(take(b, 100).size(), 64u);
  EXPECT_EQ(fullness(b), (Fullness{{0, 4}}));
}

TEST_F(SupermallocFolioHeap, AListHoldsObjectsInOrderOfTheirAddresses) {
  const BinNumber b = Bins::for_folios(200);
  const std::vector<FreeObject*> objects = take(b, 1000);
  EXPECT_TRUE(std::is_sorted(objects.begin(), objects.end()));
  for (std::size_t i = 1; i < objects.size(); ++i) {
    EXPECT_EQ(address_of(objects[i]) - address_of(objects[i - 1]), Bins::of(b).size);
  }
}

TEST_F(SupermallocFolioHeap, AnEmptyFolioGoesBackWholeAndComesAgainAsZero) {
  for (const std::size_t n : {16u, 64u, 112u, 832u, 4096u, 14272u}) {
    BinNumber b = 0;
    while (Bins::of(b).size != n) ++b;
    const Bin& bin = Bins::of(b);
    auto folios = take_whole_folios(b, 2);
    for (const auto& folio : folios) {
      for (FreeObject* p : folio) {
        unpoison(p, n);
        test::fill_pattern(p, n, n);
      }
    }
    const std::size_t empty_before = checked(heap_).empty_folios;
    char* start = folio_start(b, folios[0][0]);
    FolioCell* cell = cell_of(b, folios[0][0]);
    const std::size_t pages = bin.folio_bytes / os::page_size();
    EXPECT_EQ(test::resident_pages(start, bin.folio_bytes), pages);
    EXPECT_EQ(heap_->folios().committed_bytes(b), 2 * bin.folio_bytes);
    // All but one: its pages stay.
    FreeObject* last = folios[0].back();
    folios[0].pop_back();
    put(b, folios[0]);
    EXPECT_EQ(test::resident_pages(start, bin.folio_bytes), pages);
    EXPECT_EQ(cell->out, 1u);
    EXPECT_EQ(heap_->folios().committed_bytes(b), 2 * bin.folio_bytes);
    put(b, {last});
    if (bin.folio_bytes % os::page_size() == 0) {
      EXPECT_EQ(test::resident_pages(start, bin.folio_bytes), 0u) << n;
    }
    EXPECT_EQ(cell->out, 0u);
    EXPECT_EQ(cell->state, FolioState::kListed);
    EXPECT_FALSE(cell->is_committed);
    EXPECT_EQ(heap_->folios().committed_bytes(b), bin.folio_bytes);
    EXPECT_EQ(fullness(b), (Fullness{{0, 1}, {bin.folio_objects, 1}}));
    EXPECT_EQ(checked(heap_).empty_folios, empty_before + 1);
    // It is used again before the wilderness is; but for the links all of it is zero.
    const std::vector<FreeObject*> again = take(b, bin.folio_objects);
    ASSERT_EQ(again.size(), bin.folio_objects);
    EXPECT_EQ(folio_start(b, again[0]), start);
    EXPECT_TRUE(cell->is_committed);
    for (FreeObject* p : again) {
      unpoison(p, n);
      const std::size_t rest = n - sizeof(FreeObject);
      EXPECT_EQ(test::first_nonzero(p + 1, rest), rest) << n;
    }
    put(b, again);
    put(b, folios[1]);
    EXPECT_EQ(heap_->folios().committed_bytes(b), 0u);
  }
  EXPECT_TRUE(checked(heap_).all_returned());
}

// A page that is locked makes the kernel refuse: then the folio counts as committed, and is
// free memory. Nobody uses it.
TEST_F(SupermallocFolioHeap, AFolioThatTheKernelDoesNotTakeBackIsUsedAgain) {
  const BinNumber b = Bins::for_folios(100);
  const std::vector<FreeObject*> objects = take_whole_folios(b, 1)[0];
  char* start = folio_start(b, objects[0]);
  // The system call itself: sanitizers make nothing of mlock.
  if (syscall(SYS_mlock, start, os::page_size()) != 0)
    GTEST_SKIP() << "no memory may be locked here";
  EXPECT_EQ(heap_->statistics().small_bytes_carved, Bins::of(b).folio_bytes);
  EXPECT_EQ(heap_->statistics().pooled_bytes, 0u);
  put(b, objects);
  EXPECT_EQ(heap_->folios().committed_bytes(b), Bins::of(b).folio_bytes);
  EXPECT_EQ(heap_->folios().bytes_in_use(b), 0u);
  EXPECT_EQ(heap_->statistics().small_bytes_carved, 0u);
  EXPECT_EQ(heap_->statistics().pooled_bytes, Bins::of(b).folio_bytes);
  EXPECT_EQ(fullness(b), (Fullness{{Bins::of(b).folio_objects, 1}}));
  checked(heap_);
  EXPECT_EQ(syscall(SYS_munlock, start, os::page_size()), 0);
  const std::vector<FreeObject*> again = take(b, Bins::of(b).folio_objects);
  EXPECT_EQ(folio_start(b, again[0]), start);
  EXPECT_EQ(heap_->folios().bytes_in_use(b), Bins::of(b).folio_bytes);
  put(b, again);
  EXPECT_EQ(heap_->folios().committed_bytes(b), 0u);
  EXPECT_EQ(heap_->folios().bytes_in_use(b), 0u);
}

TEST_F(SupermallocFolioHeap, ATrimOffersAgainWhatTheKernelRefused) {
  const BinNumber b = Bins::for_folios(100);
  const std::size_t folio = Bins::of(b).folio_bytes;
  auto folios = take_whole_folios(b, 3);
  char* starts[3];
  for (int i = 0; i < 3; ++i) {
    starts[i] = folio_start(b, folios[i][0]);
    if (i < 2 && syscall(SYS_mlock, starts[i], os::page_size()) != 0) {
      GTEST_SKIP() << "no memory may be locked here";
    }
  }
  for (const auto& each : folios) put(b, each);
  EXPECT_EQ(heap_->folios().committed_bytes(b), 2 * folio);
  EXPECT_FALSE(heap_->trim()) << "the kernel has taken nothing";
  EXPECT_EQ(heap_->folios().committed_bytes(b), 2 * folio);
  checked(heap_);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(syscall(SYS_munlock, starts[i], os::page_size()), 0);
    EXPECT_TRUE(heap_->trim());
    EXPECT_EQ(heap_->folios().committed_bytes(b), (1 - i) * folio);
    EXPECT_EQ(test::resident_pages(starts[i], folio), 0u);
    EXPECT_EQ(fullness(b), (Fullness{{Bins::of(b).folio_objects, 3}}));
    checked(heap_);
  }
  EXPECT_FALSE(heap_->trim());
}

// Takes and puts by chance, every object in a model: none is handed out twice,
// all that are out are known.
TEST_F(SupermallocFolioHeap, AgreesWithASetOfObjects) {
  for (const std::size_t n : {16u, 48u, 192u, 1088u, 3904u, 10048u}) {
    const BinNumber b = Bins::for_folios(n);
    const Bin& bin = Bins::of(b);
    ASSERT_EQ(bin.size, n);
    test::Random random(test::seed_of(n));
    std::set<FreeObject*> out;
    for (int step = 0; step < 300; ++step) {
      if (random.one_in(2)) {
        const auto most = static_cast<std::uint32_t>(1 + random.below(2 * bin.folio_objects + 20));
        const std::vector<FreeObject*> taken = take(b, most);
        ASSERT_LE(taken.size(), most);
        ASSERT_NE(taken.size(), 0u);
        for (FreeObject* p : taken) ASSERT_TRUE(out.insert(p).second);
      } else if (!out.empty()) {
        std::vector<FreeObject*> freed;
        const bool all = random.one_in(8);
        for (auto p = out.begin(); p != out.end();) {
          if (all || random.one_in(3)) {
            freed.push_back(*p);
            p = out.erase(p);
          } else {
            ++p;
          }
        }
        for (std::size_t i = freed.size(); i > 1; --i)
          std::swap(freed[i - 1], freed[random.below(i)]);
        put(b, freed);
      }
      if (step % 20 != 0) continue;
      ASSERT_EQ(checked(heap_).live_objects, out.size()) << n;
      std::size_t free = 0;
      std::size_t folios = 0;
      for (const auto& [each, count] : fullness(b)) {
        free += each * count;
        folios += count;
      }
      ASSERT_EQ(free + out.size(), folios * bin.folio_objects) << n;
    }
    put(b, {out.begin(), out.end()});
  }
  EXPECT_TRUE(checked(heap_).all_returned());
}

// A chunk's last folio, and then the next chunk's first.
TEST_F(SupermallocFolioHeap, ChunksAreUsedToTheirEnd) {
  const BinNumber b = Bins::for_folios(14272);
  const Bin& bin = Bins::of(b);
  const std::size_t in_chunk = bin.folios - bin.first_folio;
  auto folios = take_whole_folios(b, in_chunk);
  std::set<std::uintptr_t> chunks;
  for (const auto& folio : folios)
    chunks.insert(align_down(address_of(folio[0]), supermalloc::kChunk));
  EXPECT_EQ(chunks.size(), 1u);
  EXPECT_EQ(checked(heap_).folio_chunks, 2u);  // and that of the first use
  const std::vector<FreeObject*> next = take(b, 1);
  EXPECT_FALSE(chunks.contains(align_down(address_of(next[0]), supermalloc::kChunk)));
  EXPECT_EQ(checked(heap_).folio_chunks, 3u);
  put(b, next);
  for (const auto& folio : folios) put(b, folio);
  EXPECT_TRUE(checked(heap_).all_returned());
}

using SupermallocFolioHeapDeathTest = SupermallocFolioHeap;
TEST_F(SupermallocFolioHeapDeathTest, AListWithAnObjectTwiceIsNamed) {
  const BinNumber b = Bins::for_folios(64);
  const std::vector<FreeObject*> objects = take(b, 3);
  put(b, {objects[0]});
  EXPECT_EXIT(put(b, {objects[1], objects[0]}), testing::KilledBySignal(SIGABRT),
              "^spanalloc: free object overwritten");
  put(b, {objects[1], objects[2]});
}

// What is wrong with one object of a list is told when the others are back, those of later batches,
// too; but for those that hang on a link that was overwritten.
TEST_F(SupermallocFolioHeapDeathTest, AReportLosesNoOtherObjectOfTheList) {
  const BinNumber b = Bins::for_folios(64);
  const std::size_t all = Bins::of(b).folio_objects;  // two batches
  constexpr std::size_t kBroken = 10;                 // before it in the list, in the first batch
  const auto put_reported = [&](std::vector<FreeObject*> objects) {
    return test::is_reported([&] { put(b, objects); });
  };
  const auto loses_none = [&](auto&& put_list) {
    std::vector<FreeObject*> objects = take(b, static_cast<std::uint32_t>(all));
    const std::size_t before = heap_->census().live_objects;
    const std::size_t back = put_list(objects);
    if (back == 0) return 2;
    if (before - heap_->census().live_objects != back) return 3;
    put(b, take(b, 3));
    return heap_->census().consistent() ? 0 : 4;
  };
  const auto broken_at = [&](std::vector<FreeObject*>& objects) -> FreeObject*& {
    return objects[objects.size() - 1 - kBroken];
  };
  // The object is free already.
  const auto twice = [&](std::vector<FreeObject*>& objects) {
    put(b, {broken_at(objects)});
    return put_reported(objects) ? kBroken + 1 : 0;
  };
  EXPECT_EXIT(_exit(loses_none(twice)), testing::ExitedWithCode(0), "free object overwritten");
  // The list has an object twice, so it is a ring.
  const auto ring = [&](std::vector<FreeObject*>& objects) {
    return put_reported({objects[0], objects[1], objects[0]}) ? 2 : 0;
  };
  EXPECT_EXIT(_exit(loses_none(ring)), testing::ExitedWithCode(0), "free object overwritten");
  // The list has a place in it where none begins.
  const auto astray = [&](std::vector<FreeObject*>& objects) {
    broken_at(objects) =
        pointer_to<FreeObject>(address_of(broken_at(objects)) + sizeof(FreeObject));
    unpoison(broken_at(objects), sizeof(FreeObject));
    return put_reported(objects) ? kBroken : 0;
  };
  EXPECT_EXIT(_exit(loses_none(astray)), testing::ExitedWithCode(0), "free object overwritten");
  // The object was written to.
  const auto overwritten = [&](std::vector<FreeObject*>& objects) {
    ObjectList list;
    for (FreeObject* p : objects) {
      p->push_on(list.first, heap_->secret());
      list.first = p;
      ++list.count;
    }
    broken_at(objects)->seal ^= 1;
    return test::is_reported([&] { heap_->folios().put(b, list, heap_->secret()); }) ? kBroken : 0;
  };
  EXPECT_EXIT(_exit(loses_none(overwritten)), testing::ExitedWithCode(0),
              "free object overwritten");
}

}  // namespace
}  // namespace spanalloc
