// The page manager's functions of spanalloc.h over spanalloc::LibraryPagesSystem. Included once per
// library, after that name is declared.
#pragma once

#include <spanalloc/spanalloc.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "api/pages_api.hpp"
#include "base/bits.hpp"

struct sp_pages final : spanalloc::PageRegion<spanalloc::LibraryPagesSystem> {
  using PageRegion::PageRegion;
};

namespace spanalloc {

// Nothing stands between the manager and its books.
static_assert(sizeof(sp_pages) == sizeof(PageRegion<LibraryPagesSystem>));

/// Whether a range of `bytes` may be cut into units: SP_PAGES_OK, or what is wrong with it.
static sp_pages_status check_pages_cut(std::size_t bytes, std::size_t unit_bytes) {
  if (!is_power_of_two(unit_bytes)) return SP_PAGES_BAD_UNIT;
  if (bytes == 0 || bytes % unit_bytes != 0 || bytes / unit_bytes > sp_pages::kMaxUnits)
    return SP_PAGES_BAD_SIZE;
  return SP_PAGES_OK;
}

/// Puts a manager into a buffer that has room for layout.capacity units.
static sp_pages* make_pages(void* metadata, bool metadata_zero, const PagesLayout& layout,
                            bool region_zero) {
  void* const place = pointer_to(align_up(address_of(metadata), alignof(sp_pages)));
  if (!metadata_zero) {
    const std::size_t lead = address_of(place) - address_of(metadata);
    __builtin_memset(place, 0, sp_pages::metadata_bytes(layout.capacity) - lead);
  }
  return new (place) sp_pages(layout, region_zero, static_cast<char*>(place) + sizeof(sp_pages));
}

static sp_pages_status check_pages(const sp_pages* pages) {
  if (pages == nullptr) return SP_PAGES_NULL;
  return pages->is_alive() ? SP_PAGES_OK : SP_PAGES_BAD_MANAGER;
}
/// The same for functions that take an object beside the manager.
static sp_pages_status check_pages(const sp_pages* pages, const void* object) {
  return object == nullptr ? SP_PAGES_NULL : check_pages(pages);
}

}  // namespace spanalloc

extern "C" {

const char* sp_pages_status_text(sp_pages_status status) noexcept {
  switch (status) {
    case SP_PAGES_OK:
      return "done";
    case SP_PAGES_NO_ROOM:
      return "there is no room";
    case SP_PAGES_NOT_A_BLOCK:
      return "no block is handed out at this address";
    case SP_PAGES_NULL:
      return "a null pointer";
    case SP_PAGES_BAD_MANAGER:
      return "not a page manager, or destroyed";
    case SP_PAGES_BAD_SIZE:
      return "a size that is not possible here";
    case SP_PAGES_BAD_ALIGNMENT:
      return "an alignment that is no power of two";
    case SP_PAGES_BAD_UNIT:
      return "a unit that is no power of two or less than a page of the system";
    case SP_PAGES_BAD_REGION:
      return "a region that is not aligned to the unit, runs beyond the last address or overlaps "
             "the "
             "metadata";
    case SP_PAGES_BAD_FLAGS:
      return "flags that have no meaning here";
    case SP_PAGES_SMALL_METADATA:
      return "the metadata buffer is too small";
    case SP_PAGES_BUSY:
      return "another thread is extending the region";
    case SP_PAGES_REFUSED:
      return "the operating system refuses memory";
    case SP_PAGES_UNSUPPORTED:
      return "not possible for a region of the caller";
  }
  return "not a status of the page manager";
}

size_t sp_pages_metadata_bytes(size_t region_bytes, size_t unit_bytes) noexcept {
  if (spanalloc::check_pages_cut(region_bytes, unit_bytes) != SP_PAGES_OK) return 0;
  return sp_pages::metadata_bytes(region_bytes / unit_bytes);
}

sp_pages_status sp_pages_create_over(void* region, size_t region_bytes, size_t unit_bytes,
                                     void* metadata, size_t metadata_bytes, unsigned flags,
                                     sp_pages** out) noexcept {
  if (region == nullptr || metadata == nullptr || out == nullptr) return SP_PAGES_NULL;
  if ((flags & ~(SP_PAGES_METADATA_ZERO | SP_PAGES_REGION_ZERO)) != 0) return SP_PAGES_BAD_FLAGS;
  const sp_pages_status cut = spanalloc::check_pages_cut(region_bytes, unit_bytes);
  if (cut != SP_PAGES_OK) return cut;

  const std::uintptr_t start = spanalloc::address_of(region);
  const std::uintptr_t books = spanalloc::address_of(metadata);
  // From the region's start on; start is not 0
  const std::size_t addresses = UINTPTR_MAX - start + 1;
  if (start % unit_bytes != 0 || region_bytes > addresses) return SP_PAGES_BAD_REGION;
  const std::size_t units = region_bytes / unit_bytes;
  if (metadata_bytes < sp_pages::metadata_bytes(units)) return SP_PAGES_SMALL_METADATA;
  if (books - start < region_bytes || start - books < metadata_bytes) return SP_PAGES_BAD_REGION;

  std::size_t limit = spanalloc::min_of(addresses / unit_bytes, sp_pages::kMaxUnits);
  // Room to extend ends where the metadata begins.
  if (books > start) limit = spanalloc::min_of(limit, (books - start) / unit_bytes);
  const spanalloc::PagesLayout layout{start, spanalloc::log2_floor(unit_bytes), units,
                                      sp_pages::capacity_of(metadata_bytes, limit), false};
  *out = spanalloc::make_pages(metadata, (flags & SP_PAGES_METADATA_ZERO) != 0, layout,
                               (flags & SP_PAGES_REGION_ZERO) != 0);
  return SP_PAGES_OK;
}

sp_pages_status sp_pages_destroy(sp_pages* pages) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages);
  if (status == SP_PAGES_OK) pages->destroy();
  return status;
}

