/* spanalloc's own C interface: the heap under names of its own, and further down the page manager,
 * which shares out a region of the caller's.
 *
 * The heap is that of the malloc of the library it comes with. A block from sp_malloc may be given
 * to free and the other way round when malloc is spanalloc's too (libspanalloc.so preloaded or
 * linked).
 *
 * What holds for all of the heap's functions:
 *   - Sizes and alignments are bytes. Every block is aligned to at least 16. Any thread may free
 *     it.
 *   - Any thread may call any function at any time, also before main and in a fork's child. None
 *     may be called from a signal handler. Freeing or resizing a block while another call works on
 *     it is a mistake.
 *   - errno is changed only by a function that fails and says so.
 *   - A pointer to free, resize or measure that is no living block of this heap ends the process,
 *     wherever that is noticed, with one line on stderr that names it (docs/security.md).
 *
 * tests/conformance/abi lists what programs may rely on; within a major version it is only added
 * to.
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

/* What compilers are told of functions that return blocks, for their warnings and optimisations;
 * nothing where SPANALLOC_PLAIN_DECLARATIONS is defined, or by compilers without __has_attribute.
 * They know a block by the size that was asked for: with _FORTIFY_SOURCE a write beyond it, up to
 * sp_usable_size, may end the process. sp_realloc to that size first, or have plain declarations.
 *
 * SPANALLOC_NEW_BLOCK: nothing else points to the block, and nobody reads it behind the compiler's
 * back. Blocks of first-class heaps are not so: sp_heap_visit finds them. */
#if defined(__has_attribute) && !defined(SPANALLOC_PLAIN_DECLARATIONS)
#if __has_attribute(malloc)
#define SPANALLOC_NEW_BLOCK __attribute__((malloc))
#endif
#if __has_attribute(alloc_size)
#define SPANALLOC_SIZE(argument) __attribute__((alloc_size(argument)))
#define SPANALLOC_PRODUCT(count, size) __attribute__((alloc_size(count, size)))
#endif
#if __has_attribute(alloc_align)
#define SPANALLOC_ALIGNMENT(argument) __attribute__((alloc_align(argument)))
#endif
#if __has_attribute(warn_unused_result)
#define SPANALLOC_MUST_USE __attribute__((warn_unused_result))
#endif
#endif
#ifndef SPANALLOC_NEW_BLOCK
#define SPANALLOC_NEW_BLOCK
#endif
#ifndef SPANALLOC_SIZE
#define SPANALLOC_SIZE(argument)
#define SPANALLOC_PRODUCT(count, size)
#endif
#ifndef SPANALLOC_ALIGNMENT
#define SPANALLOC_ALIGNMENT(argument)
#endif
#ifndef SPANALLOC_MUST_USE
#define SPANALLOC_MUST_USE
#endif

/* `size` bytes aligned to 16, of any contents; a unique block when size is 0. NULL with errno
 * ENOMEM when memory is out or size is above PTRDIFF_MAX. */
SPANALLOC_MUST_USE SPANALLOC_NEW_BLOCK SPANALLOC_SIZE(1) SPANALLOC_PUBLIC
    void* sp_malloc(size_t size) SPANALLOC_NOEXCEPT;

/* count * size zero bytes aligned to 16; a unique block when that is 0. NULL with errno ENOMEM when
 * memory is out or the product overflows or is above PTRDIFF_MAX. */
SPANALLOC_MUST_USE SPANALLOC_NEW_BLOCK SPANALLOC_PRODUCT(1, 2) SPANALLOC_PUBLIC
    void* sp_calloc(size_t count, size_t size) SPANALLOC_NOEXCEPT;

/* Makes the block `size` bytes large, moving it when need be, then to an address aligned to 16
 * whatever the old one was aligned to; min(old, new) bytes of content stay. NULL block: as
 * sp_malloc. size 0: frees the block and returns NULL, errno untouched. NULL with errno ENOMEM when
 * memory is out or size is above PTRDIFF_MAX: then the block is as it was. */
