/* A plugin for plugin_host.c, which forgets to free what it keeps in between. */
#include "plugin.h"

#include <stdio.h>
#include <string.h>

char* plugin_run(sp_heap* heap, const char* question);

char* plugin_run(sp_heap* heap, const char* question) {
  const size_t length = strlen(question);
  char* notes = sp_heap_calloc(heap, 1, 4096);
  char* answer = sp_heap_malloc(heap, length + 32);
  if (notes == NULL || answer == NULL) return NULL;
  memcpy(notes, "notes of the plugin", 20);
  snprintf(answer, length + 32, "the answer to %s", question);
  return answer;
}
