/* Prints malloc_info's documents, each behind a line with the name of the moment it is of: `empty`;
 * `held`, with the blocks of HELD in check_malloc_info.py; `freed`; `trimmed`. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { LARGEST = 1000 };

static const struct {
  size_t size;
  int count;
} held[] = {{48, 300}, {576, 1000}, {14272, 50}, {20000, 5}};
static void* blocks[sizeof held / sizeof *held][LARGEST];
static char buffer[1 << 20];

static void tell(const char* moment) {
  printf("%s\n", moment);
  if (malloc_info(0, stdout) != 0) exit(1);
}

int main(void) {
  /* The stream's own buffer would be a block of ours, or another one in each document. */
  setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
  free(malloc(1));
  tell("empty");
  for (size_t kind = 0; kind < sizeof held / sizeof *held; ++kind) {
    for (int i = 0; i < held[kind].count; ++i) {
      blocks[kind][i] = malloc(held[kind].size);
      if (blocks[kind][i] == NULL) return 1;
    }
  }
  tell("held");
  for (size_t kind = 0; kind < sizeof held / sizeof *held; ++kind) {
    for (int i = 0; i < held[kind].count; ++i) free(blocks[kind][i]);
  }
  tell("freed");
  malloc_trim(0);
  tell("trimmed");
  return 0;
}
