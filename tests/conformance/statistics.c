/* Prints sp_stats_json's documents, each behind a line with the name of the moment it is of:
 * `empty`; `held`, with 300 blocks of 48 bytes, 1000 of 576, 50 of 14272 and 5 of 20 MiB more;
 * `threads`, while others allocate and free; `kernel`, which the kernel was asked for, too; `full`,
 * when memory is out. The first two are followed by a line with what mallinfo2 says then. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Of the library that is preloaded, or linked. */
extern int sp_stats_json(void (*write)(void* context, const char* text, size_t bytes),
                         void* context, unsigned flags) __attribute__((weak));

enum { LARGEST = 1000, THREADS = 3, MOST = 1 << 20 };

static const struct {
  size_t size;
  int count;
} held[] = {{48, 300}, {576, 1000}, {14272, 50}, {20 << 20, 5}};
static void* blocks[sizeof held / sizeof *held][LARGEST];
static char text[MOST];
static size_t length;
static atomic_int done;
static atomic_ulong rounds;

/* One byte at a time, and nothing of the heap. */
static void keep(void* context, const char* piece, size_t bytes) {
  if (context != text) abort();
  for (; bytes != 0 && length < MOST; --bytes) text[length++] = *piece++;
}

static void write_all(const char* from, size_t bytes) {
  while (bytes != 0) {
    const ssize_t n = write(1, from, bytes);
    if (n <= 0) _exit(3);
    from += n;
    bytes -= (size_t)n;
  }
}

/* stdio may allocate, and is used before and after only. */
static void tell(const char* moment, unsigned flags, int rests) {
  char line[256];
  length = 0;
  errno = 4711;
  if (sp_stats_json(keep, text, flags) != 0 || errno != 4711) _exit(4);
  write_all(line, (size_t)snprintf(line, sizeof line, "%s\n", moment));
  write_all(text, length);
  if (!rests) return;
  const struct mallinfo2 info = mallinfo2();
  write_all(line, (size_t)snprintf(line, sizeof line, "mallinfo2 %zu %zu %zu %zu %zu %zu %zu %zu\n",
                                   info.arena, info.uordblks, info.fordblks, info.keepcost,
                                   info.hblks, info.hblkhd, info.smblks, info.fsmblks));
}

static void* allocate_and_free(void* unused) {
  void* own[64] = {0};
  for (unsigned long i = 0; !atomic_load(&done); ++i) {
    free(own[i % 64]);
    own[i % 64] = malloc(i * 37 % 5000);
    atomic_fetch_add(&rounds, 1);
  }
  for (int i = 0; i < 64; ++i) free(own[i]);
  return unused;
}

int main(void) {
  if (sp_stats_json == NULL) return 2;
  free(malloc(1));
  if (sp_stats_json(NULL, NULL, 0) != EINVAL || sp_stats_json(keep, text, 2) != EINVAL) return 5;
  if (length != 0) return 6;
  tell("empty", 0, 1);
  for (size_t kind = 0; kind < sizeof held / sizeof *held; ++kind) {
    for (int i = 0; i < held[kind].count; ++i) {
      blocks[kind][i] = malloc(held[kind].size);
      if (blocks[kind][i] == NULL) return 7;
    }
  }
  tell("held", 0, 1);
  pthread_t threads[THREADS];
  for (int k = 0; k < THREADS; ++k) {
    if (pthread_create(&threads[k], NULL, allocate_and_free, NULL) != 0) return 8;
  }
  while (atomic_load(&rounds) < 10000) {
  }
  tell("threads", 0, 0);
  atomic_store(&done, 1);
  for (int k = 0; k < THREADS; ++k) pthread_join(threads[k], NULL);
  tell("kernel", 1, 0);

  const struct rlimit little = {64 << 20, 64 << 20};
  setrlimit(RLIMIT_AS, &little);
  /* (A library that has reserved its addresses may go on: then this much is enough.) */
  for (size_t size = 1 << 20, left = 256 << 20; size != 0; size /= 2) {
    for (char* block; left >= size && (block = malloc(size)) != NULL; left -= size) block[0] = 1;
  }
  tell("full", 0, 0);
  _exit(0);
}
