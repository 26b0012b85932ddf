// fork THREADS MIB FORKS: a process whose first thread and so many others have MIB of live
// memory each forks, while the others wait; children exit at once. Prints of the middle fork
// the microseconds that fork took in the parent, those until the child was waited for, and
// the page faults of both; these two times of one fork in ten, which took no longer; and
// what the kernel has to copy.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t filled, end;
static size_t wanted;

// 16 to 1,000 bytes, one in twenty up to 40,000; every fourth is freed again.
static void fill(uint64_t seed) {
  for (size_t live = 0; live < wanted;) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const uint64_t chance = seed >> 33;
    const size_t size = 16 + chance / 20 % (chance % 20 == 0 ? 40000 : 1000);
    char* block = malloc(size);
    if (block == NULL) exit(1);
    memset(block, 1, size);
    if (chance % 4 == 1) {
      free(block);
    } else {
      live += size;
    }
  }
}
static void* work(void* seed) {
  fill((uintptr_t)seed);
  pthread_barrier_wait(&filled);
  pthread_barrier_wait(&end);
  return NULL;
}

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
static long page_faults(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}
static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}
static double middle(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, by_size);
  return values[count / 2];
}
static double lowest_tenth(const double* sorted, int count) {
  return sorted[count / 10];
}
static long field(const char* name) {
  char line[256];
  long value = 0;
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof line, status) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0) value = atol(line + strlen(name) + 1);
  }
  if (status != NULL) fclose(status);
  return value;
}
static int mappings(void) {
  int count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  for (int c; maps != NULL && (c = getc(maps)) != EOF;) count += c == '\n';
  if (maps != NULL) fclose(maps);
  return count;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int threads = atoi(argv[1]);
  wanted = (size_t)(atof(argv[2]) * 1048576);
  const int forks = atoi(argv[3]);
  if (threads < 0 || threads > 1000 || forks < 1) return 2;
  pthread_t ids[1000];
  double* values = malloc(4 * sizeof *values * (size_t)forks);
  if (values == NULL) return 1;
  pthread_barrier_init(&filled, NULL, (unsigned)threads + 1);
  pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
  for (int i = 0; i < threads; ++i) {
    if (pthread_create(&ids[i], NULL, work, (void*)(uintptr_t)(i + 1)) != 0) return 1;
  }
  fill(0);
  pthread_barrier_wait(&filled);
  const long tables = field("VmPTE");
  const long own = field("RssAnon");
  const int maps = mappings();
  int ends[2];
  if (pipe(ends) != 0) return 1;
  for (int i = -3; i < forks; ++i) {
    const long faults = page_faults();
    const double start = microseconds();
    const pid_t child = fork();
    if (child == 0) {
      const long count = page_faults();
      _exit(write(ends[1], &count, sizeof count) == (ssize_t)sizeof count ? 0 : 1);
    }
    const double forked = microseconds();
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
    const double done = microseconds();
    long of_child = 0;
    if (read(ends[0], &of_child, sizeof of_child) != (ssize_t)sizeof of_child) return 1;
    if (i < 0) continue;
    values[i] = forked - start;
    values[forks + i] = done - start;
    values[2 * forks + i] = (double)(page_faults() - faults);
    values[3 * forks + i] = (double)of_child;
  }
  for (int i = 0; i < 4; ++i) printf("%.1f ", middle(values + i * forks, forks));
  for (int i = 0; i < 2; ++i) printf("%.1f ", lowest_tenth(values + i * forks, forks));
  printf("%d %ld %ld\n", maps, tables, own);
  pthread_barrier_wait(&end);
  for (int i = 0; i < threads; ++i) pthread_join(ids[i], NULL);
  return 0;
}
