// libbump.so: a malloc that never frees, a baseline for time.
//
// malloc is a pointer that moves on, free returns at once. No allocator can do a call with less
// work, so a workload under this one shows what its time consists of besides malloc and free:
// instructions per call that remain here belong to the workload.
//
// What it is no floor of:
//   - Memory: nothing is used twice, and a size word stands in front of every block.
//   - Time where memory is used again: memory that was just freed is warm in the caches and in the
//     page table; fresh memory is neither, and the kernel must find and zero it, 4 KiB a fault. A
//     program that turns over much more than it holds runs faster under an allocator that reuses,
//     often by far. Such a result is right. What remains a floor is the time in user mode and the
//     count of instructions.
//   - realloc: it copies whenever a block grows; others extend in place or move pages.
//
// Shape: one reservation, of which every thread cuts chunks (16 KiB at first, doubling to 1 MiB) by
// one compare-and-swap; blocks are cut from a thread's chunk without any. What is left of a chunk
// at its thread's exit is lost. No locks, so a fork at any time leaves both processes usable.
//
// BUMP_LIMIT_MIB bounds what is handed out (default: half of the RAM, whatever a cgroup allows).
// Beyond it every request is refused with ENOMEM; a workload that turns over more than that has no
// row here. Whoever wants to know names a file in BUMP_REFUSED: it is made at the first refusal.
//
// BUMP_HUGE_PAGES=1 asks for huge pages (madvise). On hardware they make the faults few and fresh
// memory about six times cheaper. They are not the default because in a virtual machine whose host
// takes back free huge blocks (free page reporting) almost each of them costs a fault of the host:
// two to five times the price of small pages, and noise.
//
// A library of the benchmark suite only: pointers are not checked, new handlers are not called.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

// The C++ runtime's function, where the process has that runtime.
[[gnu::weak, gnu::visibility("default"), noreturn]] void runtime_throw_bad_alloc() asm(
    "_ZSt17__throw_bad_allocv");

#define BUMP_EXPORT extern "C" [[gnu::visibility("default")]]

namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 16;
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = 2 * kMib;
constexpr std::size_t kFirstChunk = std::size_t{16} << 10;
constexpr std::size_t kLastChunk = kMib;
constexpr std::size_t kLargest = PTRDIFF_MAX;

constexpr std::uintptr_t round_up(std::uintptr_t n, std::size_t alignment) {
  return (n + alignment - 1) & ~(alignment - 1);
}

// Start of the reservation. It stands in the reservation itself, so that one
// compare-and-swap publishes it.
struct Region {
  // Bytes cut off so far, this header included; at most `size`
  std::atomic<std::size_t> taken;
  alignas(kCacheLine) std::size_t size;  // constant
};

std::atomic<Region*> g_region{nullptr};

// The number in an environment variable; 0 where there is none. environ is null where malloc is
// called before the C library has started.
std::size_t setting(const char* name) {
  const char* text = environ == nullptr ? nullptr : std::getenv(name);
  return text == nullptr ? 0 : std::strtoul(text, nullptr, 10);
}

