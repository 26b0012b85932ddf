// The record by which a reader outside of the process finds the heap (engine/inspection.hpp), and
// an ELF note that leads to it. Included once per library, after LibraryEngine is declared.
#pragma once

#include "base/compiler.hpp"
#include "engine/inspection.hpp"

// Addresses in it make it data that the loader writes and then protects. Nobody in the process
// reads it: `used` keeps it. Two names: the note, which the linker fills in, can only be told how
// far away a name is that no other library may take.
[[gnu::used]] static constinit const spanalloc::Inspection inspection_record asm(
    "spanalloc_inspection_record") =
    spanalloc::inspection_of<spanalloc::LibraryEngine>(SPANALLOC_VERSION);
extern "C"
    [[gnu::visibility("default"),
      gnu::alias("spanalloc_inspection_record")]] const spanalloc::Inspection spanalloc_inspection;

// A static program that was stripped has no symbols. The note is memory of every program, whatever
// its symbols: owner "spanalloc"; type "1": malloc is this heap's, "2": only the names of
// spanalloc.h are; 8 bytes: how far from these the record is.
#define SPANALLOC_HEAP_NOTE(type)                    \
  asm(".pushsection .note.spanalloc, \"a\", %note\n" \
      ".balign 4\n"                                  \
      ".long 10, 8, " type                           \
      "\n"                                           \
      ".asciz \"spanalloc\"\n"                       \
      ".balign 4\n"                                  \
      ".quad spanalloc_inspection_record - .\n"      \
      ".popsection\n")
