/* A C program without a C++ runtime loads a plug-in that needs one. The operator new which the
 * plug-in calls is the library's: where memory is out it calls the new handler and throws.
 *
 * The argument is the plug-in. Prints what fails; the exit code is 0 when nothing did. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int RunsOut(void);

/* Takes the allocator out of an archive. */
void* (*volatile allocate)(size_t) = malloc;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  free(allocate(100));
  if (dlsym(RTLD_DEFAULT, "__cxa_throw") != NULL) {
    fprintf(stderr, "late_runtime: the program has a C++ runtime itself\n");
    return 1;
  }
  void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) {
    fprintf(stderr, "late_runtime: %s\n", dlerror());
    return 1;
  }
  RunsOut* runs_out = (RunsOut*)dlsym(plugin, "plugin_runs_out");
  return runs_out == NULL ? 1 : runs_out();
}
