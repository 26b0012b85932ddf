/* Cores, their caches, and the directory that says which core has which line (MESI at 64-byte
 * lines).
 *
 * Only the core that has the turn (turns.h) calls in here, so nothing needs a lock. Line and Page
 * objects live for ever once made. A line's state follows the physical page: a page that is given
 * back forgets all of it.
 *
 *   owner >= 0            that core alone has the line, modified:  nshared == 1, its bit is set
 *   owner < 0             clean: the cores with set bits have it, nshared of them; 0: the shared
 *                         cache only
 * A core has a line exactly when its bit is set; its cache may still name a line that it has lost
 * to another one. */
#ifndef SPANALLOC_BENCH_MANYCORE_MACHINE_H
#define SPANALLOC_BENCH_MANYCORE_MACHINE_H

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "costs.h"

enum { CYCLE = 2 }; /* Clocks count half cycles, which is what an instruction takes. */
enum { MAX_CORES = 256, SETS = 1024, WAYS = 8 }; /* a private cache of 512 KiB */
enum { CALLS = 512 };
enum { LINE_BITS = 6, PAGE_BITS = 12, LINES_A_PAGE = 1 << (PAGE_BITS - LINE_BITS) };
/* How long a line counts as contended after it has moved from cache to cache. */
enum { REMEMBER = 20000 * CYCLE };

/* clang-format off */
#define EACH_COUNT(X) \
  X(instructions) X(accesses) X(llc) X(transfers) X(invalidations) X(locked) X(written_back) \
  X(faults) X(syscalls) X(shootdowns) X(interrupts) X(waits) X(wakes)
/* clang-format on */
typedef struct {
#define X(name) int64_t name;
  EACH_COUNT(X)
#undef X
  int64_t calls[CALLS]; /* system calls by number */
} Counts;
static Counts counts; /* of the whole machine since its start */

/* A stretch of instructions that qemu executes in one go. Before `strict_until` it is known to
 * touch contended lines. */
typedef struct {
  int64_t ticks, instructions;
  int64_t strict_until;
  bool repeats; /* a further step of a repeated instruction, which qemu executes one by one */
} Block;

/* An instruction of a block, and what it cost in coherence. `until_end` is the state at the last
 * mark. */
typedef struct Site {
  struct Site* next;
  Block* block;
  uint64_t address;
  bool locked, repeated;
  struct SiteCounts {
    int64_t transfers, invalidations, ticks;
  } now, until_end;
} Site;

typedef struct {
  int64_t free_at; /* end of its last move between caches: they follow one another */
  int64_t contended_until;
  uint64_t sharers[MAX_CORES / 64];
  uint32_t moves;
  uint16_t nshared;
  int16_t owner;
} Line;

typedef struct {
  uint64_t number;
  bool present;
  Line lines[LINES_A_PAGE];
} Page;

enum State {
  FREE,  /* no thread */
  READY, /* runs when it is its turn */
  AWAY,  /* blocked in a system call: holds nobody back */
  DUE    /* asleep until the time on its clock, or until it is woken from a futex */
};

typedef struct Core {
  int number;
  bool newborn;        /* its thread has not made its first system call */
  _Atomic uint32_t go; /* raised with every turn that it is given */
  /* What a repeated instruction loaded and stored last, as tags; 0: nothing yet. ("rep movsb" does
   * both in turn.) */
  uint64_t repeated[2];
  /* The system call that it is in. */
  uint64_t args[6];
  uint64_t waiting_on; /* futex, 0 if none */
  bool alone;          /* it waits for its time-out only: nobody is left who could wake it before */
  int64_t asleep_since, deadline;
  struct timespec timeout;   /* what the program wrote for it */
  uint64_t replaced_timeout; /* and where; 0: nowhere */
  uint64_t clear_at_exit;
  struct Core* child;  /* of the clone that it is in */
  int stat_fd, thread; /* of the real thread: /proc/self/task/N/stat */
  struct {
    uint64_t tag; /* line number + 1; 0: empty */
    Line* line;
  } cache[SETS][WAYS]; /* most recent first */
} Core;
static Core* cores[MAX_CORES];
/* Apart from Core, so that looking through all of them is quick. */
static int64_t clock_of[MAX_CORES];
static uint8_t state_of[MAX_CORES];
static bool held[MAX_CORES];       /* its thread is new and waits for one of the machine's cores */
static int64_t born_at[MAX_CORES]; /* since then */
static int used_cores;             /* cores[0 .. used_cores) have had a thread */

__attribute__((noreturn)) static void give_up(const char* why) {
  fprintf(stderr, "manycore: %s\n", why);
  _exit(3);
}
static void* zeroed(size_t n, size_t size) {
  void* p = calloc(n, size);
  if (!p) give_up("out of memory");
  return p;
}

/* --- Pages --- */

static Page** pages; /* open-addressed, a power of two */
static size_t pages_capacity, pages_used;
static Page* last_page;

static size_t page_slot(uint64_t number) {
  size_t at = (number * 0x9E3779B97F4A7C15u >> 24) & (pages_capacity - 1);
  while (pages[at] && pages[at]->number != number) at = (at + 1) & (pages_capacity - 1);
  return at;
}
static Page* find_page(uint64_t number) {
  if (last_page && last_page->number == number) return last_page;
  return pages_capacity ? pages[page_slot(number)] : NULL;
}
static void forget_lines(Page* page) {
  for (int i = 0; i < LINES_A_PAGE; i++) {
    const uint32_t moves = page->lines[i].moves;
    page->lines[i] = (Line){.moves = moves, .owner = -1};
  }
}
static Page* make_page(uint64_t number) {
  Page* page = find_page(number);
  if (page) return last_page = page;
  if (pages_used * 2 >= pages_capacity) {
    Page** old = pages;
    const size_t n = pages_capacity;
    pages_capacity = n ? n * 2 : 4096;
    pages = zeroed(pages_capacity, sizeof *pages);
    for (size_t i = 0; i < n; i++)
      if (old[i]) pages[page_slot(old[i]->number)] = old[i];
    free(old);
  }
  page = zeroed(1, sizeof *page);
  page->number = number;
  forget_lines(page);
  pages_used++;
  pages[page_slot(number)] = page;
  return last_page = page;
}

