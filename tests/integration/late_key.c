// Threads whose first allocation is the one that libc makes inside pthread_setspecific for a key
// beyond its first 32. An allocator that then notes its own interest in the thread's end under such
// a key is forgotten: libc overwrites the room that it was noted in. In C, so that nothing
// allocates before the keys are made.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { kKeys = 40, kThreads = 3000 };

static pthread_key_t keys[kKeys];

static void* thread(void* value) {
  if (pthread_setspecific(keys[kKeys - 1], value) != 0) abort();
  void* volatile block = malloc(100);
  free(block);
  return NULL;
}

// KiB that no file holds, read without allocating: exact, where the kernel's counters are not.
static long own_memory(void) {
  char text[4096] = {0};
  const int file = open("/proc/self/smaps_rollup", O_RDONLY);
  if (file < 0 || read(file, text, sizeof text - 1) <= 0) return -1;
  close(file);
  const char* own = strstr(text, "Anonymous:");
  const char* swapped = strstr(text, "Swap:");
  return own == NULL || swapped == NULL ? -1 : atol(own + 10) + atol(swapped + 5);
}

int main(void) {
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // or chance decides how much is in memory
  for (int i = 0; i < kKeys; i++) {
    if (pthread_key_create(&keys[i], NULL) != 0) return 1;
  }
  long settled = 0;
  for (int i = 0; i < kThreads; i++) {
    pthread_t one;
    if (pthread_create(&one, NULL, thread, keys) != 0 || pthread_join(one, NULL) != 0) return 1;
    if (i == 200) settled = own_memory();
  }
  const long grown = own_memory() - settled;
  printf("%ld KiB more after %d threads\n", grown, kThreads - 200);
  if (settled <= 0 || grown > 1024) {
    fprintf(stderr, "FAILED: %ld KiB more after %d threads\n", grown, kThreads - 200);
    return 1;
  }
  return 0;
}
