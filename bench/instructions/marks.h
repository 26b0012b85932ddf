/* Instructions that do nothing and say where a call of malloc or free begins and ends: written by
 * call_marks.c, found by calls.c in what the emulator translates. A long no-operation of x86-64
 * with a number as its displacement. */
#ifndef SPANALLOC_BENCH_INSTRUCTIONS_MARKS_H
#define SPANALLOC_BENCH_INSTRUCTIONS_MARKS_H

#define MARK_MALLOC_BEGINS 0x5ba10c01
#define MARK_MALLOC_ENDS 0x5ba10c02
#define MARK_FREE_BEGINS 0x5ba10c03
#define MARK_FREE_ENDS 0x5ba10c04

#define MARK_BYTES 7 /* 0f 1f 80 and the number */
#define MARK(number) asm volatile(".byte 0x0f, 0x1f, 0x80\n\t.long %c0" : : "i"(number) : "memory")

#endif
