// A chunk's bits and a bin's lists of folios by fullness, against simple models.
#include "papers/supermalloc/engine/folios.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <vector>

#include "os/os.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "random.hpp"

namespace spanalloc::supermalloc {
namespace {

using TheBins = Bins<Supermalloc>;

// A chunk's memory, zero at first.
class OwnChunk {
 public:
  ~OwnChunk() { os::release(memory_, kChunk); }
  std::uintptr_t address() const { return address_of(memory_); }

 private:
  void* memory_ = os::map(kChunk, kChunk);
};

using Model = std::bitset<kChunk / kLeastObject + 1>;

// What is claimed was free, lies in the folio, is as much as was asked for or all there was, the
// lowest of them, and is out now.
void claim(const FolioChunk& chunk, const Bin& bin, Model& model, std::uint32_t folio,
           std::uint32_t most) {
  const std::uint32_t first = folio * bin.folio_objects;
  std::uint32_t free = 0;
  for (std::uint32_t i = 0; i < bin.folio_objects; ++i) free += !model[first + i];
  Claim claims[Bins<Supermalloc>::kMostFolioObjects / 64];
  Claim* end = claims;
  const std::uint32_t taken = chunk.claim(folio, most, end);
  ASSERT_EQ(taken, std::min(free, most));
  ASSERT_LE(end, std::end(claims));
  std::uint32_t told = 0;
  std::uint32_t last = first;
  for (const Claim* c = claims; c != end; ++c) {
    ASSERT_EQ(c->chunk, chunk.address());
    ASSERT_NE(c->bits, 0u);
    for (std::uint32_t bit = 0; bit < 64; ++bit) {
      if ((c->bits >> bit & 1) == 0) continue;
      const std::uint32_t object = c->word * 64 + bit;
      ASSERT_TRUE(object >= first && object < first + bin.folio_objects);
      ASSERT_FALSE(model[object]);
      ASSERT_TRUE(chunk.is_out(object));
      model[object] = true;
      last = object;
      ++told;
    }
  }
  ASSERT_EQ(told, taken);
  // None before the last one is left.
  for (std::uint32_t object = first; taken != 0 && object < last; ++object)
    ASSERT_TRUE(model[object]);
}

void give_back(const FolioChunk& chunk, const Bin& bin, Model& model, std::uint32_t folio,
               test::Random& random) {
  const std::uint32_t first = folio * bin.folio_objects;
  std::vector<std::uint32_t> out;
  for (std::uint32_t i = 0; i < bin.folio_objects; ++i) {
    if (model[first + i]) out.push_back(first + i);
  }
  for (std::size_t left = random.below(out.size() + 1); left != 0; --left) {
    std::swap(out[random.below(out.size())], out.back());
    chunk.give_back(out.back());
    model[out.back()] = false;
    ASSERT_FALSE(chunk.is_out(out.back()));
    out.pop_back();
  }
}

TEST(SupermallocFolios, BitsAreThoseOfASetOfObjects) {
  for (BinNumber b = 0; b < TheBins::kFirstLarge; ++b) {
    const Bin& bin = TheBins::of(b);
    OwnChunk memory;
    const FolioChunk chunk(memory.address(), bin);
    auto model = std::make_unique<Model>();
    test::Random random(test::seed_of(b));
    // The first two, the last two, and two beside each other in the middle: neighbours share words.
    const std::uint32_t middle = (bin.first_folio + bin.folios) / 2;
    std::vector<std::uint32_t> folios{bin.first_folio, bin.first_folio + 1, middle,
                                      middle + 1,      bin.folios - 2,      bin.folios - 1};
    std::erase_if(folios, [&](std::uint32_t f) { return f < bin.first_folio || f >= bin.folios; });
    for (int step = 0; step < 400; ++step) {
      const std::uint32_t folio = folios[random.below(folios.size())];
      if (random.one_in(2)) {
        const auto most = static_cast<std::uint32_t>(1 + random.below(bin.folio_objects + 2));
        claim(chunk, bin, *model, folio, most);
      } else {
        give_back(chunk, bin, *model, folio, random);
      }
      if (this->HasFatalFailure()) return;
      for (const std::uint32_t f : folios) {
        std::uint32_t out = 0;
        for (std::uint32_t i = 0; i < bin.folio_objects; ++i)
          out += (*model)[f * bin.folio_objects + i];
        ASSERT_EQ(chunk.count_out(f), out) << bin.size;
      }
    }
    // And all others are as they were.
    for (std::uint32_t object = 0; object < chunk.bits_bytes() * 8; ++object) {
      ASSERT_EQ(chunk.is_out(object), (*model)[object]) << bin.size << ": " << object;
    }
    for (const std::uint32_t f : folios) {
      ASSERT_EQ(chunk.folio_of(chunk.cell(f)), f);
      ASSERT_EQ(chunk.folio_of(f * bin.folio_objects), f);
      ASSERT_EQ(chunk.folio_of(f * bin.folio_objects + bin.folio_objects - 1), f);
    }
  }
}

// The fullest that has one free is the first one of the first list that is marked, from 1 on.
TEST(SupermallocFolios, TheFullestIsFoundAmongAnyLists) {
  constexpr std::uint32_t kMost = 256;
  struct Known {
    FolioCell cell;
    std::uint32_t free;
    bool is_listed;
  };
  std::vector<Known> cells(40);
  std::vector<FolioCell*> heads(kMost + 1);
  FullnessLists<kMost> lists;
  test::Random random(test::seed_of(1));
  for (int step = 0; step < 20'000; ++step) {
    Known& known = cells[random.below(cells.size())];
    if (known.is_listed) {
      lists.remove(heads.data(), &known.cell, known.free);
      known.is_listed = false;
    } else {
      // Ends of words more often than others.
      constexpr std::uint32_t kEnds[] = {0, 1, 63, 64, 127, 128, 191, 192, 255, 256};
      known.free = static_cast<std::uint32_t>(random.one_in(2) ? kEnds[random.below(10)]
                                                               : random.below(kMost + 1));
      lists.add(heads.data(), &known.cell, known.free);
      known.is_listed = true;
    }
    std::uint32_t fewest = kMost + 1;
    for (const Known& k : cells) {
      if (k.is_listed && k.free != 0) fewest = std::min(fewest, k.free);
    }
    const FolioCell* fullest = lists.fullest(heads.data());
    ASSERT_EQ(fullest == nullptr, fewest > kMost);
    ASSERT_EQ(fullest, fullest == nullptr ? nullptr : heads[fewest]);
    if (step % 16 != 0) continue;
    std::vector<std::size_t> lengths(kMost + 1);
    for (std::uint32_t free = 0; free <= kMost; ++free) {
      const FolioCell* before = nullptr;
      for (const FolioCell* cell = heads[free]; cell != nullptr; cell = cell->next) {
        ASSERT_EQ(cell->previous, before);
        ASSERT_EQ(cell->state, FolioState::kListed);
        before = cell;
        ++lengths[free];
      }
      ASSERT_EQ(lists.is_marked(free), lengths[free] != 0) << free;
    }
    for (const Known& k : cells) lengths[k.free] -= k.is_listed;
    for (const std::size_t length : lengths) ASSERT_EQ(length, 0u);
  }
}

// Added by address a list stays in order, whatever is taken from it.
TEST(SupermallocFolios, AListIsInTheOrderOfAddressesWhereThatIsAskedFor) {
  FolioCell cells[40] = {};
  bool is_listed[40] = {};
  FolioCell* heads[2] = {};
  FullnessLists<> lists;
  test::Random random(test::seed_of(2));
  for (int step = 0; step < 5'000; ++step) {
    const std::size_t i = random.below(40);
    if (is_listed[i]) {
      lists.remove(heads, &cells[i], 1);
    } else {
      lists.add_by_address(heads, &cells[i], 1);
    }
    is_listed[i] = !is_listed[i];
    const FolioCell* before = nullptr;
    std::size_t length = 0;
    for (const FolioCell* cell = heads[1]; cell != nullptr; cell = cell->next) {
      ASSERT_EQ(cell->previous, before);
      ASSERT_TRUE(before == nullptr || before < cell);
      ASSERT_TRUE(is_listed[cell - cells]);
      before = cell;
      ++length;
    }
    ASSERT_EQ(length, static_cast<std::size_t>(std::count(is_listed, std::end(is_listed), true)));
    ASSERT_EQ(lists.is_marked(1), length != 0);
    ASSERT_EQ(lists.fullest(heads), heads[1]);
  }
}

}  // namespace
}  // namespace spanalloc::supermalloc