std::size_t limit() {
  const std::size_t given = setting("BUMP_LIMIT_MIB");
  if (given > 0 && given <= kLargest / kMib) return given * kMib;
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) / 2 *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Reserves the memory, or less of it where the kernel refuses so much; null when it refuses all.
[[gnu::cold, gnu::noinline]] Region* open_region() {
  const int error = errno;
  void* memory = MAP_FAILED;
  std::size_t size = limit();
  for (; size >= kMib; size = size / 2 & ~(kCacheLine - 1)) {
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) break;
  }
  errno = error;
  if (memory == MAP_FAILED) return nullptr;
  // The beginning stays in small pages, so that a tiny program need not pay for
  // the zeroing of a huge one.
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t huge = round_up(start + kMib, kHugePage);
  if (setting("BUMP_HUGE_PAGES") == 1 && huge < start + size)
    madvise(reinterpret_cast<void*>(huge), start + size - huge, MADV_HUGEPAGE);
  errno = error;

  auto* region = static_cast<Region*>(memory);
  region->size = size;
  region->taken.store(sizeof(Region), std::memory_order_relaxed);
  Region* first = nullptr;
  // Release: who finds the region finds its size. Acquire on failure: the same,
  // seen from the other side.
  if (g_region.compare_exchange_strong(first, region, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
    return region;
  munmap(memory, size);
  return first;
}

[[gnu::cold, gnu::noinline]] char* refuse() {
  const char* mark = environ == nullptr ? nullptr : std::getenv("BUMP_REFUSED");
  const int error = errno;
  const int file = mark == nullptr ? -1 : open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
  errno = error;
  return nullptr;
}

// `bytes` of memory that nobody has touched, at a cache line's start; null when there are no more.
char* take(std::size_t bytes) {
  // Pairs with the release in open_region
  Region* region = g_region.load(std::memory_order_acquire);
  if (region == nullptr) region = open_region();
  if (region == nullptr) return refuse();
  // Relaxed: a range belongs to the one who took it; nothing else is published by the count.
  std::size_t taken = region->taken.load(std::memory_order_relaxed);
  do {
    if (bytes > region->size - taken) return refuse();
  } while (!region->taken.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return reinterpret_cast<char*>(region) + taken;
}

// What a thread cuts blocks from. `next` is where the next block would start, its size word at next
// - 8; both are multiples of 16, next <= end.
struct Chunk {
  std::uintptr_t next;
  std::uintptr_t end;
  std::size_t size;  // of the last chunk taken; 0 before the first
};

constinit thread_local Chunk t_chunk = {0, 0, 0};

std::size_t& size_of(void* block) {
  return static_cast<std::size_t*>(block)[-1];
}

// Cuts a block at `at`, where it is known to fit.
inline void* cut(Chunk& chunk, std::uintptr_t at, std::size_t size) {
  void* block = reinterpret_cast<void*>(at);
  size_of(block) = size;
  chunk.next = round_up(at + size + sizeof(std::size_t), kAlignment);
  return block;
}

// Whether a block of `size` at `at`, a multiple of 16 that is at most chunk.end, ends in the chunk.
// (A block may end 8 bytes before the next one's start, where that one's size word stands.)
inline bool fits(const Chunk& chunk, std::uintptr_t at, std::size_t size) {
  return size < chunk.end - at && size + sizeof(std::size_t) <= chunk.end - at;
}

// A block from a new chunk, or from the reservation where it is larger than a quarter of one.
[[gnu::cold, gnu::noinline]] void* allocate_slow(std::size_t size, std::size_t alignment) {
  char* memory = nullptr;
  if (size <= kLargest && alignment <= kLargest / 4) {
    Chunk& chunk = t_chunk;
    const std::size_t next_size =
        chunk.size == 0 ? kFirstChunk : (chunk.size < kLastChunk ? chunk.size * 2 : kLastChunk);
    // For the size word and any misalignment
    const std::size_t room = size + alignment + kAlignment;
    if (room <= next_size / 4) {
      memory = take(next_size);
      if (memory != nullptr) {
        const auto start = reinterpret_cast<std::uintptr_t>(memory);
        chunk = Chunk{start + kAlignment, start + next_size, next_size};
        return cut(chunk, round_up(chunk.next, alignment), size);
      }
    } else {
      memory = take(round_up(room, kCacheLine));
    }
  }
  if (memory == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(memory) + sizeof(std::size_t);
  void* block = reinterpret_cast<void*>(round_up(start, alignment));
  size_of(block) = size;
  return block;
}

inline void* allocate(std::size_t size) {
  Chunk& chunk = t_chunk;
  if (!fits(chunk, chunk.next, size)) [[unlikely]]
    return allocate_slow(size, kAlignment);
  return cut(chunk, chunk.next, size);
}

// `alignment` is a power of two.
inline void* allocate_aligned(std::size_t alignment, std::size_t size) {
  if (alignment <= kAlignment) return allocate(size);
  Chunk& chunk = t_chunk;
  const std::uintptr_t at = round_up(chunk.next, alignment);
  if (at > chunk.end || !fits(chunk, at, size)) [[unlikely]]
    return allocate_slow(size, alignment);
  return cut(chunk, at, size);
}

constexpr bool is_power_of_two(std::size_t n) {
  return n != 0 && (n & (n - 1)) == 0;
}

void* refuse(int error) {
  errno = error;
  return nullptr;
}

inline void* or_throw(void* block) {
  if (block == nullptr) [[unlikely]] {
    if (&runtime_throw_bad_alloc != nullptr) runtime_throw_bad_alloc();
    std::abort();
  }
  return block;
}

}  // namespace

BUMP_EXPORT void* malloc(std::size_t size) {
  return allocate(size);
}

BUMP_EXPORT void free(void*) {}

// Memory of the reservation is zero until its one use.
BUMP_EXPORT void* calloc(std::size_t count, std::size_t size) {
  std::size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return refuse(ENOMEM);
  return allocate(bytes);
}

BUMP_EXPORT void* realloc(void* old, std::size_t size) {
  if (old == nullptr) return allocate(size);
  if (size == 0) return nullptr;
  const std::size_t old_size = size_of(old);
  if (size <= old_size) return old;
  void* block = allocate(size);
  if (block != nullptr) std::memcpy(block, old, old_size);
  return block;
}

BUMP_EXPORT void* reallocarray(void* old, std::size_t count, std::size_t size) {
  std::size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return refuse(ENOMEM);
  return realloc(old, bytes);
}

BUMP_EXPORT void* memalign(std::size_t alignment, std::size_t size) {
  return is_power_of_two(alignment) ? allocate_aligned(alignment, size) : refuse(EINVAL);
}

BUMP_EXPORT void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return memalign(alignment, size);
}

BUMP_EXPORT int posix_memalign(void** result, std::size_t alignment, std::size_t size) {
  if (!is_power_of_two(alignment) || alignment < sizeof(void*)) return EINVAL;
  const int error = errno;
  void* block = allocate_aligned(alignment, size);
  errno = error;
  if (block == nullptr) return ENOMEM;
  *result = block;
  return 0;
}

BUMP_EXPORT void* valloc(std::size_t size) {
  return allocate_aligned(static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), size);
}

