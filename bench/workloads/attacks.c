// Attacks on an allocator: what a program does wrong with memory, and what comes of
// it. One attack a process:
//
//   attacks NAME [SIZE]     prints "attacking" before what is wrong, "returned" when that has come
//                           back, and in its last line one word of what was observed; an allocator
//                           that notices ends it before
//   attacks around SIZE     what is in use when most attacks with blocks of SIZE begin: sizes and
//                           how many
//   attacks list            names, groups, sizes, repetitions and titles, tab-separated
//
// `spanalloc bench attacks` runs them under every allocator and classifies their ends. In C and
// without stdio, so that nothing but the attack itself allocates. Built without knowledge of malloc
// and with volatile pointers, as a compiler may remove or reorder what is wrong anyway.
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

typedef unsigned char byte;

// --- What is said --------------------------------------------------------------------------------

static void say(const char* word) {
  char line[64];
  const size_t length = strlen(word);
  memcpy(line, word, length);
  line[length] = '\n';
  if (write(STDOUT_FILENO, line, length + 1) < 0) _exit(2);
}
static _Noreturn void observe(const char* word) {
  say(word);
  _exit(0);  // what an allocator does at the exit is not what is asked
}
static void begin_attack(void) {
  say("attacking");
}
static void attack_returned(void) {
  say("returned");
}
static void require(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "attacks: %s\n", what);
  _exit(2);
}

// --- The blocks that are in use ------------------------------------------------------------------

// All are of one size: two that do not overlap begin in different stretches of it, and what
// overlaps a block begins in the same stretch or in the next one.
enum { kEntries = 1 << 18, kMostBlocks = 100000 };
static struct {
  uintptr_t stretch;  // 0: never used
  uintptr_t block;    // 0: none (any more)
} entries[kEntries];
static size_t block_size;

static size_t entry_of(uintptr_t stretch) {
  size_t at = (size_t)(stretch * 0x9e3779b97f4a7c15u >> 20) % kEntries;
  while (entries[at].stretch != 0 && entries[at].stretch != stretch) at = (at + 1) % kEntries;
  return at;
}

// Where no allocator may hand out memory: the program's own.
enum { kMostOwn = 1024 };
static struct {
  uintptr_t begin, end;
} own[kMostOwn];
static unsigned own_count;

static void* is_own(void* begin, size_t bytes) {
  require(own_count < kMostOwn, "too many places of the program's own");
  own[own_count].begin = (uintptr_t)begin;
  own[own_count++].end = (uintptr_t)begin + bytes;
  return begin;
}

static byte own_static[4096] __attribute__((aligned(4096)));

static int is_mapped(uintptr_t address) {
  unsigned char resident;
  return mincore((void*)(address & ~(uintptr_t)4095), 1, &resident) == 0;
}

// Judges what the allocator says is a block.
static void judge(void* p) {
  const uintptr_t a = (uintptr_t)p;
  if (p == NULL) observe("no-memory");
  for (unsigned i = 0; i < own_count; i++) {
    if (a < own[i].end && a + block_size > own[i].begin) observe("program's-own");
  }
  if (a % 16 != 0) observe("misaligned");
  if (!is_mapped(a)) observe("unmapped");
  for (int step = -1; step <= 1; step++) {
    const size_t at = entry_of(a / block_size + (uintptr_t)step);
    const uintptr_t other = entries[at].block;
    if (other == a) observe("twice");
    if (other != 0 && (other < a ? a - other : other - a) < block_size) observe("overlapping");
  }
  const size_t at = entry_of(a / block_size);
  entries[at].stretch = a / block_size;
  entries[at].block = a;
}

static byte* take(void) {
  void* volatile p = malloc(block_size);
  judge(p);
  return p;
}
static void forget(void* p) {
  entries[entry_of((uintptr_t)p / block_size)].block = 0;
}
static void give(void* volatile p) {
  forget(p);
  free(p);
}

// How many blocks are reasonable: `most`, and no more than 256 MiB.
static size_t at_most(size_t most) {
  const size_t fit = ((size_t)256 << 20) / block_size;
  return most < fit ? most : fit;
}
// Takes so many blocks; gives them back, each once; takes them again. All of that is right.
static _Noreturn void look_for_harm(size_t blocks) {
  static byte* taken[kMostBlocks];
  for (size_t i = 0; i < blocks; i++) taken[i] = take();
  for (size_t i = 0; i < blocks; i++) give(taken[i]);
  for (size_t i = 0; i < blocks; i++) take();
  observe("nothing");
}

