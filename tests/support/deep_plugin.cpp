// A shared object for the tests of RTLD_DEEPBIND. Each function allocates or frees on one
// side of what the program frees or allocates on the other; each returns null or false
// when something is wrong.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGIN_FUNCTION extern "C" [[gnu::visibility("default")]]

/// The program has one, too: with RTLD_DEEPBIND the plugin finds its own, otherwise the program's.
PLUGIN_FUNCTION const char* deep_probe();
const char* deep_probe() {
  return "plugin";
}
PLUGIN_FUNCTION const char* plugin_sees() {
  return deep_probe();
}

/// Blocks for the program to free, `kind` 0 to 6, of 200 bytes or more that begin with "block".
PLUGIN_FUNCTION char* plugin_gives(int kind) {
  char text[200];
  memset(text, 'x', sizeof text);
  memcpy(text, "block", 6);
  void* block = nullptr;
  switch (kind) {
    case 0:
      block = malloc(sizeof text);
      break;
    case 1:
      block = calloc(sizeof text, 3);
      break;
    case 2:
      block = realloc(malloc(10), 100000);
      break;
    case 3:
      if (posix_memalign(&block, 512, sizeof text) != 0) return nullptr;
      break;
    case 4:
      block = memalign(64, sizeof text);
      break;
    case 5:
      block = ::operator new(sizeof text);
      break;
    default:  // from inside the C library
      text[sizeof text - 1] = '\0';
      memset(text + 5, 'y', sizeof text - 6);
      return strdup(text);
  }
  if (block != nullptr) memcpy(block, text, sizeof text);
  return static_cast<char*>(block);
}

/// Frees a block of the program by free, realloc to nothing, or operator delete.
PLUGIN_FUNCTION void plugin_takes(void* block, int how) {
  switch (how) {
    case 0:
      free(block);
      break;
    case 1:
      free(realloc(block, malloc_usable_size(block) * 2));
      break;
    default:
      ::operator delete(block);
  }
}

/// What the C library allocates and the plugin frees: strdup, asprintf, getline.
PLUGIN_FUNCTION bool plugin_uses_c_library() {
  char* copy = strdup("a string");
  char* text = nullptr;
  const int length = asprintf(&text, "%s %0300d\n", copy, 7);
  free(copy);
  if (length != 310) return false;
  FILE* stream = fmemopen(text, static_cast<size_t>(length), "r");
  char* line = static_cast<char*>(malloc(4));
  size_t capacity = 4;
  const bool good =
      stream != nullptr && getline(&line, &capacity, stream) == length && strcmp(line, text) == 0;
  if (stream != nullptr) fclose(stream);
  free(line);
  free(text);
  return good;
}