SPANALLOC_MUST_USE SPANALLOC_SIZE(2) SPANALLOC_PUBLIC
    void* sp_realloc(void* block, size_t size) SPANALLOC_NOEXCEPT;

/* Frees the block, whichever function and thread it is from; NULL is ignored. */
SPANALLOC_PUBLIC void sp_free(void* block) SPANALLOC_NOEXCEPT;

/* `size` bytes aligned to `alignment`, a power of two; size need not be a multiple of it; a unique
 * block when size is 0. NULL with errno EINVAL when alignment is no power of two, ENOMEM when
 * memory is out or size + alignment is above PTRDIFF_MAX. */
SPANALLOC_MUST_USE SPANALLOC_NEW_BLOCK SPANALLOC_ALIGNMENT(1) SPANALLOC_SIZE(2) SPANALLOC_PUBLIC
    void* sp_aligned_alloc(size_t alignment, size_t size) SPANALLOC_NOEXCEPT;

/* The same by posix_memalign's rules: returns 0 and puts the block into *out; or returns EINVAL
 * (alignment is no power of two or no multiple of sizeof(void*); errno is untouched) or ENOMEM
 * (errno has it, too), *out as it was. */
SPANALLOC_MUST_USE
SPANALLOC_PUBLIC int sp_posix_memalign(void** out, size_t alignment,
                                       size_t size) SPANALLOC_NOEXCEPT;

/* Bytes that may be read and written from the block's start, at least what was asked for; 0 for
 * NULL. What compilers know of the size: SPANALLOC_PLAIN_DECLARATIONS above. */
SPANALLOC_PUBLIC size_t sp_usable_size(const void* block) SPANALLOC_NOEXCEPT;

/* 1 if the address lies in a span that this heap has in use (a block need not be there), or is the
 * start of one of its large objects; 0 otherwise. Takes any address. By the time that it returns
 * the answer may be old if other threads use the heap. */
SPANALLOC_PUBLIC int sp_owns(const void* address) SPANALLOC_NOEXCEPT;

/* Gives the memory back to the kernel that no block needs: 1 if there was any, 0 otherwise. Takes
 * time: it looks at all that is free. */
SPANALLOC_PUBLIC int sp_trim(void) SPANALLOC_NOEXCEPT;

/* Sets the heap's soft limit: `bytes` of memory, or 0 for none, or SP_SOFT_LIMIT_CGROUP for that of
 * the control group (cgroups(7)) that the process is in, which is read again as time passes.
 * Overrides the option SPANALLOC_SOFT_LIMIT. Nothing is refused beyond the limit. Free memory goes
 * back to the kernel when it would exceed the limit, and near it pools keep none, threads little;
 * sp_soft_limit(3) says how near, and what counts. Returns 0; or -1 with errno ENOTSUP when this
 * library's engine has no soft limit, ENOENT when there is no control group whose memory can be
 * read; nothing has changed then. */
#define SP_SOFT_LIMIT_CGROUP ((size_t)-1)
SPANALLOC_PUBLIC int sp_set_soft_limit(size_t bytes) SPANALLOC_NOEXCEPT;

/* The soft limit in bytes, 0 when there is none. In a control group it is what the heap may hold
 * now, as of when the group was read last: what others in the group have is taken off. */
SPANALLOC_PUBLIC size_t sp_soft_limit(void) SPANALLOC_NOEXCEPT;

/* 1 while what the heap holds is near the soft limit; 0 otherwise, and where there is none. Any
 * thread may ask at any time, not in a signal handler; costs some 20 ns while it is near, less
 * otherwise. For a cache that makes room before it takes an entry. */
SPANALLOC_PUBLIC int sp_soft_limit_is_near(void) SPANALLOC_NOEXCEPT;

