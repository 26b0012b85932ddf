// Heaps of a program's own in spanalloc.h: checks of what the caller gives, errno, and how malloc's
// functions find their blocks.
#include <errno.h>
#include <spanalloc/spanalloc.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "heaps/heap.hpp"
#include "heaps/inspection.hpp"
#include "heaps/runs.hpp"
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"
#include "pages/program_heaps.hpp"

namespace spanalloc::heaps {
namespace {

constexpr std::size_t kMostBytes = PTRDIFF_MAX;

// --- For malloc's functions ----------------------------------------------------------------------

// Out of line, for all that is rare.
[[gnu::noinline]] Slice run_of(const void* p) {
  return runs.run_at(p);
}
std::size_t usable_size(const void* p) {
  const Slice run = run_of(p);
  return run == 0 ? 0 : Heap::usable_size(p, run);
}
[[noreturn]] SPANALLOC_COLD void report_no_heap(const void* p) {
  os::fatal("pointer is no block of a heap (the heap was destroyed or reset, or it never was one):",
            p);
}
bool free_any(void* p) {
  if (!runs.contains(p)) return false;
  const Slice run = run_of(p);
  if (run == 0) report_no_heap(p);
  Heap::free(p, run);
  return true;
}
void* resize(void* p, std::size_t n) {
  const Slice run = run_of(p);
  return run == 0 || n > kMostBytes ? nullptr : Heap::resize(p, run, n);
}
bool owns(const void* p) {
  return run_of(p) != 0;
}
bool trim() {
  return runs.trim();
}
ProgramHeaps::Figures figures() {
  return runs.figures();
}
constexpr ProgramHeaps::Calls kCalls{HeapsInspectionAccess::tell(runs),
                                     &usable_size,
                                     &free_any,
                                     &resize,
                                     &owns,
                                     &trim,
                                     &figures,
                                     &Heap::find_largest,
                                     &Heap::describe_named};

// --- Checks --------------------------------------------------------------------------------------

SPANALLOC_COLD void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}
SPANALLOC_COLD void* invalid_argument() {
  errno = EINVAL;
  return nullptr;
}
[[noreturn]] SPANALLOC_COLD void report_bad_name(const sp_heap* heap) {
  if (heap == nullptr) os::fatal("null where there must be a heap");
  os::fatal("use of a heap that was destroyed, or never was one:", heap);
}
SPANALLOC_INLINE Heap& checked(const sp_heap* heap) {
  Heap* const named = Heap::named(reinterpret_cast<std::uint64_t>(heap));
  if (SPANALLOC_UNLIKELY(named == nullptr)) report_bad_name(heap);
  return *named;
}
// For what is seldom.
[[gnu::noinline]] SPANALLOC_COLD Heap& looked_up(const sp_heap* heap) {
  return checked(heap);
}
[[noreturn]] SPANALLOC_COLD void report_other_heap(const void* p, Slice run) {
  if (run != 0) os::fatal("block of another heap is given to this one:", p);
  if (runs.contains(p)) report_no_heap(p);
  os::fatal("pointer is no block of a heap, but of malloc or nobody:", p);
}
/// The run of the heap's that p lies in.
SPANALLOC_INLINE Slice run_in(Heap& heap, const void* p) {
  const Slice run = runs.run_at(p);
  if (SPANALLOC_UNLIKELY(run == 0 || !heap.has(run))) report_other_heap(p, run);
  return run;
}

SPANALLOC_INLINE void* or_out_of_memory(Allocated got) {
  return SPANALLOC_LIKELY(got.p != nullptr) ? got.p : out_of_memory();
}

// sizeof(sp_heap_options) in the first version. Each later one has whole words more.
constexpr std::size_t kLeastOptionsBytes = 8;

/// What the caller knows of a struct that later versions make longer: the rest is 0. False: the
/// caller asks for what this library does not know, or `size` is of no version.
template <class Options>
bool read_options(Options& known, const void* given, std::size_t size) {
  if (given == nullptr) return true;
  if (size < kLeastOptionsBytes || size % alignof(Options) != 0) return false;
  memcpy(&known, given, min_of(size, sizeof known));
  for (std::size_t i = sizeof known; i < size; ++i) {
    if (static_cast<const unsigned char*>(given)[i] != 0) return false;
  }
  return true;
}

}  // namespace
}  // namespace spanalloc::heaps

