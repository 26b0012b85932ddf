// The shipped engines under stress.
#include <gtest/gtest.h>

#include "engines.hpp"
#include "oracle.hpp"
#include "scenarios.hpp"
#include "seed_report.hpp"

namespace spanalloc::test {
namespace {

template <class E>
class Stress : public EngineTest<E> {
 protected:
  static_assert(
      requires(E& engine) { census_of(engine); },
      "without a census nothing proves that no span was lost");

  void TearDown() override {
    EXPECT_EQ(report.errors(), 0u) << "first: " << report.first();
    std::printf("%zu operations\n", report.operations.load());
  }
  stress::Report report;
};
TYPED_TEST_SUITE(Stress, TestedEngines, EngineNames);

TYPED_TEST(Stress, ThreadPool) {
  stress::thread_pool<TypeParam>(6, 40000, stress::scaled(40), this->report);
}
TYPED_TEST(Stress, ManyThreadsOnFewCores) {
  stress::thread_pool<TypeParam>(64, 5000, stress::scaled(20), this->report);
}
TYPED_TEST(Stress, ProducersAndConsumers) {
  stress::producer_consumer<TypeParam>(stress::scaled(300'000), this->report);
}
TYPED_TEST(Stress, Larson) {
  stress::larson<TypeParam>(4, stress::scaled(200), this->report);
}
TYPED_TEST(Stress, EachThreadLeavesOne) {
  stress::each_leaves_one<TypeParam>(3000, this->report);
}
TYPED_TEST(Stress, RaceForLastBlock) {
  stress::race_for_last_block<TypeParam>(stress::scaled(400), this->report);
}
TYPED_TEST(Stress, ExitsRaceFrees) {
  stress::exits_race_frees<TypeParam>(stress::scaled(300), this->report);
}
TYPED_TEST(Stress, OracleOfRanges) {
  stress::oracle_of_ranges<TypeParam>(4, stress::scaled(350'000), this->report);
}

}  // namespace
}  // namespace spanalloc::test
