// What the engine stands on: the paper's, an arena with a bump pointer and a mapping for
// each object above 1 MiB.
#pragma once

#include "base/bits.hpp"
#include "pages/large_objects.hpp"
#include "papers/scalloc/engine/config.hpp"
#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/shared/bump_arena.hpp"

namespace spanalloc::scalloc {

// Under a limit a span costs its real span (Backend::close_tail), 1/64 of a virtual one at the
// least: the last parameter gives the range that much slack.
template <class Config>
using SpanSource = BumpArena<kVirtualSpanBits, 0, Config::kHugePages, 16 * kMiB, 7>;
using LargeSource = LargeObjects<>;

}  // namespace spanalloc::scalloc
