// What of a process's address space there is, and what of it lies in memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <vector>

#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc::test {

/// Bytes of address space that the process has.
inline std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  EXPECT_GT(pages, 0u);
  return pages * os::page_size();
}

/// Pages of [p, p + bytes) that are in memory.
inline std::size_t resident_pages(const void* p, std::size_t bytes) {
  const std::size_t page = os::page_size();
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(mincore(pointer_to(align_down(address_of(p), page)), pages.size() * page, pages.data()),
            0);
  return static_cast<std::size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

}  // namespace spanalloc::test