/* From now on calls callback(context, held, limit), bytes both, when what the heap holds has come
 * near the soft limit; and again, as long as it is near, each time that a 64th of the limit more is
 * held, or an eighth of that and as much of what was freed meanwhile has been used again, and once
 * in each decay epoch (a quarter of a second, by default). NULL: nothing is called. There is one
 * callback; the last one set counts, but a call of the one before that has begun in another thread
 * may go on.
 *
 * The caller is whichever thread next asks for memory that it does not have at hand, in the middle
 * of its malloc, and of whatever the program calls that malloc for; no two calls run at once.
 * NEVER FREE FROM IT WHAT THAT PROGRAM MAY BE CHANGING: the malloc may be one of the very cache
 * that should become smaller. Set a flag, or write to an eventfd(2), and free where the program
 * changes the cache. The callback may allocate, free what is its own, and wait for threads; it must
 * return (no exception, no longjmp), and errno is kept. Returns 0; or -1 with errno ENOTSUP when
 * this library's engine has no soft limit. */
SPANALLOC_PUBLIC int sp_on_soft_limit(void (*callback)(void* context, size_t held, size_t limit),
                                      void* context) SPANALLOC_NOEXCEPT;

/* What a field below holds that the library's engine does not report. */
#define SP_STATS_NOT_TOLD ((size_t)-1)

/* The heap's accounting; docs/statistics.md says more of each figure. Each is exact at some instant
 * during the call, together they are an estimate while other threads allocate. Later versions only
 * add fields at the end. From live_bytes on an engine may leave a field at SP_STATS_NOT_TOLD. */
struct sp_statistics {
  size_t reserved_bytes; /* address space held */
  size_t opened_bytes;   /* readable and writable part of it */
  size_t carved_bytes;   /* spans in use, with the free blocks in them */
  size_t pooled_bytes;   /* free and readable: spans waiting for reuse, memory not yet used */
  size_t large_bytes;    /* objects too large for a size class */
  size_t large_objects;  /* number of them */
  __extension__ union {
    size_t live_threads; /* threads that use it */
    size_t live_labs;    /* its former name */
  };
  size_t spans_lost_to_fork; /* spans of threads that a fork left behind */
  /* Blocks in spans in use: live for certain, free for certain, or one of which only another thread
   * knows. (Large objects are all live, and not among them.) */
  size_t live_bytes;
  size_t live_blocks;
  size_t free_bytes;
  size_t free_blocks;
  size_t unsure_bytes;
  size_t unsure_blocks;
  size_t kept_block_bytes;  /* of the free blocks: kept by threads for their next requests */
  size_t kept_span_bytes;   /* of pooled_bytes: the same of whole spans */
  size_t pool_bytes;        /* of pooled_bytes: free spans that wait for reuse */
  size_t dirty_bytes;       /* of pooled_bytes: may be in memory, and goes back with time */
  size_t clean_bytes;       /* of pooled_bytes: never used, or given back; not in memory */
  size_t purged_part_bytes; /* pages of spans in use that were given back */
  size_t decommitted_bytes; /* given back with its addresses; no part of opened_bytes */
  size_t metadata_bytes;    /* the heap's own tables */
  size_t resident_bytes;    /* in memory: sp_stats_json reports it, if it may ask the kernel */
  /* Counts of events since the start. */
  size_t growths;      /* steps that took more address space */
  size_t purges;       /* calls that gave pages back, */
  size_t purged_bytes; /* and how much these were in all */
  size_t decay_epochs;
  size_t trims;
  /* First-class heaps. Their memory is in none of the figures above. */
  size_t heaps;
  size_t heaps_taken_bytes; /* what they have taken, for blocks and beside them */
  size_t heaps_kept_bytes;  /* given back by heaps, and may be in memory, for the next one */
};

/* Fills *out; size is sizeof *out as the caller knows it. Fields this library does not know become
 * 0. May take time in proportion to the heap's size. */
SPANALLOC_PUBLIC void sp_stats(struct sp_statistics* out, size_t size) SPANALLOC_NOEXCEPT;

/* Asks the kernel, too: how much is in memory (mincore), the numbers of the process and of the
 * calling thread; by system calls that malloc does not make. */
#define SP_STATS_KERNEL 1u

