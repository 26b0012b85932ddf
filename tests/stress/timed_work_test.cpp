// A thread's work on its own spans, due at each look at the clock: under a program that replaces
// blocks at random, while another thread frees into the same spans. The assertions say that the
// work begins with nothing in hand.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "owned_heap.hpp"
#include "stress_support.hpp"

namespace spanalloc {
namespace {

/// Each look at the clock ends a round, and asks for another one soon.
struct RoundsAlways : Standard {
  static constexpr const char* kName = "standard-rounds-always";
  static constexpr std::uint64_t kRoundOfCurrentMs = 0;
  static constexpr std::uint64_t kSeldomMs = 0;
};

struct Block {
  unsigned char* memory = nullptr;
  std::size_t size = 0;
};

class TimedWorkStress : public testing::Test {
 protected:
  // Its first and last byte say who has the block.
  Block make(std::size_t size, unsigned char mark) {
    auto* const p = static_cast<unsigned char*>(own_.allocate(size));
    p[0] = p[size - 1] = mark;
    return {p, size};
  }
  void end(const Block& block, unsigned char mark) {
    ASSERT_EQ(block.memory[0], mark);
    ASSERT_EQ(block.memory[block.size - 1], mark);
    own_.deallocate(block.memory);
  }

  test::OwnedHeap<RoundsAlways> own_;
};

TEST_F(TimedWorkStress, SharesNoSpanThatItsThreadHasInHand) {
  stress::Random random{test::kSeed};
  constexpr std::size_t kSizes[] = {48, 600, 1200, 2048, 5000, 9000, 32768, 100000};
  constexpr unsigned char kMark = 0x5a;
  std::vector<Block> blocks(600);
  const auto draw = [&] {
    const std::size_t most = kSizes[random.next() % std::size(kSizes)];
    return 1 + most - random.next() % (most / 8 + 1);
  };
  for (Block& block : blocks) block = make(draw(), kMark);
  for (unsigned phase = 0; phase < stress::scaled(400); ++phase) {
    // One size after the other, at random: so each has ready spans in turn, and loses them.
    const std::size_t size = kSizes[random.next() % std::size(kSizes)];
    for (unsigned i = 0; i < 2000; ++i) {
      Block& block = blocks[random.next() % blocks.size()];
      end(block, kMark);
      block = make(random.next() % 4 == 0 ? draw() : size, kMark);
    }
    // Another thread frees a part, by which away spans of this one become empty.
    std::thread([&] {
      for (std::size_t i = phase % 3; i < blocks.size(); i += 3) end(blocks[i], kMark);
    }).join();
    for (std::size_t i = phase % 3; i < blocks.size(); i += 3) blocks[i] = make(size, kMark);
  }
  for (const Block& block : blocks) end(block, kMark);
}

}  // namespace
}  // namespace spanalloc
