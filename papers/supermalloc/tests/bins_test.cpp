// The bins of the supermalloc engine: which one serves a size, and the arithmetic that finds
// objects in chunks. All of it is tried: every bin, every size, every place in a chunk.
#include "papers/supermalloc/engine/bins.hpp"

#include <gtest/gtest.h>

#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/folios.hpp"

namespace spanalloc::supermalloc {
namespace {

using TheBins = Bins<Supermalloc>;

// By `/` and `%`.
TEST(SupermallocBins, DivisionByMultiplicationIsRightAtEveryPlace) {
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const Bin& bin = TheBins::of(b);
    std::size_t wrong = 0;
    std::size_t first_wrong = 0;
    for (std::size_t place = 0; place < kChunk; ++place) {
      const Quotient plain = divide(place, bin.inverse);
      // (That of the short path is of bins with folios only.)
      const Quotient short_path =
          bin.is_large() ? plain : divide_by(place, TheBins::inverses_by_tag(), b + 1);
      const std::size_t value = place / bin.size;
      const bool exact = place % bin.size == 0;
      if (plain.value == value && plain.exact == exact && short_path.value == value &&
          short_path.exact == exact) {
        continue;
      }
      if (wrong++ == 0) first_wrong = place;
    }
    EXPECT_EQ(wrong, 0u) << bin.size << ": first at " << first_wrong;
  }
}

// The two of its operands that are numbers may be known to be equal: each needs a register of its
// own. (Of one that is used for nothing else afterwards.)
[[gnu::noinline]] Quotient divide_by_its_own(const std::uint64_t* inverses, std::size_t i) {
  return divide_by(i, inverses, i);
}
TEST(SupermallocBins, DivisionIsRightWhereNumberAndIndexAreOne) {
  std::uint64_t inverses[64];
  for (std::size_t i = 0; i < 64; ++i) inverses[i] = inverse_of(i / 7 + 2);
  for (std::size_t i = 0; i < 64; ++i) {
    const Quotient quotient = divide_by_its_own(inverses, i);
    EXPECT_EQ(quotient.value, i / (i / 7 + 2)) << i;
    EXPECT_EQ(quotient.exact, i % (i / 7 + 2) == 0) << i;
  }
}

// The short path of free asks with whatever byte the chunk table has: 0 for a pointer into no
// chunk.
TEST(SupermallocBins, NothingBeginsInAChunkWithoutFolios) {
  for (std::size_t place = 0; place < kChunk; ++place) {
    ASSERT_FALSE(divide_by(place, TheBins::inverses_by_tag(), 0).exact) << place;
  }
  for (std::size_t tag = TheBins::kFirstLarge + 1; tag < 256; ++tag) {
    for (std::size_t place = 0; place < kChunk; place += place < 2 * kPage ? 1 : 4093) {
      ASSERT_FALSE(divide_by(place, TheBins::inverses_by_tag(), tag).exact) << tag << ", " << place;
    }
  }
}

TEST(SupermallocBins, TheLeastOneServesASizeAndNeverAnAlignedOne) {
  for (std::size_t n = 0; n <= TheBins::kLargest; n += n < 20 * kKiB ? 1 : 997) {
    BinNumber least = 0;
    while (TheBins::of(least).size < n || TheBins::of(least).kind == Kind::kAligned) ++least;
    ASSERT_EQ(TheBins::for_size(n), least) << n;
    if (n > TheBins::kLargestWithFolios) continue;
    ASSERT_EQ(TheBins::for_folios(n), least) << n;
    ASSERT_EQ(TheBins::tag_for_folios(n), least + 1) << n;
  }
  EXPECT_EQ(TheBins::for_size(TheBins::kLargest), TheBins::kCount - 1);
  EXPECT_EQ(TheBins::for_size(TheBins::kLargestWithFolios) + 1, TheBins::kFirstLarge);
}

TEST(SupermallocBins, AlignedRequestsTakeTheLeastWhoseObjectsAreAllAligned) {
  for (std::size_t alignment = 1; alignment <= kPage; alignment *= 2) {
    for (std::size_t n = 0; n <= TheBins::kLargestWithFolios + 1; ++n) {
      BinNumber least = 0;
      while (least < TheBins::kFirstLarge &&
             (TheBins::of(least).size < n || TheBins::of(least).size % alignment != 0)) {
        ++least;
      }
      const BinNumber found = TheBins::for_aligned(n, alignment);
      ASSERT_EQ(found, least < TheBins::kFirstLarge ? least : TheBins::kCount)
          << n << " at " << alignment;
      // Objects lie at multiples of their size from a chunk's beginning.
      ASSERT_TRUE(found == TheBins::kCount || TheBins::of(found).origin % alignment == 0);
    }
  }
  // The powers of two are there for this: no more than twice what is asked for,
  // up to their largest one.
  for (std::size_t n = 1; n <= 8 * kKiB; ++n) {
    ASSERT_LE(TheBins::of(TheBins::for_aligned(n, 512)).size, std::max<std::size_t>(2 * n, 512));
  }
}

TEST(SupermallocBins, BookkeepingEndsBeforeTheFirstObject) {
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const Bin& bin = TheBins::of(b);
    const FolioChunk chunk(kChunk, bin);
    const std::size_t first = address_of(chunk.object(bin.first)) - kChunk;
    // A bit for the number of every place, also of those where no object is.
    EXPECT_GT(chunk.bits_bytes() * 8, (kChunk - 1) / bin.size) << bin.size;
    const std::size_t cells =
        bin.is_large() ? bin.objects * kObjectCellBytes : bin.folios * kFolioCellBytes;
    EXPECT_LE(kChunkHeadBytes + chunk.bits_bytes() + cells, first) << bin.size;
    EXPECT_LE(first + std::size_t{bin.objects - bin.first} * bin.size, kChunk) << bin.size;
    if (bin.is_large()) continue;
    // Folios are whole pages that objects fill; the first one begins where the first object does.
    EXPECT_EQ(bin.folio_bytes % kPage, 0u) << bin.size;
    EXPECT_EQ(bin.folio_bytes, bin.folio_objects * bin.size) << bin.size;
    EXPECT_EQ(address_of(chunk.folio_start(bin.first_folio)) - kChunk, first) << bin.size;
    EXPECT_EQ(bin.folio_objects & (bin.folio_objects - 1), 0u) << bin.size;
  }
}

