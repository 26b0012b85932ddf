// The standard engine when a fork leaves its threads behind, at any step of any of them: in malloc,
// in free, at their end. The child runs what it runs in the library
// (fork_recovery.hpp), frees all that is out, and trims.
//
// Then every span is free, but those that vanished threads were working on. A block that such a
// thread had in its hands is in no place, and the span counts it as out; a block that the thread
// had put on its own list and not counted yet is out by the word as well, until a thread adopts the
// span and counts anew.
#include "standard_faults.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// The most that any child of a scene has when all is freed: what its vanished threads had in hand.
struct Left {
  unsigned lost = 0;        // owned spans whose lists are damaged
  unsigned single = 0;      // spans of one block whose block is out
  unsigned missing = 2;     // blocks in no place: one a thread, a list that it was taking, a batch
  unsigned just_freed = 1;  // blocks that are on a list, and not counted yet
};

// The child's own thread is the helper.
template <class Scene, Left kMost = Left{}>
struct Forked : Scene {
  using Config = typename Scene::Config;

  void at_rest() {
    Scene::as(Scene::kHelper, [&] {
      SpinLock::enter_child();
      enter_child();
      this->believe_what_was_shown();
      this->free_all();
      this->end();
      this->trim();
    });
    check_child();
  }
  void enter_child() { standard::ForkRecovery<Config>::enter_child(&this->pages()); }

 private:
  void check_child() {
    const test::HeapWalk walk = this->walk();
    MODEL_CHECK(walk.broken == 0);
    MODEL_CHECK(walk.in_pool == 0 && walk.owned == 0 && walk.owned_empty == 0);
    MODEL_CHECK(walk.lost <= kMost.lost && walk.single <= kMost.single);
    MODEL_CHECK(walk.lost == this->heap().lost_to_fork.load_relaxed());
    std::uint32_t missing = 0;
    std::uint32_t just_freed = 0;
    this->pages().arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const auto span = this->pages().span(standard::SpanNumber{number});
      if (free || span->is_withdrawn() || Scene::Classes::has_one_block(span->class_id())) return;
      const std::uint32_t out = span->load_word().outstanding();
      const std::uint32_t blocks = this->blocks_missing(span);
      MODEL_CHECK(out != 0 && out >= blocks);
      missing += blocks;
      just_freed += out - blocks;
    });
    MODEL_CHECK(missing <= kMost.missing && just_freed <= kMost.just_freed);
  }
};

// The owner and another thread free the last blocks of an away span.
struct LastFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  LastFrees() {
    start_away(0, kThree, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 0) free(p[2]);
  }
};
// Threads without a cache do.
struct TwoRemoteFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  TwoRemoteFrees() { start_away(2, kTwo, p); }
  void thread(unsigned self) { free(p[self]); }
};
// A span goes away while others free into it.
struct GoesAway : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  GoesAway() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[0]);
      free(p[1]);
    }
  }
};
// The owner takes an away span back of which others free a block.
struct OwnerTakesBack : EarlyPartialWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  OwnerTakesBack() {
    start_with(0, kTwo, p);
    start_attached(1);
    start_freed(1, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[1]);
    }
  }
};
// It frees into an away span, which becomes current in the place of one with a free block; and what
// was ready is current again.
struct CurrentInTurn : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  CurrentInTurn() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) return free(p[0]);
    free(p[1]);
    malloc(kTwo);
    malloc(kTwo);
  }
};
// It gives its spans up.
struct GivesUp : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  GivesUp() {
    start_with(0, kFour, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return trim();
    free(p[0]);
  }
};
// The child's own thread has away spans, into which others free.
struct OfTheThreadThatForks : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[5];
  OfTheThreadThatForks() {
    start_with(kHelper, kTwo, p);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 1) free(p[2]);
  }
};
// A thread ends: with a current span, and one that it has given up,
struct EndsWithSpans : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  void* q[1];
  EndsWithSpans() {
    start_with(0, kTwo, p);
    start_given_up(0);
    start_with(0, kThree, q);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) free(p[0]);
    if (self == 0) return end();
    free(p[1]);
  }
};
// with two away spans,
struct EndsWithTwoAway : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[7];
  EndsWithTwoAway() {
    start_with(0, kThree, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    free(p[3]);
  }
};
// and with a batch, while the span's owner takes it back.
struct EndsWithBatch : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EndsWithBatch() {
    start_away(0, kFour, p);
    start_attached(1);
    start_freed(1, p[1]);
    start_freed(1, p[2]);
  }
  void thread(unsigned self) {
    if (self == 1) return end();
    free(p[0]);
    malloc(kFour);
  }
};
// One frees into a span that its thread has left uncounted, and another one holds it, as a purge
// does.
struct LeftIsCounted : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  LeftIsCounted() {
    start_with(kHelper, kFour, p);
    start_freed(kHelper, p[2]);
    start_ended(kHelper);
    for (unsigned self = 0; self < 2; ++self) start_attached(self);
  }
  void thread(unsigned self) {
    if (self == 1) return hold_abandoned(span_of(p[0]));
    free(p[0]);
    free(p[1]);
  }
};
// One adopts it, while the other frees into it.
struct LeftIsAdopted : LeftIsCounted {
  void thread(unsigned self) {
    if (self == 1) {
      malloc(kFour);
    } else {
      free(p[0]);
    }
  }
};
// A batch is filled, and flushed.
struct BatchIsFlushed : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  BatchIsFlushed() {
    start_away(0, kFour, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return free(p[0]);
    for (const unsigned i : {1u, 2u, 3u}) free(p[i]);
  }
};
// A thread that has no span is lent blocks, and gives them back at its end.
struct Lent : LendingWorld {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  Lent() {
    start_with(2, kFour, p);
    start_ended(2);
    start_attached(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    free(malloc(kFour));
    if (self == 1) end();
  }
};
struct Adoption : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  Adoption() {
    start_with(2, kThree, p);
    start_ended(2);
    start_attached(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kThree);
    } else {
      free(p[0]);
    }
  }
};
// A thread purges the pages of a span that it has given up, which the kernel refuses.
struct PurgeIsRefused : StandardWorld {
  static constexpr unsigned kThreads = 1;
  void* p[4];
  PurgeIsRefused() {
    start_with(0, kFour, p);
    for (const unsigned i : {0u, 1u, 2u}) start_freed(0, p[i]);
    refuse_purges();
  }
  void thread(unsigned) { trim(); }
};
// A cached large span is taken, and taken away.
struct CachedLarge : StandardWorld {
  static constexpr unsigned kThreads = 2;
  CachedLarge() {
    start_attached(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free(malloc(kOne));
    } else {
      take_large_spans();
    }
  }
};

