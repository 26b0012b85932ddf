// The record by which a reader outside of the process finds the heap (engines/inspection.hpp).
// Included once per library, after LibraryEngine is declared.
#pragma once

#include "base/compiler.hpp"
#include "engines/inspection.hpp"

// Addresses in it make it data that the loader writes and then protects. Nobody in the process
// reads it: `used` keeps it.
extern "C" {
[[gnu::visibility("default")]] extern constinit const spanalloc::Inspection spanalloc_inspection;
[[gnu::used]] constinit const spanalloc::Inspection spanalloc_inspection =
    spanalloc::inspection_of<spanalloc::LibraryEngine>(SPANALLOC_VERSION);
}
