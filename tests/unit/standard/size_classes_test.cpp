// The class table of `standard`, checked by brute force against its promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "standard/class_lookup.hpp"

namespace spanalloc::standard {
namespace {

using Classes = SizeClasses<Standard>;
constexpr std::size_t kMaxBlock = Classes::kMaxBlock;
constexpr std::size_t kSlice = Classes::kSlice;
constexpr unsigned kClasses = Classes::kCount;

unsigned class_of(std::size_t n) {
  return index_of(Classes::of(n));
}
unsigned class_of_aligned(std::size_t n, std::size_t alignment) {
  return index_of(Classes::of_aligned(n, alignment));
}

TEST(StandardClasses, EveryRequestGetsTheSmallestClassThatHoldsIt) {
  for (std::size_t n = 1; n <= kMaxBlock; ++n) {
    const unsigned c = class_of(n);
    ASSERT_GE(Classes::kTable[c].block_size, n);
    if (c > 1) {
      ASSERT_LT(Classes::kTable[c - 1].block_size, n);
    }
  }
}

TEST(StandardClasses, TheTablesOfMallocAgreeWithTheFormula) {
  using Lookup = ClassLookup<Standard>;
  EXPECT_EQ(index_of(Lookup::by_byte[0]), 0u);
  for (std::size_t n = 1; n <= kMaxBlock; ++n) {
    if (n <= Lookup::kMostByByte) {
      ASSERT_EQ(index_of(Lookup::by_byte[n]), class_of(n));
    } else if (n <= Classes::kMaxSmall) {
      ASSERT_EQ(index_of(Lookup::small[n]), class_of(n));
    } else {
      ASSERT_EQ(index_of(Lookup::large[n]), class_of(n));
    }
  }
}

TEST(StandardClasses, WasteAboveA128ByteRequestIsAtMostAnEighth) {
  for (std::size_t n = 129; n <= kMaxBlock; ++n) {
    ASSERT_LE((Classes::kTable[class_of(n)].block_size - n) * 8, n) << n;
  }
}

TEST(StandardClasses, AlignedRequestsGetNaturallyAlignedBlocks) {
  for (std::size_t alignment = 1; alignment <= kMaxBlock; alignment *= 2) {
    for (std::size_t n : {std::size_t{1}, alignment / 2 + 1, alignment, alignment + 1,
                          3 * alignment, std::size_t{100000}}) {
      const unsigned c = class_of_aligned(n, alignment);
      if (n > kMaxBlock) {
        EXPECT_EQ(c, 0u);
        continue;
      }
      if (c == 0) continue;  // served outside spans
      EXPECT_GE(Classes::kTable[c].block_size, n);
      // Spans start at multiples of a slice, blocks in them at multiples of their size from the
      // first on.
      EXPECT_LE(alignment, kSlice);
      EXPECT_TRUE((Classes::kTable[c].block_size % alignment == 0 &&
                   Classes::kTable[c].lead % alignment == 0) ||
                  Classes::kTable[c].blocks == 1);
    }
  }
}

TEST(StandardClasses, AlignedClassesAreTheSmallestThatDo) {
  for (std::size_t alignment = 1; alignment <= 2 * kMaxBlock; alignment *= 2) {
    for (unsigned around = 1; around < kClasses; ++around) {
      for (const std::size_t n :
           {Classes::kTable[around].block_size - 1, Classes::kTable[around].block_size}) {
        unsigned smallest = 0;
        for (unsigned c = kClasses - 1; c > 0 && Classes::kTable[c].block_size >= n; --c) {
          const bool dense = Classes::kTable[c].block_size % alignment == 0;
          if (alignment <= kSlice && (dense || Classes::kTable[c].blocks == 1)) smallest = c;
        }
        ASSERT_EQ(class_of_aligned(n, alignment), smallest)
            << n << " bytes at multiples of " << alignment;
      }
    }
  }
}

// One live block of each: they do not meet in few sets of a cache.
TEST(StandardClasses, FirstBlocksLieOnManyLines) {
  std::map<std::uint32_t, unsigned> classes_of_line;
  unsigned most = 0;
  for (unsigned c = 1; c < 42; ++c) {
    const ClassInfo& k = Classes::kTable[c];
    EXPECT_EQ(k.lead % kCacheLine, 0u);
    EXPECT_LE(k.offset_of(k.blocks), k.real_span);
    most = std::max(most, ++classes_of_line[k.lead / kCacheLine]);
  }
  EXPECT_EQ(classes_of_line.size(), Standard::kColors);
  EXPECT_LE(most, 8u);  // as many as a set of the smallest first cache holds
}

TEST(StandardClasses, MultiplicationTellsBlockStarts) {
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& k = Classes::kTable[c];
    const std::size_t step = k.virtual_span <= kSlice ? 1 : 8;
    for (std::size_t offset = 0; offset < k.virtual_span; offset += step) {
      const bool start = offset % k.block_size == 0;
      ASSERT_EQ(offset * k.magic < k.magic, start) << c << " " << offset;
    }
  }
}

std::string percent(std::size_t part, std::size_t whole) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string table_of_classes() {
  std::ostringstream out;
  out << "# The size classes of `standard`\n\n"
         "Printed by a test from `src/standard/size_classes.hpp`; after a change "
         "there:\n"
         "`SPANALLOC_WRITE_DOCS=1 build/release/tests/unit/unit_tests "
         "--gtest_filter=StandardClasses.*`\n\n"
         "A request gets the smallest block that holds it. The blocks of a class lie side by side "
         "in "
         "*spans*. "
         "A *virtual\nspan* is the address space of one: whole slices of "
      << kSlice / kKiB
      << " KiB. Its *real span* is what its blocks fill of\nthat, up to the end of a page. (From "
         "class "
      << index_of(Classes::kFirstLarge)
      << " on a span has one block, which may begin further\non: `large_block_place.hpp`.)\n\n"
         "*Unused*: the largest part of a block that a request of its class leaves unused. "
         "*First*: where in a span the\nfirst block begins. *Tail*: what of a real span is no "
         "block.\n\nRequests above "
      << kMaxBlock / kKiB
      << " KiB have a span of their own, of as many slices as they need.\n\n"
         "| class | requests (bytes) | block | unused | blocks a span | first | real span (KiB) | "
         "tail | virtual span (KiB) |\n"
         "|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& k = Classes::kTable[c];
    const std::size_t smallest = Classes::kTable[c - 1].block_size + std::size_t{1};
    out << "| " << c << " | " << smallest << " to " << k.block_size << " | " << k.block_size
        << " | " << percent(k.block_size - smallest, k.block_size) << " | " << k.blocks << " | "
        << k.lead << " | " << k.real_span / kKiB << " | " << percent(k.overhead(), k.real_span)
        << " | " << k.virtual_span / kKiB << " |\n";
  }
  return out.str();
}

TEST(StandardClasses, TheTableOfTheDocsIsThis) {
  const std::string path = SPANALLOC_DOCS "/size-classes.md";
  if (std::getenv("SPANALLOC_WRITE_DOCS") != nullptr) std::ofstream(path) << table_of_classes();
  std::ifstream file(path);
  std::ostringstream written;
  written << file.rdbuf();
  EXPECT_EQ(written.str(), table_of_classes()) << "SPANALLOC_WRITE_DOCS=1 writes it";
}

}  // namespace
}  // namespace spanalloc::standard