// What must not be left out of the recovery: each of these children is found broken without it.
template <class Scene>
struct HandsAreForgotten : Forked<Scene> {
  void at_rest() {
    this->pages().caches.for_each([](auto& cache) { cache.inside.store_relaxed(0); });
    this->pages().inside_without_cache.store_relaxed(0);
    Forked<Scene>::at_rest();
  }
};

template <class World>
void expect_holds_when_forked(const char* name, unsigned preemptions, unsigned full) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso}) {
    if (!adds_something(memory)) continue;
    expect_holds<World>(name, {.memory = memory,
                               .preemptions = bound(preemptions, full),
                               .max_steps = 20'000,
                               .forks = true,
                               .one_late = true});
  }
}
template <class World>
void expect_holds_when_forked(const char* name, unsigned preemptions) {
  expect_holds_when_forked<World>(name, preemptions, preemptions + 1);
}

TEST(StandardFork, SpansAreWhereTheyBelong) {
  expect_holds_when_forked<Forked<LastFrees>>("LastFrees", 1);
  expect_holds_when_forked<Forked<TwoRemoteFrees, Left{.just_freed = 0}>>("TwoRemoteFrees", 1);
  expect_holds_when_forked<Forked<GoesAway>>("GoesAway", 1);
  expect_holds_when_forked<Forked<OwnerTakesBack>>("OwnerTakesBack", 1);
  expect_holds_when_forked<Forked<CurrentInTurn>>("CurrentInTurn", 1);
  expect_holds_when_forked<Forked<GivesUp>>("GivesUp", 1);
  expect_holds_when_forked<Forked<OfTheThreadThatForks>>("OfTheThreadThatForks", 1);
  expect_holds_when_forked<Forked<Adoption>>("Adoption", 1);
  expect_holds_when_forked<Forked<PurgeIsRefused>>("PurgeIsRefused", 0);
}
TEST(StandardFork, AtThreadsEnds) {
  expect_holds_when_forked<Forked<EndsWithSpans>>("EndsWithSpans", 1);
  expect_holds_when_forked<Forked<EndsWithTwoAway>>("EndsWithTwoAway", 1);
  expect_holds_when_forked<Forked<EndsWithBatch, Left{.missing = 4}>>("EndsWithBatch", 1);
}
TEST(StandardFork, WhatThreadsHaveLeft) {
  expect_holds_when_forked<Forked<LeftIsCounted>>("LeftIsCounted", 1);
  expect_holds_when_forked<Forked<LeftIsAdopted>>("LeftIsAdopted", 1);
}
TEST(StandardFork, WhatThreadsKeep) {
  expect_holds_when_forked<Forked<BatchIsFlushed, Left{.missing = 3}>>("BatchIsFlushed", 1);
  expect_holds_when_forked<Forked<Lent, Left{.missing = 4}>>("Lent", 1);
  expect_holds_when_forked<Forked<CachedLarge, Left{.single = 1, .missing = 0, .just_freed = 0}>>(
      "CachedLarge", 1);
}

TEST(StandardFork, EachPartOfTheRecoveryIsNeeded) {
  const Options options{.max_steps = 20'000, .forks = true, .one_late = true};
  expect_finds<HandsAreForgotten<TwoRemoteFrees>>("HandsAreForgotten<TwoRemoteFrees>", options, "");
}

// What stores release for a child alone, too.
template <class Scene, auto kPlace>
void expect_needs_release(const char* name) {
  const Options options{.memory = MemoryModel::pso,
                        .preemptions = 1,
                        .max_steps = 20'000,
                        .forks = true,
                        .one_late = true};
  expect_finds<With<Forked<Scene>, kPlace, without_release>>(name, options, "");
}
TEST(StandardFork, EachReleaseIsNeeded) {
  expect_needs_release<BatchIsFlushed, kWord>("words");
  expect_needs_release<CurrentInTurn, kOwnersLine>("lists and counts");
  expect_needs_release<CachedLarge, kRecord>("cache records");
  expect_needs_release<PurgeIsRefused, kBlocks>("links of blocks that are purged");
}

}  // namespace
}  // namespace spanalloc::model
