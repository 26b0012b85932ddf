// What the heap stands on: spans and everything larger come from one arena.
#pragma once

#include "engines/virtual_span/standard/config.hpp"
#include "pages/coalescing_arena.hpp"

namespace spanalloc::standard {

using Arena = CoalescingArena<kGranuleBits, HugePages::kKernelDefault>;

}  // namespace spanalloc::standard
