#include "program_state.hpp"

#include <cstring>
#include <utility>

#include "report.hpp"

namespace spanalloc::simulation::program {

const Plan* plan = nullptr;
const Phase* phase = nullptr;
Thread threads[kMostThreads];
std::vector<Block> commons;
FirstClassHeap heaps[kMostHeaps];
std::map<std::uintptr_t, std::uintptr_t> live;
std::size_t live_bytes = 0;
std::uint64_t stamps = 0;
std::size_t vanished = 0;
std::size_t torn = 0;
std::uint64_t refusals_before = 0;
bool limit_is_set = false;
unsigned calls_in_flight = 0;
std::uint64_t calls_begun = 0;
std::uint64_t gifts_begun = 0;
bool any_misuse = false;
bool wants_threads = false;

// --- Contents ------------------------------------------------------------------------------------

static std::uint64_t word_of(std::uint64_t stamp, std::size_t offset) {
  return (stamp + offset) * 0x9E3779B97F4A7C15u ^ stamp;
}

// Which words of a block of so many bytes are stamped: all of a small one; of a large one its ends,
// and one each kilobyte.
constexpr std::size_t kAllStamped = 256;
constexpr std::size_t kEnd = 64;
constexpr std::size_t kStride = 1024;

template <class F>
void for_each_stamp(std::size_t bytes, F f) {
  if (bytes <= kAllStamped) {
    for (std::size_t at = 0; at + 8 <= bytes; at += 8) f(at, 8u);
    if (bytes % 8 != 0) f(bytes & ~std::size_t{7}, static_cast<unsigned>(bytes % 8));
    return;
  }
  for (std::size_t at = 0; at < kEnd; at += 8) f(at, 8u);
  for (std::size_t at = kStride; at + 8 <= bytes; at += kStride) f(at, 8u);
  const std::size_t end = (bytes - kEnd) & ~std::size_t{7};
  for (std::size_t at = end; at + 8 <= bytes; at += 8) f(at, 8u);
}

// The last word of what the program may use beside what it has asked for; false: there is none.
static bool has_tail(const Block& block) {
  return block.usable >= block.bytes + 8;
}
static std::uint64_t tail_of(const Block& block) {
  return word_of(block.stamp, block.usable);
}

void write_stamps(const Block& block) {
  if (has_tail(block)) {
    const std::uint64_t word = tail_of(block);
    std::memcpy(block.memory + block.usable - 8, &word, 8);
  }
  for_each_stamp(block.bytes, [&](std::size_t at, unsigned size) {
    const std::uint64_t word = word_of(block.stamp, at);
    std::memcpy(block.memory + at, &word, size);
  });
}

void check_stamps(const Block& block, const char* memory, std::size_t bytes) {
  for_each_stamp(block.bytes, [&](std::size_t at, unsigned size) {
    if (at + size > bytes) return;
    const std::uint64_t word = word_of(block.stamp, at);
    if (std::memcmp(memory + at, &word, size) == 0) return;
    std::uint64_t found = 0;
    std::memcpy(&found, memory + at, size);
    fail("contents lost: block %p of %zu bytes, at byte %zu: %llx, not %llx",
         static_cast<const void*>(memory), block.bytes, at, static_cast<unsigned long long>(found),
         static_cast<unsigned long long>(word));
  });
}
void check_stamps(const Block& block) {
  check_stamps(block, block.memory, block.bytes);
  const std::uint64_t word = tail_of(block);
  SIM_CHECK(!has_tail(block) || std::memcmp(block.memory + block.usable - 8, &word, 8) == 0,
            "contents lost: block %p of %zu bytes, in the last of its %zu usable ones",
            static_cast<void*>(block.memory), block.bytes, block.usable);
}

void check_zero(const char* memory, std::size_t bytes) {
  const auto check = [&](std::size_t at) {
    SIM_CHECK(memory[at] == 0, "calloc: byte %zu of %zu is not zero", at, bytes);
  };
  const std::size_t all = min_of(bytes, 4096);
  for (std::size_t at = 0; at < all; ++at) check(at);
  for (std::size_t at = all; at < bytes; at += 256) check(at);
  for (std::size_t at = bytes - min_of(bytes, 64); at < bytes; ++at) check(at);
}

// --- Live blocks ---------------------------------------------------------------------------------

void enter(const Block& block) {
  const std::uintptr_t begin = address_of(block.memory);
  const std::uintptr_t end = begin + max_of(block.usable, 1);
  const auto next = live.lower_bound(begin);
  if (next != live.end() && next->first < end)
    fail("block [%zx, %zx) overlaps the live block [%zx, %zx)", begin, end, next->first,
         next->second);
  if (next != live.begin() && std::prev(next)->second > begin)
    fail("block [%zx, %zx) overlaps the live block [%zx, %zx)", begin, end, std::prev(next)->first,
         std::prev(next)->second);
  live.emplace_hint(next, begin, end);
  live_bytes += block.bytes;
}

void check_store(const void* cell) {
  const std::uintptr_t at = address_of(cell);
  const auto next = live.upper_bound(at);
  if (next == live.begin() || std::prev(next)->second <= at) return;
  fail("the library writes to %p, in the live block [%zx, %zx)", cell, std::prev(next)->first,
       std::prev(next)->second);
}

void leave(const Block& block) {
  live.erase(address_of(block.memory));
  live_bytes -= block.bytes;
}

}  // namespace spanalloc::simulation::program
