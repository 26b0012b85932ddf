// A peak of memory, and what is left of it when the program rests. Source: beyond the papers.
//
// `mib` MiB are allocated in blocks of `size` bytes, one word in every page of them written (and
// the first of each). Then all are freed, in the order of allocation, but for one in `keep` (0:
// none is kept). The program rests for `rest-ms` milliseconds:
//   sleep    nothing runs
//   passing  every 5 ms it allocates and frees a block of each size from 32 bytes to 64 KiB
// and, with `trim` 1, calls malloc_trim(0). At last it allocates `again-mib` MiB in blocks of
// `again-size` bytes, every page written, in what memory there is. Metrics, each (RSS + page
// tables, less what the process had before the first block and less this program's own tables):
//   peak_mib        when all stand
//   freed_mib       when all but those kept are freed
//   rested_mib      after the rest
//   trimmed_mib     after malloc_trim
//   again_over_live when the second lot stands, over all live bytes
//   rested_over_live  where something is kept
// An operation is one malloc with its free of the first lot; what is timed is
// its allocation and freeing.
#include <malloc.h>

#include "support/mapped_array.hpp"
#include "support/resident.hpp"
#include "support/workload.hpp"

namespace {

using workload::mib;

constexpr std::size_t kPageSize = 4096;

enum Rest : std::size_t { kSleep, kPassing };

// `id` tells the words of a block from those of every other one.
std::uint64_t word_of(std::uint64_t id, std::size_t place) {
  return (id + 1) * 0x9e3779b97f4a7c15u + place;
}

unsigned char* allocate(std::size_t size, std::uint64_t id) {
  auto* block = static_cast<unsigned char*>(std::malloc(size));
  workload::check(block != nullptr, "peak_and_rest: malloc returned null");
  for (std::size_t place = 0; place + sizeof(std::uint64_t) <= size; place += kPageSize) {
    const std::uint64_t word = word_of(id, place);
    __builtin_memcpy(block + place, &word, sizeof word);
  }
  return block;
}

void drop(unsigned char* block, std::size_t size, std::uint64_t id) {
  for (std::size_t place = 0; place + sizeof(std::uint64_t) <= size; place += kPageSize) {
    std::uint64_t word;
    __builtin_memcpy(&word, block + place, sizeof word);
    workload::check(word == word_of(id, place), "peak_and_rest: a block was overwritten");
  }
  std::free(block);
}

void rest(Rest how, std::uint64_t ms) {
  if (how == kSleep) return workload::sleep_ms(ms);
  for (std::uint64_t i = 0; i < ms / 5; ++i) {
    workload::sleep_ms(5);
    for (std::size_t size = 32; size <= 65536; size *= 2) drop(allocate(size, size), size, size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "peak_and_rest", "beyond the papers",
                            "a peak of memory, and what is left of it at rest");
  const auto bytes = options.integer("mib", 256, 1, 1u << 20, "MiB of the peak") << 20;
  const auto size =
      options.integer("size", 4096, 8, std::uint64_t{1} << 36, "bytes of a block of the peak");
  const auto keep = options.integer("keep", 16, 0, 1u << 30, "one in so many is kept; 0: none");
  const auto how = static_cast<Rest>(
      options.choice("rest", {"sleep", "passing"}, "what the program does at rest"));
  const auto rest_ms = options.integer("rest-ms", 1000, 0, 100000, "milliseconds of rest");
  const bool trim = options.integer("trim", 0, 0, 1, "1: malloc_trim(0) after the rest") != 0;
  const auto again_bytes =
      options.integer("again-mib", 0, 0, 1u << 20, "MiB allocated after the rest") << 20;
  const auto again_size =
      options.integer("again-size", 70000, 8, std::uint64_t{1} << 36, "bytes of a block of these");
  options.done();

  const std::size_t count = (bytes + size - 1) / size;
  const std::size_t again = (again_bytes + again_size - 1) / again_size;
  workload::MappedArray<unsigned char*> blocks(count), more(again);
  const std::int64_t before = workload::resident_beyond_tables();

  std::uint64_t begin = workload::now_ns();
  for (std::size_t i = 0; i < count; ++i) blocks[i] = allocate(size, i);
  std::uint64_t elapsed = workload::now_ns() - begin;
  const std::int64_t peak = workload::resident_beyond_tables() - before;
  std::size_t kept = 0;
  begin = workload::now_ns();
  for (std::size_t i = 0; i < count; ++i) {
    if (keep != 0 && i % keep == 0) {
      blocks[kept++] = blocks[i];
    } else {
      drop(blocks[i], size, i);
    }
  }
  elapsed += workload::now_ns() - begin;
  const std::int64_t freed = workload::resident_beyond_tables() - before;
  rest(how, rest_ms);
  const std::int64_t rested = workload::resident_beyond_tables() - before;
  if (trim) malloc_trim(0);
  const std::int64_t trimmed = workload::resident_beyond_tables() - before;
  for (std::size_t i = 0; i < again; ++i) more[i] = allocate(again_size, i);
  const std::int64_t full = workload::resident_beyond_tables() - before;
  for (std::size_t i = 0; i < again; ++i) drop(more[i], again_size, i);
  for (std::size_t i = 0; i < kept; ++i) drop(blocks[i], size, i * keep);

  workload::Record record(options, 1);
  record.metric("peak_mib", mib(peak));
  record.metric("freed_mib", mib(freed));
  record.metric("rested_mib", mib(rested));
  if (trim) record.metric("trimmed_mib", mib(trimmed));
  const auto live = static_cast<double>(kept * size);
  if (kept != 0) record.metric("rested_over_live", static_cast<double>(rested) / live);
  if (again != 0)
    record.metric("again_over_live",
                  static_cast<double>(full) / (live + static_cast<double>(again * again_size)));
  record.print(count, elapsed, count * size);
}
