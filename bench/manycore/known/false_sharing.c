/* Words of their own on one line: as bad as one counter. Eight words fit, so thread i shares with i
 * + 8, i + 16, ... a word too; the line moves all the same. Plain stores. */
#include "known.h"
static _Alignas(LINE) volatile long words[LINE / sizeof(long)];
static void body(int number) {
  for (long i = 0; i < operations; i++) words[(unsigned)number % (LINE / sizeof(long))] = i;
}
