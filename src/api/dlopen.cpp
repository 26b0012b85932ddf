// A dlopen that takes RTLD_DEEPBIND away and goes on in libc's. A library loaded with that
// flag looks among what it needs itself before it looks in the program: it calls libc's
// malloc and free, on blocks of ours, and the program calls ours on libc's blocks. Debian's
// PHP loads its extensions so.
//
// The flag stays where malloc is not ours (this library may itself have been loaded by dlopen), and
// where SPANALLOC_DEEPBIND=keep asks for it.
//
// In the shared libraries only. libc.a has a dlopen of its own, which a static program would have
// twice, and whose place nobody could look up.
#include "api/dlopen.hpp"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"

// Before glibc 2.34 they are in a library that a program which loads nothing does not have.
#pragma weak dlsym
#pragma weak dlclose

namespace spanalloc {
namespace {

using Dlopen = void* (*)(const char*, int);

void* open_nothing(const char*, int) noexcept {
  return nullptr;
}

// libc's, the next one after ours.
Dlopen next_dlopen() noexcept {
  static constinit Atomic<Dlopen> known{nullptr};  // any thread finds the same: no ordering needed
  Dlopen next = known.load_relaxed();
  if (next == nullptr && &dlsym != nullptr) {
    next = reinterpret_cast<Dlopen>(dlsym(RTLD_NEXT, "dlopen"));
    known.store_relaxed(next);
  }
  return next != nullptr ? next : &open_nothing;
}

enum class Malloc : int { kUnknown, kOurs, kForeign };

// A call tells whose malloc the program has. Its address does not: in a program at a fixed address
// it may be that of the program's own jump to ours.
Malloc ask_whose_malloc() noexcept {
  void* program = next_dlopen()(nullptr, RTLD_LAZY);
  if (program == nullptr) return Malloc::kForeign;
  auto* allocate = reinterpret_cast<void* (*)(std::size_t)>(dlsym(program, "malloc"));
  auto* release = reinterpret_cast<void (*)(void*)>(dlsym(program, "free"));
  dlclose(program);
  if (allocate == nullptr || release == nullptr) return Malloc::kForeign;
  void* block = allocate(1);
  if (block == nullptr) return Malloc::kUnknown;  // memory is out: asked again next time
  const bool ours = library_owns(block);
  release(block);
  return ours ? Malloc::kOurs : Malloc::kForeign;
}

bool malloc_is_ours() noexcept {
  static constinit Atomic<Malloc> known{Malloc::kUnknown};  // as above
  Malloc whose = known.load_relaxed();
  if (whose == Malloc::kUnknown) {
    whose = ask_whose_malloc();
    known.store_relaxed(whose);
  }
  return whose == Malloc::kOurs;
}

bool read_keep_option() noexcept {
  const char* text = os::option("DEEPBIND");
  if (text == nullptr) return false;
  if (strcmp(text, "keep") == 0) return true;
  char line[128];
  const int n =
      snprintf(line, sizeof line, "spanalloc: ignored SPANALLOC_DEEPBIND=%.64s: want keep\n", text);
  if (n > 0) os::write_text(2, line, min_of(static_cast<std::size_t>(n), sizeof line - 1));
  return false;
}

// Asked when the flag is first seen: reading the option at the start would cost
// every program some pages.
bool deep_binding_is_kept() noexcept {
  static constinit Atomic<int> known{0};  // as above
  if (known.load_relaxed() == 0) known.store_relaxed(read_keep_option() ? 2 : 1);
  return known.load_relaxed() == 2;
}

}  // namespace

/// Where dlopen goes on, and with which flags. Two registers.
struct DlopenRoute {
  Dlopen next;
  long flags;
};

extern "C" [[gnu::visibility("hidden")]] DlopenRoute spanalloc_route_dlopen(int flags) noexcept {
  os::ErrnoGuard keep;
  if ((flags & RTLD_DEEPBIND) != 0 && !deep_binding_is_kept() && malloc_is_ours())
    flags &= ~RTLD_DEEPBIND;
  return {next_dlopen(), flags};
}

}  // namespace spanalloc

// A jump, not a call: libc's dlopen looks at its return address to find the caller, whose RUNPATH
// and namespace count.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlopen
    .type dlopen, %function
    .p2align 4
dlopen:
    .cfi_startproc
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    movl %esi, %edi
    call spanalloc_route_dlopen
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movl %edx, %esi
    jmpq *%rax
    .cfi_endproc
    .size dlopen, . - dlopen
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlopen
    .type dlopen, %function
    .p2align 4
dlopen:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    mov x29, sp
    str x0, [sp, #16]
    mov w0, w1
    bl spanalloc_route_dlopen
    mov x16, x0
    ldr x0, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size dlopen, . - dlopen
)");
#else
#error "dlopen is written for x86-64 and AArch64"
#endif
