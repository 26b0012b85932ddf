/* A database's arena a query: every query has a heap of its own, which ends with it. No code path
 * of a query frees anything, no error path can leak, and a query that asks for too much memory
 * fails alone.
 *
 *   cc query_arena.c $(pkg-config --cflags --libs spanalloc) -pthread -o query_arena
 *   ./query_arena
 */
#include <errno.h>
#include <pthread.h>
#include <spanalloc/spanalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
  struct row* next;
  int key;
  char* text;
};

struct query {
  sp_heap* arena;
  int rows;   /* how many the table has */
  int modulo; /* it wants those whose key is a multiple of this */
};

/* Copies what the query wants into its arena. NULL with errno ENOMEM beyond the query's limit:
 * there is nothing to clean up. */
static struct row* scan(const struct query* query, int* found) {
  struct row* result = NULL;
  *found = 0;
  for (int key = 0; key < query->rows; ++key) {
    if (key % query->modulo != 0) continue;
    struct row* row = sp_heap_malloc(query->arena, sizeof *row);
    char* text = sp_heap_malloc(query->arena, 32);
    if (row == NULL || text == NULL) return NULL;
    snprintf(text, 32, "row %d", key);
    *row = (struct row){result, key, text};
    result = row;
    ++*found;
  }
  return result;
}

/* The number of rows; -1 with errno when the query has failed. */
static int run_query(int rows, int modulo) {
  const struct sp_heap_options options = {.limit_bytes = 4 << 20, .name = "query"};
  struct query query = {sp_heap_create(&options, sizeof options), rows, modulo};
  if (query.arena == NULL) return -1;
  int found = 0;
  int failed = scan(&query, &found) == NULL;
  int error = errno;
  sp_heap_destroy(query.arena); /* all of it, in a few steps, whatever has happened */
  errno = error;
  return failed ? -1 : found;
}

/* A worker runs one query after the other: what one has given back the next one finds warm. */
static void* work(void* wrong) {
  for (int i = 1; i <= 1000; ++i) {
    if (run_query(500, i) != (500 + i - 1) / i) *(int*)wrong = 1;
  }
  return NULL;
}

int main(void) {
  enum { kWorkers = 4 };
  pthread_t workers[kWorkers];
  int wrong[kWorkers] = {0};
  for (int i = 0; i < kWorkers; ++i) {
    if (pthread_create(&workers[i], NULL, work, &wrong[i]) != 0) return EXIT_FAILURE;
  }
  int failures = 0;
  for (int i = 0; i < kWorkers; ++i) {
    pthread_join(workers[i], NULL);
    failures += wrong[i];
  }
  if (run_query(1000000, 1) != -1 || errno != ENOMEM) ++failures;
  printf("4000 queries, and one that wanted too much: %s\n", failures == 0 ? "ok" : "wrong");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
