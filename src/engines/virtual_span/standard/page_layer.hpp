// What the heap stands on. Another page layer under the span-pool, or another source of large objects, is
// another type here; the engine knows only the concepts.
#pragma once

#include "engines/virtual_span/standard/config.hpp"
#include "pages/bump_arena.hpp"
#include "pages/large_objects.hpp"
#include "pages/page_source.hpp"

namespace spanalloc::standard {

using SpanSource = BumpArena<kGranuleBits, kMaxOrder, HugePages::kKernelDefault>;
using LargeSource = LargeObjects<>;
static_assert(PageSource<SpanSource> && LargeObjectSource<LargeSource>);

}  // namespace spanalloc::standard
