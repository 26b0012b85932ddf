/* The functions of spanalloc.h from plain C. Prints what fails; the exit code is 0 when nothing
 * did. */
#include <errno.h>
#include <spanalloc/spanalloc.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      ++failures;                                                           \
      fprintf(stderr, "sp_interface.c:%d: not %s\n", __LINE__, #condition); \
    }                                                                       \
  } while (0)

static void check_blocks(void) {
  for (size_t n = 0; n < 3000000; n += n / 5 + 1) {
    char* p = sp_malloc(n);
    CHECK(p != NULL && sp_owns(p) && sp_usable_size(p) >= n);
    memset(p, 0x33, sp_usable_size(p));
    p = sp_realloc(p, 2 * n + 1);
    CHECK(p != NULL && (n == 0 || p[n - 1] == 0x33));
    sp_free(p);
    char* z = sp_calloc(n + 1, 2);
    CHECK(z != NULL && z[0] == 0 && z[2 * n + 1] == 0);
    CHECK(sp_realloc(z, 0) == NULL);
    char* a = sp_aligned_alloc(1024, n);
    CHECK(a != NULL && (uintptr_t)a % 1024 == 0);
    sp_free(a);
  }
  sp_free(NULL);
  CHECK(sp_usable_size(NULL) == 0);
}