// What a fresh heap hands out first may border on a guard page, which notices what the allocator
// does not. So blocks of every size are in use before anything is attacked, as in any program
// that has run for a while.
enum { kAround = 64 };
static byte* around[kAround];
static void take_around(void) {
  for (int i = 0; i < kAround; i++) *(volatile byte*)(around[i] = take()) = 1;
}
static const size_t kSizesAround[] = {64, 400, 2000, 30000, 100000, 4000000};
static void take_around_of_every_size(void) {
  for (int i = 0; i < kAround; i++) {
    for (size_t s = 0; s < sizeof kSizesAround / sizeof *kSizesAround; s++) {
      if (kSizesAround[s] == block_size) continue;
      byte* volatile p = malloc(kSizesAround[s]);
      require(p != NULL, "no memory");
      *p = 1;
      is_own(p, kSizesAround[s]);
    }
  }
  take_around();
}

// Allocators may look closely at a thread's first frees, and at a free into memory where nothing is
// free. Neither says what they do with the frees of a program that has run for a while. So each
// thread that frees wrongly has freed as many blocks before as are in use around, and one block
// among those in use is free: the hole. (Not where fresh memory is looked at.)
static void free_as_before(void) {
  for (int i = 0; i < kAround; i++) {
    byte* const p = take();
    *(volatile byte*)p = 1;
    give(p);
  }
}

enum { kFew = 16 };
static byte* few[kFew];
static byte* many[8192];

// Others of their kind stand before and behind those that are attacked. The hole touches none of
// these: some allocators join it with a free neighbour.
static void take_few(void) {
  free_as_before();
  for (int i = 0; i < kFew; i++) few[i] = take();
  give(few[10]);
}
static void take_many(size_t count) {
  free_as_before();
  for (size_t i = 0; i < count; i++) many[i] = take();
  give(around[kAround / 2]);
}

// A thread that was started, and has freed as before, before anything is freed wrongly: starting
// one allocates.
static pthread_t other_thread;
static pthread_barrier_t gate;
static void (*other_work)(void);

static void* wait_and_work(void* unused) {
  free_as_before();
  pthread_barrier_wait(&gate);  // it is ready
  pthread_barrier_wait(&gate);
  other_work();
  return unused;
}
static void start_thread(void (*work)(void)) {
  other_work = work;
  require(pthread_barrier_init(&gate, NULL, 2) == 0, "no barrier");
  require(pthread_create(&other_thread, NULL, wait_and_work, NULL) == 0, "no thread");
  pthread_barrier_wait(&gate);
}
static void let_thread_work(void) {
  pthread_barrier_wait(&gate);
  require(pthread_join(other_thread, NULL) == 0, "no end of the thread");
}

// --- Freed twice ---------------------------------------------------------------------------------

static void free_wrongly(void* volatile p) {
  begin_attack();
  free(p);
  attack_returned();
}

