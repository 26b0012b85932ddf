/* A malloc that is wrong on purpose, to show that the workloads notice. It carves blocks off one
 * mapping and reuses nothing. Every fifth request that comes straight from the executable is served
 * with the defect named by BROKEN_MALLOC in the environment: overlap   the thread's last block once
 * more, though it is still in use (the default) scribble  a good block, but the thread's last
 * block, still in use, is overwritten refuse null and ENOMEM none      nothing is wrong: the
 * control Requests of libraries (operator new, the threads' own memory, stdio) are always served
 * well, so that a workload fails by its own check and not by accident. Build: cc -shared -fPIC -O1
 * -o broken_malloc.so broken_malloc.c */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#define ARENA ((size_t)1 << 34) /* reserved; only what is handed out becomes memory */
#define PERIOD 5

enum defect { UNKNOWN, OVERLAP, SCRIBBLE, REFUSE, NONE };

struct header {
  size_t size;
  size_t unused; /* keeps blocks aligned to 16 */
};

static _Atomic(char*) arena;
static atomic_size_t used;
static _Atomic int chosen = UNKNOWN;
static uintptr_t program_begin, program_end;

static __thread void* last
    __attribute__((tls_model("initial-exec"))); /* this thread's last block, unless freed */
static __thread unsigned calls __attribute__((tls_model("initial-exec")));

static enum defect defect(void) {
  if (chosen == UNKNOWN) {
    const char* name = getenv("BROKEN_MALLOC");
    chosen = name == NULL || strcmp(name, "overlap") == 0 ? OVERLAP
             : strcmp(name, "scribble") == 0              ? SCRIBBLE
             : strcmp(name, "refuse") == 0                ? REFUSE
                                                          : NONE;
  }
  return (enum defect)chosen;
}

/* Where the executable lies, by its program headers. */
__attribute__((constructor)) static void find_program(void) {
  const ElfW(Phdr)* headers = (const void*)getauxval(AT_PHDR);
  const size_t count = getauxval(AT_PHNUM);
  uintptr_t base = 0, end = 0;
  for (size_t i = 0; i < count; ++i)
    if (headers[i].p_type == PT_PHDR) base = (uintptr_t)headers - headers[i].p_vaddr;
  for (size_t i = 0; i < count; ++i)
    if (headers[i].p_type == PT_LOAD && headers[i].p_vaddr + headers[i].p_memsz > end)
      end = headers[i].p_vaddr + headers[i].p_memsz;
  program_begin = base;
  program_end = base + end;
}

static void* carve(size_t size, size_t alignment) {
  char* base = arena;
  if (base == NULL) {
    char* fresh = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == MAP_FAILED) abort();
    if (atomic_compare_exchange_strong(&arena, &base, fresh))
      base = fresh;
    else
      munmap(fresh, ARENA);
  }
  if (alignment < 16) alignment = 16;
  if (size > ARENA || alignment > ARENA) return NULL;
  const size_t bytes = (size + sizeof(struct header) + alignment + 15) & ~(size_t)15;
  const size_t at = atomic_fetch_add(&used, bytes);
  if (at > ARENA || bytes > ARENA - at) return NULL;
  const uintptr_t block =
      ((uintptr_t)base + at + sizeof(struct header) + alignment - 1) & ~(alignment - 1);
  ((struct header*)block)[-1].size = size;
  return (void*)block;
}

static void* allocate(size_t size, size_t alignment, void* caller) {
  void* block = NULL;
  const int own = (uintptr_t)caller >= program_begin && (uintptr_t)caller < program_end;
  const int strike = own && ++calls % PERIOD == 0;
  if (strike && defect() == REFUSE) {
    errno = ENOMEM;
    return NULL;
  }
  if (strike && last != NULL && defect() == OVERLAP && ((struct header*)last)[-1].size >= size &&
      (uintptr_t)last % alignment == 0)
    return last;
  if (strike && last != NULL && defect() == SCRIBBLE)
    for (size_t i = 0; i < ((struct header*)last)[-1].size && i < 64; ++i) ((char*)last)[i] ^= 0x5a;
  block = carve(size, alignment);
  if (block == NULL)
    errno = ENOMEM;
  else if (own)
    last = block;
  return block;
}

void* malloc(size_t size) {
  return allocate(size, 16, __builtin_return_address(0));
}

void free(void* p) {
  if (p == last) last = NULL;
}

void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return NULL;
  }
  void* p = allocate(bytes, 16, __builtin_return_address(0));
  for (size_t i = 0; p != NULL && i < bytes; ++i) ((volatile char*)p)[i] = 0;
  return p;
}

void* realloc(void* old, size_t size) {
  void* p = allocate(size, 16, __builtin_return_address(0));
  if (p != NULL && old != NULL) {
    const size_t before = ((struct header*)old)[-1].size;
    memmove(p, old, before < size ? before : size);
  }
  return p;
}

void* memalign(size_t alignment, size_t size) {
  return allocate(size, alignment, __builtin_return_address(0));
}

void* aligned_alloc(size_t alignment, size_t size) {
  return allocate(size, alignment, __builtin_return_address(0));
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  const int before = errno;
  void* p = allocate(size, alignment, __builtin_return_address(0));
  errno = before;
  if (p == NULL) return ENOMEM;
  *out = p;
  return 0;
}

size_t malloc_usable_size(void* p) {
  return p == NULL ? 0 : ((struct header*)p)[-1].size;
}
