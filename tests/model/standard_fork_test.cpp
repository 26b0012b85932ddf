// The standard engine when a fork leaves its threads behind, at any step of any of them: in malloc,
// in free, at their end, under whatever lock. The child runs what it runs in the library
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
  unsigned lost = 0;        // owned spans that their threads were moving
  unsigned single = 0;      // spans of one block whose block is out
  unsigned missing = 2;     // blocks in no place: one a thread, a list that it was taking, a batch
  unsigned just_freed = 1;  // blocks that are on a list, and not counted yet
  bool comes_back = false;  // what was lost may have had no free block
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
      this->trim();
    });
    check_child();
  }
  void enter_child() { standard::ForkRecovery<Config>::enter_child(&this->pages()); }

 private:
  void check_child() {
    const test::HeapWalk walk = this->walk();
    MODEL_CHECK(walk.broken == 0 && walk.unnoticed == 0);
    MODEL_CHECK(walk.in_pool == 0 && walk.owned == 0 && walk.owned_empty == 0);
    MODEL_CHECK(walk.lost <= kMost.lost && walk.single <= kMost.single);
    // (One that had no free block comes back when all are freed.)
    const std::size_t lost = this->heap().lost_to_fork.load_relaxed();
    MODEL_CHECK(kMost.comes_back ? walk.lost <= lost : walk.lost == lost);
    std::uint32_t missing = 0;
    std::uint32_t just_freed = 0;
    this->pages().arena.walk([&](std::uint32_t number, std::size_t, bool free) {
      const auto span = this->pages().span(standard::SpanNumber{number});
      if (free || span->is_withdrawn() || Scene::Classes::has_one_block(span->class_id())) return;
      const std::uint32_t out = span->load_word().outstanding() - span->uncollected();
      const std::uint32_t blocks = this->blocks_missing(span);
      MODEL_CHECK(out != 0 && out >= blocks);
      missing += blocks;
      just_freed += out - blocks;
    });
    MODEL_CHECK(missing <= kMost.missing && just_freed <= kMost.just_freed);
    if constexpr (requires(const Scene& scene) { scene.most_in_hand(); }) {
      MODEL_CHECK(missing + just_freed <= this->most_in_hand());
    }
  }
};

