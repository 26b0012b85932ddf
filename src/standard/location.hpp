// Where an address lies: the look-up of all but the short paths.
#pragma once

#include "standard/span.hpp"

namespace spanalloc::standard {

/// Relaxed: the class, and whether a thread is the owner, do not change as long as the caller's
/// block is out.
struct Location {
  SpanRef span;           ///< the span of the slice that the address lies in
  SpanWord word{};        ///< the span's, if there is a span
  bool in_span = false;   ///< whether it lies in a slice of a span in use
  bool is_block = false;  ///< whether it is the start of a carved block of that span
  bool has_record() const { return span.record != nullptr; }  ///< of the slice there
  ClassId size_class() const { return span->class_id(); }

  [[gnu::noinline]] static Location of(const void* p, auto& pages) {
    const std::size_t number = pages.slice_of(address_of(p));
    const SpanRef slice = pages.has_plain_slice(number)
                              ? pages.span(SpanNumber{static_cast<std::uint32_t>(number)})
                              : pages.any_slice_at(address_of(p));
    if (SPANALLOC_UNLIKELY(slice.record == nullptr)) return {};
    const SpanRef span = pages.span_of(slice);
    const SpanWord word = span->load_word();
    // The record of a free slice may lead to a span before it that does not have this slice.
    const bool in_span = word.state() != SpanState::kFree &&
                         index_of(slice.number) - index_of(span.number) < (1u << span->order());
    return {span, word, in_span, in_span && span->is_block(address_of(p))};
  }
};

}  // namespace spanalloc::standard
