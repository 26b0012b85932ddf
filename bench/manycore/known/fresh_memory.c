/* Every thread touches `operations` fresh pages of its own four times over: one page fault a page.
 * Then it gives them back by MADV_DONTNEED, all at once, and touches them again: another fault a
 * page. */
#include "known.h"
static void body(int number) {
  (void)number;
  char* pages = fresh_pages((size_t)operations);
  for (int pass = 0; pass < 4; pass++)
    for (long i = 0; i < operations; i++) *(volatile char*)(pages + i * PAGE + pass * LINE) = 1;
  madvise(pages, (size_t)operations * PAGE, MADV_DONTNEED);
  for (long i = 0; i < operations; i++) *(volatile char*)(pages + i * PAGE) = 1;
}
