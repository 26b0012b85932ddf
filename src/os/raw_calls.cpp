// What must not go through a function that another library may have put in libc's place: memory for a thread
// that is in such a function already, and the pause of one that waits for a lock.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdint>

#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc::os {

namespace {

// By the instruction, as libc's syscall() may be another library's, too. Errors are small negative numbers.
long raw_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
#error "system calls are written for x86-64 and AArch64"
#endif
}

std::uintptr_t map_raw(std::size_t bytes) {
  const long p = raw_call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p < 0 ? 0 : static_cast<std::uintptr_t>(p);
}

void unmap_raw(std::uintptr_t address, std::size_t bytes) {
  if (bytes != 0) raw_call(SYS_munmap, static_cast<long>(address), static_cast<long>(bytes), 0, 0, 0, 0);
}

}  // namespace

void yield() {
  raw_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

void* map_unheard(std::size_t bytes, std::size_t alignment) {
  const std::size_t page = page_size();
  bytes = align_up(bytes, page);
  const std::size_t slack = alignment > page ? alignment - page : 0;
  if (bytes > SIZE_MAX / 4 || slack > SIZE_MAX / 4) return nullptr;
  const std::uintptr_t begin = map_raw(bytes + slack);
  if (begin == 0) return nullptr;
  const std::uintptr_t aligned = align_up(begin, max_of(alignment, page));
  unmap_raw(begin, aligned - begin);
  unmap_raw(aligned + bytes, begin + slack - aligned);
  return pointer_to(aligned);
}

}  // namespace spanalloc::os
