// The standard engine under the checker: remote free list, span states with eager return, partial
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

// The owner and one or two others free the last blocks of a shared span. The span is in the pool
// after the owner's next slow path at the latest.
template <class World, unsigned kFreers>
struct LastFrees : World {
  static constexpr unsigned kThreads = kFreers;
  void* p[kFreers];
  LastFrees() {
    this->start_with(0, World::kFour, p);
    this->start_shared(0);
    for (unsigned t = 1; t < kThreads; ++t) this->start_attached(t);
  }
  void thread(unsigned self) { this->free(p[self]); }
  void at_rest() {
    this->check();
    this->start_shared(0);
    MODEL_CHECK(this->is_free(p[0]));
    this->check_to_the_end();
  }
};

using OwnerAndOne = LastFrees<StandardWorld, 2>;
using OwnerAndTwo = LastFrees<StandardWorld, 3>;
using OwnerAndOnePartial = LastFrees<EarlyPartialWorld, 2>;
using OwnerAndTwoPartial = LastFrees<EarlyPartialWorld, 3>;

// Each frees two, so that some of the owner's frees are uncollected when the other comes, whose
// second free begins a batch where two are out.
template <class World>
struct EachFreesTwo : World {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EachFreesTwo() {
    this->start_with(0, World::kFour, p);
    this->start_shared(0);
    this->start_attached(1);
  }
  void thread(unsigned self) {
    this->free(p[self]);
    this->free(p[self + 2]);
  }
  void at_rest() {
    this->check();
    this->start_shared(1);
    this->start_shared(0);
    MODEL_CHECK(this->is_free(p[0]));
    this->check_to_the_end();
  }
};
using EachFreesTwoLate = EachFreesTwo<StandardWorld>;
using EachFreesTwoEarly = EachFreesTwo<EarlyPartialWorld>;

