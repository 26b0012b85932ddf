// The functions that the kernel maps into every process: to call one is no system call, and no
// other library can stand in its place.
#pragma once

namespace spanalloc::os {

/// The function of this name in a shared object that has been mapped as its program headers say;
/// nullptr: there is none, or this is no such object. Neither allocates nor calls anything.
const void* function_in(const void* image, const char* name);

/// The same in what the kernel has mapped; nullptr where it has mapped nothing (some
/// emulators and sandboxes).
const void* vdso_function(const char* name);

}  // namespace spanalloc::os