BUMP_EXPORT void* pvalloc(std::size_t size) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size > kLargest ? refuse(ENOMEM) : allocate_aligned(page, round_up(size, page));
}

BUMP_EXPORT std::size_t malloc_usable_size(void* block) {
  return block == nullptr ? 0 : size_of(block);
}

#define BUMP_OPERATOR [[gnu::visibility("default")]] void

BUMP_OPERATOR* operator new(std::size_t n) {
  return or_throw(allocate(n));
}
BUMP_OPERATOR* operator new[](std::size_t n) {
  return or_throw(allocate(n));
}
BUMP_OPERATOR* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return allocate(n);
}
BUMP_OPERATOR* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return allocate(n);
}
BUMP_OPERATOR* operator new(std::size_t n, std::align_val_t a) {
  return or_throw(allocate_aligned(static_cast<std::size_t>(a), n));
}
BUMP_OPERATOR* operator new[](std::size_t n, std::align_val_t a) {
  return or_throw(allocate_aligned(static_cast<std::size_t>(a), n));
}
BUMP_OPERATOR* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_aligned(static_cast<std::size_t>(a), n);
}
BUMP_OPERATOR* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate_aligned(static_cast<std::size_t>(a), n);
}
BUMP_OPERATOR operator delete(void*) noexcept {}
BUMP_OPERATOR operator delete[](void*) noexcept {}
BUMP_OPERATOR operator delete(void*, std::size_t) noexcept {}
BUMP_OPERATOR operator delete[](void*, std::size_t) noexcept {}
BUMP_OPERATOR operator delete(void*, const std::nothrow_t&) noexcept {}
BUMP_OPERATOR operator delete[](void*, const std::nothrow_t&) noexcept {}
BUMP_OPERATOR operator delete(void*, std::align_val_t) noexcept {}
BUMP_OPERATOR operator delete[](void*, std::align_val_t) noexcept {}
BUMP_OPERATOR operator delete(void*, std::size_t, std::align_val_t) noexcept {}
BUMP_OPERATOR operator delete[](void*, std::size_t, std::align_val_t) noexcept {}
BUMP_OPERATOR operator delete(void*, std::align_val_t, const std::nothrow_t&) noexcept {}
BUMP_OPERATOR operator delete[](void*, std::align_val_t, const std::nothrow_t&) noexcept {}
