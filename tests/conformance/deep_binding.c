/* A plugin opened with RTLD_DEEPBIND exchanges blocks with the program: the library's dlopen drops
 * the flag. Here rather than in tests/integration so that every architecture runs it.
 *
 * The argument is the plugin. Prints what fails; the exit code is 0 when nothing did. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef char* Gives(int);
typedef void Takes(void*, int);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (dlopen("libthere-is-no-such-library.so", RTLD_NOW | RTLD_DEEPBIND) != NULL ||
      dlerror() == NULL)
    return 3;
  void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
  if (plugin == NULL) {
    fprintf(stderr, "deep_binding: %s\n", dlerror());
    return 1;
  }
  Gives* gives = (Gives*)dlsym(plugin, "plugin_gives");
  Takes* takes = (Takes*)dlsym(plugin, "plugin_takes");
  if (gives == NULL || takes == NULL) return 1;
  for (int kind = 0; kind < 7; ++kind) {
    char* block = gives(kind);
    if (block == NULL || memcmp(block, "block", 5) != 0) return 1;
    if (kind != 5)
      free(block);
    else
      takes(block, 2);
  }
  takes(malloc(100), 0);
  takes(malloc(100000), 1);
  printf("a plugin and the program have one malloc\n");
  return 0;
}
