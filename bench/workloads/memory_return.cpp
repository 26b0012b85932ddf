// Memory that an allocator returns once most of a heap is freed, for a sampler that reads it from
// outside (spanalloc_bench/memory_return.py). Source: beyond the papers.
//
// The program allocates `blocks` blocks of `size` bytes, writes each of them whole, and prints the
// line "full". One byte on its standard input lets it go on: it frees the blocks in the order of
// allocation, but for one in `keep` (0: none is kept). From then on it works:
//   small  each millisecond it allocates, writes and frees one block of 16 to 3,015 bytes
//   none   it sleeps
// until its standard input ends. At last it checks the blocks that it has kept.
//
// The blocks are a list by their own first words, so that no memory but theirs is resident.
#include <poll.h>

#include "support/workload.hpp"

namespace {

struct Block {
  Block* next;
  std::uint64_t number;
};

Block* allocate(std::size_t size, std::uint64_t number) {
  auto* block = static_cast<Block*>(std::malloc(size));
  workload::check(block != nullptr, "memory_return: malloc returned null");
  std::memset(block, 1, size);
  *block = {nullptr, number};
  return block;
}

// Frees the blocks of the list but for one in `keep`; the list of those that are kept.
Block* free_most(Block* list, std::uint64_t keep) {
  Block* kept = nullptr;
  Block** last = &kept;
  for (std::uint64_t number = 0; list != nullptr; ++number) {
    Block* block = list;
    list = block->next;
    workload::check(block->number == number, "memory_return: a block was overwritten");
    if (keep != 0 && number % keep == 0) {
      block->next = nullptr;
      *last = block;
      last = &block->next;
    } else {
      std::free(block);
    }
  }
  return kept;
}

// Whether the standard input has ended within the milliseconds; -1: however long that takes.
bool ends_within(int milliseconds) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, milliseconds) > 0;
}

void work_until_end() {
  workload::Random random(1);
  while (!ends_within(1)) {
    const std::size_t size = 16 + random.below(3000);
    std::free(allocate(size, 0));
  }
}

void check_kept(const Block* list, std::uint64_t keep) {
  for (std::uint64_t number = 0; list != nullptr; list = list->next, number += keep)
    workload::check(list->number == number, "memory_return: a kept block was overwritten");
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "memory_return", "beyond the papers",
                            "memory that comes back once most of a heap is freed");
  const auto blocks =
      options.integer("blocks", 200'000, 1, std::uint64_t{1} << 32, "blocks that are allocated");
  const auto size =
      options.integer("size", 1000, sizeof(Block), std::uint64_t{1} << 32, "bytes of a block");
  const auto keep = options.integer("keep", 64, 0, 1u << 30, "one in so many is kept; 0: none");
  const bool works =
      options.choice("work", {"small", "none"}, "what the program does afterwards") == 0;
  options.done();

  Block* list = nullptr;
  Block** last = &list;
  for (std::uint64_t number = 0; number < blocks; ++number) {
    *last = allocate(size, number);
    last = &(*last)->next;
  }
  char go;
  if (write(STDOUT_FILENO, "full\n", 5) != 5 || read(STDIN_FILENO, &go, 1) != 1) return 0;
  Block* kept = free_most(list, keep);
  if (works)
    work_until_end();
  else
    ends_within(-1);
  check_kept(kept, keep);
  return 0;
}
