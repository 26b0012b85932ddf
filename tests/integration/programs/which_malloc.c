/* Preloaded in front of the library under test: says, for each process, which object defines the
 * malloc family. One line a process, appended to the file that SPANALLOC_PROBE_FILE names:
 * <executable> calls=ours malloc=<object> calloc=<object> ...
 *
 * The objects are the first ones behind this library in the order of symbol search. (Not looked up
 * from the start: an executable at a fixed address that takes malloc's address would answer with
 * its own jump to it.) That the executable does not define the family itself is seen by calling it:
 * blocks must be the library's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char* const names[] = {
    "malloc",         "calloc",        "realloc",  "free",
    "posix_memalign", "aligned_alloc", "memalign", "malloc_usable_size"};

/* Through this library's own imports, as every other library's calls go. */
static int calls_are_ours(void) {
  int (*owns)(const void*) = (int (*)(const void*))dlsym(RTLD_NEXT, "sp_owns");
  if (owns == NULL) return 0;
  void* blocks[] = {malloc(100),       calloc(10, 10),         realloc(NULL, 100),
                    memalign(64, 100), aligned_alloc(64, 128), strdup("inside libc")};
  int ours = 1;
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; ++i) {
    ours = ours && owns(blocks[i]);
    free(blocks[i]);
  }
  return ours;
}

__attribute__((constructor)) static void probe(void) {
  const char* file = getenv("SPANALLOC_PROBE_FILE");
  if (file == NULL) return;
  char line[4096];
  ssize_t length = readlink("/proc/self/exe", line, 1024);
  if (length <= 0) return;
  size_t used = (size_t)length;
  used += (size_t)snprintf(line + used, 32, " calls=%s", calls_are_ours() ? "ours" : "foreign");
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    Dl_info where;
    void* address = dlsym(RTLD_NEXT, names[i]);
    const char* object =
        address != NULL && dladdr(address, &where) != 0 ? where.dli_fname : "nothing";
    int n = snprintf(line + used, sizeof line - used - 1, " %s=%s", names[i], object);
    if (n < 0 || (size_t)n >= sizeof line - used - 1) return;
    used += (size_t)n;
  }
  line[used++] = '\n';
  int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  if (write(fd, line, used) != (ssize_t)used) abort();
  close(fd);
}