// Threads without a cache free: each free is one of the span's word, under the layer's own count of
// such calls.
struct FreersWithoutCache : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[3];
  FreersWithoutCache() {
    start_with(0, kThree, p);
    start_shared(0);
  }
  void thread(unsigned self) { free(p[self]); }
  void at_rest() {
    check();
    start_shared(0);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// The owner collects the span once before the last frees: the delayed bit must be set anew.
struct CollectedThenFreed : EarlyPartialWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  CollectedThenFreed() {
    start_with(0, kFour, p);
    start_shared(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      trim();
      free(p[0]);
    } else {
      free(p[1]);
      free(p[2]);
    }
  }
  void at_rest() {
    check();
    start_shared(1);
    start_shared(0);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// The owner never comes back; another thread's trim finds the empty span,
struct OwnerFallsAsleep : OwnerAndOnePartial {
  void at_rest() {
    start_shared(kHelper);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};
// or finds it while it becomes empty.
struct ClaimedWhileFreed : EarlyPartialWorld {
  static constexpr unsigned kThreads = 3;
  void* p[2];
  ClaimedWhileFreed() {
    start_with(0, kThree, p);
    start_shared(0);
    start_attached(1);
    start_attached(2);
  }
  void thread(unsigned self) {
    if (self == 2) {
      claim_empty();
    } else {
      free(p[self]);
    }
  }
  void at_rest() {
    check();
    start_shared(0);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// Nobody but others free: the last of them returns the span without any help of the owner.
struct OnlyOthersFree : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  OnlyOthersFree() {
    start_with(kHelper, kTwo, p);
    start_shared(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) { free(p[self]); }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};

// The owner finds its span damaged, and takes it out of use, while others free what is out of it.
// Either it is that, and never becomes empty, or whoever freed last has it, alone.
template <unsigned kOthers>
struct TakenOutOfUse : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[kOthers];
  TakenOutOfUse() {
    start_with(0, kThree, p);
    start_shared(0);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self != 0) return free(p[self - 1]);
    const standard::HeapCall<Config> inside(cache().cache, pages());
    auto& protocol = heap().protocol();
    const SpanRef span = span_of(p[0]);
    const auto me = cache().cache->number;
    const Heap::Protocol::CacheGuard guard(protocol, me);
    if (span->word.load_acquire().is(me, SpanState::kShared))
      protocol.take_out_of_use(pages().cache(me), span);
  }
  void at_rest() {
    const test::HeapWalk now = walk();
    MODEL_CHECK(now.broken == 0 && now.lost == (is_free(p[0]) ? 0 : 1));
  }
};
using OutOfUseBeforeOne = TakenOutOfUse<1>;
using OutOfUseBeforeTwo = TakenOutOfUse<2>;

TEST(StandardSpan, StatesWithEagerReturn) {
  EXPECT_HOLDS(naive::CountsApart, {.memory = MemoryModel::interleaving, .preemptions = 10});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {});
  EXPECT_FINDS(naive::CrossesTwoEvents, "in_pool", {});
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOne, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOnePartial, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwoPartial, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(FreersWithoutCache, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EachFreesTwoLate, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(EachFreesTwoEarly, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(CollectedThenFreed, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OwnerFallsAsleep, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(ClaimedWhileFreed, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OnlyOthersFree, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeOne, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeTwo, 2, 1);
}

// --- Partial spans -------------------------------------------------------------------------------

// The owner's free makes a full shared span partial, and its next malloc takes that span, while
// others free.
template <unsigned kOthers>
struct MakePartialAndTake : EarlyPartialWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[3];
  MakePartialAndTake() {
    start_with(0, kThree, p);
    start_shared(0);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 0) malloc(kThree);
  }
  void at_rest() { check_to_the_end(); }
};
using TakeAgainstOne = MakePartialAndTake<1>;
using TakeAgainstTwo = MakePartialAndTake<2>;

// Memory is out: the owner takes any span that has a free block, while another thread makes it
// empty.
struct TakeNearlyFull : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  TakeNearlyFull() {
    start_with(0, kFour, p);
    start_shared(0);
    start_attached(1);
    start_without_memory();
  }
  void thread(unsigned self) {
    if (self == 1) {
      free(p[0]);
      free(p[1]);
    } else {
      free(p[2]);
      // None, if the other thread is just making the span delayed.
      void* found = malloc_if_any(kFour);
      free(p[3]);
      if (found != nullptr) free(found);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// Memory is out, and no span has a free block: full ones step aside. The first block that is freed
// into one brings it back, whoever frees it.
template <bool kRemote, bool kLocal>
struct FullStepsAside : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  FullStepsAside() {
    start_with(0, kThree, p);
    start_shared(0);
    start_attached(1);
    start_without_memory();
  }
  void thread(unsigned self) {
    if (self == 1) {
      if (kRemote) return free(p[1]);
      claim_empty();
      return;
    }
    found_.set(malloc_if_any(kThree) != nullptr);
    if (kLocal) free(p[0]);
  }
  void at_rest() {
    check();
    const int left = kRemote + kLocal - found_.get();
    for (int i = 0; i < left; ++i) as(0, [&] { malloc(kThree); });
    check_to_the_end();
  }

 private:
  Plain<bool> found_;
};
using FullThenRemote = FullStepsAside<true, false>;
using FullThenLocal = FullStepsAside<false, true>;
using FullThenBoth = FullStepsAside<true, true>;

// Two spans on the same lists, so that neighbours are unlinked under each other.
struct Neighbours : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[4];
  Neighbours() {
    start_with(0, kTwo, p);
    start_freed(0, p[1]);
    start_shared(0);
    start_attached(1);
    start_attached(2);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else if (self == 1) {
      free(p[0]);
    } else {
      free(p[2]);
      free(p[3]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// A span leaves its owner while another thread frees into it: neither "owned, not my business" nor
// "nearly full, my business" may be what nobody acts on. (It is the oldest of the used-up spans,
// for which there is no room.)
template <unsigned kOthers>
struct UsedUpIsShared : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[4];
  UsedUpIsShared() {
    start_with(0, kTwo, p);  // the first span is used up, the second one current
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else {
      free(p[self - 1]);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using UsedUpIsSharedAgainstOne = UsedUpIsShared<1>;
using UsedUpIsSharedAgainstTwo = UsedUpIsShared<2>;

// The same where there was room for two, and the owner has freed into the one that is shared.
template <unsigned kOthers>
struct RoomIsLost : MoreUsedUpWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[7];
  RoomIsLost() {
    start_with_two_used_up(0, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free(p[2]);
      pass_round();
      MODEL_CHECK(word_of(p[0]).state() != SpanState::kOwned);
      MODEL_CHECK(word_of(p[3]).state() == SpanState::kOwned);
    } else {
      free(p[self - 1]);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using RoomIsLostAgainstOne = RoomIsLost<1>;
using RoomIsLostAgainstTwo = RoomIsLost<2>;

TEST(StandardSpan, PartialSpans) {
  EXPECT_FINDS(naive::ReusableThenLinked, "in_pool", {});
  EXPECT_FINDS(naive::PutIntoClosedSet, "reachable", {});
  EXPECT_FINDS(naive::SharedLink, "next", {});
  EXPECT_FINDS(naive::FreeBetweenRefillAndFloating, "remote_frees", {});
  EXPECT_HOLDS_EVERYWHERE(TakeAgainstOne, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(TakeAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TakeNearlyFull, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(FullThenRemote, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(FullThenLocal, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(FullThenBoth, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(Neighbours, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(UsedUpIsSharedAgainstOne, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(UsedUpIsSharedAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(RoomIsLostAgainstOne, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(RoomIsLostAgainstTwo, 1, 1);
}

}  // namespace
}  // namespace spanalloc::model
