// What a reader outside of the process is told: that it finds the records by it, and in them what
// the engine itself finds. Here everything is read as such a reader does: by addresses and offsets.
#include "standard/inspection.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "random.hpp"
#include "standard/engine.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

struct Inspected : Standard {
  static constexpr const char* kName = "inspected";
};
using E = StandardEngineOf<Inspected>;
using Classes = standard::SizeClasses<Inspected>;

constinit const Inspection inspection = inspection_of<E>("1.2.3");

template <class T>
T read(const void* base, std::size_t offset = 0) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + offset, sizeof value);
  return value;
}
std::uint64_t word(const void* place) {
  return read<std::uint64_t>(place);
}
const char* record(std::size_t slice) {
  return pointer_to<char>(word(inspection.span_records)) + slice * inspection.span_stride;
}
const char* cache(std::size_t number) {
  return pointer_to<char>(word(inspection.cache_records)) + number * inspection.cache_stride;
}
std::uint64_t row_word(std::size_t slice, std::size_t which) {
  const auto* rows = pointer_to<char>(word(inspection.arena_rows));
  return read<std::uint64_t>(rows,
                             8 * (slice / inspection.row_units * inspection.row_words + which));
}

struct Range {
  std::uint32_t first;
  std::size_t slices;
  bool used;
  bool operator==(const Range&) const = default;
};
// As CoalescingArena::walk().
std::vector<Range> ranges() {
  std::vector<Range> found;
  const std::uint64_t limit = word(inspection.arena_limit);
  for (std::uint64_t slice = 0; slice < limit;) {
    const std::uint64_t bits =
        row_word(slice, inspection.row_blocks + slice % inspection.row_units);
    const std::uint64_t size = bits >> inspection.block_size_shift;
    EXPECT_NE(size, 0u);
    if (size == 0) break;
    const bool used = (bits & inspection.block_state_mask) == inspection.block_used;
    const auto has = [&](std::uint32_t set) { return row_word(slice, set) >> slice % 64 & 1; };
    const bool gone = used && (has(inspection.row_unmapped) || has(inspection.row_lost));
    if (slice != 0 && !gone) found.push_back({static_cast<std::uint32_t>(slice), size, used});
    slice += size;
  }
  return found;
}
std::vector<Range> ranges_inside() {
  std::vector<Range> found;
  E::pages.arena.walk([&](std::uint32_t first, std::size_t slices, bool free) {
    found.push_back({first, slices, !free});
  });
  return found;
}

TEST(StandardInspection, SaysWhatItIs) {
  EXPECT_STREQ(inspection.magic, "spanalloc heap");
  EXPECT_EQ(inspection.version, 1u);
  EXPECT_EQ(inspection.bytes, sizeof inspection);
  EXPECT_STREQ(inspection.library_version, "1.2.3");
  EXPECT_STREQ(inspection.engine, "inspected");
}

// The command, which unpacks it, has its fields in a list: no gap may be between them but the one
// that brings the next to its alignment.
TEST(StandardInspection, HasItsFieldsOneBehindTheOther) {
  EXPECT_EQ(offsetof(Inspection, classes), 16u + 4 + 4 + 16 + 32);
  EXPECT_EQ(offsetof(Inspection, class_stride), offsetof(Inspection, classes) + 12 * 8);
  EXPECT_EQ(offsetof(Inspection, batch_left) + 4, offsetof(Inspection, class_stride) + 37 * 4);
  EXPECT_EQ(offsetof(Inspection, program_heaps), offsetof(Inspection, batch_left) + 8) << "a gap";
  EXPECT_EQ(offsetof(Inspection, span_order), offsetof(Inspection, program_heaps) + 3 * 8);
  EXPECT_EQ(sizeof(Inspection), offsetof(Inspection, span_order) + 6 * 4) << "one is a gap";
}

struct Untold {
  static constexpr const char* kName = "untold";
};
TEST(StandardInspection, OfAnEngineThatTellsNoLayoutHasItsNameAndHeaps) {
  constexpr Inspection untold = inspection_of<Untold>("1.2.3");
  EXPECT_STREQ(untold.engine, "untold");
  EXPECT_EQ(untold.class_count, 0u);
  EXPECT_EQ(untold.arena_base, nullptr);
  // First-class heaps are no engine's.
  EXPECT_EQ(untold.program_heaps, ProgramHeaps::inspection_place());
}

