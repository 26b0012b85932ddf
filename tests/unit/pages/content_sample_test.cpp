// How much of a range a sample finds written.
#include "pages/content_sample.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "pages/page_calls.hpp"

namespace spanalloc {
namespace {

constexpr std::size_t kSlice = 64 * kKiB;
constexpr std::size_t kSlices = 128;

struct ContentSampleTest : testing::Test {
  std::size_t used(std::size_t enough = 256) {
    return sample.used(memory.get(), kSlices, kSlice, enough);
  }
  struct Unmap {
    void operator()(void* p) const { os::release(p, kSlices * kSlice); }
  };
  std::unique_ptr<void, Unmap> memory{os::map(kSlices * kSlice, kSlice)};
  ContentSample<PageCalls> sample;
};

TEST_F(ContentSampleTest, WhatWasNeverWrittenIsUnused) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(used(), 0u);
}

TEST_F(ContentSampleTest, WhatIsWrittenEverywhereIsUsed) {
  std::memset(memory.get(), 1, kSlices * kSlice);
  EXPECT_EQ(used(), 256u);
  EXPECT_EQ(used(16), 16u) << "no more than is asked for";
}

TEST_F(ContentSampleTest, AHalfIsSeenAsAHalf) {
  std::memset(memory.get(), 1, kSlices * kSlice / 2);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(used(), 128u) << "a look in each sixteenth";
}

}  // namespace
}  // namespace spanalloc
