// The C++ runtime's out-of-memory protocol, reached without depending on a C++ runtime.
#pragma once

namespace spanalloc {

/// Calls the new handler. Without one it throws std::bad_alloc; without a C++ runtime it prints and aborts.
/// The handler may throw through this function.
void call_new_handler_or_throw();

/// Throws std::bad_alloc; without a C++ runtime it prints and aborts.
[[noreturn]] void throw_bad_alloc();

/// Calls the new handler if there is one. False when there is none or when it threw: then memory is out.
bool call_new_handler_nothrow() noexcept;

}  // namespace spanalloc
