/* spanalloc's own C interface: the same heap as the malloc of the library it comes with, under names that
 * cannot be taken over by another malloc. A block from sp_malloc may be given to free and the other way round
 * when malloc is spanalloc's too (libspanalloc.so preloaded or linked).
 *
 * Units are bytes. Any thread may call any function at any time; none may be called from a signal handler.
 * errno is untouched on success and by functions that free. A pointer that is no living block of this heap
 * ends the process with one line on stderr that names it.
 */
#ifndef SPANALLOC_SPANALLOC_H
#define SPANALLOC_SPANALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#define SPANALLOC_NOEXCEPT noexcept
#else
#define SPANALLOC_NOEXCEPT
#endif

#define SPANALLOC_PUBLIC __attribute__((visibility("default")))

/* `size` bytes aligned to 16; a unique block when size is 0. NULL with errno ENOMEM when memory is out or
 * size is above PTRDIFF_MAX. */
SPANALLOC_PUBLIC void* sp_malloc(size_t size) SPANALLOC_NOEXCEPT;

/* count * size zero bytes. NULL with errno ENOMEM when memory is out or the product overflows. */
SPANALLOC_PUBLIC void* sp_calloc(size_t count, size_t size) SPANALLOC_NOEXCEPT;

/* Makes the block `size` bytes large, moving it when need be; min(old, new) bytes of content stay. NULL
 * block: as sp_malloc. size 0: frees the block and returns NULL. NULL with errno ENOMEM when memory is out:
 * then the block is as it was. */
SPANALLOC_PUBLIC void* sp_realloc(void* block, size_t size) SPANALLOC_NOEXCEPT;

/* Frees the block; NULL is ignored. */
SPANALLOC_PUBLIC void sp_free(void* block) SPANALLOC_NOEXCEPT;

/* `size` bytes aligned to `alignment`, a power of two; size need not be a multiple of it. NULL with errno
 * EINVAL when alignment is no power of two, ENOMEM when memory is out. */
SPANALLOC_PUBLIC void* sp_aligned_alloc(size_t alignment, size_t size) SPANALLOC_NOEXCEPT;

/* The same by posix_memalign's rules: 0 and the block in *out, or EINVAL (alignment is no power of two or no
 * multiple of sizeof(void*)) or ENOMEM, *out and errno untouched. */
SPANALLOC_PUBLIC int sp_posix_memalign(void** out, size_t alignment, size_t size) SPANALLOC_NOEXCEPT;

/* Bytes that may be used from the block's start, at least what was asked for; 0 for NULL. */
SPANALLOC_PUBLIC size_t sp_usable_size(const void* block) SPANALLOC_NOEXCEPT;

/* 1 if the address lies in a span that this heap has in use, or is the start of one of its large objects; 0
 * otherwise. Takes any address. */
SPANALLOC_PUBLIC int sp_owns(const void* address) SPANALLOC_NOEXCEPT;

/* Gives what can be given back to the kernel: 1 if anything was, 0 otherwise. */
SPANALLOC_PUBLIC int sp_trim(void) SPANALLOC_NOEXCEPT;

/* The heap's books. Each figure is exact at some instant during the call, together they are an estimate while
 * other threads allocate. Later versions only add fields at the end. */
struct sp_statistics {
  size_t reserved_bytes;     /* address space held */
  size_t opened_bytes;       /* readable and writable part of it */
  size_t carved_bytes;       /* spans in use by threads */
  size_t pooled_bytes;       /* free spans waiting for reuse */
  size_t large_bytes;        /* objects too large for spans */
  size_t large_objects;      /* number of them */
  size_t live_labs;          /* local allocation buffers with a living owner */
  size_t spans_lost_to_fork; /* spans of threads that a fork left behind */
};

/* Fills *out; size is sizeof *out as the caller knows it. Fields this library does not know become 0. */
SPANALLOC_PUBLIC void sp_stats(struct sp_statistics* out, size_t size) SPANALLOC_NOEXCEPT;

/* "major.minor.patch"; a constant. */
SPANALLOC_PUBLIC const char* sp_version(void) SPANALLOC_NOEXCEPT;

/* Name of the engine behind this library, for instance "standard"; a constant. */
SPANALLOC_PUBLIC const char* sp_engine_name(void) SPANALLOC_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
