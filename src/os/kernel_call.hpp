// The functions of libc's that give memory, take it back or move it, and getauxval, as linux.cpp
// calls them: all go through here.
//
// They stay libc's, and are no system calls of our own, because other libraries put functions of
// theirs in their place: a cache of registered memory must hear what leaves the process, a tool
// what comes. Such a function may allocate and free. It does so in the middle of our own slow path,
// where the thread may hold locks of ours and its structures may be half changed. So the thread is
// marked while it is in there: its own short paths find nothing (hide_thread()), and what is left
// looks at the mark and is served by pages/nested_blocks.hpp, without a lock.
//
// Included by linux.cpp alone, in whose namespace these names come before libc's.
#pragma once

#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cstddef>

#include "os/os.hpp"

namespace spanalloc::os {

/// While it lives the calling thread is in a function that may be another library's.
class [[nodiscard]] KernelCall {
 public:
  KernelCall() {
    if (thread_mark_byte++ == 0 && &hide_thread != nullptr) hide_thread(hidden_);
  }
  ~KernelCall() {
    if (thread_mark_byte == 1 && &show_thread != nullptr) show_thread(hidden_);
    --thread_mark_byte;
  }
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

 private:
  HiddenThread hidden_;
};

inline void* mmap(void* hint, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  const KernelCall call;
  return ::mmap(hint, bytes, protection, flags, fd, offset);
}
inline int munmap(void* address, std::size_t bytes) {
  const KernelCall call;
  return ::munmap(address, bytes);
}
inline void* mremap(void* address, std::size_t old_bytes, std::size_t new_bytes, int flags) {
  const KernelCall call;
  return ::mremap(address, old_bytes, new_bytes, flags);
}
inline int mprotect(void* address, std::size_t bytes, int protection) {
  const KernelCall call;
  return ::mprotect(address, bytes, protection);
}
inline int madvise(void* address, std::size_t bytes, int advice) {
  const KernelCall call;
  return ::madvise(address, bytes, advice);
}
inline unsigned long getauxval(unsigned long type) {
  const KernelCall call;
  return ::getauxval(type);
}

}  // namespace spanalloc::os
