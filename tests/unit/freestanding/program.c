/* The page manager without an operating system and without a C library: this file has its own entry
 * point, the four mem functions, and two system calls, to write a line and to end. It runs a long
 * random program over a static array, against an array that knows whose each unit is, and checks
 * every answer and all contents.
 */
#include <spanalloc/spanalloc.h>
#include <stdint.h>

void* memcpy(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; ++i) ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
  return to;
}
void* memmove(void* to, const void* from, size_t n) {
  if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, n);
  for (size_t i = n; i-- > 0;) ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
  return to;
}
void* memset(void* to, int value, size_t n) {
  for (size_t i = 0; i < n; ++i) ((unsigned char*)to)[i] = (unsigned char)value;
  return to;
}
int memcmp(const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int difference = ((const unsigned char*)a)[i] - ((const unsigned char*)b)[i];
    if (difference != 0) return difference;
  }
  return 0;
}

static long system_call(long number, long a, long b, long c) {
#if defined(__x86_64__)
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#endif
}
#if defined(__x86_64__)
enum { kWrite = 1, kExit = 60 };
__asm__(".globl _start\n_start:\n  xor %ebp, %ebp\n  and $-16, %rsp\n  call run\n  hlt\n");
#elif defined(__aarch64__)
enum { kWrite = 64, kExit = 93 };
__asm__(".globl _start\n_start:\n  mov x29, #0\n  mov x30, #0\n  bl run\n  brk #0\n");
#endif

