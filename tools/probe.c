// A shared object that says which object defines malloc in each process it is preloaded into.
//
// It is named first in LD_PRELOAD; having no malloc itself, it changes nothing about who defines
// it, and RTLD_NEXT sees every other object but the program. Each process that starts with it
// appends one line to the file named by SPANALLOC_PROBE_OUT:
//     <process id> TAB <object that defines malloc> TAB <program>
// A statically linked program loads no shared objects and so writes no line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The object whose malloc the program's own calls reach: by address, not by name.
static const char* malloc_object(void) {
  void* address = dlsym(RTLD_DEFAULT, "malloc");
  Dl_info info;
  const Elf64_Sym* symbol = NULL;
  if (address == NULL || dladdr1(address, &info, (void**)&symbol, RTLD_DL_SYMENT) == 0) return "?";
  // A program linked to a fixed address that takes malloc's address has its own jump to it under
  // that name, an undefined symbol with a value. It leads to the first definition that follows.
  if (symbol != NULL && symbol->st_shndx == SHN_UNDEF) {
    address = dlsym(RTLD_NEXT, "malloc");
    if (address == NULL || dladdr(address, &info) == 0) return "?";
  }
  return info.dli_fname;
}

__attribute__((constructor)) static void report_malloc(void) {
  const char* out = getenv("SPANALLOC_PROBE_OUT");
  if (out == NULL) return;
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length > 0 ? length : 0] = '\0';
  char line[2 * PATH_MAX + 32];
  int written =
      snprintf(line, sizeof line, "%ld\t%s\t%s\n", (long)getpid(), malloc_object(), program);
  int fd = open(out, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return;
  // One write to a file opened for appending: lines of different processes do not mix.
  if (write(fd, line, (size_t)written) < 0) written = 0;
  close(fd);
}
