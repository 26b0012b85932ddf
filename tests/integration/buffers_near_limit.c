/* A program whose live memory is near what it may have: buffers that are replaced one by one, in
 * phases of different sizes, all bytes of them written.
 *   buffers_near_limit LIMIT_MIB PERCENT
 * PERCENT of the limit is live at each time. Ends with 0, or is killed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMost = 1 << 16 };

static struct {
  unsigned char* at;
  size_t size;
} buffers[kMost];
static size_t count;
static size_t live;
static uint64_t state = 1;

/* xorshift64* (Vigna 2016) */
static uint64_t draw(void) {
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545F4914F6CDD1Du;
}

static void replace_until_fits(size_t size, size_t most) {
  while (live + size > most && count != 0) {
    const size_t i = draw() % count;
    if (buffers[i].at[buffers[i].size - 1] != (unsigned char)buffers[i].size) abort();
    live -= buffers[i].size;
    free(buffers[i].at);
    buffers[i] = buffers[--count];
  }
  if (live + size > most || count == kMost) return;
  unsigned char* at = malloc(size);
  if (at == NULL) {
    fputs("malloc has refused\n", stderr);
    exit(2);
  }
  memset(at, (unsigned char)size, size);
  buffers[count].at = at;
  buffers[count++].size = size;
  live += size;
}

int main(int argc, char** argv) {
  /* At least and at most so many bytes. */
  static const size_t phases[][2] = {{40000, 60000},     {200000, 400000},   {1000000, 3000000},
                                     {100000, 120000},   {5000000, 9000000}, {50000, 2000000},
                                     {300000, 20000000}, {70000, 90000},     {40000, 4000000}};
  if (argc != 3) return 2;
  const size_t most =
      (size_t)strtoull(argv[1], NULL, 10) * 1024 * 1024 / 100 * strtoull(argv[2], NULL, 10);
  for (unsigned round = 0; round < 2; ++round) {
    for (size_t phase = 0; phase < sizeof phases / sizeof phases[0]; ++phase) {
      const size_t low = phases[phase][0];
      const size_t range = phases[phase][1] - low + 1;
      for (size_t written = 0; written < 2 * most;) {
        const size_t size = low + draw() % range;
        replace_until_fits(size, most);
        written += size;
      }
    }
  }
  printf("%zu buffers, %zu MiB live\n", count, live >> 20);
  return 0;
}
