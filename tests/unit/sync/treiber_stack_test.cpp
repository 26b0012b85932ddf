// The stack on real threads; every interleaving of few operations is the model's affair.
#include "sync/treiber_stack.hpp"
#include "threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace spanalloc {
namespace {

class Elements {
 public:
  explicit Elements(std::uint32_t count) : links_(count + 1) {}
  Atomic<std::uint32_t>& operator()(std::uint32_t n) { return links_[n]; }

 private:
  std::vector<Atomic<std::uint32_t>> links_;
};

TEST(TreiberStack, LastInFirstOut) {
  Elements links(3);
  TreiberStack stack;
  EXPECT_EQ(stack.pop(links), 0u);
  for (const std::uint32_t n : {1u, 2u, 3u}) stack.push(n, links);
  for (const std::uint32_t n : {3u, 2u, 1u}) EXPECT_EQ(stack.pop(links), n);
  EXPECT_EQ(stack.pop(links), 0u);
}

TEST(TreiberStack, ChainsGoInAndOutInOneStep) {
  Elements links(3);
  TreiberStack stack;
  EXPECT_EQ(stack.take_all(), 0u);
  stack.push(1, links);
  links(3).store_relaxed(2);
  stack.push_chain(3, 2, links);
  std::vector<std::uint32_t> chain;
  for (std::uint32_t n = stack.take_all(); n != 0; n = links(n).load_relaxed()) chain.push_back(n);
  EXPECT_EQ(chain, (std::vector<std::uint32_t>{3, 2, 1}));
  EXPECT_EQ(stack.take_all(), 0u);
}

// Who pops an element has it alone: few elements, so that each comes back again and again.
TEST(TreiberStack, GivesEachElementToOneThread) {
  constexpr std::uint32_t kElements = 5;
  Elements links(kElements);
  TreiberStack stack;
  for (std::uint32_t n = 1; n <= kElements; ++n) stack.push(n, links);
  std::vector<int> uses(kElements + 1);  // not atomic: guarded by having the element
  std::atomic<int> pops{0};
  test::in_threads(4, [&](unsigned) {
    for (int i = 0; i < 20'000; ++i) {
      const std::uint32_t n = stack.pop(links);
      if (n == 0) continue;
      ++uses[n];
      ++pops;
      stack.push(n, links);
    }
  });
  int used = 0;
  for (std::uint32_t n = 1; n <= kElements; ++n) {
    EXPECT_NE(stack.pop(links), 0u) << "none is lost";
    used += uses[n];
  }
  EXPECT_EQ(stack.pop(links), 0u) << "none is there twice";
  EXPECT_EQ(used, pops);
}

}  // namespace
}  // namespace spanalloc
