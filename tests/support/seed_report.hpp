// Says with which seed (random.hpp) a test has failed: in every program of
// which one file includes this.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "random.hpp"

namespace spanalloc::test {

class SeedReport : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& info) override {
    if (!info.result()->Failed()) return;
    std::printf("%s.%s drew from SPANALLOC_TEST_SEED=%llu\n", info.test_suite_name(), info.name(),
                static_cast<unsigned long long>(kSeed));
  }
};
inline const bool seed_is_reported =
    (testing::UnitTest::GetInstance()->listeners().Append(new SeedReport), true);

}  // namespace spanalloc::test
