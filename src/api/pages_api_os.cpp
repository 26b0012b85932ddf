// The page manager in a process: managers over the caller's regions and over memory
// of the operating system.
#include <cstddef>

#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc {

struct LibraryPagesSystem {
  // Not only yields: the other may have a lower priority
  static void pause() { os::sleep_briefly(); }
  static bool open(void* address, std::size_t bytes) { return os::open(address, bytes); }
  static bool purge(void* address, std::size_t bytes) { return os::purge(address, bytes); }
  static void release(void* address, std::size_t bytes) {
    os::release(address, align_up(bytes, os::page_size()));
  }
};

}  // namespace spanalloc

#include "api/pages_api_functions.hpp"

namespace spanalloc {

// Address space with its first `open_bytes` usable; nullptr when refused. It is not charged before
// it is opened, nor (where the kernel overcommits) before it is touched.
static void* reserve_pages(std::size_t bytes, std::size_t alignment, std::size_t open_bytes) {
  void* const start = os::reserve(bytes, alignment);
  if (start == nullptr || os::open(start, open_bytes)) return start;
  os::release(start, bytes);
  return nullptr;
}

// Aligned like one large block of that size where there is address space for that,
// to allow large alignments.
static void* reserve_region(std::size_t bytes, std::size_t unit_bytes, std::size_t open_bytes) {
  const std::size_t wanted = std::size_t{1} << log2_ceil(min_of(bytes, kGiB));
  if (wanted > unit_bytes) {
    if (void* const start = reserve_pages(bytes, wanted, open_bytes)) return start;
  }
  return reserve_pages(bytes, unit_bytes, open_bytes);
}

}  // namespace spanalloc

extern "C" sp_pages_status sp_pages_create(size_t bytes, size_t limit_bytes, size_t unit_bytes,
                                           sp_pages** out) noexcept {
  using namespace spanalloc;
  if (out == nullptr) return SP_PAGES_NULL;
  if (unit_bytes < os::page_size()) return SP_PAGES_BAD_UNIT;
  if (const sp_pages_status cut = check_pages_cut(bytes, unit_bytes); cut != SP_PAGES_OK)
    return cut;
  if (const sp_pages_status cut = check_pages_cut(limit_bytes, unit_bytes); cut != SP_PAGES_OK)
    return cut;
  if (limit_bytes < bytes) return SP_PAGES_BAD_SIZE;

  const PagesLayout sizes{0, log2_floor(unit_bytes), bytes / unit_bytes, limit_bytes / unit_bytes,
                          true};
  const std::size_t metadata_bytes =
      align_up(sp_pages::metadata_bytes(sizes.capacity), os::page_size());
  void* const metadata = reserve_pages(metadata_bytes, os::page_size(), metadata_bytes);
  if (metadata == nullptr) return SP_PAGES_REFUSED;
  void* const region = reserve_region(limit_bytes, unit_bytes, bytes);
  if (region == nullptr) {
    os::release(metadata, metadata_bytes);
    return SP_PAGES_REFUSED;
  }
  PagesLayout layout = sizes;
  layout.start = address_of(region);
  *out = make_pages(metadata, true, layout, true);
  return SP_PAGES_OK;
}
