// The standard engine's span protocol under the checker: remote free list, states with eager
// return, reusable set. Adoption and termination: standard_ownership_test.cpp. Each subject first
// finds its known traps in naive variants.
#include "naive_span.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// --- Remote free list ----------------------------------------------------------------------------

// Two threads free into a current span while its owner takes the list and hands blocks out again.
struct RemoteFreesIntoHotSpan : StandardWorld {
  static constexpr unsigned kThreads = 3;
  RemoteFreesIntoHotSpan() : StandardWorld({.capacity = 3}) { start_hot(1, 1, 3); }
  void thread(unsigned self) {
    if (self == 0) {
      allocate_hot(1);
      allocate_hot(1);
    } else {
      free_remote(1, self);
    }
  }
  void at_rest() { check_at_rest(); }
};

struct TwoRemoteFreesByOne : StandardWorld {
  static constexpr unsigned kThreads = 2;
  TwoRemoteFreesByOne() : StandardWorld({.capacity = 3}) { start_hot(1, 1, 3); }
  void thread(unsigned self) {
    if (self == 0) {
      allocate_hot(1);
      allocate_hot(1);
      allocate_hot(1);
    } else {
      free_remote(1, 2);
      free_remote(1, 3);
    }
  }
  void at_rest() { check_at_rest(); }
};

// A run of blocks and a single one.
struct RunsIntoHotSpan : StandardWorld {
  static constexpr unsigned kThreads = 3;
  RunsIntoHotSpan() : StandardWorld({.capacity = 4}) { start_hot(1, 1, 4); }
  void thread(unsigned self) {
    if (self == 0) {
      allocate_hot(1);
      allocate_hot(1);
    } else if (self == 1) {
      free_run(1, 1, 2);
    } else {
      free_remote(1, 3);
    }
  }
  void at_rest() { check_at_rest(); }
};

TEST(StandardSpan, RemoteFreeList) {
  EXPECT_FINDS(naive::CountBesideTheList, "taken", {});
  EXPECT_FINDS(naive::CountServesAsTag, "held", {});
  EXPECT_HOLDS_EVERYWHERE(TwoRemoteFreesByOne, 6, 6);
  EXPECT_HOLDS_EVERYWHERE(RemoteFreesIntoHotSpan, 4, 4);
  EXPECT_HOLDS_EVERYWHERE(RunsIntoHotSpan, 4, 4);
}

// --- Span states with eager return ---------------------------------------------------------------