static void twice(void) {
  take_few();
  give(few[8]);
  free_wrongly(few[8]);
  look_for_harm(at_most(1000));
}
static void twice_one_between(void) {
  take_few();
  give(few[8]);
  give(few[4]);
  free_wrongly(few[8]);
  look_for_harm(at_most(1000));
}
static void twice_many_between(void) {
  const size_t between = at_most(2000) / 2;
  take_many(2 * between);
  for (size_t i = 0; i < 2 * between; i += 2) give(many[i]);
  free_wrongly(many[0]);
  look_for_harm(at_most(4000));
}
static void free_9th_wrongly(void) {
  free_wrongly(few[8]);
}
static void twice_other_thread(void) {
  take_few();
  start_thread(free_9th_wrongly);
  give(few[8]);
  let_thread_work();
  look_for_harm(at_most(kMostBlocks));
}
static void a_b_a(void) {
  give(few[8]);
  give(few[4]);
  free_wrongly(few[8]);
}
static void twice_in_other_thread(void) {
  take_few();
  start_thread(a_b_a);
  let_thread_work();
  look_for_harm(at_most(kMostBlocks));
}
// What tells an allocator that a block is free may stand in the block.
static void a_overwrite_b_a(void) {
  give(few[8]);
  begin_attack();
  *(volatile uint64_t*)(void*)few[8] = 0;
  give(few[4]);
  free_wrongly(few[8]);
}
static void twice_overwritten(void) {
  take_few();
  a_overwrite_b_a();
  look_for_harm(at_most(1000));
}
static void twice_overwritten_in_other_thread(void) {
  take_few();
  start_thread(a_overwrite_b_a);
  let_thread_work();
  look_for_harm(at_most(kMostBlocks));
}
// Counted twice, it may make the memory that it lies in pass for free while a
// neighbour is still in use.
static void twice_overwritten_all_but_one(void) {
  const size_t count = at_most(6000);
  const size_t kept = count / 2;
  take_many(count);
  give(many[kept + 1]);
  begin_attack();
  *(volatile uint64_t*)(void*)many[kept + 1] = 0;
  give(many[kept - 1]);
  free_wrongly(many[kept + 1]);
  for (size_t i = 0; i < count; i++) {
    if (i + 1 < kept || i > kept + 1) give(many[i]);
  }
  look_for_harm(count);
}
static void take_few_a_b_a(void) {
  take_around();  // this thread's heap is fresh, too
  take_few();
  a_b_a();
}
static void twice_and_end(void) {
  start_thread(take_few_a_b_a);
  let_thread_work();
  look_for_harm(at_most(kMostBlocks));
}
static void twice_when_empty(void) {
  const size_t blocks = at_most(4000);
  take_many(blocks);
  for (size_t i = 0; i < blocks; i++) give(many[i]);
  free_wrongly(many[blocks / 2]);
  look_for_harm(2 * blocks);
}
// The first free was right, and so is the next malloc: whose block it is now only the program
// knows.
static void twice_when_reused(void) {
  take_few();
  byte* const p = few[8];
  give(p);
  for (size_t left = at_most(kMostBlocks); take() != p;) {
    if (--left == 0) observe("cannot-tell");
  }
  free_wrongly(p);
  look_for_harm(at_most(1000));
}

// --- Freed memory written to ---------------------------------------------------------------------

static void write_wrongly(size_t offset, const void* bytes, size_t count) {
  take_few();
  is_own(own_static, sizeof own_static);
  give(few[4]);
  give(few[8]);
  give(few[12]);
  volatile byte* const p = few[12] + offset;
  begin_attack();
  for (size_t i = 0; i < count; i++) p[i] = ((const byte*)bytes)[i];
  attack_returned();
  look_for_harm(at_most(1000));
}
static void write_word(uint64_t word) {
  write_wrongly(0, &word, sizeof word);
}
static uint64_t random_word(void) {
  uint64_t word;
  require(getrandom(&word, sizeof word, 0) == sizeof word, "no random number");
  return word;
}
static void write_0x88(void) {
  write_word(0x88);
}
static void write_zero(void) {
  write_word(0);
}
static void write_ones(void) {
  write_word(~(uint64_t)0);
}
static void write_address(void) {
  write_word((uintptr_t)own_static + 1024);
}
static void write_random(void) {
  write_word(random_word());
}
static void write_byte(void) {
  const uint64_t word = random_word();
  write_wrongly(0, &word, 1);
}
static void write_two_bytes(void) {
  const uint64_t word = random_word();
  write_wrongly(0, &word, 2);
}
static void write_second_word(void) {
  const uint64_t word = (uintptr_t)own_static + 1024;
  write_wrongly(8, &word, sizeof word);
}

// By a program that can read a freed block and knows where it and the one freed before it
// stand: whatever an address is xored with, it leads where the program wants. The place
// is inside a block in use.
static void write_relative(int copy) {
  take_few();
  give(few[4]);
  give(few[8]);
  give(few[12]);
  volatile uint64_t* const word = (volatile uint64_t*)(void*)few[12];
  byte* const place = few[6] + 16;
  begin_attack();
  const uint64_t old = *word;
  memset(few[6], 0, block_size);
  if (copy) *(volatile uint64_t*)(void*)place = old;
  *word = old ^ (uintptr_t)few[8] ^ (uintptr_t)place;
  attack_returned();
  look_for_harm(at_most(1000));
}
static void write_xored(void) {
  write_relative(0);
}
static void write_xored_and_copied(void) {
  write_relative(1);
}

// --- What memory tells ---------------------------------------------------------------------------

enum Kind { kNothing, kHeap, kStack, kLibrary };
enum { kMostMappings = 16384 };
static struct Mapping {
  uintptr_t begin, end;
  int accessible, writable;
  enum Kind kind;
} mappings[kMostMappings];
static size_t mapping_count;
static char maps_text[4 << 20];

