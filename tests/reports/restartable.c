// The C library has registered a thread's area for restartable sequences, or was told not to. It is
// not malloc's to write to, and not malloc's to need.
#include <pthread.h>
#include <sched.h>
#include "report.h"
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
static int bad;
static void* work(void* unused) {
  const uint32_t* area = (const uint32_t*)((char*)__builtin_thread_pointer() + __rseq_offset);
  for (int i = 0; i < 20000; ++i) {
    free(written(chance(3000)));
    // cpu_id_start, cpu_id, and the critical section, of which there is none.
    if (__rseq_size && (area[0] >= 8192 || area[2] || area[3]))
      __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
  }
  return unused;
}
int main(int argc, char** argv) {
  pthread_t thread[4];
  for (int i = 0; i < 4; ++i) pthread_create(&thread[i], NULL, work, NULL);
  for (int i = 0; i < 4; ++i) pthread_join(thread[i], NULL);
  if (argc == 1 && !bad) {
    setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
    execl("/proc/self/exe", argv[0], "without", NULL);
  }
  return verdict(!bad, bad ? "written to" : "untouched");
}
