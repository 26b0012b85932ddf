// A hook asks malloc_usable_size before each free: also when the C library frees a thread's last
// memory, long after its destructors have run.
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include "report.h"
static size_t freed;
void free(void* block) {
  static void (*next)(void*);
  if (!next) next = (void (*)(void*))dlsym(RTLD_NEXT, "free");
  if (block) __atomic_add_fetch(&freed, malloc_usable_size(block), __ATOMIC_RELAXED);
  next(block);
}
static void* work(void* unused) {
  return free(written(100 + chance(2000))), unused;
}
static void run(pthread_attr_t* how, int threads) {
  for (pthread_t thread; threads; --threads) {
    while (pthread_create(&thread, how, work, NULL)) sched_yield();
    for (int running = 9; running > 4; free(NULL)) {
      DIR* tasks = opendir("/proc/self/task");
      for (running = 0; readdir(tasks); ++running) {
      }
      closedir(tasks);
    }
  }
}
int main(void) {
  pthread_attr_t how;  // a stack that the C library does not keep
  pthread_attr_init(&how), pthread_attr_setstacksize(&how, 64ul * MIB),
      pthread_attr_setdetachstate(&how, 1);
  run(&how, 500);
  const double before = mib();
  run(&how, 2000);
  return verdict(mib() < before + 2, "%.1f MiB, %.1f after 2,000", before, mib());
}
