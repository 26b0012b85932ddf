// A library opened with RTLD_DEEPBIND gets memory from the C library's asprintf, and frees it.
#include <dlfcn.h>
#include "report.h"
#ifdef PLUGIN
int plugin(void) {
  char* text = NULL;
  const int length = asprintf(&text, "%d", 1234567);
  free(text);
  free(strdup("text"));
  return length;
}
#else
int main(int argc, char** argv) {
  static char path[4096];
  snprintf(path, sizeof path, "%s.so", argc > 1 ? argv[1] : argv[0]);
  void* library = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
  int (*plugin)(void) = library ? (int (*)(void))dlsym(library, "plugin") : NULL;
  return verdict(plugin && plugin() == 7, plugin ? "freed" : "not opened");
}
#endif
