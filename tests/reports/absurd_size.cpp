// 784,271,641 GiB: refused by each function, ENOMEM, and what was there stays.
#include <cerrno>
#include <new>
#include "report.h"
#pragma GCC diagnostic ignored "-Wuse-after-free"
int main() {
  volatile size_t size = 784271641ull << 30;
  int bad = 0;
  auto* old = static_cast<char*>(malloc(100));
  memset(old, 7, 100);
  const auto refused = [&](void* block) { bad += block != nullptr || errno != ENOMEM, errno = 0; };
  errno = 0;
  refused(malloc(size)), refused(calloc(size / 8, 8)), refused(realloc(old, size)),
      refused(memalign(4096, size));
  refused(aligned_alloc(1 << 20, size)), refused(valloc(size)), refused(pvalloc(size)),
      refused(reallocarray(old, size / 8, 8));
  void* block = old;
  bad += posix_memalign(&block, 64, size) != ENOMEM || block != old;
  bad += operator new(size, std::nothrow) != nullptr;
  bad += operator new(size, std::align_val_t{4096}, std::nothrow) != nullptr;
  for (int i = 0; i < 100; ++i) bad += old[i] != 7;
  free(old);
  return verdict(bad == 0, "%d of 11 not refused", bad);
}
