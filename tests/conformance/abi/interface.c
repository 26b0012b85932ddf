/* What a program relies on that was compiled with this version's spanalloc.h or an earlier one: the
 * type of each function, size and layout of each structure, the value of each constant. Prints what
 * differs; the exit code is 0 when nothing does. The same on every machine that there is a library
 * for.
 *
 * Added may be functions, a field at the end of a structure whose size the caller tells, constants
 * with values of their own: then lines are added here. Any other change breaks programs, and takes
 * a new major version and an entry in CHANGELOG.md. check_interface.py sees that nothing of the
 * header is left out.
 */
#include <spanalloc/spanalloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static int failures;

static void compare(const char* what, size_t found, size_t promised) {
  if (found == promised) return;
  ++failures;
  fprintf(stderr, "%s: %zu, promised was %zu\n", what, found, promised);
}

static void promise(const char* what, int kept) {
  if (kept) return;
  ++failures;
  fprintf(stderr, "%s: has another type\n", what);
}

#define FUNCTION(name, ...) promise(#name, _Generic(&(name), __VA_ARGS__: 1, default: 0))
#define CONSTANT(name, value) compare(#name, (size_t)(name), value)
#define SIZE(structure, bytes) compare("size of " #structure, sizeof(struct structure), bytes)
#define FIELD(structure, field, offset, bytes)                                               \
  do {                                                                                       \
    compare("offset of " #structure "." #field, offsetof(struct structure, field), offset);  \
    compare("size of " #structure "." #field, sizeof(((struct structure*)0)->field), bytes); \
  } while (0)

typedef enum sp_pages_status Status;
typedef void (*Visit)(const struct sp_pages_block*, void*);

static void check_functions(void) {
  FUNCTION(sp_malloc, void* (*)(size_t));
  FUNCTION(sp_calloc, void* (*)(size_t, size_t));
  FUNCTION(sp_realloc, void* (*)(void*, size_t));
  FUNCTION(sp_free, void (*)(void*));
  FUNCTION(sp_aligned_alloc, void* (*)(size_t, size_t));
  FUNCTION(sp_posix_memalign, int (*)(void**, size_t, size_t));
  FUNCTION(sp_usable_size, size_t (*)(const void*));
  FUNCTION(sp_owns, int (*)(const void*));
  FUNCTION(sp_trim, int (*)(void));
  FUNCTION(sp_set_soft_limit, int (*)(size_t));
  FUNCTION(sp_soft_limit, size_t (*)(void));
  FUNCTION(sp_soft_limit_is_near, int (*)(void));
  FUNCTION(sp_on_soft_limit, int (*)(void (*)(void*, size_t, size_t), void*));
  CONSTANT(SP_SOFT_LIMIT_CGROUP, SIZE_MAX);
  FUNCTION(sp_stats, void (*)(struct sp_statistics*, size_t));
  FUNCTION(sp_stats_json, int (*)(void (*)(void*, const char*, size_t), void*, unsigned));
  FUNCTION(sp_version, const char* (*)(void));
  FUNCTION(sp_engine_name, const char* (*)(void));

  FUNCTION(sp_heap_create, sp_heap * (*)(const struct sp_heap_options*, size_t));
  FUNCTION(sp_heap_destroy, void (*)(sp_heap*));
  FUNCTION(sp_heap_reset, void (*)(sp_heap*));
  FUNCTION(sp_heap_malloc, void* (*)(sp_heap*, size_t));
  FUNCTION(sp_heap_calloc, void* (*)(sp_heap*, size_t, size_t));
  FUNCTION(sp_heap_aligned_alloc, void* (*)(sp_heap*, size_t, size_t));
  FUNCTION(sp_heap_realloc, void* (*)(sp_heap*, void*, size_t));
  FUNCTION(sp_heap_free, void (*)(sp_heap*, void*));
  FUNCTION(sp_heap_owns, int (*)(const sp_heap*, const void*));
  FUNCTION(sp_heap_visit, void (*)(sp_heap*, void (*)(void*, size_t, void*), void*));
  FUNCTION(sp_heap_stats, void (*)(sp_heap*, struct sp_heap_statistics*, size_t));

  FUNCTION(sp_pages_status_text, const char* (*)(Status));
  FUNCTION(sp_pages_metadata_bytes, size_t (*)(size_t, size_t));
  FUNCTION(sp_pages_create_over,
           Status(*)(void*, size_t, size_t, void*, size_t, unsigned, sp_pages**));
  FUNCTION(sp_pages_create, Status(*)(size_t, size_t, size_t, sp_pages**));
  FUNCTION(sp_pages_destroy, Status(*)(sp_pages*));
  FUNCTION(sp_pages_allocate, Status(*)(sp_pages*, size_t, void**, int*));
  FUNCTION(sp_pages_allocate_aligned, Status(*)(sp_pages*, size_t, size_t, void**, int*));
  FUNCTION(sp_pages_free, Status(*)(sp_pages*, void*));
  FUNCTION(sp_pages_grow, Status(*)(sp_pages*, void*, size_t, int*));
  FUNCTION(sp_pages_shrink, Status(*)(sp_pages*, void*, size_t));
  FUNCTION(sp_pages_size_of, size_t (*)(const sp_pages*, const void*));
  FUNCTION(sp_pages_region, void* (*)(const sp_pages*));
  FUNCTION(sp_pages_extend, Status(*)(sp_pages*, size_t, unsigned));
  FUNCTION(sp_pages_purge, Status(*)(sp_pages*, unsigned, size_t*));
  FUNCTION(sp_pages_walk, Status(*)(const sp_pages*, Visit, void*));
  FUNCTION(sp_pages_stats, Status(*)(const sp_pages*, struct sp_pages_statistics*, size_t));
  FUNCTION(sp_pages_after_fork, Status(*)(sp_pages*));
}

static void check_structures(void) {
  SIZE(sp_statistics, 248);
  FIELD(sp_statistics, reserved_bytes, 0, 8);
  FIELD(sp_statistics, opened_bytes, 8, 8);
  FIELD(sp_statistics, carved_bytes, 16, 8);
  FIELD(sp_statistics, pooled_bytes, 24, 8);
  FIELD(sp_statistics, large_bytes, 32, 8);
  FIELD(sp_statistics, large_objects, 40, 8);
  FIELD(sp_statistics, live_threads, 48, 8);
  FIELD(sp_statistics, live_labs, 48, 8);
  FIELD(sp_statistics, spans_lost_to_fork, 56, 8);
  FIELD(sp_statistics, live_bytes, 64, 8);
  FIELD(sp_statistics, live_blocks, 72, 8);
  FIELD(sp_statistics, free_bytes, 80, 8);
  FIELD(sp_statistics, free_blocks, 88, 8);
  FIELD(sp_statistics, unsure_bytes, 96, 8);
  FIELD(sp_statistics, unsure_blocks, 104, 8);
  FIELD(sp_statistics, kept_block_bytes, 112, 8);
  FIELD(sp_statistics, kept_span_bytes, 120, 8);
  FIELD(sp_statistics, pool_bytes, 128, 8);
  FIELD(sp_statistics, dirty_bytes, 136, 8);
  FIELD(sp_statistics, clean_bytes, 144, 8);
  FIELD(sp_statistics, purged_part_bytes, 152, 8);
  FIELD(sp_statistics, decommitted_bytes, 160, 8);
  FIELD(sp_statistics, metadata_bytes, 168, 8);
  FIELD(sp_statistics, resident_bytes, 176, 8);
  FIELD(sp_statistics, growths, 184, 8);
  FIELD(sp_statistics, purges, 192, 8);
  FIELD(sp_statistics, purged_bytes, 200, 8);
  FIELD(sp_statistics, decay_epochs, 208, 8);
  FIELD(sp_statistics, trims, 216, 8);
  FIELD(sp_statistics, heaps, 224, 8);
  FIELD(sp_statistics, heaps_taken_bytes, 232, 8);
  FIELD(sp_statistics, heaps_kept_bytes, 240, 8);

  SIZE(sp_heap_options, 16);
  FIELD(sp_heap_options, limit_bytes, 0, 8);
  FIELD(sp_heap_options, name, 8, 8);

  SIZE(sp_heap_statistics, 32);
  FIELD(sp_heap_statistics, limit_bytes, 0, 8);
  FIELD(sp_heap_statistics, taken_bytes, 8, 8);
  FIELD(sp_heap_statistics, used_bytes, 16, 8);
  FIELD(sp_heap_statistics, used_blocks, 24, 8);

  SIZE(sp_pages_block, 24);
  FIELD(sp_pages_block, start, 0, 8);
  FIELD(sp_pages_block, bytes, 8, 8);
  FIELD(sp_pages_block, state, 16, 4);
  FIELD(sp_pages_block, zero, 20, 4);

  SIZE(sp_pages_statistics, 88);
  FIELD(sp_pages_statistics, unit_bytes, 0, 8);
  FIELD(sp_pages_statistics, region_bytes, 8, 8);
  FIELD(sp_pages_statistics, limit_bytes, 16, 8);
  FIELD(sp_pages_statistics, used_bytes, 24, 8);
  FIELD(sp_pages_statistics, free_bytes, 32, 8);
  FIELD(sp_pages_statistics, moving_bytes, 40, 8);
  FIELD(sp_pages_statistics, free_zero_bytes, 48, 8);
  FIELD(sp_pages_statistics, largest_free_bytes, 56, 8);
  FIELD(sp_pages_statistics, used_blocks, 64, 8);
  FIELD(sp_pages_statistics, free_blocks, 72, 8);
  FIELD(sp_pages_statistics, metadata_bytes, 80, 8);
}

static void check_constants(void) {
  CONSTANT(SP_STATS_NOT_TOLD, (size_t)-1);
  CONSTANT(SP_STATS_KERNEL, 1);

  CONSTANT(SP_PAGES_OK, 0);
  CONSTANT(SP_PAGES_NO_ROOM, 1);
  CONSTANT(SP_PAGES_NOT_A_BLOCK, 2);
  CONSTANT(SP_PAGES_NULL, 3);
  CONSTANT(SP_PAGES_BAD_MANAGER, 4);
  CONSTANT(SP_PAGES_BAD_SIZE, 5);
  CONSTANT(SP_PAGES_BAD_ALIGNMENT, 6);
  CONSTANT(SP_PAGES_BAD_UNIT, 7);
  CONSTANT(SP_PAGES_BAD_REGION, 8);
  CONSTANT(SP_PAGES_BAD_FLAGS, 9);
  CONSTANT(SP_PAGES_SMALL_METADATA, 10);
  CONSTANT(SP_PAGES_BUSY, 11);
  CONSTANT(SP_PAGES_REFUSED, 12);
  CONSTANT(SP_PAGES_UNSUPPORTED, 13);

  CONSTANT(SP_PAGES_USED, 0);
  CONSTANT(SP_PAGES_FREE, 1);
  CONSTANT(SP_PAGES_MOVING, 2);

  CONSTANT(SP_PAGES_METADATA_ZERO, 1);
  CONSTANT(SP_PAGES_REGION_ZERO, 2);
  CONSTANT(SP_PAGES_PURGE_IDLE, 1);
}

int main(void) {
  check_functions();
  check_structures();
  check_constants();
  if (failures != 0)
    fputs("tests/conformance/abi/interface.c says at its top what may change\n", stderr);
  return failures == 0 ? 0 : 1;
}