/* Writes a JSON document with all of that, by size class and by thread, and with a version of its
 * own; docs/statistics.md describes it. It comes in pieces: write(context, text, bytes) is called
 * for each, in order, with 1 to 512 bytes of ASCII that stay valid during the call, and may use the
 * heap, and first-class heaps. Takes no memory, and some 10 KiB of the stack. 0; EINVAL
 * if write is NULL or flags have bits without a meaning, EBUSY in a function that stands in for
 * mmap or the like (spanalloc(7)): then nothing is written. errno is left to `write`. */
SPANALLOC_PUBLIC int sp_stats_json(void (*write)(void* context, const char* text, size_t bytes),
                                   void* context, unsigned flags) SPANALLOC_NOEXCEPT;

/* The library's version, "major.minor.patch"; a constant string. */
SPANALLOC_PUBLIC const char* sp_version(void) SPANALLOC_NOEXCEPT;

/* Name of the engine behind this library, for instance "standard"; a constant string. */
SPANALLOC_PUBLIC const char* sp_engine_name(void) SPANALLOC_NOEXCEPT;

/* ---- First-class heaps
 * ----------------------------------------------------------------------------------
 *
 * A heap whose blocks all end with it: a request's, a query's, a plugin's. sp_heap_destroy and
 * sp_heap_reset give all back, block or no block, in time proportional to the memory's pieces of
 * 64 KiB and more, not to the blocks. A heap costs 64 KiB of addresses, of which it touches two or
 * three pages: there may be thousands at a time. docs/using.md and sp_heap(3) show how to use them.
 *
 *   - Any thread may allocate from a heap and free into it at any time. Destroying or resetting it,
 *     or using a block after that, while another thread uses the heap is a mistake.
 *   - Blocks are blocks: free, realloc, malloc_usable_size and the sp_ functions above take them,
 *     where malloc is spanalloc's. Resized so, a block stays in its heap as long as that has room;
 *     then realloc moves it to the default heap, where it outlives its own.
 *   - The heap's memory is none of the default heap's: mallinfo2 does not count it. sp_stats has
 *     what all heaps have taken, sp_stats_json and `spanalloc top` also the largest ones by name.
 *     sp_trim and malloc_trim give what heaps have given back to the kernel.
 *   - After fork the child has all heaps as they were. If another thread was in a call for a heap,
 *     the block it was about to return or to free may stay in use until the heap ends.
 *   - A heap that does not exist any more, a block of another heap, a pointer that is no living
 *     block, a block freed twice, and free memory or a header that was overwritten end the process
 *     with one line on stderr, wherever that is noticed (docs/security.md). A destroyed heap is
 *     noticed until 65,536 more were made.
 *   - errno, sizes, alignments and signal handlers: as above.
 */
struct sp_heap;
#ifndef __cplusplus
typedef struct sp_heap sp_heap;
#endif

/* Later versions only add fields at the end; 0 in a field is its default. */
struct sp_heap_options {
  size_t limit_bytes; /* the most memory that the heap may take from the system, counted in whole
                       * pieces of 64 KiB and with all that it keeps beside blocks; at least
                       * 65536. 0: no limit */
  const char* name;   /* for people: what statistics and `spanalloc top` call the heap. A string in
                       * UTF-8, which need not be unique. sp_heap_create copies it; of a longer one
                       * the first 63 bytes, or up to 3 less that would be part of a character. NULL
                       * or "": none */
};

/* A new heap. options: NULL for defaults, whatever the size; size is sizeof *options as the caller
 * knows it. NULL with errno EINVAL when the limit is below 65536, options have what this library
 * does not know, or size is no multiple of 8 or less than sizeof *options was at first (8); ENOMEM
 * when memory is out. */
SPANALLOC_MUST_USE
SPANALLOC_PUBLIC sp_heap* sp_heap_create(const struct sp_heap_options* options,
                                         size_t size) SPANALLOC_NOEXCEPT;

/* Ends the heap and all its blocks. NULL is ignored. No other call for it may be in flight. */
SPANALLOC_PUBLIC void sp_heap_destroy(sp_heap* heap) SPANALLOC_NOEXCEPT;

/* Ends all blocks; the heap is empty. No other call for it may be in flight. */
SPANALLOC_PUBLIC void sp_heap_reset(sp_heap* heap) SPANALLOC_NOEXCEPT;