static void say(const char* text) {
  size_t length = 0;
  while (text[length] != 0) ++length;
  system_call(kWrite, 1, (long)text, (long)length);
}
static void say_number(size_t number) {
  char digits[24];
  size_t at = sizeof digits - 1;
  digits[at] = 0;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number != 0);
  say(digits + at);
}
static void fail(int line, const char* condition) {
  say("program.c:");
  say_number((size_t)line);
  say(": not ");
  say(condition);
  say("\n");
  system_call(kExit, 1, 0, 0);
}
#define CHECK(condition)                          \
  do {                                            \
    if (!(condition)) fail(__LINE__, #condition); \
  } while (0)

enum { kUnit = 1024, kFirst = 200, kUnits = 330, kSteps = 50000 };

static unsigned char region[kUnits * kUnit] __attribute__((aligned(kUnit * 16)));
static unsigned char metadata[256 * 1024];
static sp_pages* pages;

/* Whose each unit is: the number of its block's first unit plus one, or 0; and what stands in it.
 */
static size_t owner[kUnits];
static unsigned char content[kUnits];
static size_t limit;
static size_t refused;
static uint64_t random_state = 88172645463325252u;

static size_t random_below(size_t bound) { /* xorshift */
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (size_t)(random_state % bound);
}
static size_t size_at(size_t first) {
  size_t size = 0;
  while (first + size < limit && owner[first + size] == first + 1) ++size;
  return size;
}
static void take(size_t first, size_t from, size_t size) {
  for (size_t unit = first + from; unit < first + size; ++unit) {
    CHECK(unit < limit && owner[unit] == 0);
    owner[unit] = first + 1;
    content[unit] = (unsigned char)random_below(256);
    memset(region + unit * kUnit, content[unit], kUnit);
  }
}
static void give_back(size_t first, size_t from, size_t size) {
  for (size_t unit = first + from; unit < first + size; ++unit) {
    CHECK(owner[unit] == first + 1);
    for (size_t i = 0; i < kUnit; ++i) CHECK(region[unit * kUnit + i] == content[unit]);
    owner[unit] = 0;
  }
}
static int has_room(size_t size, size_t alignment) {
  for (size_t first = 0; first + size <= limit; first += alignment) {
    size_t free_units = 0;
    while (free_units < size && owner[first + free_units] == 0) ++free_units;
    if (free_units == size) return 1;
  }
  return 0;
}
static int reads_as_zero(size_t first, size_t from, size_t size) {
  for (size_t i = (first + from) * kUnit; i < (first + size) * kUnit; ++i) {
    if (region[i] != 0) return 0;
  }
  return 1;
}

static void allocate(void) {
  const size_t size = 1 + random_below(kUnits / 8);
  const size_t alignment = (size_t)1 << random_below(5);
  void* block = 0;
  int zero = 0;
  const enum sp_pages_status status = sp_pages_allocate_aligned(
      pages, size * kUnit - random_below(kUnit), alignment * kUnit, &block, &zero);
  if (status == SP_PAGES_NO_ROOM) {
    ++refused;
    CHECK(!has_room(size, alignment));
    return;
  }
  CHECK(status == SP_PAGES_OK);
  const size_t first = (size_t)((unsigned char*)block - region) / kUnit;
  CHECK(first % alignment == 0 && (unsigned char*)block == region + first * kUnit);
  CHECK(sp_pages_size_of(pages, block) == size * kUnit);
  CHECK(!zero || reads_as_zero(first, 0, size));
  take(first, 0, size);
}
static void change(size_t first) {
  unsigned char* const block = region + first * kUnit;
  const size_t old = size_at(first);
  const size_t size = 1 + random_below(2 * old);
  int zero = 0;
  if (size < old) {
    CHECK(sp_pages_grow(pages, block, size * kUnit, 0) == SP_PAGES_BAD_SIZE);
    give_back(first, size, old);
    CHECK(sp_pages_shrink(pages, block, size * kUnit) == SP_PAGES_OK);
  } else {
    size_t end = first + old;
    while (end < first + size && end < limit && owner[end] == 0) ++end;
    const enum sp_pages_status status = sp_pages_grow(pages, block, size * kUnit, &zero);
    CHECK(status == (end == first + size ? SP_PAGES_OK : SP_PAGES_NO_ROOM));
    if (status == SP_PAGES_OK) {
      CHECK(!zero || reads_as_zero(first, old, size));
      take(first, old, size);
    }
  }
}
static void release(size_t first) {
  give_back(first, 0, size_at(first));
  CHECK(sp_pages_free(pages, region + first * kUnit) == SP_PAGES_OK);
  CHECK(sp_pages_free(pages, region + first * kUnit) == SP_PAGES_NOT_A_BLOCK);
}
static void step(void) {
  const size_t unit = random_below(limit);
  if (owner[unit] == 0) {
    CHECK(sp_pages_free(pages, region + unit * kUnit) == SP_PAGES_NOT_A_BLOCK);
    allocate();
  } else if (random_below(4) == 0) {
    release(owner[unit] - 1);
  } else {
    change(owner[unit] - 1);
  }
}

/* At rest: blocks tile the region, are handed out exactly where ours are, and no two free ones
 * touch. */
struct census {
  size_t next;
  enum sp_pages_state last;
};
static void count(const struct sp_pages_block* block, void* context) {
  struct census* const census = context;
  const size_t first = (size_t)((unsigned char*)block->start - region) / kUnit;
  CHECK(first == census->next);
  CHECK(block->state == (owner[first] == first + 1 ? SP_PAGES_USED : SP_PAGES_FREE));
  CHECK(block->state != SP_PAGES_USED || block->bytes == size_at(first) * kUnit);
  CHECK(block->state != SP_PAGES_FREE || census->last != SP_PAGES_FREE);
  CHECK(!block->zero || reads_as_zero(first, 0, block->bytes / kUnit));
  census->next += block->bytes / kUnit;
  census->last = block->state;
}
static void check_all(void) {
  struct census census = {0, SP_PAGES_USED};
  CHECK(sp_pages_walk(pages, count, &census) == SP_PAGES_OK);
  CHECK(census.next == limit);
}

static void one_life(unsigned flags) {
  struct sp_pages_statistics stats;
  limit = kFirst;
  CHECK(sp_pages_create_over(region, kFirst * kUnit, kUnit, metadata + 1,
                             sp_pages_metadata_bytes(kUnits * kUnit, kUnit), flags,
                             &pages) == SP_PAGES_OK);
  for (size_t i = 0; i < kSteps; ++i) {
    if (i % 1000 == 0) check_all();
    if (i == kSteps / 2) {
      CHECK(sp_pages_extend(pages, (kUnits - kFirst + 1) * kUnit, 0) == SP_PAGES_NO_ROOM);
      CHECK(sp_pages_extend(pages, (kUnits - kFirst) * kUnit, flags & SP_PAGES_REGION_ZERO) ==
            SP_PAGES_OK);
      limit = kUnits;
    }
    step();
  }
  for (size_t unit = 0; unit < limit; ++unit) {
    if (owner[unit] != 0) release(unit);
  }
  CHECK(sp_pages_stats(pages, &stats, sizeof stats) == SP_PAGES_OK);
  CHECK(stats.free_blocks == 1 && stats.free_bytes == kUnits * kUnit && stats.used_blocks == 0);
  CHECK(sp_pages_purge(pages, 0, 0) == SP_PAGES_UNSUPPORTED);
  CHECK(sp_pages_destroy(pages) == SP_PAGES_OK);
  CHECK(sp_pages_destroy(pages) == SP_PAGES_BAD_MANAGER);
}

void run(void);
void run(void) {
  CHECK(sp_pages_metadata_bytes(kUnits * kUnit, kUnit) < sizeof metadata);
  one_life(SP_PAGES_METADATA_ZERO | SP_PAGES_REGION_ZERO);
  one_life(0); /* over what the first has left */
  CHECK(refused > 0);
  say_number((size_t)2 * kSteps);
  say(" steps, ");
  say_number(refused);
  say(" allocations refused, none without reason\n");
  system_call(kExit, 0, 0, 0);
}
