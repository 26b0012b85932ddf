// Stands for NBBS: the two functions that its public code exports, over pages that are never used
// again. FAKE_NBBS says what goes wrong: "twice" hands out every page twice, "scribble" writes into
// pages that are in use, "small" has room for 10 pages, "odd" returns addresses inside a page.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kPage = 4096, kPages = 1 << 18 };

static char* region;
static const char* defect;
static atomic_size_t next;

__attribute__((constructor)) static void start(void) {
  region = mmap(NULL, (size_t)kPages * kPage, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  defect = getenv("FAKE_NBBS");
  if (!defect) defect = "";
}

void* bd_xx_malloc(size_t bytes) {
  const size_t pages = (bytes + kPage - 1) / kPage;
  size_t first = atomic_fetch_add(&next, pages);
  if (first + pages > (strcmp(defect, "small") == 0 ? 10 : kPages)) return NULL;
  if (strcmp(defect, "twice") == 0) first /= 2;
  if (strcmp(defect, "scribble") == 0 && first > 0) region[(first - 1) * kPage] = 'x';
  return region + first * kPage + (strcmp(defect, "odd") == 0 ? 16 : 0);
}

void bd_xx_free(void* address) {
  (void)address;
}
