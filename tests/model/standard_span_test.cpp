// The standard engine under the checker: remote free list, span states with eager return, away
// spans. Owners that change: standard_ownership_test.cpp. Each subject first finds its known traps
// in naive variants.
#include "naive_span.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// --- Remote free list ----------------------------------------------------------------------------

// Others free into a full owned span while its owner allocates: from the remote list, or from
// another span.
template <unsigned kOthers>
struct RemoteFreesIntoOwned : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[3];
  RemoteFreesIntoOwned() {
    start_with(0, kThree, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kThree);
      malloc(kThree);
    } else {
      free(p[self]);
      if (kOthers == 1) free(p[2]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// One frees a batch, another a single block.
struct BatchIntoOwned : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[4];
  BatchIntoOwned() {
    start_with(0, kFour, p);
    start_attached(1);
    start_attached(2);
    start_freed(1, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kFour);
      malloc(kFour);
    } else if (self == 1) {
      free(p[1]);
      free(p[2]);
    } else {
      free(p[3]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

using IntoOwnedByOne = RemoteFreesIntoOwned<1>;
using IntoOwnedByTwo = RemoteFreesIntoOwned<2>;

TEST(StandardSpan, RemoteFreeList) {
  EXPECT_FINDS(naive::CountBesideTheList, "taken", {});
  EXPECT_FINDS(naive::CountServesAsTag, "held", {});
  EXPECT_HOLDS_EVERYWHERE(IntoOwnedByOne, 6, 6);
  EXPECT_HOLDS_EVERYWHERE(IntoOwnedByTwo, 4, 4);
  EXPECT_HOLDS_EVERYWHERE(BatchIntoOwned, 4, 2);
}

// --- Span states with eager return ---------------------------------------------------------------

// The owner and one or two others free the last blocks of an away span. It is in the pool after the
// owner's next slow path at the latest.
template <class World, unsigned kFreers>
struct LastFrees : World {
  static constexpr unsigned kThreads = kFreers;
  void* p[4];
  LastFrees() {
    this->start_away(0, World::kFour, p);
    for (unsigned i = kFreers; i < 4; ++i) this->start_freed(World::kHelper, p[i]);
    for (unsigned t = 1; t < kThreads; ++t) this->start_attached(t);
  }
  void thread(unsigned self) { this->free(p[self]); }
  void at_rest() {
    this->check();
    this->start_given_up(0);
    MODEL_CHECK(this->is_free(p[0]));
    this->check_to_the_end();
  }
};
using OwnerAndOne = LastFrees<StandardWorld, 2>;
using OwnerAndTwo = LastFrees<StandardWorld, 3>;

// Each frees two: the owner's first free makes the span current, the other's second one begins a
// batch where two are out.
struct EachFreesTwo : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EachFreesTwo() {
    start_away(0, kFour, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    free(p[self]);
    free(p[self + 2]);
  }
  void at_rest() {
    check();
    start_given_up(1);
    start_given_up(0);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// Threads without a cache free: each free is one of the span's word, under the layer's own count of
// such calls.
struct FreersWithoutCache : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[3];
  FreersWithoutCache() { start_away(kHelper, kThree, p); }
  void thread(unsigned self) { free(p[self]); }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// Nobody but others free: the last of them returns the span without any help of the owner.
struct OnlyOthersFree : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  OnlyOthersFree() {
    start_away(kHelper, kTwo, p);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) { free(p[self]); }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};
// Nobody owns the span.
struct OnlyOthersFreeGivenUp : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  OnlyOthersFreeGivenUp() {
    start_with(kHelper, kFour, p);
    start_freed(kHelper, p[2]);
    start_given_up(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) { free(p[self]); }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// The span goes away while others free its last blocks. It may be that nobody has noticed: then a
// purge does, or the owner's next search.
template <bool kPurges>
struct GoesAwayMeanwhile : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  GoesAwayMeanwhile() {
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
  void at_rest() {
    check();
    if (kPurges) {
      as(kHelper, [&] { claim_if_away(span_of(p[0])); });
      MODEL_CHECK(is_free(p[0]) || !span_of(p[0])->is_away());
    }
    check_to_the_end();
  }
};
using GoesAwayBeforePurge = GoesAwayMeanwhile<true>;
using GoesAwayBeforeEnd = GoesAwayMeanwhile<false>;

// A purge claims it while the last free does.
struct ClaimedByTwo : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[2];
  ClaimedByTwo() {
    start_away(kHelper, kTwo, p);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 2) {
      claim_if_away(span_of(p[0]));
    } else {
      free(p[self]);
    }
  }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// The owner frees into its away span, and takes the block again, while others free.
template <unsigned kOthers>
struct CurrentAgain : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[3];
  CurrentAgain() {
    start_away(0, kThree, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 0) malloc(kThree);
  }
  void at_rest() { check_to_the_end(); }
};
using CurrentAgainAgainstOne = CurrentAgain<1>;
using CurrentAgainAgainstTwo = CurrentAgain<2>;

// The owner looks for a span, and takes an away one back, while others free its last blocks.
template <class World, unsigned kOthers>
struct TakenBack : World {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[4];
  TakenBack() {
    this->start_away(0, World::kTwo, front_);
    as_current();
    for (unsigned t = 1; t < kThreads; ++t) this->start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      this->malloc(World::kTwo);
    } else {
      this->free(front_[self - 1]);
      if (kOthers == 1) this->free(front_[1]);
    }
  }
  void at_rest() { this->check_to_the_end(); }

 private:
  // The current span has no block left.
  void as_current() {
    this->as(0, [&] {
      for (int i = 0; i < 2; ++i) this->malloc(World::kTwo);
    });
  }
  void* front_[2];
};
using TakenBackAgainstOne = TakenBack<EarlyPartialWorld, 1>;
using TakenBackAgainstTwo = TakenBack<EarlyPartialWorld, 2>;

// A thread is about to claim an away span while its owner takes that back, and uses it up; others
// free all of it again, in the same order: the span has the word that it had, and is current.
struct ClaimedLate : EarlyPartialWorld {
  static constexpr unsigned kThreads = 3;
  ClaimedLate() {
    start_away(0, kTwo, front_);
    as(0, [&] {
      for (int i = 0; i < 2; ++i) malloc(kTwo);
    });
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      for (Atomic<void*>& block : again_) block.store_release(malloc(kTwo));
    } else if (self == 1) {
      for (void* block : front_) free(block);
    } else if (again_[1].load_acquire() != nullptr) {
      free(again_[1].load_acquire());
      free(again_[0].load_acquire());
    }
  }
  void at_rest() {
    as(0, [&] { malloc(kTwo); });
    check_to_the_end();
  }

 private:
  void* front_[2];
  Atomic<void*> again_[2] = {};
};

// A span that a thread's queue has as an entry still is another thread's, and goes away there.
struct QueuedElsewhere : StandardWorld {
  static constexpr unsigned kThreads = 2;
  QueuedElsewhere() {
    start_away(0, kTwo, front_);
    for (void* block : front_) start_freed(kHelper, block);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    void* const block = malloc(kTwo);
    for (int i = 0; i < 2; ++i) malloc(kTwo);
    free(block);
  }
  void at_rest() { check_to_the_end(); }

 private:
  void* front_[2];
};

// The owner finds its span damaged, and takes it out of use, while others free what is out of it.
template <unsigned kOthers>
struct TakenOutOfUse : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[3];
  TakenOutOfUse() {
    start_with(0, kFour, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self != 0) return free(p[self - 1]);
    const standard::HeapCall<Config> inside(cache().cache, pages());
    heap().protocol().take_out_of_use(span_of(p[0]));
  }
  void at_rest() { MODEL_CHECK(walk().broken == 0 && !is_free(p[0])); }
};
using OutOfUseBeforeOne = TakenOutOfUse<1>;
using OutOfUseBeforeTwo = TakenOutOfUse<2>;

// Memory is out: the owner takes any block that others have freed.
struct TakesAny : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  TakesAny() {
    start_away(0, kFour, p);
    start_attached(1);
    start_without_memory();
  }
  void thread(unsigned self) {
    if (self == 1) {
      free(p[0]);
    } else {
      void* found = malloc_if_any(kFour);
      free(p[3]);
      if (found != nullptr) free(found);
    }
  }
  void at_rest() { check_to_the_end(); }
};

TEST(StandardSpan, StatesWithEagerReturn) {
  EXPECT_HOLDS(naive::CountsApart, {.memory = MemoryModel::interleaving, .preemptions = 10});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {});
  EXPECT_FINDS(naive::CrossesTwoEvents, "in_pool", {});
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOne, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(FreersWithoutCache, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EachFreesTwo, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OnlyOthersFree, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OnlyOthersFreeGivenUp, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(GoesAwayBeforePurge, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(GoesAwayBeforeEnd, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(ClaimedByTwo, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeOne, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeTwo, 2, 1);
}
TEST(StandardSpan, AwaySpansServeTheirOwner) {
  EXPECT_FINDS(naive::FreeBetweenRefillAndFloating, "remote_frees", {});
  EXPECT_HOLDS_EVERYWHERE(CurrentAgainAgainstOne, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(CurrentAgainAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TakenBackAgainstOne, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(TakenBackAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TakesAny, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(ClaimedLate, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(QueuedElsewhere, 3, 2);
}

}  // namespace
}  // namespace spanalloc::model