/* As sp_malloc, sp_calloc, sp_aligned_alloc, in that heap. NULL with errno ENOMEM also when the
 * heap's limit is reached. */
SPANALLOC_MUST_USE SPANALLOC_SIZE(2) SPANALLOC_PUBLIC
    void* sp_heap_malloc(sp_heap* heap, size_t size) SPANALLOC_NOEXCEPT;
SPANALLOC_MUST_USE SPANALLOC_PRODUCT(2, 3) SPANALLOC_PUBLIC
    void* sp_heap_calloc(sp_heap* heap, size_t count, size_t size) SPANALLOC_NOEXCEPT;
SPANALLOC_MUST_USE SPANALLOC_ALIGNMENT(2) SPANALLOC_SIZE(3) SPANALLOC_PUBLIC
    void* sp_heap_aligned_alloc(sp_heap* heap, size_t alignment, size_t size) SPANALLOC_NOEXCEPT;

/* As sp_realloc, of a block of that heap, and within it. */
SPANALLOC_MUST_USE SPANALLOC_SIZE(3) SPANALLOC_PUBLIC
    void* sp_heap_realloc(sp_heap* heap, void* block, size_t size) SPANALLOC_NOEXCEPT;

/* Frees a block of that heap; NULL is ignored. */
SPANALLOC_PUBLIC void sp_heap_free(sp_heap* heap, void* block) SPANALLOC_NOEXCEPT;

/* 1 if the address lies in memory that this heap has (a block need not be there), 0 otherwise.
 * Takes any address. */
SPANALLOC_PUBLIC int sp_heap_owns(const sp_heap* heap, const void* address) SPANALLOC_NOEXCEPT;

/* Calls visit(block, size, context) for each block in use, in no order; `size` is what may be read
 * and written there, at least what was asked for. Blocks that other threads allocate or free
 * meanwhile may be visited or not. `visit` must not use the heap, and must not throw. */
SPANALLOC_PUBLIC void sp_heap_visit(sp_heap* heap,
                                    void (*visit)(void* block, size_t size, void* context),
                                    void* context) SPANALLOC_NOEXCEPT;

/* Exact while no other call is in flight. Later versions only add fields at the end. */
struct sp_heap_statistics {
  size_t limit_bytes; /* 0: none */
  size_t taken_bytes; /* what the limit is about */
  size_t used_bytes;  /* blocks in use, rounded up, with a header of 8 bytes for most */
  size_t used_blocks;
};

/* Fills *out; size is sizeof *out as the caller knows it. Fields this library does not know become
 * 0. */
SPANALLOC_PUBLIC void sp_heap_stats(sp_heap* heap, struct sp_heap_statistics* out,
                                    size_t size) SPANALLOC_NOEXCEPT;

/* ---- The page manager
 * ----------------------------------------------------------------------------------
 *
 * A region of memory, cut into units of one size, is handed out in blocks of whole units and taken
 * back; for kernels, buffer managers, device memory: whoever has a range of addresses to share out
 * among threads. It has nothing to do with the heap above and never calls it. docs/pages.md and
 * sp_pages(3) show how to use it.
 *
 * Algorithm: R. Leite, R. Rocha, "A Lock-Free Coalescing-Capable Mechanism for Memory Management",
 * ISMM 2019, with a controller of our own that needs neither nodes nor their reclamation
 * (docs/concurrency.md: what differs, and why it is right). Allocation splits a block that fits
 * well, at the lowest address of its class of sizes (sizes of a class differ by less than a
 * quarter), memory that was in use before fresh memory.
 *
 * Promises:
 *   - The region itself is never read or written. It need not even be mapped.
 *   - No two blocks overlap. With no call in flight no two neighbouring blocks are free.
 *   - SP_PAGES_NO_ROOM from an allocation is exact: at some instant during the call no free block
 *     was large enough at that alignment, counting as free what other threads held in the middle of
 *     a call.
 *   - Bad input is answered with a status that names it, and changes nothing. No function ends the
 *     process. Two calls at once for one block (a free and a grow, say) are a mistake that is not
 *     always found.
 *
 * Sizes, alignments and units are bytes; a block's size is rounded up to whole units. errno is
 * never touched. Errors are those that each function lists.
 *
 * Threads: any number may use a manager at once, unless a function says otherwise; the one that
 * creates a manager hands it to the others (by a lock, a release store, the start of a thread), and
 * destroying it is the last use of it. Freeing, growing, shrinking, purging and allocations that
 * succeed are lock-free. An allocation that is about to fail first waits for calls that hold free
 * memory, of whatever size: so no interrupt or signal handler that may have interrupted a call may
 * allocate from that manager; freeing, growing, shrinking and looking are allowed there.
 *
 * libspanalloc_pages.a has these functions, without sp_pages_create, for programs without an
 * operating system or a C library: it needs memcpy, memmove, memset and memcmp at most.
 */
