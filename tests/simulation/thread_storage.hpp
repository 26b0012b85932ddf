// Each fibre's own thread-local variables.
//
// The engines' thread-local variables are `static inline thread_local`, and all fibres are one
// thread of the operating system. The simulation is compiled with Clang's -femulated-tls: then each
// access to a thread-local variable calls __emutls_get_address(), which libgcc defines elsewhere
// and thread_storage.cpp defines here. It returns the running fibre's variable. So nothing of the
// engine is copied or renamed, and a fibre's variables have an address of their own, as a thread's
// have.
#pragma once

namespace spanalloc::simulation {

/// A new thread's variables have their initial values. A later thread of the same number has them
/// at the same addresses, as where a C library uses a thread's stack again.
void begin_thread_storage(unsigned thread);
void end_thread_storage(unsigned thread);
/// Whose are found from now on.
void show_thread_storage(unsigned thread);

}  // namespace spanalloc::simulation
