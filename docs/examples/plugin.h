/* What the host of plugin_host.c and its plugins agree on. */
#ifndef PLUGIN_H
#define PLUGIN_H

#include <spanalloc/spanalloc.h>

/* Answers a question with a string for `free`; NULL: it cannot. All that it allocates it allocates
 * from the heap. */
typedef char* plugin_run_t(sp_heap* heap, const char* question);
#define PLUGIN_RUN "plugin_run"

#endif