struct sp_pages;
#ifndef __cplusplus
typedef struct sp_pages sp_pages;
#endif

enum sp_pages_status {
  SP_PAGES_OK = 0,
  SP_PAGES_NO_ROOM,     /* no free block is large enough; a region that cannot be extended so far */
  SP_PAGES_NOT_A_BLOCK, /* no block is handed out at this address: foreign, inside a block, or free
                         */
  SP_PAGES_NULL,        /* a null pointer where there must be an object */
  SP_PAGES_BAD_MANAGER, /* not a manager, or destroyed */
  SP_PAGES_BAD_SIZE, /* 0, no whole number of units, the wrong side of the present size, too large
                      */
  SP_PAGES_BAD_ALIGNMENT, /* no power of two */
  SP_PAGES_BAD_UNIT,   /* no power of two, or for memory of the system less than one of its pages */
  SP_PAGES_BAD_REGION, /* no multiple of the unit, beyond the end of addresses, or over the metadata
                        */
  SP_PAGES_BAD_FLAGS,  /* bits that have no meaning here */
  SP_PAGES_SMALL_METADATA, /* the buffer is smaller than sp_pages_metadata_bytes says */
  SP_PAGES_BUSY,           /* another thread is extending the same region */
  SP_PAGES_REFUSED,        /* the operating system has no memory or address space to give */
  SP_PAGES_UNSUPPORTED     /* not for a region of the caller */
};

/* A few words about a status; a constant string, also for numbers that are none. Any thread, at any
 * time. */
SPANALLOC_PUBLIC const char* sp_pages_status_text(enum sp_pages_status status) SPANALLOC_NOEXCEPT;

#define SP_PAGES_METADATA_ZERO 1u /* the metadata buffer reads as zero */
#define SP_PAGES_REGION_ZERO \
  2u /* the region reads as zero: allocations can tell (`zero` below) \
      */

/* Bytes of metadata for a region of `region_bytes` in units of `unit_bytes`; about 1 % of it for
 * units of 4 KiB. 0 when unit_bytes is no power of two, or region_bytes is 0, no multiple of it, or
 * more than 2^47 units. Never decreases with region_bytes. Any thread, at any time. */
SPANALLOC_PUBLIC size_t sp_pages_metadata_bytes(size_t region_bytes,
                                                size_t unit_bytes) SPANALLOC_NOEXCEPT;