static void read_mappings(void) {
  const int file = open("/proc/self/maps", O_RDONLY);
  require(file >= 0, "no /proc/self/maps");
  size_t length = 0;
  for (;;) {
    const ssize_t got = read(file, maps_text + length, sizeof maps_text - 1 - length);
    require(got >= 0 && length < sizeof maps_text - 1, "cannot read /proc/self/maps");
    if (got == 0) break;
    length += (size_t)got;
  }
  close(file);
  mapping_count = 0;
  for (char* line = maps_text; *line != '\0';) {
    require(mapping_count < kMostMappings, "too many mappings");
    struct Mapping* const m = &mappings[mapping_count];
    char* at;
    m->begin = strtoul(line, &at, 16);
    m->end = strtoul(at + 1, &at, 16);
    m->accessible = at[1] == 'r' || at[2] == 'w' || at[3] == 'x';
    m->writable = at[2] == 'w';
    char* const newline = strchr(at, '\n');
    *newline = '\0';
    m->kind = strchr(at, '/') != NULL || strstr(at, "[v") != NULL ? kLibrary
              : strstr(at, "[stack") != NULL                      ? kStack
                                                                  : kHeap;
    // Where a library's zeroed data goes on without a file.
    if (mapping_count != 0 && m->kind == kHeap && m[-1].kind == kLibrary && m[-1].end == m->begin &&
        strstr(at, "[heap]") == NULL)
      m->kind = kLibrary;
    mapping_count++;
    line = newline + 1;
  }
}
static enum Kind kind_of(uintptr_t address) {
  for (size_t i = 0; i < mapping_count; i++) {
    if (address >= mappings[i].begin && address < mappings[i].end) return mappings[i].kind;
  }
  return kNothing;
}

// Looks at all words of `count` blocks before anything else can change them.
static _Noreturn void tell(size_t count) {
  for (size_t i = 0; i < count; i++) many[i] = take();
  read_mappings();
  enum Kind worst = kNothing;
  for (size_t i = 0; i < count; i++) {
    for (size_t at = 0; at + 8 <= block_size; at += 8) {
      const uint64_t word = *(volatile uint64_t*)(void*)(many[i] + at);
      const enum Kind kind = word < 4096 ? kNothing : kind_of(word);
      if (kind > worst) worst = kind;
    }
  }
  static const char* const kWords[] = {"tells-nothing", "tells-heap-address", "tells-stack-address",
                                       "tells-library-address"};
  observe(kWords[worst]);
}
static void read_fresh(void) {
  begin_attack();
  attack_returned();
  tell(at_most(1000));
}
static void read_reused(void) {
  const size_t count = at_most(1000);
  for (size_t i = 0; i < count; i++) memset(many[i] = take(), 0x11, block_size);
  // In two goes: what lies alone between blocks in use, and what has free neighbours.
  for (size_t i = 0; i < count; i += 2) give(many[i]);
  for (size_t i = 1; i < count; i += 2) {
    if (i % 8 != 1) give(many[i]);
  }
  begin_attack();
  attack_returned();
  tell(count - count / 8 - 1);
}

// Where it stands: for distances over many processes.
static _Noreturn void print_addresses(void) {
  char text[64];
  const uintptr_t block = (uintptr_t)take();
  begin_attack();
  attack_returned();
  const int length = snprintf(text, sizeof text, "%#lx %#lx", (unsigned long)block,
                              (unsigned long)(uintptr_t)puts);
  require(length > 0 && length < (int)sizeof text, "no addresses");
  observe(text);
}