using namespace spanalloc;         // NOLINT(google-build-using-namespace): of this file's own
using namespace spanalloc::heaps;  // NOLINT(google-build-using-namespace)

extern "C" {

sp_heap* sp_heap_create(const struct sp_heap_options* options, size_t size) noexcept {
  sp_heap_options known{};
  const bool is_known = read_options(known, options, size);
  if (!is_known || (known.limit_bytes != 0 && known.limit_bytes < HeapsConfig::kSlice))
    return static_cast<sp_heap*>(invalid_argument());
  Heap* const heap =
      Heap::create(known.limit_bytes == 0 ? SIZE_MAX : known.limit_bytes, known.name);
  if (heap == nullptr) return static_cast<sp_heap*>(out_of_memory());
  // Before anybody has a block.
  if (SPANALLOC_UNLIKELY(!ProgramHeaps::are_entered()))
    NestedBlocks::enter_heaps(runs.base(), runs.base() + runs.bytes(), kCalls);
  return pointer_to<sp_heap>(heap->name());
}
void sp_heap_destroy(sp_heap* heap) noexcept {
  if (heap != nullptr) looked_up(heap).destroy();
}
void sp_heap_reset(sp_heap* heap) noexcept {
  looked_up(heap).reset();
}

void* sp_heap_malloc(sp_heap* heap, size_t size) noexcept {
  Heap& in = checked(heap);
  if (SPANALLOC_UNLIKELY(size > kMostBytes)) return out_of_memory();
  return or_out_of_memory(in.allocate(size));
}
void* sp_heap_calloc(sp_heap* heap, size_t count, size_t size) noexcept {
  Heap& in = checked(heap);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > kMostBytes) return out_of_memory();
  const Allocated got = in.allocate(bytes);
  if (SPANALLOC_UNLIKELY(got.p == nullptr)) return out_of_memory();
  return got.zero ? got.p : memset(got.p, 0, bytes);
}
void* sp_heap_aligned_alloc(sp_heap* heap, size_t alignment, size_t size) noexcept {
  Heap& in = looked_up(heap);
  if (!is_power_of_two(alignment)) return invalid_argument();
  if (size > kMostBytes || alignment > kMostBytes - size) return out_of_memory();
  return or_out_of_memory(in.allocate_aligned(size, alignment));
}
void* sp_heap_realloc(sp_heap* heap, void* block, size_t size) noexcept {
  if (block == nullptr) return sp_heap_malloc(heap, size);
  if (size == 0) {
    sp_heap_free(heap, block);
    return nullptr;
  }
  const Slice run = run_in(looked_up(heap), block);
  void* const p = size > kMostBytes ? nullptr : Heap::resize(block, run, size);
  return p != nullptr ? p : out_of_memory();
}
void sp_heap_free(sp_heap* heap, void* block) noexcept {
  Heap& in = checked(heap);
  if (block != nullptr) Heap::free(block, run_in(in, block));
}

int sp_heap_owns(const sp_heap* heap, const void* address) noexcept {
  const Slice run = run_of(address);
  return run != 0 && looked_up(heap).has(run) ? 1 : 0;
}
void sp_heap_visit(sp_heap* heap, void (*visit)(void* block, size_t size, void* context),
                   void* context) noexcept {
  looked_up(heap).visit([=](void* block, std::size_t bytes) { visit(block, bytes, context); });
}
void sp_heap_stats(sp_heap* heap, struct sp_heap_statistics* out, size_t size) noexcept {
  const Heap::Use use = looked_up(heap).use();
  const sp_heap_statistics all{use.limit == SIZE_MAX ? 0 : use.limit, use.taken, use.bytes,
                               use.blocks};
  memset(out, 0, size);
  memcpy(out, &all, min_of(size, sizeof all));
}

}  // extern "C"
