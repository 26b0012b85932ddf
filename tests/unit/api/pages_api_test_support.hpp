// What the tests of the page manager's C interface share: memory to manage, and what
// a manager says of itself.
#pragma once

#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spanalloc::test {

inline constexpr std::size_t kUnit = 4096;

// A mapping for as long as the object lives.
class Mapping {
 public:
  Mapping(std::size_t bytes, int protection)
      : bytes_(bytes),
        start_(
            mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(start_, MAP_FAILED);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(start_, bytes_); }
  char* at(std::size_t offset) const { return static_cast<char*>(start_) + offset; }

 private:
  std::size_t bytes_;
  void* start_;
};

// The first address in the mapping that is a multiple of `alignment` and not of twice as much.
inline char* aligned_exactly(const Mapping& mapping, std::size_t alignment) {
  auto address = reinterpret_cast<std::uintptr_t>(mapping.at(0));
  address = (address + 2 * alignment - 1) / (2 * alignment) * (2 * alignment) + alignment;
  return mapping.at(address - reinterpret_cast<std::uintptr_t>(mapping.at(0)));
}

struct Seen {
  char* start;
  std::size_t bytes;
  sp_pages_state state;
  int zero;
};
inline std::vector<Seen> blocks_of(const sp_pages* pages) {
  std::vector<Seen> seen;
  const auto visit = [](const sp_pages_block* block, void* context) {
    static_cast<std::vector<Seen>*>(context)->push_back(
        {static_cast<char*>(block->start), block->bytes, block->state, block->zero});
  };
  EXPECT_EQ(sp_pages_walk(pages, visit, &seen), SP_PAGES_OK);
  return seen;
}
inline sp_pages_statistics stats_of(const sp_pages* pages) {
  sp_pages_statistics stats;
  EXPECT_EQ(sp_pages_stats(pages, &stats, sizeof stats), SP_PAGES_OK);
  return stats;
}

}  // namespace spanalloc::test