// Whether from a block's memory one can walk to a file's, to the stack, or to a mapping of the
// program's own, and meets no page without access and no gap. (Anonymous memory of others cannot be
// told from the allocator's; the program's own stands for it, 64 mappings among the allocator's.)
static void walk_out(void) {
  enum { kRounds = 64, kKinds = sizeof kSizesAround / sizeof *kSizesAround };
  static uintptr_t blocks[kRounds * kKinds];
  const unsigned first_mapping = own_count;
  size_t count = 0;
  for (unsigned round = 0; round < kRounds; round++) {
    for (unsigned i = 0; i < kKinds; i++) {
      byte* volatile p = malloc(kSizesAround[i]);
      require(p != NULL, "no memory");
      *p = 1;
      blocks[count++] = (uintptr_t)p;
    }
    void* page = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(page != MAP_FAILED, "no mapping");
    is_own(page, 65536);
  }
  begin_attack();
  attack_returned();
  read_mappings();
  for (size_t b = 0; b < count; b++) {
    size_t in = 0;
    while (in < mapping_count && !(blocks[b] >= mappings[in].begin && blocks[b] < mappings[in].end))
      in++;
    require(in < mapping_count, "a block lies in no mapping");
    size_t first = in, last = in;
    while (first > 0 && mappings[first - 1].end == mappings[first].begin &&
           mappings[first - 1].accessible)
      first--;
    while (last + 1 < mapping_count && mappings[last + 1].begin == mappings[last].end &&
           mappings[last + 1].accessible)
      last++;
    for (size_t i = first; i <= last; i++) {
      if (mappings[i].kind != kHeap) observe("borders-on-library");
    }
    for (unsigned i = first_mapping; i < own_count; i++) {
      if (own[i].begin >= mappings[first].begin && own[i].begin < mappings[last].end)
        observe("borders-on-program");
    }
  }
  observe("borders-on-nothing");
}

// --- Pointers that are no block's ----------------------------------------------------------------

static void free_inside_near(void) {
  take_few();
  free_wrongly(few[8] + 16);
  look_for_harm(at_most(1000));
}
static void free_inside_half(void) {
  take_few();
  free_wrongly(few[8] + block_size / 2 / 16 * 16);
  look_for_harm(at_most(1000));
}
static void free_own(byte* place, size_t bytes, int fill) {
  take_few();
  memset(is_own(place, bytes), 0, bytes);
  // A small number in every word: what allocators that keep a size before a block may take for one.
  for (size_t i = 0; fill != 0 && i < bytes; i += 8) place[i] = (byte)fill;
  free_wrongly(place + 64);
  look_for_harm(at_most(1000));
}
static void free_stack(void) {
  byte place[4096] __attribute__((aligned(64)));
  free_own(place, sizeof place, 0);
}
static void free_static(void) {
  free_own(own_static, sizeof own_static, 0);
}
static void free_static_prepared(void) {
  free_own(own_static, sizeof own_static, (int)(block_size + 17));
}
static void free_mapping(void) {
  void* page = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(page != MAP_FAILED, "no mapping");
  free_own(page, 65536, 0);
}
// A place behind the newest block, where the next one but one would stand.
static void free_neighbour(void) {
  const size_t count = at_most(50);
  uintptr_t stride = UINTPTR_MAX;
  take_many(count);
  for (size_t i = 1; i < count; i++) {
    const uintptr_t a = (uintptr_t)many[i - 1], b = (uintptr_t)many[i];
    const uintptr_t distance = a < b ? b - a : a - b;
    if (distance < stride) stride = distance;
  }
  for (size_t i = count; i-- > 0;) {
    byte* const p = many[i] + 2 * stride;
    const int was_block = entries[entry_of((uintptr_t)p / block_size)].stretch != 0;
    if (was_block || !is_mapped((uintptr_t)p)) continue;
    free_wrongly(p);
    look_for_harm(at_most(1000));
  }
  observe("cannot-tell");
}
// The block freed last is easier to tell than others.
static byte* freed(int last) {
  take_few();
  give(few[4]);
  give(few[8]);
  give(few[12]);
  return few[last ? 12 : 4];
}
static void realloc_to(byte* volatile block, size_t bytes) {
  begin_attack();
  void* volatile p = realloc(block, bytes);
  attack_returned();
  if (p != NULL) judge(p);
  look_for_harm(at_most(1000));
}
static void realloc_last(void) {
  realloc_to(freed(1), block_size);
}
static void realloc_earlier(void) {
  realloc_to(freed(0), block_size);
}
static void realloc_earlier_larger(void) {
  realloc_to(freed(0), 2 * block_size);
}
static void ask_size(byte* volatile block) {
  begin_attack();
  const size_t size = malloc_usable_size(block);
  attack_returned();
  observe(size == 0 ? "no-size" : "size");
}
static void ask_size_last(void) {
  ask_size(freed(1));
}
static void ask_size_earlier(void) {
  ask_size(freed(0));
}

// --- Overflows -----------------------------------------------------------------------------------

