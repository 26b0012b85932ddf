// Preloaded: functions in the place of libc's that allocate, free, resize and take a lock of
// their own before they go on in libc's, as caches of registered memory and fake clocks do.
// HOOKS names those that do so; the others only go on. A program finds hook_calls(), hook_give()
// and hook_take() by dlsym.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum hook {
  kMmap,
  kMunmap,
  kMremap,
  kMadvise,
  kMprotect,
  kYield,
  kClock,
  kLimit,
  kCpus,
  kCpu,
  kAux,
  kHooks
};
static const char* const names[kHooks] = {"mmap",          "munmap",    "mremap",
                                          "madvise",       "mprotect",  "sched_yield",
                                          "clock_gettime", "getrlimit", "sched_getaffinity",
                                          "sched_getcpu",  "getauxval"};
static void* nexts[kHooks];
static long calls[kHooks];

extern char** environ;

static void die(const char* what) {
  if (write(2, what, strlen(what)) < 0) _exit(5);
  if (write(2, "\n", 1) < 0) _exit(5);
  abort();
}

// Whether the word is in HOOKS. (getenv may come too early.)
static int is_on(enum hook which) {
  static int known[kHooks];
  if (known[which] != 0) return known[which] == 2;
  const size_t length = strlen(names[which]);
  int on = 0;
  for (char** entry = environ; entry != NULL && *entry != NULL; ++entry) {
    if (strncmp(*entry, "HOOKS=", 6) != 0) continue;
    for (const char* word = *entry + 6; word != NULL; word = strchr(word, ',')) {
      word += *word == ',';
      if (strncmp(word, names[which], length) == 0 && (word[length] == ',' || word[length] == '\0'))
        on = 1;
    }
  }
  known[which] = on ? 2 : 1;
  return on;
}

// --- What is kept: blocks that anybody may have allocated and anybody may free ---

struct kept {
  unsigned char* block;
  size_t bytes;
};
enum { kSlots = 97 };
static struct kept kept[kSlots];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int forks;  // this thread is between the handlers of its fork, and has the lock
static __thread int depth;

static void take_lock(void) {
  if (!forks) pthread_mutex_lock(&lock);
}
static void leave_lock(void) {
  if (!forks) pthread_mutex_unlock(&lock);
}
static void before_fork(void) {
  pthread_mutex_lock(&lock);
  forks = 1;
}
static void after_fork(void) {
  forks = 0;
  pthread_mutex_unlock(&lock);
}
static void in_child(void) {
  forks = 0;
  pthread_mutex_init(&lock, NULL);
}
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, in_child);
}

static unsigned char pattern(const void* block, size_t i) {
  return (unsigned char)((uintptr_t)block / 16 * 31 + i * 7 + 3);
}
// The first and the last bytes.
static void fill(struct kept k) {
  for (size_t i = 0; i < k.bytes; i += i == 31 && k.bytes > 64 ? k.bytes - 63 : 1)
    k.block[i] = pattern(k.block, i);
}
static void check(struct kept k, unsigned char* filled_at) {
  for (size_t i = 0; i < k.bytes; i += i == 31 && k.bytes > 64 ? k.bytes - 63 : 1) {
    if (k.block[i] != pattern(filled_at, i))
      die("allocating_hooks: a kept block has other contents");
  }
  if (malloc_usable_size(k.block) < k.bytes) die("allocating_hooks: a kept block is too small");
}

static struct kept make(unsigned long turn) {
  static const size_t sizes[] = {24, 552, 4096, 40000, 70000, 1000000, 1, 8192, 17};
  struct kept k = {NULL, sizes[turn % (sizeof sizes / sizeof *sizes)]};
  switch (turn / 3 % 4) {
    case 0:
      k.block = malloc(k.bytes);
      break;
    case 1:
      k.block = calloc(1, k.bytes);
      for (size_t i = 0; k.block != NULL && i < k.bytes; ++i) {
        if (k.block[i] != 0) die("allocating_hooks: calloc's block is not zero");
      }
      break;
    case 2:
      if (posix_memalign((void**)&k.block, (size_t)16 << turn % 13, k.bytes) != 0) k.block = NULL;
      if ((uintptr_t)k.block % ((size_t)16 << turn % 13) != 0) die("allocating_hooks: not aligned");
      break;
    default:
      k.block = aligned_alloc(64, (k.bytes + 63) / 64 * 64);
      if ((uintptr_t)k.block % 64 != 0) die("allocating_hooks: not aligned");
      break;
  }
  if (k.block == NULL) die("allocating_hooks: no memory");
  if ((uintptr_t)k.block % 16 != 0 && k.bytes >= 16) die("allocating_hooks: not aligned");
  fill(k);
  return k;
}

