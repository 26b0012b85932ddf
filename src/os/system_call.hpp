// System calls that go through no function of libc's. Another library may have put its own in the
// place of any function that is exported, `syscall` included; and what it does there may
// allocate. So what only asks, waits or tells goes to the kernel itself. (What gives memory,
// takes it back or moves it does go through libc: who keeps registrations of memory with a
// network card watches these functions.)
#pragma once

#include <sys/syscall.h>

namespace spanalloc::os {

/// The kernel's answer: an error is its number, negated. errno is not touched.
inline long system_call(long number, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
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
  asm volatile("svc #0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
#else
#error "how this machine calls its kernel stands here"
#endif
}

template <class T>
long argument(T* address) {
  return reinterpret_cast<long>(address);
}

}  // namespace spanalloc::os
