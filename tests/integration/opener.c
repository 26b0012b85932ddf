/* A shared object that opens others: it, not the program, is the caller that the loader asks for
 * RUNPATH and namespace. */
#include <dlfcn.h>

__attribute__((visibility("default"))) void* open_from_here(const char* name, int flags) {
  void* volatile handle =
      dlopen(name, flags); /* volatile: a call, and no jump that would hide this library */
  return handle;
}