/* How many pages of a range are present; with `drop`, they no longer are. */
static int64_t present_pages(uint64_t start, uint64_t length, bool drop) {
  const uint64_t first = start >> PAGE_BITS,
                 end = (start + length + (1 << PAGE_BITS) - 1) >> PAGE_BITS;
  const bool scan =
      end - first > pages_capacity; /* a huge range: rather look through all pages there are */
  const uint64_t from = scan ? 0 : first, to = scan ? pages_capacity : end;
  int64_t present = 0;
  for (uint64_t i = from; i < to; i++) {
    Page* page = scan ? pages[i] : find_page(i);
    if (!page || !page->present || page->number < first || page->number >= end) continue;
    present++;
    if (!drop) continue;
    page->present = false;
    forget_lines(page);
  }
  return present;
}
/* mremap: the pages are at other addresses without a fault. Which core had their lines is
 * forgotten. */
static int64_t move_pages(uint64_t from, uint64_t to, uint64_t length) {
  int64_t moved = 0;
  for (uint64_t i = 0; i < length >> PAGE_BITS; i++) {
    Page* old = find_page((from >> PAGE_BITS) + i);
    if (!old || !old->present) continue;
    old->present = false;
    forget_lines(old);
    make_page((to >> PAGE_BITS) + i)->present = true;
    moved++;
  }
  return moved;
}

/* --- Caches --- */

static bool has(const Line* line, const Core* c) {
  return line->sharers[c->number >> 6] >> (c->number & 63) & 1;
}
static void add_sharer(Line* line, const Core* c) {
  if (has(line, c)) return;
  line->sharers[c->number >> 6] |= 1ull << (c->number & 63);
  line->nshared++;
}
static void own(Line* line, const Core* c) {
  memset(line->sharers, 0, sizeof line->sharers);
  line->nshared = 0;
  add_sharer(line, c);
  line->owner = (int16_t)c->number;
}
/* A line that falls out of a cache is written back if need be; the core has it no more. */
static void evict(Line* line, const Core* c) {
  if (!line || !has(line, c)) return;
  line->sharers[c->number >> 6] &= ~(1ull << (c->number & 63));
  line->nshared--;
  if (line->owner == c->number) {
    line->owner = -1;
    counts.written_back++;
  }
}
/* The line's object if the cache names the line; makes it the set's most recent. */
static Line* cached(Core* c, uint64_t tag) {
  typeof(c->cache[0][0])*set = c->cache[tag % SETS], found;
  if (set[0].tag == tag) return set[0].line;
  for (int i = 1; i < WAYS; i++)
    if (set[i].tag == tag) {
      found = set[i];
      memmove(set + 1, set, (size_t)i * sizeof *set);
      set[0] = found;
      return found.line;
    }
  return NULL;
}
static void cache(Core* c, uint64_t tag, Line* line) {
  typeof(c->cache[0][0])* set = c->cache[tag % SETS];
  evict(set[WAYS - 1].line, c);
  memmove(set + 1, set, (WAYS - 1) * sizeof *set);
  set[0].tag = tag;
  set[0].line = line;
}

/* First touch: the kernel zeroes the page through the core's cache. */
static void fault_in(Core* c, Page* page) {
  counts.faults++;
  clock_of[c->number] += cost.fault * CYCLE;
  page->present = true;
  forget_lines(page);
  for (int i = 0; i < LINES_A_PAGE; i++) {
    const uint64_t tag = (page->number << (PAGE_BITS - LINE_BITS)) + (unsigned)i + 1;
    Line* line = &page->lines[i];
    if (!cached(c, tag)) cache(c, tag, line);
    own(line, c);
  }
}

/* One core at a time gets a line that has to leave another cache; returns when this core has it. */
static int64_t moved_at(Line* line, int64_t now) {
  const int64_t start = now > line->free_at ? now : line->free_at;
  line->moves++;
  line->free_at = start + cost.xfer * CYCLE;
  line->contended_until = line->free_at + REMEMBER;
  return line->free_at;
}

/* A load or store (an atomic read-modify-write is a store) of a line on a page that is present.
 * True: the line is contended. */
static bool access_line(Core* c, Line* line, bool store, Site* site) {
  const int64_t now = clock_of[c->number];
  int64_t done = now + cost.hit * CYCLE;
  const bool mine = has(line, c);
  if (line->owner >= 0 && line->owner != c->number) {
    done = moved_at(line, now);
    counts.transfers++;
    site->now.transfers++;
    site->now.ticks += done - now;
    line->owner = -1;
  } else if (store && line->nshared > mine) {
    done = moved_at(line, now);
    counts.invalidations++;
    site->now.invalidations++;
    site->now.ticks += done - now;
  } else if (!mine) {
    done = now + cost.llc * CYCLE;
    counts.llc++;
  }
  if (store)
    own(line, c);
  else
    add_sharer(line, c);
  if (store && site->locked) {
    done += cost.locked * CYCLE;
    counts.locked++;
  }
  counts.accesses++;
  clock_of[c->number] = done;
  return line->contended_until > now;
}

#endif
