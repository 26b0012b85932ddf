// One thread of ours beside the program's, where the user asks for it.
#pragma once

namespace spanalloc::thread {

/// Runs `body` in a thread that no signal is delivered to, that nobody joins and that a fork's
/// child does not have. False: there is no such thread to be had. May call malloc. Not while a lock
/// of libc's may be held under which it frees: in malloc, but not in free.
bool start_background(void (*body)());

}  // namespace spanalloc::thread
