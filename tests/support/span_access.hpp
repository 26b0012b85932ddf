// The fields of a span's record, for tests that bring it into a state of their own, and for the
// names of variables in models.
#pragma once

#include <cstdint>

#include "standard/span.hpp"

namespace spanalloc::standard {

struct SpanTestAccess {
  static auto& left(Span& span) { return span.left_; }
  static auto& quota(Span& span) { return span.quota_; }
  static auto& carved(Span& span) { return span.carved_; }
  static auto& purged(Span& span) { return span.purged_; }
  static auto& next(Span& span) { return span.next_; }
  static auto& stock(Span& span) { return span.stock_; }
  static auto& size_class(Span& span) { return span.size_class_; }
  static auto& shown_class(Span& span) { return span.size_class_; }
};

}  // namespace spanalloc::standard