// The owner and one or two others free the last blocks of a parked span. Its owner's
// next slow path comes after.
template <unsigned kFreers, bool kPartial>
struct LastFrees : StandardWorld {
  static constexpr unsigned kThreads = kFreers;
  LastFrees()
      : StandardWorld(
            {.capacity = kPartial ? 4 : kFreers, .partial_outstanding = kPartial ? 3 : 1}) {
    start_parked(1, 1, kFreers);
  }
  void thread(unsigned self) { free_any(1, self + 1, self == 0 ? 1 : self + 1); }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

using OwnerAndOneFloating = LastFrees<2, false>;
using OwnerAndOneReusable = LastFrees<2, true>;
using OwnerAndTwoFloating = LastFrees<3, false>;
using OwnerAndTwoReusable = LastFrees<3, true>;

// The owner frees two, so that some of its frees are uncollected when the other comes.
struct OwnerFreesTwo : StandardWorld {
  static constexpr unsigned kThreads = 2;
  OwnerFreesTwo() : StandardWorld({.capacity = 4, .partial_outstanding = 1}) {
    start_parked(1, 1, 4);
  }
  void thread(unsigned self) {
    free_any(1, self == 0 ? 1 : 2, self + 1);
    free_any(1, self == 0 ? 3 : 4, self + 1);
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// Runs come last, or nearly so.
struct RunsAreLast : StandardWorld {
  static constexpr unsigned kThreads = 3;
  RunsAreLast() : StandardWorld({.capacity = 4, .partial_outstanding = 1}) {
    start_parked(1, 1, 4);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free_any(1, 1, 1);
    } else if (self == 1) {
      free_run(1, 2, 2);
    } else {
      free_remote(1, 4);
    }
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// The owner frees two, another thread the other two in one run.
struct RunAgainstOwner : StandardWorld {
  static constexpr unsigned kThreads = 2;
  RunAgainstOwner() : StandardWorld({.capacity = 4, .partial_outstanding = 3}) {
    start_parked(1, 1, 4);
  }
  void thread(unsigned self) {
    if (self == 1) return free_run(1, 3, 2);
    free_any(1, 1, 1);
    free_any(1, 2, 1);
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// The owner settles the span once before the last frees: being pointed out must start anew.
struct SettledThenFreed : StandardWorld {
  static constexpr unsigned kThreads = 2;
  SettledThenFreed() : StandardWorld({.capacity = 4, .partial_outstanding = 3}) {
    start_parked(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 0) {
      collect_delayed(1);
      free_any(1, 1, 1);
    } else {
      free_remote(1, 2);
      free_remote(1, 3);
    }
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// The owner never comes back; another thread's pool miss finds the empty span.
struct OwnerFallsAsleep : OwnerAndOneReusable {
  void at_rest() {
    claim_unnoticed_empties(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// ... or finds it while it becomes empty.
struct StolenWhileFreed : StandardWorld {
  static constexpr unsigned kThreads = 3;
  StolenWhileFreed() : StandardWorld({.capacity = 3, .partial_outstanding = 2}) {
    start_parked(1, 1, 2);
  }
  void thread(unsigned self) {
    if (self == 2) {
      claim_unnoticed_empties(1);
    } else {
      free_any(1, self + 1, self + 1);
    }
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// Nobody but others free: the last of them returns the span without any help of the owner.
struct OnlyOthersFree : StandardWorld {
  static constexpr unsigned kThreads = 2;
  OnlyOthersFree() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 1, 2);
  }
  void thread(unsigned self) { free_remote(1, self + 1); }
  void at_rest() {
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// A span of one block: whoever frees it returns it; another takes it and uses it again.
struct SingleBlockSpan : StandardWorld {
  static constexpr unsigned kThreads = 3;
  SingleBlockSpan() : StandardWorld({.capacity = 2}) { make_single(1); }
  void thread(unsigned self) {
    if (self == 0) return free_any(1, 1, 1);
    const std::uint32_t number = take_from_pool();
    if (number == 0) return;
    if (self == 1) {
      make_single(number);
      free_any(number, 1, 2);
    } else {
      make_current(number, 3);
      allocate_hot(number);
      share(number, 3);
    }
  }
  void at_rest() { check_at_rest(); }
};

// The owner finds its span damaged, and takes it out of use, while others free what is out of it.
// Either it is that, and never becomes empty, or whoever freed last has it, alone.
template <unsigned kOut>
struct TakenOutOfUse : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOut;
  TakenOutOfUse() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_parked(1, 1, kOut);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    const Inside inside(*this);
    const Protocol::CacheGuard guard(protocol(), CacheNumber{1});
    if (span(1).word.load_acquire().is(CacheNumber{1}, SpanState::kShared)) {
      protocol().take_out_of_use(cache(1), ref(1));
    }
  }
  void at_rest() {
    MODEL_CHECK(span(1).list() == ListId::kNone);
    const SpanWord word = span(1).word.load_relaxed();
    const bool pooled = take_from_pool() == 1;
    MODEL_CHECK(pooled == (word.state() == SpanState::kFree));
    if (pooled) {
      MODEL_CHECK(word.outstanding() == 0 && take_from_pool() == 0);
    } else {
      MODEL_CHECK(word.outstanding() > 3 - kOut - 1);
    }
  }
};
using OutOfUseBeforeOne = TakenOutOfUse<1>;
using OutOfUseBeforeTwo = TakenOutOfUse<2>;

TEST(StandardSpan, StatesWithEagerReturn) {
  EXPECT_HOLDS(naive::CountsApart, {.memory = MemoryModel::interleaving, .preemptions = 10});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {});
  EXPECT_FINDS(naive::CrossesTwoEvents, "in_pool", {});
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOneFloating, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOneReusable, 6, 5);
  EXPECT_HOLDS_EVERYWHERE(OwnerFreesTwo, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(RunAgainstOwner, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(RunsAreLast, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(SettledThenFreed, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OwnerFallsAsleep, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(OnlyOthersFree, 8, 6);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwoFloating, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwoReusable, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(StolenWhileFreed, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(SingleBlockSpan, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeOne, 8, 6);
  EXPECT_HOLDS_EVERYWHERE(OutOfUseBeforeTwo, 4, 2);
}

// --- Reusable set --------------------------------------------------------------------------------

// The owner opens a span (nearly full to reusable by frees), takes it out of the set, hands a block
// out and parks it, while others free.
template <unsigned kOthers>
struct OpenAndTake : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  OpenAndTake() : StandardWorld({.capacity = 3, .partial_outstanding = 2}) {
    start_parked(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    free_any(1, 3, 1);
    const std::uint32_t number = find_reusable(1);
    if (number == 0) return;
    allocate_hot(number);
    share(number, 1);
  }
  void at_rest() {
    collect_delayed(1);
    check_at_rest();
  }
};

using OpenAndTakeAgainstOne = OpenAndTake<1>;
using OpenAndTakeAgainstTwo = OpenAndTake<2>;

// Memory is out: the owner takes any span that has a free block, while
// another thread makes it empty.
struct TakeFloating : StandardWorld {
  static constexpr unsigned kThreads = 2;
  TakeFloating() : StandardWorld({.capacity = 4, .partial_outstanding = 1}) {
    start_parked(1, 1, 4);
  }
  void thread(unsigned self) {
    if (self != 0) {
      free_remote(1, 1);
      free_remote(1, 2);
      return;
    }
    free_any(1, 3, 1);
    const std::uint32_t number = find_floating(1);
    if (number == 0) return free_any(1, 4, 1);
    const std::uint32_t b = allocate_hot(number);
    free_any(1, 4, 1);
    share(number, 1);
    free_any(1, b, 1);
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// Two spans on the same lists, so that neighbours are unlinked under each other.
struct Neighbours : StandardWorld {
  static constexpr unsigned kThreads = 3;
  Neighbours() : StandardWorld({.spans = 2, .capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 1, 1);
    start_parked(2, 1, 2);
  }
  void thread(unsigned self) {
    if (self == 0) {
      const std::uint32_t number = find_reusable(1);
      if (number != 0) share(number, 1);
    } else if (self == 1) {
      free_remote(1, 1);
    } else {
      free_remote(2, 1);
      free_remote(2, 2);
    }
  }
  void at_rest() {
    collect_delayed(1);
    check_at_rest();
  }
};

// A current span leaves while another thread frees into it: neither "hot, not my business" nor
// "nearly full, my business" may be what nobody acts on.
template <unsigned kOthers>
struct LeaveHot : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  LeaveHot() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) { start_hot(1, 1, 2); }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    if (allocate_hot(1) == 0) share(1, 1);
  }
  void at_rest() {
    collect_delayed(1);
    const SpanWord word = span(1).word.load_relaxed();
    // With a free block a parked span can be found: that is what its next user asks for.
    if (word.state() == SpanState::kShared && word.outstanding() < 2)
      MODEL_CHECK(span(1).list() == ListId::kPartial);
    check_at_rest();
  }
};

using LeaveHotAgainstOne = LeaveHot<1>;
using LeaveHotAgainstTwo = LeaveHot<2>;

// Memory is out, and no span has a free block: full ones step aside. The first block that is freed
// into one brings it back, whoever frees it.
template <bool kRemote, bool kLocal>
struct FullStepsAside : StandardWorld {
  static constexpr unsigned kThreads = 2;
  FullStepsAside() : StandardWorld({.capacity = 3, .partial_outstanding = 0}) {
    start_parked(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 1) {
      if (kRemote) return free_remote(1, 2);
      claim_unnoticed_empties(1);
      return;
    }
    const std::uint32_t found = find_floating(1);
    if (!kRemote) MODEL_CHECK(found == 0 && span(1).list() == ListId::kFull);
    if (kLocal) free_any(1, 1, 1);
  }
  void at_rest() {
    const bool owned = span(1).word.load_relaxed().state() == SpanState::kOwned;
    if (!owned) {
      collect_delayed(1);
      MODEL_CHECK(find_floating(1) == 1);
    }
    check_at_rest();
  }
};
using FullThenRemote = FullStepsAside<true, false>;
using FullThenLocal = FullStepsAside<false, true>;
using FullThenBoth = FullStepsAside<true, true>;

TEST(StandardSpan, ReusableSetOpenAndClose) {
  EXPECT_FINDS(naive::ReusableThenLinked, "in_pool", {});
  EXPECT_FINDS(naive::PutIntoClosedSet, "reachable", {});
  EXPECT_FINDS(naive::SharedLink, "next", {});
  EXPECT_FINDS(naive::FreeBetweenRefillAndFloating, "remote_frees", {});
  EXPECT_HOLDS_EVERYWHERE(OpenAndTakeAgainstOne, 5, 2);
  EXPECT_HOLDS_EVERYWHERE(OpenAndTakeAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TakeFloating, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(FullThenRemote, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(FullThenLocal, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(FullThenBoth, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(Neighbours, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LeaveHotAgainstOne, 8, 6);
  EXPECT_HOLDS_EVERYWHERE(LeaveHotAgainstTwo, 4, 2);
}

}  // namespace
}  // namespace spanalloc::model