/* Makes a manager of [region, region + region_bytes), all of it free, and puts it into *out. The
 * manager lives in the metadata buffer, which is the manager's until it is destroyed, at any
 * alignment, outside the region. A buffer for more than region_bytes lets the region be extended up
 * to as much (sp_pages_extend).
 *
 * unit_bytes: a power of two from 1 on; region and region_bytes are multiples of it. flags: what is
 * known to be zero, of SP_PAGES_METADATA_ZERO (otherwise it is cleared, all of it) and
 * SP_PAGES_REGION_ZERO. Errors: SP_PAGES_NULL, _BAD_FLAGS, _BAD_UNIT, _BAD_REGION, _BAD_SIZE,
 * _SMALL_METADATA; *out is then as it was, and so is the buffer. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_create_over(void* region, size_t region_bytes,
                                                           size_t unit_bytes, void* metadata,
                                                           size_t metadata_bytes, unsigned flags,
                                                           sp_pages** out) SPANALLOC_NOEXCEPT;

/* The same over `bytes` of zero memory from the operating system, readable and writable; physical
 * memory comes when it is touched, for the region as for the metadata. Address space is reserved
 * for `limit_bytes`, which sp_pages_extend may go up to; at least `bytes`. The region is aligned to
 * unit_bytes, and to the smaller of 1 GiB and limit_bytes rounded up to a power of two where the
 * address space allows it.
 *
 * unit_bytes: a power of two, at least the system's page; bytes and limit_bytes are multiples of
 * it. Errors: SP_PAGES_NULL, _BAD_UNIT, _BAD_SIZE, _REFUSED; *out is then as it was. Not in
 * libspanalloc_pages.a.
 */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_create(size_t bytes, size_t limit_bytes,
                                                      size_t unit_bytes,
                                                      sp_pages** out) SPANALLOC_NOEXCEPT;

/* Ends the manager, whether or not blocks are handed out. The caller's region and metadata are the
 * caller's again; memory of the operating system goes back to it. No other call may be in flight.
 * Errors: SP_PAGES_NULL, _BAD_MANAGER (destroyed before, where the metadata can still be read). */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_destroy(sp_pages* pages) SPANALLOC_NOEXCEPT;

/* A block of at least `bytes` at a multiple of the unit, into *out. *zero, unless `zero` is null,
 * becomes 1 if every byte of the block is known to read as zero, 0 otherwise. Errors:
 * SP_PAGES_NO_ROOM (exact, see above), _BAD_SIZE (0), _NULL, _BAD_MANAGER; *out and *zero are then
 * as they were. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_allocate(sp_pages* pages, size_t bytes, void** out,
                                                        int* zero) SPANALLOC_NOEXCEPT;

/* The same at an address that is a multiple of `alignment` and of the unit. Nothing is wasted: what
 * is before and behind stays free. Errors: the same, and SP_PAGES_BAD_ALIGNMENT (no power of two).
 */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_allocate_aligned(sp_pages* pages, size_t bytes,
                                                                size_t alignment, void** out,
                                                                int* zero) SPANALLOC_NOEXCEPT;

/* Takes the block at `block` back and joins it with its free neighbours. From here on it counts as
 * not zero. Errors: SP_PAGES_NOT_A_BLOCK (also when it is free already), _NULL (for a null block
 * too), _BAD_MANAGER. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_free(sp_pages* pages,
                                                    void* block) SPANALLOC_NOEXCEPT;

/* Makes the block at least `bytes` large where it stands, out of the free block behind it. *zero,
 * unless null, becomes 1 if every byte it gained is known to read as zero, 0 otherwise. Errors:
 * SP_PAGES_NO_ROOM (what is behind it is not free, too small, or in the middle of another thread's
 * call: unlike an allocation's this is no proof), _BAD_SIZE (below the present size), _NOT_A_BLOCK,
 * _NULL, _BAD_MANAGER; nothing has changed then. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_grow(sp_pages* pages, void* block, size_t bytes,
                                                    int* zero) SPANALLOC_NOEXCEPT;

/* Takes back what the block has beyond `bytes`, rounded up to whole units. That counts as not zero.
 * Errors: SP_PAGES_BAD_SIZE (0, or above the present size), _NOT_A_BLOCK, _NULL, _BAD_MANAGER;
 * nothing has changed then. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_shrink(sp_pages* pages, void* block,
                                                      size_t bytes) SPANALLOC_NOEXCEPT;

/* Bytes of the block handed out at exactly this address, a multiple of the unit; 0 when there is
 * none (any address may be asked about), or no manager. */
SPANALLOC_PUBLIC size_t sp_pages_size_of(const sp_pages* pages,
                                         const void* block) SPANALLOC_NOEXCEPT;

/* Where the region begins; null when there is no manager. */
SPANALLOC_PUBLIC void* sp_pages_region(const sp_pages* pages) SPANALLOC_NOEXCEPT;