static void overflow(int neighbour_is_free) {
  const size_t count = at_most(64);
  take_many(count);
  // The newest pair of those that stand closest together.
  size_t left = 0, right = 0;
  uintptr_t nearest = UINTPTR_MAX;
  for (size_t i = 0; i < count; i++) {
    for (size_t j = 0; j < count; j++) {
      if (many[j] <= many[i] || (uintptr_t)(many[j] - many[i]) > nearest) continue;
      nearest = (uintptr_t)(many[j] - many[i]);
      left = i;
      right = j;
    }
  }
  const size_t end = malloc_usable_size(many[left]);
  if (nearest > end + 16) observe("cannot-tell");
  if (neighbour_is_free) give(many[right]);
  volatile byte* const behind = many[left] + end;
  begin_attack();
  for (int i = 0; i < 8; i++) behind[i] = 0x41;
  attack_returned();
  if (!neighbour_is_free) give(many[right]);
  give(many[left]);
  look_for_harm(at_most(1000));
}
static void overflow_into_free(void) {
  overflow(1);
}
static void overflow_into_live(void) {
  overflow(0);
}

// --- All of them ---------------------------------------------------------------------------------

#define SMALL "64 400 2000 30000"
#define ALL SMALL " 100000 4000000"
#define FIRST "64"
// What draws a random number is repeated often: its worst end may need luck.
enum { kRepeat = 5, kRepeatRandom = 100 };

static const struct {
  const char* name;
  const char* group;
  const char* sizes;
  int repeat;
  const char* title;
  void (*run)(void);
} kAttacks[] = {
    {"double-free", "freed twice", ALL, kRepeat, "a, a", twice},
    {"double-free-aba", "freed twice", ALL, kRepeat, "a, b, a", twice_one_between},
    {"double-free-far", "freed twice", ALL, kRepeat, "a, 1,000 others, a (fewer of the largest)",
     twice_many_between},
    {"double-free-empty", "freed twice", ALL, kRepeat,
     "all blocks of the size, then one of them again", twice_when_empty},
    {"double-free-threads", "freed twice", ALL, kRepeat, "by its own thread, then by another",
     twice_other_thread},
    {"double-free-elsewhere", "freed twice", ALL, kRepeat,
     "a, b, a by another thread than the allocating one", twice_in_other_thread},
    {"double-free-thread-end", "freed twice", ALL, kRepeat, "a, b, a, then the thread ends",
     twice_and_end},
    {"double-free-overwritten", "freed twice", SMALL, kRepeat, "a, its first word := 0, b, a",
     twice_overwritten},
    {"double-free-overwritten-elsewhere", "freed twice", SMALL, kRepeat,
     "the same by another thread", twice_overwritten_in_other_thread},
    {"double-free-overwritten-all", "freed twice", SMALL, kRepeat,
     "a, its first word := 0, b, a, then all others of the size but one",
     twice_overwritten_all_but_one},
    {"double-free-reused", "freed twice", ALL, kRepeat,
     "a, when a has been handed out again meanwhile", twice_when_reused},
    {"overwrite-0x88", "free block overwritten", SMALL, kRepeat, "first word := 0x88", write_0x88},
    {"overwrite-zero", "free block overwritten", SMALL, kRepeat, "first word := 0", write_zero},
    {"overwrite-ones", "free block overwritten", SMALL, kRepeat, "first word := all ones",
     write_ones},
    {"overwrite-address", "free block overwritten", SMALL, kRepeat,
     "first word := address of a variable of the program", write_address},
    {"overwrite-random", "free block overwritten", SMALL, kRepeatRandom, "first word := random",
     write_random},
    {"overwrite-1-byte", "free block overwritten", SMALL, kRepeatRandom, "first byte := random",
     write_byte},
    {"overwrite-2-bytes", "free block overwritten", SMALL, kRepeatRandom,
     "first two bytes := random", write_two_bytes},
    {"overwrite-xor", "free block overwritten", SMALL, kRepeat,
     "first word read, then xored so as to lead into a block in use", write_xored},
    {"overwrite-xor-copy", "free block overwritten", SMALL, kRepeat,
     "the same, and a copy of the word put into that block", write_xored_and_copied},
    {"overwrite-second-word", "free block overwritten", SMALL, kRepeat,
     "second word := address of a variable of the program", write_second_word},
    {"overflow-into-free", "overflow by 8 bytes", SMALL, kRepeat, "into a free neighbour",
     overflow_into_free},
    {"overflow-into-live", "overflow by 8 bytes", SMALL, kRepeat,
     "into a neighbour in use, then both freed", overflow_into_live},
    {"free-inside", "no block's pointer", SMALL, kRepeat, "free of a block's address + 16",
     free_inside_near},
    {"free-middle", "no block's pointer", ALL, kRepeat, "free of a block's middle",
     free_inside_half},
    {"free-neighbour", "no block's pointer", SMALL, kRepeat,
     "free of a block that was never handed out", free_neighbour},
    {"free-stack", "no block's pointer", FIRST, kRepeat, "free of a place on the stack",
     free_stack},
    {"free-static", "no block's pointer", FIRST, kRepeat, "free of a variable, all zero",
     free_static},
    {"free-static-prepared", "no block's pointer", FIRST, kRepeat,
     "free of a variable that looks like glibc's blocks", free_static_prepared},
    {"free-mapping", "no block's pointer", FIRST, kRepeat,
     "free of a place in the program's own mapping", free_mapping},
    {"realloc-freed", "no block's pointer", ALL, kRepeat,
     "realloc of the block freed last, to its size", realloc_last},
    {"realloc-freed-earlier", "no block's pointer", ALL, kRepeat,
     "realloc of a block freed earlier, to its size", realloc_earlier},
    {"realloc-freed-larger", "no block's pointer", ALL, kRepeat,
     "realloc of a block freed earlier, to twice its size", realloc_earlier_larger},
    {"usable-size-freed", "no block's pointer", ALL, kRepeat,
     "malloc_usable_size of the block freed last", ask_size_last},
    {"usable-size-freed-earlier", "no block's pointer", ALL, kRepeat,
     "malloc_usable_size of a block freed earlier", ask_size_earlier},
    {"read-fresh", "what memory tells", SMALL, kRepeat, "addresses in a fresh block", read_fresh},
    {"read-reused", "what memory tells", SMALL, kRepeat,
     "addresses in a block that was freed before", read_reused},
    {"borders", "where memory lies", FIRST, kRepeat, "heap and other memory side by side",
     walk_out},
    {"addresses", "where memory lies", FIRST, kRepeatRandom,
     "from a block to the C library: bits that vary", print_addresses},
};
enum { kCount = sizeof kAttacks / sizeof *kAttacks };

