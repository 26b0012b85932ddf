// The one file compiled with exceptions: a nothrow operator new must return null when the new
// handler throws, or a program's own operator new, so somebody has to catch. All it needs of the
// C++ runtime is referenced weakly. What throws exists only in a process that has a C++ runtime,
// and only then is any of it used.
#include "api/new_handler.hpp"

#include <dlfcn.h>

#include <new>

#include "base/compiler.hpp"
#include "os/os.hpp"

// What the compiler itself refers to for a catch clause in a noexcept function.
asm(".weak __gxx_personality_v0\n"
    ".weak __cxa_begin_catch\n"
    ".weak __cxa_end_catch\n"
    ".weak _Unwind_Resume\n"
    ".weak _ZSt9terminatev\n");

#pragma weak dlsym

namespace spanalloc {

// std::get_new_handler and std::__throw_bad_alloc under names of ours, so that their
// declarations can be weak.
[[gnu::weak, gnu::visibility("default")]] std::new_handler runtime_new_handler() noexcept
    asm("_ZSt15get_new_handlerv");
[[gnu::weak, gnu::visibility("default"), noreturn]] void runtime_throw_bad_alloc() asm(
    "_ZSt17__throw_bad_allocv");

namespace {

// Weak references are bound when this library is loaded. A C++ runtime that comes later, with a
// plug-in, is found by asking the loader. The loader's functions are not there in every statically
// linked program: dlsym is referenced weakly. dlopen is looked up by its name. A reference to it,
// weak or not, has the linker warn of every statically linked program.
void* late_symbol(const char* name) noexcept {
  if (&dlsym == nullptr) return nullptr;
  auto* const open = reinterpret_cast<decltype(&dlopen)>(dlsym(RTLD_DEFAULT, "dlopen"));
  if (open == nullptr) return nullptr;
  void* const runtime = open("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return runtime == nullptr ? nullptr : dlsym(runtime, name);
}

std::new_handler current_handler() noexcept {
  if (&runtime_new_handler != nullptr) return runtime_new_handler();
  void* late = late_symbol("_ZSt15get_new_handlerv");
  return late == nullptr ? nullptr : reinterpret_cast<std::new_handler (*)()>(late)();
}

}  // namespace

SPANALLOC_COLD void throw_bad_alloc() {
  if (&runtime_throw_bad_alloc != nullptr) runtime_throw_bad_alloc();
  if (void* late = late_symbol("_ZSt17__throw_bad_allocv"); late != nullptr) {
    reinterpret_cast<void (*)()>(late)();
  }
  os::fatal("out of memory in operator new, and no C++ runtime to throw bad_alloc");
}

SPANALLOC_COLD void call_new_handler_or_throw() {
  std::new_handler handler = current_handler();
  if (handler == nullptr) throw_bad_alloc();
  handler();
}

SPANALLOC_COLD bool call_new_handler_nothrow() noexcept {
  std::new_handler handler = current_handler();
  if (handler == nullptr) return false;
  try {
    handler();
  } catch (...) {
    return false;
  }
  return true;
}

namespace {

template <class Allocate>
void* null_if_it_throws(Allocate&& allocate) noexcept {
  try {
    return allocate();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

SPANALLOC_COLD void* call_new_nothrow(std::size_t n) noexcept {
  return null_if_it_throws([&] { return ::operator new(n); });
}
SPANALLOC_COLD void* call_new_nothrow(std::size_t n, std::align_val_t alignment) noexcept {
  return null_if_it_throws([&] { return ::operator new(n, alignment); });
}
SPANALLOC_COLD void* call_array_new_nothrow(std::size_t n) noexcept {
  return null_if_it_throws([&] { return ::operator new[](n); });
}
SPANALLOC_COLD void* call_array_new_nothrow(std::size_t n, std::align_val_t alignment) noexcept {
  return null_if_it_throws([&] { return ::operator new[](n, alignment); });
}

}  // namespace spanalloc
