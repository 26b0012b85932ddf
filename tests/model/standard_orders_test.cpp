// What the standard engine's memory orders are for: each is weakened alone, and some scene finds it
// (README.md has the table). The scenes hold as they are.
#include "standard_faults.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// --- Scenes --------------------------------------------------------------------------------------

// The owner and another thread free the last blocks of an away span, and use them again.
struct LastFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  LastFrees() {
    start_away(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    free(p[self]);
    malloc(kTwo);
    malloc(kTwo);
  }
  void at_rest() { check(); }
};
// Others free an away span's blocks; the last of them claims it, and allocates from it.
struct Claimed : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  Claimed() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[0]);
      free(p[1]);
      malloc(kTwo);
    }
  }
  void at_rest() { check(); }
};
// It has the span and another one away then, while the span is in the former owner's queue still.
// All are nobody's when both have ended.
struct ClaimedAndLeft : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  ClaimedAndLeft() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[0]);
      free(p[1]);
      for (int i = 0; i < 5; ++i) malloc(kTwo);
    }
  }
  void at_rest() {
    start_ended(0);
    start_ended(1);
    MODEL_CHECK(walk().owned == 0);
  }
};
// Another thread frees into a full owned span; the owner allocates what it has freed.
struct FreedToOwner : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  FreedToOwner() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) return free(p[0]);
    malloc(kTwo);
  }
  void at_rest() { check(); }
};
// A large block's memory goes from thread to thread through a cached large span.
struct LargePassedOn : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  LargePassedOn() {
    start_with(0, kOne, p);
    start_attached(1);
    as(1, [&] { malloc(kOne); });
  }
  void thread(unsigned self) {
    if (self == 0) return free(p[0]);
    take_large_spans();
    malloc(kOne);
  }
  void at_rest() { check(); }
};
// One thread leaves partial spans to nobody, another one adopts them.
struct Adoption : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  Adoption() {
    start_with(0, kFour, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free(p[0]);
      end();
    } else {
      malloc(kFour);
      malloc(kFour);
    }
  }
  void at_rest() { check(); }
};

// A span goes from thread to thread through the pool.
struct PoolPassesOn : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  PoolPassesOn() {
    start_with(0, kTwo, p);
    start_given_up(0);
    start_attached(1);
    start_freed(kHelper, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) return free(p[1]);
    malloc(kTwo);
  }
  void at_rest() { check(); }
};

TEST(StandardOrders, ScenesHold) {
  EXPECT_HOLDS_EVERYWHERE(PoolPassesOn, 2, 2);
  EXPECT_HOLDS_EVERYWHERE(LastFrees, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(Claimed, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(ClaimedAndLeft, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(FreedToOwner, 2, 2);
  EXPECT_HOLDS_EVERYWHERE(LargePassedOn, 2, 2);
  EXPECT_HOLDS_EVERYWHERE(Adoption, 2, 1);
}

// Preemptions by one suffice.
template <class World>
void expect_found_by(const char* name) {
  Result result;
  for (const MemoryModel memory : {MemoryModel::pso, MemoryModel::views}) {
    result = explore<World>({.memory = memory, .preemptions = 1, .max_steps = 20'000});
    if (result.failed) return;
  }
  ADD_FAILURE() << name << " found nothing";
}
#define EXPECT_FOUND_BY(Scene, place, weakened) \
  expect_found_by<With<Scene, place, weakened>>(#place ", " #weakened ", by " #Scene)

TEST(StandardOrders, EachIsNeeded) {
  EXPECT_FOUND_BY(LastFrees, kWord, without_release);
  EXPECT_FOUND_BY(FreedToOwner, kWord, without_release);
  EXPECT_FOUND_BY(LargePassedOn, kWord, without_release);
  EXPECT_FOUND_BY(LastFrees, kWord, without_acquire);
  EXPECT_FOUND_BY(FreedToOwner, kWord, without_acquire);
  EXPECT_FOUND_BY(LargePassedOn, kWord, without_acquire);
  EXPECT_FOUND_BY(PoolPassesOn, kPool, without_release);
  EXPECT_FOUND_BY(PoolPassesOn, kPool, without_acquire);
}

}  // namespace
}  // namespace spanalloc::model
