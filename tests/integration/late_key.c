// Threads whose first allocation is the one that libc makes inside pthread_setspecific for a key beyond its
// first 32. An allocator that then notes its own interest in the thread's end under such a key is forgotten:
// libc overwrites the room that it was noted in. In C, so that nothing allocates before the keys are made.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kKeys = 40, kThreads = 3000 };

static pthread_key_t keys[kKeys];

static void* thread(void* value) {
  if (pthread_setspecific(keys[kKeys - 1], value) != 0) abort();
  void* volatile block = malloc(100);
  free(block);
  return NULL;
}

// Resident pages, read without allocating.
static long resident(void) {
  char text[128] = {0};
  const int file = open("/proc/self/statm", O_RDONLY);
  if (file < 0 || read(file, text, sizeof text - 1) <= 0) return -1;
  close(file);
  long size = 0, pages = -1;
  sscanf(text, "%ld %ld", &size, &pages);
  return pages;
}

int main(void) {
  for (int i = 0; i < kKeys; i++) {
    if (pthread_key_create(&keys[i], NULL) != 0) return 1;
  }
  long settled = 0;
  for (int i = 0; i < kThreads; i++) {
    pthread_t one;
    if (pthread_create(&one, NULL, thread, keys) != 0 || pthread_join(one, NULL) != 0) return 1;
    if (i == 200) settled = resident();
  }
  const long grown = resident() - settled;
  printf("%ld pages more after %d threads\n", grown, kThreads - 200);
  if (settled <= 0 || grown > 256) {
    fprintf(stderr, "FAILED: %ld pages more after %d threads\n", grown, kThreads - 200);
    return 1;
  }
  return 0;
}
