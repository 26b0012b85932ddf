// The loops behind the instruction counts of many shapes of program: ROUNDS times COUNT blocks are
// allocated, one byte of each is written, and all are freed.
//
//   SIZE[,SIZE...]   bytes of a block; several: in turn
//   forward          freed in the order of allocation
//   reverse          in the opposite order
//   stride           in a fixed stride through the batch, that meets every block once
//   random           in one order that a fixed seed has drawn
//   handed           by a second thread, which waits for a batch, while the first waits for it to
//                    be freed
//   thread           in the order of allocation, each batch by a thread of its own that ends after
//                    it
//
// Blocks come from malloc, or, as a fifth argument says,
//   calloc           from calloc(1, SIZE)
//   64, 4096 ...     from aligned_alloc(64, SIZE), and so on
//
// Of all allocators the loops take the same number of instructions. Compiled with -fno-builtin, so
// that every call is made.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "still_clock.h"

enum { kMostSizes = 64 };
static size_t sizes[kMostSizes];
static size_t size_count;
static size_t count;
static long rounds;
static char** blocks;
static size_t* order;  // which block is freed when
static pthread_barrier_t filled, freed;

static size_t alignment;

// The same loop for each call: a choice in the loop would be counted.
static void fill_zeroed(void) {
  for (size_t i = 0, s = 0; i < count; i++) {
    blocks[i] = calloc(1, sizes[s]);
    *blocks[i] = 1;
    if (++s == size_count) s = 0;
  }
}
static void fill_aligned(void) {
  for (size_t i = 0, s = 0; i < count; i++) {
    blocks[i] = aligned_alloc(alignment, sizes[s]);
    *blocks[i] = 1;
    if (++s == size_count) s = 0;
  }
}
static void fill_plain(void) {
  if (size_count == 1) {
    const size_t size = sizes[0];
    for (size_t i = 0; i < count; i++) {
      blocks[i] = malloc(size);
      *blocks[i] = 1;
    }
    return;
  }
  for (size_t i = 0, s = 0; i < count; i++) {
    blocks[i] = malloc(sizes[s]);
    *blocks[i] = 1;
    if (++s == size_count) s = 0;
  }
}
static void (*fill)(void) = fill_plain;

static void free_all(void) {
  if (order == NULL) {
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    return;
  }
  for (size_t i = 0; i < count; i++) free(blocks[order[i]]);
}

static void* free_what_is_handed(void* unused) {
  for (long round = 0; round < rounds; round++) {
    pthread_barrier_wait(&filled);
    free_all();
    pthread_barrier_wait(&freed);
  }
  return unused;
}

static void* live(void* unused) {
  fill();
  free_all();
  return unused;
}

static size_t greatest_common_divisor(size_t a, size_t b) {
  while (b != 0) {
    const size_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// Not from malloc: what is measured should have nothing but the blocks.
static void* room(size_t elements, size_t size) {
  static char memory[64 << 20];
  static size_t used;
  void* at = memory + used;
  used += (elements * size + 63) & ~(size_t)63;
  return used <= sizeof memory ? at : NULL;
}

static int choose_order(const char* name) {
  if (strcmp(name, "forward") == 0 || strcmp(name, "handed") == 0 || strcmp(name, "thread") == 0)
    return 1;
  order = room(count, sizeof *order);
  if (order == NULL) return 0;
  for (size_t i = 0; i < count; i++) order[i] = i;
  if (strcmp(name, "reverse") == 0) {
    for (size_t i = 0; i < count; i++) order[i] = count - 1 - i;
  } else if (strcmp(name, "stride") == 0) {
    size_t stride = count * 5 / 13 + 1;
    while (greatest_common_divisor(stride, count) != 1) stride++;
    for (size_t i = 0, at = 0; i < count; i++, at = (at + stride) % count) order[i] = at;
  } else if (strcmp(name, "random") == 0) {
    uint64_t state = 88172645463325252u;
    for (size_t i = count; i > 1; i--) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const size_t other = (size_t)(state % i), kept = order[i - 1];
      order[i - 1] = order[other];
      order[other] = kept;
    }
  } else {
    return 0;
  }
  return 1;
}

static int read_sizes(char* text) {
  for (char* end; size_count < kMostSizes; text = end + 1) {
    const unsigned long size = strtoul(text, &end, 10);
    if (end == text || (*end != ',' && *end != 0)) return 0;
    sizes[size_count++] = size;
    if (*end == 0) return 1;
  }
  return 0;
}

// "calloc", or a power of two.
static int choose_call(const char* name) {
  if (strcmp(name, "calloc") == 0) {
    fill = fill_zeroed;
    return 1;
  }
  fill = fill_aligned;
  alignment = strtoul(name, NULL, 10);
  return alignment != 0 && (alignment & (alignment - 1)) == 0;
}

int main(int argc, char** argv) {
  const int is_complete = argc == 5 || argc == 6;
  count = is_complete ? strtoul(argv[2], NULL, 10) : 0;
  rounds = is_complete ? strtol(argv[4], NULL, 10) : 0;
  blocks = count <= 1 << 20 ? room(count, sizeof *blocks) : NULL;
  if (!is_complete || count == 0 || rounds <= 0 || blocks == NULL || !read_sizes(argv[1]) ||
      !choose_order(argv[3]) || (argc == 6 && !choose_call(argv[5]))) {
    fprintf(
        stderr,
        "usage: shape_loop SIZE[,SIZE...] COUNT forward|reverse|stride|random|handed|thread ROUNDS "
        "[calloc|ALIGNMENT]\n"
        "At most 64 sizes, and 1048576 blocks.\n");
    return 2;
  }
  if (strcmp(argv[3], "handed") == 0) {
    pthread_t freer;
    if (pthread_barrier_init(&filled, NULL, 2) != 0 || pthread_barrier_init(&freed, NULL, 2) != 0)
      return 1;
    if (pthread_create(&freer, NULL, free_what_is_handed, NULL) != 0) return 1;
    for (long round = 0; round < rounds; round++) {
      fill();
      pthread_barrier_wait(&filled);
      pthread_barrier_wait(&freed);
    }
    return pthread_join(freer, NULL) == 0 ? 0 : 1;
  }
  const int by_threads = strcmp(argv[3], "thread") == 0;
  for (long round = 0; round < rounds; round++) {
    pthread_t thread;
    if (!by_threads) {
      live(NULL);
    } else if (pthread_create(&thread, NULL, live, NULL) != 0 || pthread_join(thread, NULL) != 0) {
      return 1;
    }
  }
  return 0;
}
