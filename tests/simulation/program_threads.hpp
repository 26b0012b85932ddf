// What the simulated program's threads do, their starts and ends, and their signal handlers.
#pragma once

#include "program_state.hpp"

extern "C" char simulated_single_threaded;

namespace spanalloc::simulation::program {

/// A number that no thread has; kMostThreads: all are taken.
unsigned free_number();
void start_thread(unsigned number, unsigned operations);
void thread_body(unsigned self);
/// In a fork's child, and where threads have ended: what the others had is anybody's.
void inherit();
/// A handler that forks, as man 7 signal-safety allows, or one that allocates: a misuse.
void handle_signal();

void trim();
/// One operation with first-class heaps.
void use_heaps();
/// While all threads are idle: heaps show what the program has in them.
void check_heaps();

}  // namespace spanalloc::simulation::program
