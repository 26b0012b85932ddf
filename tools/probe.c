// A shared object that says which object defines malloc in each process it is preloaded into.
//
// It is named last in LD_PRELOAD, so it changes nothing about who defines malloc. Each process that starts
// with it appends one line to the file named by SPANALLOC_PROBE_OUT:
//     <process id> TAB <object that defines malloc> TAB <program>
// A statically linked program loads no shared objects and so writes no line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void report_malloc(void) {
  const char* out = getenv("SPANALLOC_PROBE_OUT");
  if (out == NULL) return;
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = '\0';
  // By address, not by name: this is the definition that the program's own calls reach.
  void* address = dlsym(RTLD_DEFAULT, "malloc");
  Dl_info info;
  const char* object = address != NULL && dladdr(address, &info) != 0 ? info.dli_fname : "?";
  char line[2 * PATH_MAX + 32];
  int written = snprintf(line, sizeof line, "%ld\t%s\t%s\n", (long)getpid(), object, program);
  int fd = open(out, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return;
  // One write to a file opened for appending: lines of different processes do not mix.
  if (write(fd, line, (size_t)written) < 0) written = 0;
  close(fd);
}
