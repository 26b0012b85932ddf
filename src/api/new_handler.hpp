// The C++ runtime's out-of-memory protocol, reached without depending on a C++ runtime.
#pragma once

#include <cstddef>
#include <new>

namespace spanalloc {

/// Calls the new handler. Without one it throws std::bad_alloc; without a C++ runtime it prints and
/// aborts. The handler may throw through this function.
void call_new_handler_or_throw();

/// Throws std::bad_alloc; without a C++ runtime it prints and aborts.
[[noreturn]] void throw_bad_alloc();

/// Calls the new handler if there is one. False when there is none or when it
/// threw: then memory is out.
bool call_new_handler_nothrow() noexcept;

/// The process's own operator new, and new[]; nullptr when it throws.
void* call_new_nothrow(std::size_t n) noexcept;
void* call_new_nothrow(std::size_t n, std::align_val_t alignment) noexcept;
void* call_array_new_nothrow(std::size_t n) noexcept;
void* call_array_new_nothrow(std::size_t n, std::align_val_t alignment) noexcept;

}  // namespace spanalloc