static void check_errors(void) {
  void* out = &failures;
  volatile size_t huge = SIZE_MAX; /* volatile: the compiler warns otherwise */
  errno = 0;
  CHECK(sp_malloc(huge) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(sp_calloc(huge, huge) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(sp_calloc(1, huge) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(sp_aligned_alloc(16, huge) == NULL && errno == ENOMEM);
  errno = 0;
  /* (Compilers warn of what they can see.) */
  static volatile size_t odd = 3;
  static volatile size_t none = 0;
  CHECK(sp_aligned_alloc(odd, 100) == NULL && errno == EINVAL);
  errno = 0;
  CHECK(sp_aligned_alloc(none, 100) == NULL && errno == EINVAL);
  errno = 0;
  char* kept = sp_aligned_alloc(1, 10);
  CHECK(kept != NULL && (uintptr_t)kept % 16 == 0 && errno == 0);
  kept[9] = 0x44;
  CHECK(sp_realloc(kept, huge) == NULL && errno == ENOMEM && kept[9] == 0x44);
  errno = 4711;
  CHECK(sp_realloc(kept, 0) == NULL && errno == 4711);
  void* unique = sp_realloc(NULL, 0);
  CHECK(unique != NULL && errno == 4711);
  sp_free(unique);
  CHECK(sp_posix_memalign(&out, 3, 100) == EINVAL && errno == 4711 && out == &failures);
  CHECK(sp_posix_memalign(&out, 64, huge) == ENOMEM && errno == ENOMEM && out == &failures);
  CHECK(sp_posix_memalign(&out, 64, 100) == 0 && sp_owns(out));
  sp_free(out);
  CHECK(!sp_owns(&out) && !sp_owns(NULL) && !sp_owns((void*)UINTPTR_MAX));
}

static void keep(void* context, const char* text, size_t bytes) {
  strncat(context, text, bytes);
}

/* Of this library's engine, which tells all but what only the kernel knows. */
static void check_statistics_in_full(void) {
  static char document[65536];
  struct sp_statistics before;
  struct sp_statistics during;
  sp_stats(&before, sizeof before);
  void* small = sp_malloc(100);
  sp_stats(&during, sizeof during);
  CHECK(during.live_blocks == before.live_blocks + 1 && during.unsure_blocks == 0);
  CHECK(during.live_bytes == before.live_bytes + sp_usable_size(small));
  CHECK(during.resident_bytes == SP_STATS_NOT_TOLD && during.trims == before.trims);
  errno = 4711;
  CHECK(sp_stats_json(keep, document, 0) == 0 && errno == 4711);
  char member[64];
  snprintf(member, sizeof member, "\"live_blocks\": %zu,", during.live_blocks);
  CHECK(strstr(document, member) != NULL && strstr(document, "resident_bytes") == NULL);
  CHECK(sp_stats_json(NULL, document, 0) == EINVAL && sp_stats_json(keep, document, 8) == EINVAL);
  document[0] = '\0';
  CHECK(sp_stats_json(keep, document, SP_STATS_KERNEL) == 0);
  CHECK(strstr(document, "\"resident_bytes\": ") != NULL && errno == 4711);
  sp_free(small);
  sp_trim();
  sp_stats(&during, sizeof during);
  CHECK(during.live_blocks == before.live_blocks && during.trims == before.trims + 1);
}

static void check_heaps_in_statistics(void) {
  static char document[65536];
  struct sp_statistics before;
  struct sp_statistics during;
  sp_stats(&before, sizeof before);
  /* As compiled with the first version of the structure: what is behind it is not read. */
  struct {
    size_t limit_bytes;
    void* behind;
  } first = {1 << 20, &first};
  sp_heap* unnamed = sp_heap_create((struct sp_heap_options*)(void*)&first, 8);
  struct sp_heap_options options = {.limit_bytes = 2 << 20, .name = "a \"heap\""};
  sp_heap* named = sp_heap_create(&options, sizeof options);
  CHECK(unnamed != NULL && named != NULL && sp_heap_malloc(named, 300000) != NULL);
  errno = 0;
  CHECK(sp_heap_create(&options, 12) == NULL && errno == EINVAL);
  sp_stats(&during, sizeof during);
  CHECK(during.heaps == before.heaps + 2);
  CHECK(during.heaps_taken_bytes >= before.heaps_taken_bytes + 2 * 65536 + 300000);
  document[0] = '\0';
  CHECK(sp_stats_json(keep, document, 0) == 0);
  CHECK(strstr(document, "\"name\": \"a \\\"heap\\\"\"") != NULL);
  CHECK(strstr(document, "\"limit_bytes\": 2097152,") != NULL);
  CHECK(strstr(document, "\"name\": \"\", ") != NULL);
  sp_heap_destroy(named);
  sp_heap_destroy(unnamed);
  sp_stats(&during, sizeof during);
  CHECK(during.heaps == before.heaps && during.heaps_taken_bytes == before.heaps_taken_bytes);
}

static void check_statistics(void) {
  struct sp_statistics before;
  struct sp_statistics during;
  memset(&before, 0xEE, sizeof before);
  sp_stats(&before, sizeof before);
  void* p = sp_malloc(10000000);
  sp_stats(&during, sizeof during);
  CHECK(during.large_objects == before.large_objects + 1);
  CHECK(during.large_bytes >= before.large_bytes + 10000000);
  CHECK(during.opened_bytes <= during.reserved_bytes);
  sp_free(p);
  /* A caller that knows less gets less, one that knows more gets zeros. */
  unsigned char buffer[sizeof before + 64];
  memset(buffer, 0xEE, sizeof buffer);
  sp_stats((struct sp_statistics*)buffer, sizeof(size_t));
  CHECK(buffer[sizeof(size_t)] == 0xEE);
  sp_stats((struct sp_statistics*)buffer, sizeof before + 32);
  CHECK(buffer[sizeof before] == 0 && buffer[sizeof before + 31] == 0 &&
        buffer[sizeof before + 32] == 0xEE);
  sp_trim();
  /* Of a caller that was compiled before heaps were counted nothing else is written to. */
  memset(buffer, 0xEE, sizeof buffer);
  sp_stats((struct sp_statistics*)buffer, offsetof(struct sp_statistics, heaps));
  CHECK(buffer[offsetof(struct sp_statistics, heaps)] == 0xEE);
  check_heaps_in_statistics();
  CHECK(strcmp(sp_version(), SPANALLOC_EXPECTED_VERSION) == 0);
  CHECK(strlen(sp_engine_name()) > 0);
}

static int told;
static void tell(void* context, size_t held, size_t limit) {
  CHECK(context == &told && held > 0 && limit == 1 << 20);
  ++told;
}

static void check_soft_limit(void) {
  errno = 4711;
  CHECK(sp_soft_limit() == 0);
  if (strcmp(sp_engine_name(), "standard") != 0) {
    CHECK(sp_set_soft_limit(1 << 20) == -1 && errno == ENOTSUP && sp_soft_limit() == 0);
    errno = 0;
    CHECK(sp_on_soft_limit(tell, &told) == -1 && errno == ENOTSUP);
    CHECK(sp_soft_limit_is_near() == 0);
    return;
  }
  CHECK(sp_soft_limit_is_near() == 0);
  CHECK(sp_on_soft_limit(tell, &told) == 0 && sp_set_soft_limit(1 << 20) == 0);
  CHECK(sp_soft_limit() == 1 << 20);
  void* beyond = sp_malloc(3 << 20);
  CHECK(beyond != NULL);
  for (int i = 0; i < 2; ++i) sp_free(sp_malloc(2 << 20));
  CHECK(told >= 1 && sp_soft_limit_is_near() == 1);
  sp_free(beyond);
  CHECK(sp_on_soft_limit(NULL, NULL) == 0 && errno == 4711);
  /* Where there is a group to read: its limit, or none. */
  if (sp_set_soft_limit(SP_SOFT_LIMIT_CGROUP) != 0) CHECK(errno == ENOENT);
  CHECK(sp_set_soft_limit(0) == 0 && sp_soft_limit() == 0);
}

int main(void) {
  check_blocks();
  check_errors();
  check_statistics();
  check_statistics_in_full();
  check_soft_limit();
  printf("%s %s: %d failed\n", sp_engine_name(), sp_version(), failures);
  return failures == 0 ? 0 : 1;
}