/* Adds `bytes` free bytes, a multiple of the unit, that follow the region's end: memory of the
 * caller (flags: 0 or SP_PAGES_REGION_ZERO), or more of what sp_pages_create has reserved (zero;
 * flags 0). One thread at a time; beside it others may allocate and free. Errors: SP_PAGES_NO_ROOM
 * (beyond what the metadata or the reservation has room for), _BUSY (another thread is in it),
 * _BAD_SIZE (0, or no multiple), _BAD_FLAGS, _REFUSED, _NULL, _BAD_MANAGER; nothing has changed
 * then. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_extend(sp_pages* pages, size_t bytes,
                                                      unsigned flags) SPANALLOC_NOEXCEPT;

#define SP_PAGES_PURGE_IDLE \
  1u /* only memory that stayed free since the last purge of this kind \
      */

/* Gives the physical memory of free blocks that are not known to be zero back to the operating
 * system; they read as zero afterwards. With SP_PAGES_PURGE_IDLE only memory that lay untouched
 * since the last such call: called every so often this makes memory decay. *bytes, unless null,
 * becomes what was given back; memory that the system will not take (locked memory) stays as it is.
 * Errors: SP_PAGES_UNSUPPORTED (a region of the caller), _BAD_FLAGS, _NULL, _BAD_MANAGER; *bytes is
 * then as it was. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_purge(sp_pages* pages, unsigned flags,
                                                     size_t* bytes) SPANALLOC_NOEXCEPT;

enum sp_pages_state {
  SP_PAGES_USED,  /* handed out */
  SP_PAGES_FREE,  /* exact while no other thread uses the pages */
  SP_PAGES_MOVING /* in the middle of a call: being split, joined, purged */
};

struct sp_pages_block {
  void* start;
  size_t bytes; /* a multiple of the unit */
  enum sp_pages_state state;
  int zero; /* 1: free, and all of it is known to read as zero; 0 otherwise */
};

/* Calls visit(&block, context) for the region's blocks in order of address. Not a snapshot: a block
 * that stands unchanged throughout the call is visited once; one that comes, goes, is split or
 * joined meanwhile may be seen in any of its states, in part, or not at all. With no other call in
 * flight blocks tile the region. `visit` may use the manager, but must not throw; the block it is
 * given is gone when it returns. Errors: SP_PAGES_NULL, _BAD_MANAGER. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_walk(
    const sp_pages* pages, void (*visit)(const struct sp_pages_block* block, void* context),
    void* context) SPANALLOC_NOEXCEPT;

/* Gathered by a walk: exact with no other call in flight, an estimate otherwise. Bytes, but for the
 * numbers of blocks. Later versions only add fields at the end. */
struct sp_pages_statistics {
  size_t unit_bytes;
  size_t region_bytes;       /* as it is now: used, free and moving */
  size_t limit_bytes;        /* what it can be extended to */
  size_t used_bytes;         /* handed out */
  size_t free_bytes;         /* exact while no other thread uses the pages */
  size_t moving_bytes;       /* in the middle of calls */
  size_t free_zero_bytes;    /* of free_bytes: blocks known to read as zero */
  size_t largest_free_bytes; /* the largest free block */
  size_t used_blocks;
  size_t free_blocks;
  size_t metadata_bytes; /* what the manager keeps for limit_bytes */
};

/* Fills *out; size is sizeof *out as the caller knows it. Fields this library does not know become
 * 0. Errors: SP_PAGES_NULL, _BAD_MANAGER; *out is then as it was. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_stats(const sp_pages* pages,
                                                     struct sp_pages_statistics* out,
                                                     size_t size) SPANALLOC_NOEXCEPT;

/* In a fork's child, before any other call for this manager, if other threads of the parent used it
 * at the fork: ends their calls. Memory that was in the middle of one is free then, and does not
 * count as zero; a block that one was just about to return may stay in use. Errors: SP_PAGES_NULL,
 * _BAD_MANAGER. */
SPANALLOC_PUBLIC enum sp_pages_status sp_pages_after_fork(sp_pages* pages) SPANALLOC_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
