// The loop behind the instruction counts: ROUNDS times 100 blocks are allocated, one byte of each is written,
// and all are freed, in the order of allocation or in reverse. Compiled with -fno-builtin, so that every call
// is made. The loops and the procedure linkage table take 14 instructions a pair on x86-64.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlocks = 100 };

static char* blocks[kBlocks];

int main(int argc, char** argv) {
  if (argc != 4 || (strcmp(argv[2], "forward") != 0 && strcmp(argv[2], "reverse") != 0)) {
    fprintf(stderr, "usage: pair_loop SIZE forward|reverse ROUNDS\n");
    return 2;
  }
  const size_t size = strtoul(argv[1], NULL, 10);
  const int reverse = strcmp(argv[2], "reverse") == 0;
  const long rounds = strtol(argv[3], NULL, 10);
  for (long round = 0; round < rounds; round++) {
    for (int i = 0; i < kBlocks; i++) {
      blocks[i] = malloc(size);
      *blocks[i] = 1;
    }
    if (reverse) {
      for (char** at = blocks + kBlocks; at != blocks;) free(*--at);
    } else {
      for (int i = 0; i < kBlocks; i++) free(blocks[i]);
    }
  }
  return 0;
}