TEST(StandardInspection, TellsTheClasses) {
  ASSERT_EQ(inspection.class_count, Classes::kCount);
  EXPECT_EQ(inspection.class_first_large, index_of(Classes::kFirstLarge));
  for (unsigned c = 1; c < Classes::kCount; ++c) {
    const auto field = [&](std::uint32_t offset) {
      return read<std::uint32_t>(inspection.classes, c * inspection.class_stride + offset);
    };
    const standard::ClassInfo& info = Classes::info(standard::ClassId{c});
    ASSERT_EQ(field(inspection.class_block_size), info.block_size);
    ASSERT_EQ(field(inspection.class_span), info.virtual_span);
    ASSERT_EQ(field(inspection.class_blocks), info.blocks);
    ASSERT_EQ(field(inspection.class_lead), info.lead);
  }
}

TEST(StandardInspection, LeadsToEachRangeOfTheArena) {
  std::vector<void*> blocks;
  for (std::size_t size : {100, 3000, 40'000, 700'000, 5'000'000})
    for (unsigned i = 0; i < 40; ++i) blocks.push_back(E::allocate(size));
  for (std::size_t i = 0; i < blocks.size(); i += 3) E::deallocate(blocks[i]);
  EXPECT_EQ(word(inspection.arena_base), E::pages.arena.base());
  EXPECT_EQ(word(inspection.arena_limit), E::pages.arena.limit());
  EXPECT_EQ(word(inspection.span_end), index_of(E::pages.end_of_spans()));
  EXPECT_EQ(ranges(), ranges_inside());
  for (const Range& range : ranges()) {
    std::size_t dirty = 0;
    for (std::uint32_t slice = range.first; slice < range.first + range.slices; ++slice)
      dirty += row_word(slice, inspection.row_dirty) >> slice % 64 & 1;
    EXPECT_EQ(dirty, E::pages.arena.dirty_slices(range.first, range.slices));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 3 != 0) E::deallocate(blocks[i]);
  }
}

TEST(StandardInspection, AddsUpToTheStatistics) {
  std::vector<void*> blocks;
  for (std::size_t size : {16, 200, 2000, 20'000, 200'000, 2'000'000})
    for (unsigned i = 0; i < 30; ++i) blocks.push_back(E::allocate(size));
  std::size_t small = 0;
  std::size_t large = word(inspection.outside_bytes);
  std::size_t objects = word(inspection.outside_objects);
  std::size_t free = 0;
  for (const Range& range : ranges()) {
    const std::size_t bytes = range.slices << inspection.slice_bits;
    const char* span = record(range.first);
    const std::uint64_t bits = read<std::uint64_t>(span, inspection.span_word);
    if (!range.used || (bits >> inspection.word_state_shift & 3) == 0) {
      free += bytes;
      continue;
    }
    const unsigned c = read<std::uint8_t>(span, inspection.span_class);
    if (c == inspection.class_count) {
      large += bytes;
      ++objects;
    } else {
      small += min_of(Classes::info(standard::ClassId{c}).real_span, bytes);
    }
  }
  const EngineStatistics told = E::statistics();
  EXPECT_EQ(small, told.small_bytes_carved);
  EXPECT_EQ(large, told.large_bytes);
  EXPECT_EQ(objects, told.large_objects);
  EXPECT_EQ(free, told.pooled_bytes);
  EXPECT_NE(small, 0u);
  EXPECT_NE(objects, 0u);
  for (void* p : blocks) E::deallocate(p);
}

TEST(StandardInspection, LeadsToTheFieldsOfASpansRecord) {
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 100; ++i) blocks.push_back(E::allocate(352));
  for (unsigned i = 0; i < 10; ++i) E::deallocate(blocks[i]);
  const standard::SpanRef span = E::pages.span_of(E::pages.any_slice_at(address_of(blocks[50])));
  const char* at = record(index_of(span.number));
  ASSERT_EQ(static_cast<const void*>(at), span.record);
  EXPECT_EQ(read<std::uint64_t>(at, inspection.span_word), span->load_word().bits);
  EXPECT_EQ(read<std::uint8_t>(at, inspection.span_class),
            index_of(standard::SizeClasses<Inspected>::of(352)));
  EXPECT_EQ(read<std::uint16_t>(at, inspection.span_carved), span->carved());
  EXPECT_GE(span->carved(), 100u);
  EXPECT_EQ(read<std::uint64_t>(at, inspection.span_list), address_of(span->free_list().first()));
  EXPECT_EQ(read<std::uint64_t>(at, inspection.span_purged), span->purged());
  EXPECT_EQ(read<std::uint8_t>(at, inspection.span_retired), 0u);
  // The list that a reader follows: the word of a block, its address and the key give the next.
  std::size_t listed = 0;
  std::uint64_t block = read<std::uint64_t>(at, inspection.span_list);
  for (; (block & 8) == 0; ++listed)
    block ^= read<std::uint64_t>(pointer_to(block)) ^ word(inspection.link_key);
  EXPECT_EQ(block, address_of(inspection.no_block));
  EXPECT_EQ(read<std::uint8_t>(at, inspection.span_order), span->order());
  EXPECT_EQ(read<std::uint64_t>(at, inspection.span_first), span->first_block());
  EXPECT_EQ(listed,
            standard::length_of(span->free_list().first(), standard::kMostSpan, 1u << 16).blocks);
  EXPECT_GE(listed, 10u);
  for (unsigned i = 10; i < 100; ++i) E::deallocate(blocks[i]);
}

