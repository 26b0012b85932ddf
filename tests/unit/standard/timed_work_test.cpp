// When a thread does its timed work, and that nothing keeps it from it for good.
#include "standard/timed_work.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "owned_heap.hpp"

namespace spanalloc {
namespace {

/// Each look at the clock ends a round; none comes late.
struct RoundsWithoutTime : Standard {
  static constexpr const char* kName = "standard-rounds-without-time";
  static constexpr std::uint64_t kRoundOfCurrentMs = 0;
  static constexpr std::uint64_t kSeldomMs = UINT64_MAX;
};
using Work = standard::TimedWork<RoundsWithoutTime>;

class StandardTimedWork : public testing::Test {
 protected:
  auto& thread() { return *own_.thread_cache(); }
  // What run() tells: it is to be run again.
  bool is_put_off() { return thread().cache->timed_work.run(thread()); }
  // As a jump, or the thread's end in a fork, leaves it
  void begin_and_never_end() { new (room_) Work::Working(thread()); }

  test::OwnedHeap<RoundsWithoutTime> own_;
  alignas(Work::Working) unsigned char room_[sizeof(Work::Working)];
};

TEST_F(StandardTimedWork, IsPutOffWithinItself) {
  own_.deallocate(own_.allocate(48));
  EXPECT_FALSE(is_put_off());
  {
    const auto working = thread().begin_work();
    EXPECT_TRUE(is_put_off());
  }
  EXPECT_FALSE(is_put_off());
}

TEST_F(StandardTimedWork, GoesOnAfterAReportThatWasLeftByAJump) {
  own_.deallocate(own_.allocate(48));
  begin_and_never_end();
  ASSERT_TRUE(is_put_off());
  standard::ForkRecovery<RoundsWithoutTime>::let_go(&own_.pages);
  EXPECT_FALSE(is_put_off());
}

TEST_F(StandardTimedWork, GoesOnInTheNextThreadOfARecord) {
  own_.deallocate(own_.allocate(48));
  thread().cache->owned.give_up_empty(thread());
  begin_and_never_end();
  ASSERT_TRUE(is_put_off());
  thread().cache->forget_thread();
  EXPECT_FALSE(is_put_off());
}

// Blocks of 4 KiB and more are carved alone, each by a miss.
TEST_F(StandardTimedWork, IsDueInAThreadThatOnlyCallsCalloc) {
  const auto c = standard::SizeClasses<RoundsWithoutTime>::of(48);
  own_.deallocate(own_.allocate(48));
  ASSERT_TRUE(static_cast<bool>(thread().current_span(c)));
  std::vector<void*> blocks(2000);
  for (void*& p : blocks) ASSERT_NE(p = own_.allocate_zeroed(8000), nullptr);
  EXPECT_FALSE(static_cast<bool>(thread().current_span(c))) << "rounds have ended";
  for (void* p : blocks) own_.deallocate(p);
}

}  // namespace
}  // namespace spanalloc
