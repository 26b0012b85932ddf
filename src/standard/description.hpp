// What the records say of an address that a report names: its block, its span, the span's
// state and its owner.
#pragma once

#include "os/os.hpp"
#include "standard/large_blocks.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::standard {

/// Another thread may be changing the records, also those fields that are not atomic (a span's
/// order, and the room of its block). So each number is checked before it leads anywhere.
template <class Config>
class Description {
  using Classes = SizeClasses<Config>;
  using Pages = PageLayer<Config>;

 public:
  /// False: the address lies in no slice that has a record.
  SPANALLOC_COLD static bool describe(thread::ForkWatch* watch, const void* p,
                                      os::AddressFacts& out) {
    auto& pages = static_cast<Pages&>(*watch);
    if (!pages.is_started()) return false;
    const std::uintptr_t a = address_of(p);
    const SpanRef slice = pages.any_slice_at(a);
    if (!slice) return false;
    SpanRef span = pages.span_of(slice);
    SpanWord word = span->load_word();
    const bool in_span = index_of(slice.number) - index_of(span.number) < (1u << span->order());
    if (!in_span) {
      span = slice;
      word = {};
    }
    out.range = "span";
    out.range_number = index_of(span.number);
    out.range_at = address_of(pages.address(span.number));
    add_block(pages, span, word, a, out);
    add_state(pages, span, word, out);
    return true;
  }

 private:
  static void add_block(Pages& pages, SpanRef span, SpanWord word, std::uintptr_t a,
                        os::AddressFacts& out) {
    const ClassId c = span->shown_class();
    const bool is_free = word.state() == SpanState::kFree;
    if (c == ClassId::kNone || c > Classes::kHuge || (c == Classes::kHuge && is_free)) return;
    const std::uintptr_t first = span->first_block();
    // Of a free span the record says what there was, and so does that of a slice inside a large
    // block: only the exact start of a block is believed.
    if (a < first || (is_free && !span->is_block(a))) return;
    const std::size_t bytes = LargeBlocks<Config>::block_bytes(pages, c, span);
    const std::size_t number = Classes::has_one_block(c) ? 0 : (a - first) / bytes;
    const std::size_t blocks = Classes::has_one_block(c) ? 1 : Classes::info(c).blocks;
    if (number >= blocks || a - first >= blocks * bytes) return;
    out.block = first + number * bytes;
    out.block_bytes = bytes;
    out.was_block = is_free && !is_cached(word);
  }
  static void add_state(Pages& pages, SpanRef span, SpanWord word, os::AddressFacts& out) {
    if (word.state() == SpanState::kFree && !is_cached(word)) {
      // The slices of a large block after its first one have the records of earlier spans.
      out.state = "free, or inside a large block";
      return;
    }
    out.state = is_cached(word)           ? "free, cached"
                : span->is_withdrawn()    ? "withdrawn"
                : word.is_single()        ? "in use"
                : word.owner() == kNobody ? "abandoned"
                                          : "owned";
    if (word.owner() == kNobody || !pages.caches.was_used(word.owner())) return;
    const auto& cache = pages.caches[word.owner()];
    const bool is_lost = pages.caches.has_vanished(cache);
    if (!is_lost) out.owner = cache.thread.load_relaxed();
    if (span->is_withdrawn()) return;
    if (is_lost) out.state = "of a thread lost at a fork";
  }
  static bool is_cached(SpanWord word) {
    return word.owner() != kNobody && word == cached_of(word.owner());
  }
};

}  // namespace spanalloc::standard