TEST(StandardInspection, LeadsToWhatThreadsKeep) {
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 40; ++i) blocks.push_back(E::allocate(480));
  test::on_another_thread([&] {
    std::vector<void*> own;
    for (unsigned i = 0; i < 100; ++i) own.push_back(E::allocate(32));
    for (unsigned i = 0; i < 10; ++i) E::deallocate(blocks[i]);
    const auto& mine = *E::thread_cache.cache;
    const char* at = cache(index_of(mine.number));
    ASSERT_EQ(static_cast<const void*>(at), &mine);
    EXPECT_EQ(read<std::uint64_t>(at, inspection.cache_thread), address_of(os::thread_id()));
    EXPECT_EQ(read<std::uint32_t>(at, inspection.cache_forks_of),
              read<std::uint32_t>(inspection.cache_forks));
    EXPECT_LT(index_of(mine.number), read<std::uint32_t>(inspection.cache_end));
    const standard::SpanRef lender = E::pages.span_of(E::pages.any_slice_at(address_of(blocks[0])));
    std::size_t in_batches = 0;
    for (unsigned n = 0; n < inspection.batch_count; ++n) {
      const char* batch = at + inspection.cache_batches + n * inspection.batch_stride;
      const auto quota = read<std::uint32_t>(batch, inspection.batch_quota);
      if (quota == 0) continue;
      EXPECT_EQ(read<std::uint32_t>(batch, inspection.batch_span), index_of(lender.number));
      in_batches += quota - read<std::uint32_t>(batch, inspection.batch_left);
      EXPECT_EQ(read<std::uint64_t>(batch, inspection.batch_list), address_of(blocks[9]));
    }
    // (The first block of a span that a thread frees goes to the span, unless the record remembers
    // the span from its last thread.)
    EXPECT_GE(in_batches, 9u);
    EXPECT_LE(in_batches, 10u);
    for (void* p : own) E::deallocate(p);
  });
  for (unsigned i = 10; i < 40; ++i) E::deallocate(blocks[i]);
}

// Of a block that has grown out of the arena: its slot says where it is, and how large.
TEST(StandardInspection, LeadsToTheBlocksOutside) {
  constexpr std::size_t kBefore = 7 * kMiB;
  auto* p = static_cast<char*>(E::allocate(kBefore));
  std::vector<void*> walls;
  for (char* wall = nullptr; wall < p + kBefore || wall >= p + 8 * kMiB; walls.push_back(wall))
    wall = static_cast<char*>(E::allocate(100 * kKiB));
  void* const block = E::resize(p, 8 * kMiB).block;
  ASSERT_NE(block, nullptr);
  ASSERT_NE(E::pages.outside.usable_size(block), 0u);
  const char* table = pointer_to<char>(word(inspection.outside_table));
  std::size_t found = 0;
  for (std::uint64_t slot = 0; slot < read<std::uint64_t>(table); ++slot) {
    const char* at = table + 16 * (slot + 1);
    if (read<std::uint64_t>(at) != address_of(block)) continue;
    ++found;
    const auto packed = read<std::uint64_t>(at, 8);
    const std::uint64_t bytes = (packed & ((1ull << inspection.outside_end) - 1)) >> 12 << 12;
    const std::uint64_t before = (packed >> inspection.outside_before & 63) * os::page_size();
    EXPECT_EQ(bytes - before - address_of(block) % os::page_size(), E::usable_size(block));
  }
  EXPECT_EQ(found, 1u);
  E::deallocate(block);
  for (void* wall : walls) E::deallocate(wall);
}

}  // namespace
}  // namespace spanalloc