// The owner and another thread free the last blocks of a shared span.
template <class World>
struct LastFrees : World {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  LastFrees() {
    this->start_with(0, World::kThree, p);
    this->start_shared(0);
    this->start_attached(1);
  }
  void thread(unsigned self) {
    this->free(p[self]);
    if (self == 0) this->free(p[2]);
  }
};
// Threads without a cache do.
struct TwoRemoteFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  TwoRemoteFrees() {
    start_with(2, kTwo, p);
    start_shared(2);
  }
  void thread(unsigned self) { free(p[self]); }
};
// The oldest used-up span is shared while others free into it.
struct UsedUpIsShared : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  UsedUpIsShared() {
    start_with(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[0]);
    }
  }
};
// One of two is, for which there is no room any more.
struct RoomIsLost : MoreUsedUpWorld {
  static constexpr unsigned kThreads = 2;
  void* p[7];
  RoomIsLost() {
    start_with_two_used_up(0, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return pass_round();
    free(p[0]);
  }
};
// The owner collects a delayed span, and takes it.
struct OwnerCollects : EarlyPartialWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  OwnerCollects() {
    start_with(0, kThree, p);
    start_shared(0);
    start_attached(1);
    start_freed(0, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kThree);
    } else {
      free(p[1]);
    }
  }
};
// A thread ends: with a current span, and one shared with uncollected frees,
struct EndsWithSpans : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  void* q[1];
  EndsWithSpans() {
    start_with(0, kTwo, p);
    start_shared(0);
    start_with(0, kThree, q);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) free(p[0]);
    if (self == 0) return end();
    free(p[1]);
  }
};
// with two used-up ones,
struct EndsWithTwoUsedUp : MoreUsedUpWorld {
  static constexpr unsigned kThreads = 2;
  void* p[7];
  EndsWithTwoUsedUp() {
    start_with_two_used_up(0, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    free(p[3]);
  }
};
// with a batch, while the span's owner collects,
struct EndsWithBatch : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EndsWithBatch() {
    start_with(0, kFour, p);
    start_shared(0);
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
// and with a loan.
struct EndsWithLoan : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  EndsWithLoan() {
    start_with(0, kThree, p);
    start_attached(1);
    start_freed(1, p[0]);
    start_freed(1, p[1]);
    as(1, [&] { trim(); });
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kThree);
    } else {
      malloc(kThree);
      end();
    }
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
    start_with(0, kFour, p);
    start_shared(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return free(p[0]);
    for (const unsigned i : {1u, 2u, 3u}) free(p[i]);
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
// One thread takes its span off a list whose neighbour another's free moves.
struct Neighbours : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  Neighbours() {
    start_with(0, kTwo, p);
    start_shared(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) return free(p[0]);
    free(p[2]);
    free(p[3]);
  }
};
// A thread purges the pages of a shared span, which the kernel refuses.
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

// --- Magazines -----------------------------------------------------------------------------------

// A thread that is seen to have done its calls has nothing in hand: each block that it freed is
// found, in its magazine too.
struct MagazinesBooks : MagazinesWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  void note_done(unsigned self) { done[self].store_release(true); }
  unsigned most_in_hand() const {
    unsigned working = 0;
    for (const Atomic<bool>& one : done) working += one.load_relaxed() ? 0 : in_hand;
    return working;
  }
  unsigned in_hand = 1;
  Atomic<bool> done[2];
};
struct MagazinesScene : MagazinesBooks {
  MagazinesScene() {
    start_with_magazine(0, p);
    start_attached(1);
  }
};
// A block is kept, taken, kept and, by whatever gives back, freed to its span, of which another
// thread frees the other block.
enum class GivesBack { kNever, kNowAndThen, kAtEnd };
template <GivesBack kGivesBack>
struct KeptAndTaken : MagazinesScene {
  void thread(unsigned self) {
    if (self == 1) {
      free(p[1]);
    } else {
      free(p[0]);
      free(malloc(kTwo));
      if constexpr (kGivesBack == GivesBack::kNowAndThen) give_back_unused();
      if constexpr (kGivesBack == GivesBack::kAtEnd) end();
    }
    note_done(self);
  }
};
// The span is shared.
struct KeptOfShared : KeptAndTaken<GivesBack::kNowAndThen> {
  KeptOfShared() { start_shared(0); }
};
// Alone, a thread fills its magazine, and uses it up again;
struct OneWithMagazine : MagazinesScene {
  static constexpr unsigned kThreads = 1;
  OneWithMagazine() { note_done(1); }
};
struct MagazineIsFull : OneWithMagazine {
  // (Two are taken in a row: the note that it has the first one may be late.)
  MagazineIsFull() { in_hand = 2; }
  void thread(unsigned self) {
    for (void* block : p) free(block);
    for (int i = 0; i < 3; ++i) malloc(kTwo);
    note_done(self);
  }
};
// keeps a block where one was that its span has on a list since, as the last one;
struct PlaceIsUsedAgain : OneWithMagazine {
  PlaceIsUsedAgain() {
    start_kept(0, p[0]);
    as(0, [&] { malloc(kTwo); });
    start_freed(1, p[0]);
  }
  void thread(unsigned self) {
    free(p[2]);
    note_done(self);
  }
};
// and keeps again what it has just taken.
struct TakenIsKept : OneWithMagazine {
  TakenIsKept() {
    order_of_out = Order::relaxed;
    start_kept(0, p[2]);  // (the child frees others first, and so ends the vanished thread's cache)
  }
  void thread(unsigned self) {
    free(malloc(kTwo));
    note_done(self);
  }
};
// Of a child: the thread with the magazine has vanished. Who comes first gives back what it kept:
// the thread that goes on, or one that it has started, which frees the other block of a span.
struct VanishedWithMagazine : MagazinesBooks {
  VanishedWithMagazine() {
    in_hand = 2;  // its own block, and one that it gives back
    start_attached(0);
    start_with_magazine(2, p);
    start_kept(2, p[0]);
    start_kept(2, p[2]);
    as(0, [&] {
      SpinLock::enter_child();
      standard::ForkRecovery<Config>::enter_child(&pages());
    });
  }
};
struct RecoveredTwice : VanishedWithMagazine {
  void thread(unsigned self) {
    if (self == 0) {
      claim_empty();
    } else {
      free(p[1]);
    }
    note_done(self);
  }
};
// What must not be left out of the recovery: each of these children is found broken without it.
template <class Scene>
struct ListsAreBelieved : Forked<Scene> {
  void at_rest() {
    this->pages().caches.for_each([](auto& cache) { cache.lock.reset(); });
    Forked<Scene>::at_rest();
  }
};
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
  expect_holds_when_forked<Forked<LastFrees<StandardWorld>>>("LastFrees", 1);
  expect_holds_when_forked<Forked<LastFrees<EarlyPartialWorld>>>("LastFrees, partial", 1);
  expect_holds_when_forked<Forked<TwoRemoteFrees, Left{.just_freed = 0}>>("TwoRemoteFrees", 1);
  expect_holds_when_forked<Forked<UsedUpIsShared, Left{.lost = 1, .just_freed = 0}>>(
      "UsedUpIsShared", 1);
  expect_holds_when_forked<Forked<RoomIsLost, Left{.lost = 1, .just_freed = 0}>>("RoomIsLost", 1);
  expect_holds_when_forked<Forked<OwnerCollects, Left{.lost = 1, .just_freed = 0}>>("OwnerCollects",
                                                                                    1);
  expect_holds_when_forked<Forked<Adoption, Left{.lost = 1, .just_freed = 0}>>("Adoption", 1);
  expect_holds_when_forked<Forked<Neighbours>>("Neighbours", 1);
  expect_holds_when_forked<Forked<PurgeIsRefused>>("PurgeIsRefused", 0);
}
TEST(StandardFork, AtThreadsEnds) {
  expect_holds_when_forked<Forked<EndsWithSpans, Left{.lost = 1}>>("EndsWithSpans", 1);
  expect_holds_when_forked<Forked<EndsWithTwoUsedUp, Left{.lost = 1, .just_freed = 0}>>(
      "EndsWithTwoUsedUp", 1);
  expect_holds_when_forked<Forked<EndsWithBatch, Left{.lost = 1, .missing = 4}>>("EndsWithBatch",
                                                                                 1);
  expect_holds_when_forked<Forked<EndsWithLoan, Left{.lost = 1, .just_freed = 0}>>("EndsWithLoan",
                                                                                   1);
}
TEST(StandardFork, WhatThreadsHaveLeft) {
  expect_holds_when_forked<Forked<LeftIsCounted>>("LeftIsCounted", 1);
  expect_holds_when_forked<Forked<LeftIsAdopted, Left{.lost = 1}>>("LeftIsAdopted", 1);
}
TEST(StandardFork, WhatThreadsKeep) {
  expect_holds_when_forked<Forked<BatchIsFlushed, Left{.missing = 3}>>("BatchIsFlushed", 1);
  expect_holds_when_forked<Forked<CachedLarge, Left{.single = 1, .missing = 0, .just_freed = 0}>>(
      "CachedLarge", 1);
}

