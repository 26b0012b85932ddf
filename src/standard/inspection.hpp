// Where the records of this engine are, for a reader outside of the process (engine/inspection.hpp
// says what each of these is). All of it follows from the types.
#pragma once

#include <cstddef>

#include "base/inspection_access.hpp"
#include "engine/inspection.hpp"
#include "standard/page_layer.hpp"

// The types have bases, and private parts between public ones: the offsets are right all the same
// (GCC and Clang take offsetof of every class without virtual bases), and the unit test reads by
// them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace spanalloc {

struct InspectionAccess {
  template <class Config>
  static constexpr void tell(Inspection& out, const standard::PageLayer<Config>& pages) {
    tell_places<Config>(out, pages);
    tell_classes<Config>(out);
    tell_arena<Config>(out);
    tell_span(out);
    tell_cache<Config>(out);
    tell_blocks<Config>(out);
  }

 private:
  // What a reader takes for a word is one.
  static_assert(sizeof(Atomic<std::size_t>) == 8 && sizeof(Atomic<std::uint32_t>) == 4 &&
                sizeof(Atomic<std::uint8_t>) == 1 && sizeof(Atomic<void*>) == 8);
  static_assert(sizeof(standard::AtomicSpanWord) == 8 && sizeof(standard::FreeList) == 8 &&
                sizeof(Plain<bool>) == 1);

  template <class Config>
  static constexpr void tell_places(Inspection& out, const standard::PageLayer<Config>& pages) {
    const auto& slices = pages.arena.slices_;
    out.classes = &standard::SizeClasses<Config>::kTable;
    out.arena_base = &slices.range.base_;
    out.arena_limit = &slices.manager.mapper_.limit_;
    out.arena_rows = &slices.manager.dirty_.words_;  // of the set that comes first in a row
    out.span_records = &pages.spans_.records_;
    out.span_end = &pages.known_end_;
    out.cache_records = &pages.caches.records_.records_;
    out.cache_end = &pages.caches.end_;
    out.cache_forks = &pages.caches.forks;
    out.link_key = &standard::link_key;
    out.outside_objects = &pages.outside.entries_;
    out.outside_bytes = &pages.outside.bytes_;
    out.outside_table = &pages.outside.table_;
    out.no_block = standard::no_block();
  }

  template <class Config>
  static constexpr void tell_classes(Inspection& out) {
    using Classes = standard::SizeClasses<Config>;
    using Info = standard::ClassInfo;
    out.class_stride = sizeof(Info);
    out.class_count = Classes::kCount;
    out.class_first_large = index_of(Classes::kFirstLarge);
    out.class_block_size = offsetof(Info, block_size);
    out.class_span = offsetof(Info, virtual_span);
    out.class_blocks = offsetof(Info, blocks);
    out.class_lead = offsetof(Info, lead);
  }

  template <class Config>
  static constexpr void tell_arena(Inspection& out) {
    using Slices = typename standard::SpanTable<Config>::Arena::Slices;
    using Manager = typename Slices::Manager;
    using Word = coalescing::BlockWord;
    out.slice_bits = Config::kSliceBits;
    out.row_units = Manager::Tables::kRowUnits;
    out.row_words = Manager::Tables::kRowWords;
    out.row_dirty = 0;
    out.row_unmapped = Manager::kOwnSets + Slices::kDecommitted;
    out.row_lost = Manager::kOwnSets + Slices::kLost;
    out.row_blocks = Manager::Tables::kBeforeMapper;
    out.block_size_shift = Word::kSizeShift;
    out.block_state_mask = Word::kStateMask;
    out.block_used = static_cast<std::uint32_t>(coalescing::BlockState::kUsed);
  }

  static constexpr void tell_span(Inspection& out) {
    using standard::Span;
    using standard::SpanWord;
    out.span_stride = sizeof(Span);
    out.span_word = offsetof(Span, word);
    out.span_class = offsetof(Span, size_class_);
    out.span_carved = offsetof(Span, carved_);
    out.span_list = offsetof(Span, free_list_);
    out.span_purged = offsetof(Span, purged_);
    out.span_retired = offsetof(Span, withdrawn_);
    out.word_owner_shift = SpanWord::kOwnerShift;
    out.word_state_shift = SpanWord::kIdentityShift;
    out.word_cached_bit = static_cast<std::uint32_t>(log2_floor(SpanWord::kMarkBit));
    out.word_nobody = index_of(standard::kNobody);
  }

  template <class Config>
  static constexpr void tell_cache(Inspection& out) {
    using Record = standard::CacheRecord<Config>;
    using Batches = standard::RemoteBatches<Config>;
    using standard::RemoteBatch;
    out.cache_stride = sizeof(Record);
    out.cache_thread = offsetof(Record, thread);
    out.cache_forks_of = offsetof(Record, forks);
    out.cache_batches = offsetof(Record, batches) + offsetof(Batches, batches_);
    out.batch_count = Batches::kBatches;
    out.batch_stride = sizeof(RemoteBatch);
    out.batch_span = offsetof(RemoteBatch, last_span);
    out.batch_quota = offsetof(RemoteBatch, most);
    out.batch_left = offsetof(RemoteBatch, left_);
  }

  template <class Config>
  static constexpr void tell_blocks(Inspection& out) {
    using standard::BlockTest;
    using standard::Span;
    using Outside = typename standard::BlocksOutside<Config>::Entry;
    out.span_order = offsetof(Span, order_);
    out.span_first = offsetof(Span, shown_) + offsetof(BlockTest, base);
    out.batch_list = offsetof(standard::RemoteBatch, free_list_);
    out.batch_lent = offsetof(standard::RemoteBatch, lent);
    out.outside_before = Outside::kBeforeShift;
    out.outside_end = Outside::kEndOfBytes;
  }
};

}  // namespace spanalloc

#pragma GCC diagnostic pop
