// The scalloc engine under the checker: remote free list, states with eager return, reusable set,
// adoption, thread termination. Each subject first finds its known traps in naive variants.
#include "naive_span.hpp"
#include "scalloc_world.hpp"

namespace spanalloc::model {
namespace {

using World = ScallocWorld<>;
using SuspectWorld = ScallocWorld<ModelScallocSuspects>;  // few free blocks: floating, not reusable

// --- Remote free list ----------------------------------------------------------------------------

// Others free into a full hot span while its owner allocates: from the remote
// list, or from a new span.
template <unsigned kOthers>
struct RemoteFreesIntoHotSpan : World {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[4];
  RemoteFreesIntoHotSpan() {
    start_with(0, kFour, 4, p);
    for (unsigned t = 1; t < kThreads; ++t) start_with_lab(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      allocate(kFour);
    } else {
      deallocate(p[self]);
      if (kOthers == 1) deallocate(p[self + 1]);
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

using IntoHotSpanByOne = RemoteFreesIntoHotSpan<1>;
using IntoHotSpanByTwo = RemoteFreesIntoHotSpan<2>;

TEST(ScallocSpan, RemoteFreeList) {
  EXPECT_FINDS(naive::CountBesideTheList, "taken", {});
  EXPECT_FINDS(naive::CountServesAsTag, "held", {});
  EXPECT_HOLDS_EVERYWHERE(IntoHotSpanByOne, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(IntoHotSpanByTwo, 3, 2);
}

// --- Span states with eager return ---------------------------------------------------------------

// A full span floats; its owner and others free its blocks until it is empty.
template <class Base, unsigned kFreers>
struct LastFrees : Base {
  static constexpr unsigned kThreads = kFreers;
  void* p[4];
  LastFrees() {
    this->start_with(0, Base::kThree, 4,
                     p);  // three fill the first span, which floats; the fourth lies in the next
    for (unsigned t = 1; t < kThreads; ++t) this->start_with_lab(t);
  }
  void thread(unsigned self) {
    this->deallocate(p[self]);
    if (kFreers == 2 && self == 0) this->deallocate(p[2]);
  }
  void at_rest() {
    this->check_after_trim(kThreads);
    MODEL_CHECK(this->is_free(p[0]));
  }
};

using OwnerAndOne = LastFrees<World, 2>;
using OwnerAndTwo = LastFrees<World, 3>;
using OwnerAndOneHidden = LastFrees<SuspectWorld, 2>;
using OwnerAndTwoHidden = LastFrees<SuspectWorld, 3>;

// The other thread frees first and last: pushed before the owner announces its own frees, and
// after.
struct FreesAroundTheOwner : SuspectWorld {
  static constexpr unsigned kThreads = 2;
  void* p[5];
  FreesAroundTheOwner() {
    start_with(0, kFour, 5, p);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    deallocate(p[self]);
    deallocate(p[self + 2]);
  }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
  }
};

// Whoever frees last may use the memory at once, after all that the others did to it.
template <class Base>
struct TakesWhatItEmptied : Base {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  TakesWhatItEmptied() {
    this->start_with(0, Base::kThree, 4, p);
    this->start_with_lab(1);
    this->start_freed(0, p[2]);
  }
  void thread(unsigned self) {
    this->deallocate(p[self]);
    if (self == 0) return;
    this->allocate(Base::kThree);
    this->allocate(Base::kThree);
  }
  void at_rest() { this->check_after_trim(kThreads); }
};

using TakesWhatItEmptiedReusable = TakesWhatItEmptied<World>;
using TakesWhatItEmptiedHidden = TakesWhatItEmptied<SuspectWorld>;

// Only others free: the last free returns the span, without any help of the owner.
struct OnlyOthers : World {
  static constexpr unsigned kThreads = 3;
  void* p[4];
  OnlyOthers() {
    start_with(0, kThree, 4, p);
    start_with_lab(1);
    start_with_lab(2);
  }
  void thread(unsigned self) {
    if (self == 0) return;
    deallocate(p[self]);
    if (self == 1) deallocate(p[0]);
  }
  void at_rest() {
    check_all_returned();
    check_after_trim(kThreads);
  }
  void check_all_returned() { MODEL_CHECK(is_free(p[0])); }
};

// The owner frees last, long after the other thread: the span is listed by then, and
// returned at once all the same.
template <class Base>
struct OwnerFreesLast : Base {
  static constexpr unsigned kThreads = 2;
  void* p[5];
  OwnerFreesLast() {
    this->start_with(0, Base::kThree, 5, p);
    this->start_with_lab(1);
    this->start_freed(0, p[0]);
    this->start_freed(1, p[1]);
  }
  // p[3] lies in the other span
  void thread(unsigned self) { this->deallocate(p[self == 0 ? 2 : 3]); }
  void at_rest() {
    MODEL_CHECK(this->is_free(p[0]));
    this->check_after_trim(kThreads);
  }
};

using OwnerFreesLastReusable = OwnerFreesLast<World>;
using OwnerFreesLastHidden = OwnerFreesLast<SuspectWorld>;

// A span of one block: each free crosses every threshold at once.
struct OneBlockSpan : World {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  OneBlockSpan() {
    start_with(0, kOne, 2, p);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      allocate(kOne);
    } else {
      deallocate(p[0]);
      deallocate(p[1]);
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocSpan, StatesWithEagerReturn) {
  EXPECT_HOLDS(naive::CountsApart, {.memory = MemoryModel::interleaving, .preemptions = 10});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {});
  EXPECT_FINDS(naive::CrossesTwoEvents, "in_pool", {});
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOne, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndOneHidden, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(FreesAroundTheOwner, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(TakesWhatItEmptiedReusable, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(TakesWhatItEmptiedHidden, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OnlyOthers, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OwnerFreesLastReusable, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OwnerFreesLastHidden, 5, 4);
  EXPECT_HOLDS_EVERYWHERE(OneBlockSpan, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OwnerAndTwoHidden, 2, 1);
}

// --- Reusable set --------------------------------------------------------------------------------

// The owner frees (the span becomes reusable), fills its hot span and takes the
// reusable one, while others free.
template <unsigned kOthers>
struct OpenAndTake : World {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[6];
  OpenAndTake() {
    start_with(0, kThree, 6, p);  // 0..2: floating, 3..5: hot and full
    for (unsigned t = 1; t < kThreads; ++t) start_with_lab(t);
  }
  void thread(unsigned self) {
    if (self != 0) return deallocate(p[self]);
    deallocate(p[0]);
    allocate(kThree);  // hot -> floating, reusable -> hot
  }
  void at_rest() { check_after_trim(kThreads); }
};

using OpenAndTakeAgainstOne = OpenAndTake<1>;
using OpenAndTakeAgainstTwo = OpenAndTake<2>;

// Another thread's frees open the span while its owner looks for one.
struct OpenedByAnother : World {
  static constexpr unsigned kThreads = 2;
  void* p[6];
  OpenedByAnother() {
    start_with(0, kThree, 6, p);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      deallocate(allocate(kThree));
    } else {
      deallocate(p[0]);
      deallocate(p[3]);
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocSpan, ReusableSetOpenAndClose) {
  EXPECT_FINDS(naive::ReusableThenLinked, "in_pool", {});
  EXPECT_FINDS(naive::PutIntoClosedSet, "reachable", {});
  EXPECT_FINDS(naive::SharedLink, "next", {});
  EXPECT_FINDS(naive::FreeBetweenRefillAndFloating, "remote_frees", {});
  EXPECT_HOLDS_EVERYWHERE(OpenAndTakeAgainstOne, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(OpenedByAnother, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(OpenAndTakeAgainstTwo, 2, 1);
}

// --- Adoption ------------------------------------------------------------------------------------

// The owner is gone; two threads free its blocks, and whoever comes first adopts.
template <class Base>
struct AdoptByFree : Base {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  AdoptByFree() {
    this->start_with(2, Base::kThree, 3, p);
    this->start_exited(2);
    this->start_with_lab(0);
    this->start_with_lab(1);
  }
  void thread(unsigned self) {
    this->deallocate(p[self]);
    if (self == 0) this->deallocate(p[2]);
  }
  void at_rest() {
    this->check_after_trim(kThreads);
    MODEL_CHECK(this->is_free(p[0]));
  }
};

// The same for a span that had free blocks when its owner went: what the
// adopter frees adds to them.
struct AdoptPartlyFree : SuspectWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  AdoptPartlyFree() {
    start_with(2, kFour, 3, p);
    start_exited(2);
    start_with_lab(0);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    deallocate(p[self]);
    if (self == 0) deallocate(p[2]);
  }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
  }
};

using AdoptOnFree = AdoptByFree<World>;
using AdoptOnFreeHidden = AdoptByFree<SuspectWorld>;

struct ThreeAdopt : World {
  static constexpr unsigned kThreads = 3;
  void* p[3];
  ThreeAdopt() {
    start_with(3, kThree, 3, p);
    start_exited(3);
    for (unsigned t = 0; t < kThreads; ++t) start_with_lab(t);
  }
  void thread(unsigned self) { deallocate(p[self]); }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
  }
};

// One adopts, then allocates from what it adopted; another frees.
struct AdoptAndReuse : World {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  AdoptAndReuse() {
    start_with(2, kThree, 3, p);
    start_exited(2);
    start_with_lab(0);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      deallocate(p[0]);
      allocate(kThree);
    } else {
      deallocate(p[1]);
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocSpan, Adoption) {
  EXPECT_FINDS(naive::StaleEpochAfterAdoption, "in_pool", {});
  EXPECT_FINDS(naive::PutToOldOwner, "links", {});
  EXPECT_HOLDS_EVERYWHERE(AdoptOnFree, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(AdoptOnFreeHidden, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(AdoptPartlyFree, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(AdoptAndReuse, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(ThreeAdopt, 2, 1);
}

// --- Thread termination --------------------------------------------------------------------------

// A thread ends with a hot span that others empty meanwhile.
template <unsigned kOthers>
struct EndsWithHotSpan : World {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[2];
  EndsWithHotSpan() {
    start_with(0, kThree, kOthers, p);
    for (unsigned t = 1; t < kThreads; ++t) start_with_lab(t);
  }
  void thread(unsigned self) {
    if (self == 0) return exit_thread();
    deallocate(p[self - 1]);
  }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
  }
};

using EndsWithHotAgainstOne = EndsWithHotSpan<1>;
using EndsWithHotAgainstTwo = EndsWithHotSpan<2>;

// A thread frees some of a floating span's blocks and ends; others free the
// rest; its LAB may live again.
template <class Base, bool kNewLife>
struct EndsWithFloatingSpan : Base {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EndsWithFloatingSpan() {
    this->start_with(0, Base::kThree, 4, p);
    this->start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self != 0) {
      this->deallocate(p[1]);
      this->deallocate(p[2]);
      return;
    }
    this->deallocate(p[0]);
    this->exit_thread();
    if (!kNewLife) return;
    Base::Engine::frontend().without_lab = false;  // the next thread in this LAB
    this->deallocate(this->allocate(Base::kFour));
  }
  void at_rest() {
    this->check_after_trim(kThreads);
    MODEL_CHECK(this->is_free(p[0]));
  }
};

using EndsWithFloating = EndsWithFloatingSpan<World, false>;
using EndsWithFloatingHidden = EndsWithFloatingSpan<SuspectWorld, false>;
using EndsAndLivesAgain = EndsWithFloatingSpan<World, true>;
using EndsAndLivesAgainHidden = EndsWithFloatingSpan<SuspectWorld, true>;

// Two threads end at once, each freeing the other's block first.
struct TwoEnd : World {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  void* q[1];
  TwoEnd() {
    start_with(0, kThree, 1, p);
    start_with(1, kThree, 1, q);
  }
  void thread(unsigned self) {
    deallocate(self == 0 ? q[0] : p[0]);
    exit_thread();
  }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
    MODEL_CHECK(is_free(q[0]));
  }
};

// One ends, one adopts what it leaves, one frees there.
struct EndAdoptFree : World {
  static constexpr unsigned kThreads = 3;
  void* p[4];
  EndAdoptFree() {
    start_with(0, kThree, 4, p);
    start_with_lab(1);
    start_with_lab(2);
  }
  void thread(unsigned self) {
    if (self == 0) return exit_thread();
    deallocate(p[self]);
    if (self == 1) deallocate(p[0]);
  }
  void at_rest() {
    check_after_trim(kThreads);
    MODEL_CHECK(is_free(p[0]));
  }
};

TEST(ScallocSpan, ThreadTermination) {
  EXPECT_FINDS(naive::TerminateForgetsEmptyHot, "in_pool", {});
  EXPECT_HOLDS_EVERYWHERE(EndsWithHotAgainstOne, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithFloating, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsAndLivesAgain, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithFloatingHidden, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsAndLivesAgainHidden, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TwoEnd, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithHotAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndAdoptFree, 2, 1);
}

// --- Core-local buffers --------------------------------------------------------------------------

// Two threads share a LAB: each frees what the other allocated, and allocates again.
struct SharedBuffer : ScallocWorld<ModelScallocClab> {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  SharedBuffer() { start_with(0, kThree, 4, p); }
  void thread(unsigned self) {
    deallocate(p[self]);
    if (self == 0) {
      deallocate(p[2]);
    } else {
      allocate(kThree);
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocSpan, CoreLocalBuffers) {
  EXPECT_HOLDS_EVERYWHERE(SharedBuffer, 4, 2);
}

// --- A span's next life --------------------------------------------------------------------------

// A freer that is slow to settle finds the span in its next life: of another
// class, with another owner.
struct SlowSettler : World {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  SlowSettler() {
    start_with(0, kThree, 4, p);
    start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self == 1) return deallocate(p[0]);
    deallocate(p[1]);
    deallocate(p[2]);
    void* q = allocate(kFour);  // may be the same span
    exit_thread();
    deallocate(q);
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocSpan, TheNextLife) {
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(SlowSettler, 2, 1);
}

// A fork finds any step of a span's way into the pool.
struct FoundOnItsWay : World {
  static constexpr unsigned kThreads = 1;
  void* p[4];
  FoundOnItsWay() { start_with(0, kThree, 4, p); }
  void thread(unsigned) {
    for (const unsigned i : {0u, 1u, 2u}) deallocate(p[i]);
  }
  void at_rest() { check_free_spans_are_dirty(); }
};

TEST(ScallocSpan, AForkFindsHowFarAFreeSpanWasWritten) {
  EXPECT_HOLDS(FoundOnItsWay, {.memory = MemoryModel::pso, .forks = true});
}

}  // namespace
}  // namespace spanalloc::model
