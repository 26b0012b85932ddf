// Linked into test programs that have many heaps in one process: a heap that reserves 2^45 bytes,
// as it does unless it is told otherwise, leaves address space for two more, and none for what a
// test maps itself. What the environment says goes first.
#include <stdlib.h>

namespace {

[[gnu::constructor(101)]] void make_arenas_small() {
  setenv("SPANALLOC_ARENA_BITS", "36", 0);
}

}  // namespace
