/* A plugin that must leave nothing behind: the host gives each plugin a heap, and ends it when it
 * has unloaded the plugin. What the plugin has forgotten to free goes with it; what it has is
 * counted, bounded, and told.
 *
 *   cc plugin_host.c $(pkg-config --cflags --libs spanalloc) -ldl -o plugin_host
 *   cc -shared -fPIC plugin.c $(pkg-config --cflags spanalloc) -o plugin.so
 *   ./plugin_host ./plugin.so
 */
#include <dlfcn.h>
#include <spanalloc/spanalloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin.h"

static void show(void* block, size_t size, void* context) {
  (void)context;
  printf("  left behind: %zu bytes, beginning with \"%.20s\"\n", size, (const char*)block);
}

/* Loads the plugin, has it do its work, and unloads it. 0: all went well. */
static int use_plugin(const char* path) {
  const struct sp_heap_options options = {.limit_bytes = 16 << 20, .name = "plugin"};
  sp_heap* heap = sp_heap_create(&options, sizeof options);
  if (heap == NULL) return -1;
  int failed = -1;
  void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  } else {
    plugin_run_t* run = (plugin_run_t*)dlsym(plugin, PLUGIN_RUN);
    char* answer = run == NULL ? NULL : run(heap, "a question");
    if (answer != NULL) {
      printf("%s\n", answer);
      failed = 0;
      free(answer); /* a block is a block: free finds its heap */
    }
    dlclose(plugin);
  }
  struct sp_heap_statistics left;
  sp_heap_stats(heap, &left, sizeof left);
  printf("%zu blocks left\n", left.used_blocks);
  sp_heap_visit(heap, show, NULL);
  sp_heap_destroy(heap);
  return failed;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: plugin_host PLUGIN\n");
    return EXIT_FAILURE;
  }
  for (int i = 0; i < 3; ++i) {
    if (use_plugin(argv[1]) != 0) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
