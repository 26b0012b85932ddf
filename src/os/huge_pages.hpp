// What the kernel does with huge pages by itself.
#pragma once

namespace spanalloc::os {

/// Whether it makes them where nobody has asked for them, so that a first touch brings pages into
/// memory beside it. True where that cannot be read. Opens a file, which libc's malloc does not: by
/// an option. `root` is where /sys is: tests make a tree of their own.
bool makes_huge_pages_unasked(const char* root = "");

}  // namespace spanalloc::os
