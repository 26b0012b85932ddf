// The functions of spanalloc.h over spanalloc::LibraryEngine. Included once per library,
// after that name is declared.
#pragma once

#include <errno.h>
#include <spanalloc/spanalloc.h>

#include "api/malloc_api.hpp"
#include "api/soft_limit_api.hpp"
#include "api/statistics_at_exit.hpp"
#include "api/statistics_json.hpp"

namespace spanalloc {

using SpMalloc = MallocApi<LibraryEngine>;

// Before this library's other constructors; allocation, which may come earlier
// still, does not need it.
[[gnu::constructor(101)]] static void start_library_engine() {
  os::start();
  LibraryEngine::process_start();
  note_statistics_place();
}

void os::hide_thread(HiddenThread& room) noexcept {
  LibraryEngine::hide_thread(room);
}
void os::show_thread(const HiddenThread& room) noexcept {
  LibraryEngine::show_thread(room);
}

}  // namespace spanalloc

extern "C" {

void* sp_malloc(size_t size) noexcept {
  return spanalloc::SpMalloc::malloc(size);
}
void* sp_calloc(size_t count, size_t size) noexcept {
  return spanalloc::SpMalloc::calloc(count, size);
}
void* sp_realloc(void* block, size_t size) noexcept {
  return spanalloc::SpMalloc::realloc(block, size);
}
void sp_free(void* block) noexcept {
  spanalloc::SpMalloc::free(block);
}
void* sp_aligned_alloc(size_t alignment, size_t size) noexcept {
  return spanalloc::SpMalloc::aligned_alloc(alignment, size);
}
int sp_posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  return spanalloc::SpMalloc::posix_memalign(out, alignment, size);
}
size_t sp_usable_size(const void* block) noexcept {
  return spanalloc::SpMalloc::malloc_usable_size(block);
}
int sp_owns(const void* address) noexcept {
  return spanalloc::LibraryEngine::owns(address) ? 1 : 0;
}
int sp_trim(void) noexcept {
  return spanalloc::LibraryEngine::trim() ? 1 : 0;
}

int sp_set_soft_limit(size_t bytes) noexcept {
  return spanalloc::SoftLimitApi<spanalloc::LibraryEngine>::set(bytes);
}
size_t sp_soft_limit(void) noexcept {
  return spanalloc::SoftLimitApi<spanalloc::LibraryEngine>::get();
}
int sp_soft_limit_is_near(void) noexcept {
  return spanalloc::SoftLimitApi<spanalloc::LibraryEngine>::is_near() ? 1 : 0;
}
int sp_on_soft_limit(void (*callback)(void* context, size_t held, size_t limit),
                     void* context) noexcept {
  return spanalloc::SoftLimitApi<spanalloc::LibraryEngine>::call(callback, context);
}

void sp_stats(struct sp_statistics* out, size_t size) noexcept {
  static_assert(sizeof(sp_statistics) == sizeof(spanalloc::EngineStatistics) &&
                offsetof(sp_statistics, trims) == offsetof(spanalloc::EngineStatistics, trims));
  const spanalloc::EngineStatistics all = spanalloc::all_statistics<spanalloc::LibraryEngine>();
  memset(out, 0, size);
  memcpy(out, &all, spanalloc::min_of(size, sizeof all));
}
int sp_stats_json(void (*write)(void*, const char*, size_t), void* context,
                  unsigned flags) noexcept {
  return spanalloc::StatisticsJson<spanalloc::LibraryEngine>::write(write, context, flags);
}

const char* sp_version(void) noexcept {
  return SPANALLOC_VERSION;
}
const char* sp_engine_name(void) noexcept {
  return spanalloc::LibraryEngine::kName;
}

}  // extern "C"