// What is in use when the attacks with blocks of block_size begin, by the
// notes of it, to be compared.
static _Noreturn void tell_around(void) {
  take_around_of_every_size();
  take_few();
  printf("%zu", block_size);
  size_t of_this_size = 0;
  for (size_t at = 0; at < kEntries; at++) of_this_size += entries[at].block != 0;
  printf(" %zu\n", of_this_size);
  for (size_t s = 0; s < sizeof kSizesAround / sizeof *kSizesAround; s++) {
    size_t of_it = 0;
    for (unsigned i = 0; i < own_count; i++) of_it += own[i].end - own[i].begin == kSizesAround[s];
    if (of_it != 0) printf("%zu %zu\n", kSizesAround[s], of_it);
  }
  exit(0);
}

int main(int argc, char** argv) {
  const char* const name = argc >= 2 ? argv[1] : "--help";
  if (strcmp(name, "list") == 0) {
    for (int i = 0; i < kCount; i++) {
      printf("%s\t%s\t%s\t%d\t%s\n", kAttacks[i].name, kAttacks[i].group, kAttacks[i].sizes,
             kAttacks[i].repeat, kAttacks[i].title);
    }
    return 0;
  }
  block_size = argc == 3 ? strtoul(argv[2], NULL, 10) : 64;
  if (strcmp(name, "around") == 0 && argc == 3 && block_size >= 64) tell_around();
  for (int i = 0; i < kCount && argc <= 3 && block_size >= 64 && block_size <= 64000000; i++) {
    if (strcmp(name, kAttacks[i].name) == 0) {
      take_around_of_every_size();
      kAttacks[i].run();
      return 2;  // every attack ends the process
    }
  }
  const int asked = strcmp(name, "--help") == 0;
  fprintf(asked ? stdout : stderr,
          "usage: attacks NAME [SIZE] | around SIZE | list\n"
          "Attacks the allocator that it runs under, with blocks of SIZE (64 to 64000000, default "
          "64) bytes,\n"
          "and prints what came of it, with 64 blocks of every size in use around. `attacks "
          "around` prints\n"
          "these, `attacks list` the names.\n");
  return asked ? 0 : 2;
}
