// What the control groups (cgroups(7)) that the process is in leave it of memory and of processor
// time. Versions 1 and 2, and both at once; a group's limit holds for those below it, so that all
// up to the mount point are asked.
//
// Each call opens files, which libc's malloc does not: before main, or by an option.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::os {

/// Of those groups that have a limit the one that is nearest to it.
struct MemoryGroup {
  /// Bytes that all its processes together may have; SIZE_MAX: no group has a limit. (Version 2:
  /// the lower one of memory.max and memory.high.)
  std::size_t limit = SIZE_MAX;
  /// What they have, but for pages of files that nobody has used of late: these the kernel takes
  /// first.
  std::size_t used = 0;

  std::size_t room() const { return limit - (used < limit ? used : limit); }
  /// Which part of its limit a group keeps free before it counts as nearly full: 1/8.
  std::size_t margin() const { return limit / 8; }
};

/// False: there is no group, or it cannot be read; `out` is as it was. `root` is where /proc is,
/// and what it says is mounted: tests make a tree of their own.
bool read_memory_group(MemoryGroup& out, const char* root = "");

/// For how many CPUs' time the groups' quotas are enough, rounded up; 0: there is none, or it
/// cannot be read.
unsigned cpu_quota(const char* root = "");

}  // namespace spanalloc::os
