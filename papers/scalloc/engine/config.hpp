// The paper's parameters and its ablations, each a type. The class table
// stands in size_classes.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "papers/scalloc/engine/size_classes.hpp"
#include "papers/shared/bump_arena.hpp"

namespace spanalloc {

namespace scalloc {

struct Span;

/// Places in the slow paths where tests can let another thread act. Between two of these points a
/// thread holds no lock and has decided something on what it saw.
enum class Step {
  kBeforeClaim,     // saw an empty span, has not yet made it free
  kAfterClaim,      // made it free, has not yet unlinked or pooled it
  kBeforeListing,   // decided to put a span into its owner's set
  kBeforeFloating,  // found too few remotely freed blocks: no LAB names the span, which is hot yet
  kBeforeTaking,    // memory is out: found an idle span with a free block, has not yet made it hot
  kBeforeAdopting,  // found an orphan
  kAfterRemotePush  // pushed a block to a remote list, has not yet looked at the span
};

}  // namespace scalloc

/// OOPSLA'15 as published: sections 3 to 5, parameters of section 7.
struct Scalloc {
  static constexpr const char* kName = "scalloc";
  /// REUSABILITY_THRESHOLD: a span with more than this share of its blocks free may be reused.
  static constexpr unsigned kReusabilityPercent = 80;
  /// Whether an empty span above the madvise threshold gives its pages back on its way into the
  /// pool.
  static constexpr bool kMadvise = true;
  /// Virtual spans rely on small pages; the reverse disables what they gain (section 7.7.1).
  static constexpr HugePages kHugePages = HugePages::kForbid;
  /// Stacks a real-span size: one a core, or one in all (section 7.7.2).
  static constexpr bool kStackPerCore = true;
  /// Whether the last free returns a span, or a later allocation (section 7.7.3).
  static constexpr bool kEagerReturn = true;
  /// Core-local allocation buffers (section 3.4), shared by threads of equal number
  /// modulo cores, with a lock.
  static constexpr bool kCoreLocal = false;

  static void at(scalloc::Step, scalloc::Span*) {}
};

struct ScallocNoMadvise : Scalloc {
  static constexpr const char* kName = "scalloc-no-madvise";
  static constexpr bool kMadvise = false;
};

struct ScallocNoVirtualSpans : Scalloc {
  static constexpr const char* kName = "scalloc-no-virtual-spans";
  static constexpr HugePages kHugePages = HugePages::kPrefer;
};

struct ScallocNoMadviseNoVirtualSpans : ScallocNoVirtualSpans {
  static constexpr const char* kName = "scalloc-no-madvise-no-virtual-spans";
  static constexpr bool kMadvise = false;
};

struct ScallocSingleStack : Scalloc {
  static constexpr const char* kName = "scalloc-single-stack";
  static constexpr bool kStackPerCore = false;
};

struct ScallocLazyReclaim : Scalloc {
  static constexpr const char* kName = "scalloc-lazy-reclaim";
  static constexpr bool kEagerReturn = false;
};

struct ScallocClab : Scalloc {
  static constexpr const char* kName = "scalloc-clab";
  static constexpr bool kCoreLocal = true;
};

/// Section 7.6: spans are reused only once they are empty.
struct ScallocReuse100 : Scalloc {
  static constexpr const char* kName = "scalloc-reuse-100";
  static constexpr unsigned kReusabilityPercent = 100;
};

}  // namespace spanalloc