TEST(SupermallocBins, ObjectsAreFoundWhereTheyBeginAndNowhereElse) {
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const Bin& bin = TheBins::of(b);
    const FolioChunk chunk(kChunk, bin);
    std::uint32_t next = bin.first;
    std::size_t wrong = 0;
    for (std::size_t place = 0; place < kChunk; ++place) {
      const bool begins = next < bin.objects && place == bin.origin + std::size_t{next} * bin.size;
      if (chunk.object_at(pointer_to(kChunk + place)) != (begins ? next : bin.objects)) ++wrong;
      if (!begins) continue;
      if (chunk.object(next) != pointer_to(kChunk + place)) ++wrong;
      ++next;
    }
    EXPECT_EQ(wrong, 0u) << bin.size;
    EXPECT_EQ(next, bin.objects) << bin.size;
  }
}

TEST(SupermallocBins, ListsAndChainsAreAsLongAsThePaperSays) {
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const Bin& bin = TheBins::of(b);
    const std::size_t list = std::size_t{bin.list_objects} * bin.size;
    // "up to 8 KiB", and the next object would be too many; of what is larger one object.
    EXPECT_TRUE(bin.list_objects == 1 || list <= 8 * kKiB) << bin.size;
    EXPECT_GT(list + bin.size, 8 * kKiB) << bin.size;
    EXPECT_TRUE(bin.chain_lists == 1 || bin.chain_lists * list <= kMiB) << bin.size;
    EXPECT_GT((bin.chain_lists + 1) * list, kMiB) << bin.size;
  }
}

}  // namespace
}  // namespace spanalloc::supermalloc