sp_pages_status sp_pages_allocate_aligned(sp_pages* pages, size_t bytes, size_t alignment,
                                          void** out, int* zero) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, out);
  return status == SP_PAGES_OK ? pages->allocate(bytes, alignment, out, zero) : status;
}
sp_pages_status sp_pages_allocate(sp_pages* pages, size_t bytes, void** out, int* zero) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, out);
  return status == SP_PAGES_OK ? pages->allocate(bytes, 1, out, zero) : status;
}

sp_pages_status sp_pages_free(sp_pages* pages, void* block) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, block);
  return status == SP_PAGES_OK ? pages->free(block) : status;
}
sp_pages_status sp_pages_grow(sp_pages* pages, void* block, size_t bytes, int* zero) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, block);
  return status == SP_PAGES_OK ? pages->grow(block, bytes, zero) : status;
}
sp_pages_status sp_pages_shrink(sp_pages* pages, void* block, size_t bytes) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, block);
  return status == SP_PAGES_OK ? pages->shrink(block, bytes) : status;
}

size_t sp_pages_size_of(const sp_pages* pages, const void* block) noexcept {
  return spanalloc::check_pages(pages) == SP_PAGES_OK ? pages->size_of(block) : 0;
}
void* sp_pages_region(const sp_pages* pages) noexcept {
  return spanalloc::check_pages(pages) == SP_PAGES_OK ? pages->region() : nullptr;
}

sp_pages_status sp_pages_extend(sp_pages* pages, size_t bytes, unsigned flags) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages);
  return status == SP_PAGES_OK ? pages->extend(bytes, flags) : status;
}
sp_pages_status sp_pages_purge(sp_pages* pages, unsigned flags, size_t* bytes) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages);
  if (status != SP_PAGES_OK) return status;
  if ((flags & ~SP_PAGES_PURGE_IDLE) != 0) return SP_PAGES_BAD_FLAGS;
  return pages->purge(flags != 0, bytes);
}

sp_pages_status sp_pages_walk(const sp_pages* pages,
                              void (*visit)(const sp_pages_block* block, void* context),
                              void* context) noexcept {
  if (visit == nullptr) return SP_PAGES_NULL;
  const sp_pages_status status = spanalloc::check_pages(pages);
  if (status == SP_PAGES_OK)
    pages->walk([=](const sp_pages_block& block) { visit(&block, context); });
  return status;
}
sp_pages_status sp_pages_stats(const sp_pages* pages, sp_pages_statistics* out,
                               size_t size) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages, out);
  if (status != SP_PAGES_OK) return status;
  const sp_pages_statistics all = pages->statistics();
  __builtin_memset(out, 0, size);
  __builtin_memcpy(out, &all, spanalloc::min_of(size, sizeof all));
  return SP_PAGES_OK;
}

sp_pages_status sp_pages_after_fork(sp_pages* pages) noexcept {
  const sp_pages_status status = spanalloc::check_pages(pages);
  if (status == SP_PAGES_OK) pages->reset_after_fork();
  return status;
}

}  // extern "C"
