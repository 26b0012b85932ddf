/* The page manager of spanalloc.h from plain C, in the way that docs/pages.md shows. Prints what
 * fails; the exit code is 0 when nothing did. */
#include <errno.h>
#include <spanalloc/spanalloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      ++failures;                                                       \
      fprintf(stderr, "sp_pages.c:%d: not %s\n", __LINE__, #condition); \
    }                                                                   \
  } while (0)

static void count(const struct sp_pages_block* block, void* context) {
  size_t* const free_bytes = context;
  if (block->state == SP_PAGES_FREE) *free_bytes += block->bytes;
}

/* Everything that both kinds of region can do; 100 units at first. */
static void exercise(sp_pages* pages, size_t unit) {
  struct sp_pages_statistics stats;
  void* a = NULL;
  void* b = NULL;
  size_t free_bytes = 0;
  int zero = -1;
  CHECK(sp_pages_allocate(pages, 10 * unit, &a, &zero) == SP_PAGES_OK && zero == 1);
  CHECK(sp_pages_allocate_aligned(pages, unit, 4 * unit, &b, NULL) == SP_PAGES_OK);
  CHECK((uintptr_t)b % (4 * unit) == 0 && sp_pages_size_of(pages, b) == unit);
  CHECK(sp_pages_grow(pages, b, 5 * unit, NULL) == SP_PAGES_OK);
  CHECK(sp_pages_shrink(pages, a, 3 * unit) == SP_PAGES_OK &&
        sp_pages_size_of(pages, a) == 3 * unit);
  memset(a, 1, 3 * unit);
  CHECK(sp_pages_walk(pages, count, &free_bytes) == SP_PAGES_OK && free_bytes == 92 * unit);
  CHECK(sp_pages_free(pages, a) == SP_PAGES_OK);
  CHECK(sp_pages_free(pages, a) == SP_PAGES_NOT_A_BLOCK);
  CHECK(sp_pages_free(pages, b) == SP_PAGES_OK);
  CHECK(sp_pages_extend(pages, unit, 0) == SP_PAGES_OK);
  CHECK(sp_pages_stats(pages, &stats, sizeof stats) == SP_PAGES_OK);
  CHECK(stats.region_bytes == 101 * unit && stats.free_blocks == 1 &&
        stats.largest_free_bytes == 101 * unit);
  CHECK(sp_pages_region(pages) == a);
  CHECK(sp_pages_allocate(pages, 102 * unit, &a, NULL) == SP_PAGES_NO_ROOM);
}

static void over_memory_of_the_caller(void) {
  enum { kUnit = 256 };
  static uint64_t memory[(101 + 4) * kUnit / sizeof(uint64_t)];
  unsigned char* const region =
      (unsigned char*)memory + (4 * kUnit - (uintptr_t)memory % (4 * kUnit)) % (4 * kUnit);
  const size_t bytes = sp_pages_metadata_bytes(101 * kUnit, kUnit);
  void* const metadata = calloc(1, bytes);
  sp_pages* pages = NULL;
  CHECK(metadata != NULL);
  CHECK(sp_pages_create_over(region, 100 * kUnit, kUnit, metadata, bytes,
                             SP_PAGES_METADATA_ZERO | SP_PAGES_REGION_ZERO, &pages) == SP_PAGES_OK);
  exercise(pages, kUnit);
  CHECK(sp_pages_purge(pages, 0, NULL) == SP_PAGES_UNSUPPORTED);
  CHECK(sp_pages_destroy(pages) == SP_PAGES_OK);
  free(metadata);
}

static void over_memory_of_the_system(void) {
  const size_t unit = 65536;
  sp_pages* pages = NULL;
  size_t purged = 0;
  CHECK(sp_pages_create(100 * unit, 101 * unit, unit, &pages) == SP_PAGES_OK);
  exercise(pages, unit);
  CHECK(sp_pages_purge(pages, 0, &purged) == SP_PAGES_OK && purged != 0);
  CHECK(sp_pages_destroy(pages) == SP_PAGES_OK);
  CHECK(sp_pages_create(100 * unit, 101 * unit, 3, &pages) == SP_PAGES_BAD_UNIT);
}

int main(void) {
  errno = 4711;
  over_memory_of_the_caller();
  over_memory_of_the_system();
  CHECK(errno == 4711);
  CHECK(strcmp(sp_pages_status_text(SP_PAGES_OK), "done") == 0);
  return failures == 0 ? 0 : 1;
}