static void resize(struct kept* k, unsigned long turn) {
  static const size_t sizes[] = {100, 5000, 300000, 48, 20000};
  unsigned char* const before = k->block;
  const size_t bytes = sizes[turn % (sizeof sizes / sizeof *sizes)];
  unsigned char* const now = realloc(before, bytes);
  if (now == NULL) die("allocating_hooks: no memory");
  for (size_t i = 0; i < 32 && i < k->bytes && i < bytes; ++i) {
    if (now[i] != pattern(before, i))
      die("allocating_hooks: realloc has lost what was in the block");
  }
  k->block = now;
  k->bytes = bytes;
  fill(*k);
}

static void act(enum hook which) {
  const int saved = errno;
  __atomic_add_fetch(&calls[which], 1, __ATOMIC_RELAXED);
  if (++depth > 1) die("allocating_hooks: called by what it calls itself");
  free(malloc(24));
  take_lock();
  static unsigned long turns;
  for (int i = 0; i < 3; ++i) {
    const unsigned long turn = turns++;
    struct kept* const k = &kept[turn * 7 % kSlots];
    if (k->block != NULL) {
      check(*k, k->block);
      if (turn % 5 == 0) {
        resize(k, turn / 5);
        continue;
      }
      free(k->block);
    }
    *k = make(turn);
  }
  leave_lock();
  --depth;
  errno = saved;
}

static void* next(enum hook which) {
  if (nexts[which] == NULL) {
    // What is not there has the loader make a message, which it allocates.
    if (is_on(which)) dlsym(RTLD_NEXT, "no_such_function_anywhere");
    nexts[which] = dlsym(RTLD_NEXT, names[which]);
  }
  return nexts[which];
}

#define ENTER(which)            \
  if (is_on(which)) act(which); \
  void* const go_on = next(which)

void* mmap(void* hint, size_t bytes, int protection, int flags, int fd, off_t offset) {
  ENTER(kMmap);
  return ((void* (*)(void*, size_t, int, int, int, off_t))go_on)(hint, bytes, protection, flags, fd,
                                                                 offset);
}
int munmap(void* address, size_t bytes) {
  ENTER(kMunmap);
  return ((int (*)(void*, size_t))go_on)(address, bytes);
}
void* mremap(void* address, size_t old_bytes, size_t new_bytes, int flags, ...) {
  va_list list;
  va_start(list, flags);
  void* to = va_arg(list, void*);
  va_end(list);
  ENTER(kMremap);
  return ((void* (*)(void*, size_t, size_t, int, ...))go_on)(address, old_bytes, new_bytes, flags,
                                                             to);
}
int madvise(void* address, size_t bytes, int advice) {
  ENTER(kMadvise);
  return ((int (*)(void*, size_t, int))go_on)(address, bytes, advice);
}
int mprotect(void* address, size_t bytes, int protection) {
  ENTER(kMprotect);
  return ((int (*)(void*, size_t, int))go_on)(address, bytes, protection);
}
int sched_yield(void) {
  ENTER(kYield);
  return ((int (*)(void))go_on)();
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  ENTER(kClock);
  return ((int (*)(clockid_t, struct timespec*))go_on)(clock, now);
}
int getrlimit(__rlimit_resource_t resource, struct rlimit* limit) {
  ENTER(kLimit);
  return ((int (*)(__rlimit_resource_t, struct rlimit*))go_on)(resource, limit);
}
int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* set) {
  ENTER(kCpus);
  return ((int (*)(pid_t, size_t, cpu_set_t*))go_on)(process, bytes, set);
}
int sched_getcpu(void) {
  ENTER(kCpu);
  return ((int (*)(void))go_on)();
}
unsigned long getauxval(unsigned long type) {
  ENTER(kAux);
  return ((unsigned long (*)(unsigned long))go_on)(type);
}

// --- For the program ---

/// How often the function of that name has allocated.
long hook_calls(const char* name) {
  for (int i = 0; i < kHooks; ++i) {
    if (strcmp(name, names[i]) == 0) return __atomic_load_n(&calls[i], __ATOMIC_RELAXED);
  }
  return -1;
}
/// A block of malloc's, for the hooks to free; returns one of theirs, for the
/// program to free, or NULL.
void* hook_swap(void* block, size_t bytes, unsigned turn) {
  struct kept mine = {block, bytes};
  fill(mine);
  take_lock();
  struct kept* const k = &kept[turn % kSlots];
  struct kept theirs = *k;
  *k = mine;
  leave_lock();
  if (theirs.block != NULL) check(theirs, theirs.block);
  return theirs.block;
}