TEST(StandardFork, Magazines) {
  constexpr Left kShared{.just_freed = 1};
  constexpr Left kOwned{.just_freed = 0};
  expect_holds_when_forked<Forked<KeptAndTaken<GivesBack::kNever>, kOwned>>("KeptAndTaken", 1);
  expect_holds_when_forked<Forked<KeptAndTaken<GivesBack::kNowAndThen>, kOwned>>(
      "KeptAndTaken, given back", 1);
  constexpr Left kMoved{.lost = 1, .comes_back = true};
  expect_holds_when_forked<Forked<KeptAndTaken<GivesBack::kAtEnd>, kMoved>>(
      "KeptAndTaken, at the end", 1);
  expect_holds_when_forked<Forked<KeptOfShared, kShared>>("KeptOfShared", 1);
  expect_holds_when_forked<Forked<MagazineIsFull, kOwned>>("MagazineIsFull", 0);
  expect_holds_when_forked<Forked<PlaceIsUsedAgain, kOwned>>("PlaceIsUsedAgain", 1);
  expect_holds_when_forked<Forked<TakenIsKept, kOwned>>("TakenIsKept", 1);
}
TEST(StandardFork, MagazinesAreRecovered) {
  expect_holds_when_forked<Forked<RecoveredTwice, Left{.lost = 1, .comes_back = true}>>(
      "RecoveredTwice", 0, 0);
}

TEST(StandardFork, EachPartOfTheRecoveryIsNeeded) {
  const Options options{.max_steps = 20'000, .forks = true, .one_late = true};
  expect_finds<ListsAreBelieved<Neighbours>>("ListsAreBelieved<Neighbours>", options, "");
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
  expect_needs_release<Neighbours, kOwnersLine>("lists and counts");
  expect_needs_release<TwoRemoteFrees, kLock>("locks");
  expect_needs_release<CachedLarge, kRecord>("cache records");
  expect_needs_release<EndsWithLoan, kRecord>("cache records, with a loan");
  expect_needs_release<PlaceIsUsedAgain, kMagazines>("magazines");
  expect_needs_release<TakenIsKept, kBlocks>("links of blocks that are taken");
  expect_needs_release<PurgeIsRefused, kBlocks>("links of blocks that are purged");
}

}  // namespace
}  // namespace spanalloc::model
