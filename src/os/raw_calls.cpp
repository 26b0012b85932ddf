// What must not go through a function that another library may have put in libc's place: memory for
// a thread that is in such a function already.
#include <sys/mman.h>

#include <cstdint>

#include "base/bits.hpp"
#include "os/os.hpp"
#include "os/system_call.hpp"

namespace spanalloc::os {

namespace {

std::uintptr_t map_raw(std::size_t bytes) {
  const long p = system_call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p < 0 ? 0 : static_cast<std::uintptr_t>(p);
}

void unmap_raw(std::uintptr_t address, std::size_t bytes) {
  if (bytes != 0) system_call(SYS_munmap, static_cast<long>(address), static_cast<long>(bytes), 0);
}

}  // namespace

void* map_unheard(std::size_t bytes, std::size_t alignment) {
  const std::size_t page = page_size();
  bytes = align_up(bytes, page);
  const std::size_t slack = alignment > page ? alignment - page : 0;
  if (bytes > SIZE_MAX / 4 || slack > SIZE_MAX / 4) return nullptr;
  const std::uintptr_t begin = map_raw(bytes + slack);
  if (begin == 0) return nullptr;
  const std::uintptr_t aligned = align_up(begin, max_of(alignment, page));
  unmap_raw(begin, aligned - begin);
  unmap_raw(aligned + bytes, begin + slack - aligned);
  return pointer_to(aligned);
}

}  // namespace spanalloc::os
