// The standard engine's span protocol under the checker, second part: spans that change their
// owner. Adoption, thread termination, and a span's next life.
#include "naive_span.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// --- Adoption ------------------------------------------------------------------------------------

// Two threads want the same orphan while a third frees its last block.
struct TwoAdopters : StandardWorld {
  static constexpr unsigned kThreads = 3;
  TwoAdopters() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 3, 1);
    adopted(3);
  }
  void thread(unsigned self) {
    if (self == 2) return free_remote(1, 1);
    const std::uint32_t me = self + 1;
    const std::uint32_t number = find_reusable(me);
    if (number == 0) return;
    allocate_hot(number);
    share(number, me);
  }
  void at_rest() {
    collect_delayed(1);
    collect_delayed(2);
    check_at_rest();
  }
};

// An orphan all of whose blocks are out gets its first free one, while
// another thread looks for such.
struct FullOrphan : StandardWorld {
  static constexpr unsigned kThreads = 3;
  FullOrphan() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_parked(1, 3, 3);
    adopted(3);
  }
  void thread(unsigned self) {
    if (self != 2) return free_remote(1, self + 1);
    const std::uint32_t number = find_reusable(1);
    if (number != 0) share(number, 1);
  }
  void at_rest() {
    collect_delayed(1);
    check_at_rest();
  }
};

// One adopts, hands out, parks and frees again; another frees what the former owner had handed out.
struct AdoptAndFree : StandardWorld {
  static constexpr unsigned kThreads = 2;
  AdoptAndFree() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_parked(1, 3, 2);
    adopted(3);
  }
  void thread(unsigned self) {
    if (self == 1) {
      free_remote(1, 1);
      free_remote(1, 2);
      return;
    }
    const std::uint32_t number = find_reusable(1);
    if (number == 0) return;
    const std::uint32_t b = allocate_hot(number);
    share(number, 1);
    free_any(number, b, 1);
  }
  void at_rest() {
    collect_delayed(1);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// Two abandoned_lists with a span each. Two threads look for an orphan: both in the one, their
// home, then the one that comes too late in the other.
struct TwoOrphanages : StandardWorld {
  static constexpr unsigned kThreads = 2;
  TwoOrphanages() : StandardWorld({.spans = 2, .capacity = 2, .partial_outstanding = 1}) {
    set_heir(3, kOtherOrphanage);
    start_parked(1, 1, 1);
    start_parked(2, 3, 1);
    adopted(1);
    adopted(3);
  }
  void thread(unsigned self) {
    const std::uint32_t me = self + 1;
    const std::uint32_t number = find_reusable(me);
    MODEL_CHECK(number != 0);  // one for each of them
    allocate_hot(number);
    share(number, me);
  }
  void at_rest() {
    MODEL_CHECK(span(1).word.load_relaxed().outstanding() == 2);
    MODEL_CHECK(span(2).word.load_relaxed().outstanding() == 2);
    check_at_rest();
  }
};

// A thread from elsewhere takes an abandoned list's last reusable span, and clears its bit, while a
// thread ends and leaves another one there, or the first free into a full orphan makes that
// reusable. What is left is found.
template <bool kEnds>
struct BitClearedAndSet : StandardWorld {
  static constexpr unsigned kThreads = 2;
  BitClearedAndSet() : StandardWorld({.spans = 2, .capacity = 2, .partial_outstanding = 1}) {
    set_heir(1, kOtherOrphanage);
    set_heir(3, kOtherOrphanage);
    start_parked(1, 1, 1);
    adopted(1);
    start_parked(2, 3, kEnds ? 1 : 2);
    if (!kEnds) adopted(3);
  }
  void thread(unsigned self) {
    if (self == 0) {
      const std::uint32_t number = find_reusable(2);  // 0: the abandoned list was busy
      if (number != 0) allocate_hot(number);
    } else if (kEnds) {
      adopted(3);
    } else {
      free_remote(2, 1);
    }
  }
  void at_rest() {
    check_at_rest();
    MODEL_CHECK(find_reusable(2) != 0);
  }
};

// What the bit is cleared under the lock for: here it is cleared after it.
struct BitClearedTooLate : BitClearedAndSet<true> {
  void thread(unsigned self) {
    if (self != 0) return BitClearedAndSet<true>::thread(self);
    find_reusable(2);
    if (cache(kOtherOrphanage).partial[index_of(kClass)].is_empty()) {
      abandoned().fetch_and_relaxed(~(std::uint64_t{1} << index_of(kOtherOrphanage)));
    }
  }
};

// A thread whose home is the other abandoned list finds what lies in the first; and when it needs a
// span it waits for a busy abandoned list and has the one that was there all the time.
struct WaitsForABusyOrphanage : StandardWorld {
  static constexpr unsigned kThreads = 2;
  WaitsForABusyOrphanage() : StandardWorld({.spans = 2, .capacity = 2, .partial_outstanding = 1}) {
    set_heir(2, kOtherOrphanage);
    start_parked(1, 1, 1);
    adopted(1);
    start_parked(2, 3, 1);
  }
  void thread(unsigned self) {
    if (self == 1) return adopted(3);
    const std::uint32_t number = find_orphan_waiting(2);
    MODEL_CHECK(number != 0);
    allocate_hot(number);
    share(number, 2);
  }
  void at_rest() {
    check_at_rest();
    MODEL_CHECK(find_reusable(2) != 0);
  }
};

using BitClearedAsOneEnds = BitClearedAndSet<true>;
using BitClearedAsOneFrees = BitClearedAndSet<false>;

TEST(StandardOwnership, SeveralOrphanages) {
  EXPECT_FINDS(BitClearedTooLate, "shown >>", {});
  EXPECT_HOLDS_EVERYWHERE(TwoOrphanages, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(WaitsForABusyOrphanage, 9, 6);
  EXPECT_HOLDS_EVERYWHERE(BitClearedAsOneEnds, 9, 6);
  EXPECT_HOLDS_EVERYWHERE(BitClearedAsOneFrees, 9, 6);
}

TEST(StandardOwnership, Adoption) {
  EXPECT_FINDS(naive::StaleEpochAfterAdoption, "in_pool", {});
  EXPECT_FINDS(naive::PutToOldOwner, "links", {});
  EXPECT_HOLDS_EVERYWHERE(AdoptAndFree, 5, 2);
  EXPECT_HOLDS_EVERYWHERE(FullOrphan, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(TwoAdopters, 3, 2);
}

// --- Thread termination --------------------------------------------------------------------------

// A thread ends with a current span, others free its blocks meanwhile. No empty span may
// remain, nobody settles later.
template <unsigned kOthers>
struct EndsWithHotSpan : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  EndsWithHotSpan() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, kOthers);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    share(1, 1);
    adopted(1);
  }
  void at_rest() {
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

using EndsWithHotAgainstOne = EndsWithHotSpan<1>;
using EndsWithHotAgainstTwo = EndsWithHotSpan<2>;

// A thread ends with a parked span in which it has uncollected frees; then its thread
// cache serves a new thread.
template <unsigned kOthers>
struct EndsWithParkedSpan : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  EndsWithParkedSpan() : StandardWorld({.capacity = 1 + kOthers + 1, .partial_outstanding = 1}) {
    start_parked(1, 1, 2 + kOthers);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    free_any(1, 1 + kOthers, 1);
    adopted(1);
    // The thread cache's next thread: the span is no longer this thread cache's
    free_any(1, 2 + kOthers, 1);
  }
  void at_rest() {
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

using EndsWithParkedAgainstOne = EndsWithParkedSpan<1>;
using EndsWithParkedAgainstTwo = EndsWithParkedSpan<2>;

// A thread ends, some blocks are still out: all that it owned must now be the abandoned
// list's, its books included.
struct EndsAndLeavesOne : StandardWorld {
  static constexpr unsigned kThreads = 2;
  EndsAndLeavesOne() : StandardWorld({.capacity = 4, .partial_outstanding = 1}) {
    start_parked(1, 1, 4);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, 2);
    free_any(1, 1, 1);
    adopted(1);
  }
  void at_rest() {
    const SpanWord word = span(1).word.load_relaxed();
    MODEL_CHECK(word.owner() == kOrphanage && span(1).list() == ListId::kPartial);
    check_at_rest();
  }
};

// Two threads end at once, a third frees what both had handed out.
struct TwoEnd : StandardWorld {
  static constexpr unsigned kThreads = 3;
  TwoEnd() : StandardWorld({.spans = 2, .capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 1, 1);
    start_parked(2, 2, 2);
  }
  void thread(unsigned self) {
    if (self != 2) return adopted(self + 1);
    free_remote(1, 1);
    free_remote(2, 1);
  }
  void at_rest() {
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// One ends, one adopts what it leaves behind, one frees.
struct EndAdoptFree : StandardWorld {
  static constexpr unsigned kThreads = 3;
  EndAdoptFree() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 1, 1);
  }
  void thread(unsigned self) {
    if (self == 0) return adopted(1);
    if (self == 1) return free_remote(1, 1);
    const std::uint32_t number = find_reusable(2);
    if (number == 0) return;
    allocate_hot(number);
    share(number, 2);
  }
  void at_rest() {
    collect_delayed(2);
    check_at_rest();
  }
};

// A thread ends with a current span, which nobody counts; others free its blocks meanwhile. Whoever
// counts it then finds all of them.
template <unsigned kOthers>
struct EndsUncounted : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  EndsUncounted() : StandardWorld({.capacity = 2 + kOthers, .partial_outstanding = 1}) {
    start_hot(1, 1, 1 + kOthers);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, self);
    free_any(1, 1 + kOthers, 1);
    orphan_uncounted(1, 1);
  }
  void at_rest() {
    MODEL_CHECK(span(1).is_uncounted());
    check_at_rest();
    count_abandoned(2);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
    MODEL_CHECK(cache(kOrphanage).uncounted.load_relaxed() == 0);
  }
};
using EndsUncountedAgainstOne = EndsUncounted<1>;
using EndsUncountedAgainstTwo = EndsUncounted<2>;

// One counts the orphan, another one adopts it, a third frees into it.
struct CountAdoptFree : StandardWorld {
  static constexpr unsigned kThreads = 3;
  CountAdoptFree() : StandardWorld({.capacity = 4, .partial_outstanding = 1}) {
    start_hot(1, 1, 3);
    free_any(1, 3, 1);
    orphan_uncounted(1, 1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      count_abandoned(2);
    } else if (self == 1) {
      if (find_reusable(3) != 0) allocate_hot(1);
    } else {
      free_remote(1, 1);
      free_remote(1, 2);
    }
  }
  void at_rest() {
    count_abandoned(2);
    check_at_rest(false);
  }
};

// --- Loans ---------------------------------------------------------------------------------------

// A current span, all out. One block comes back by a remote free before, one meanwhile;
// a third thread borrows what is there and frees it again. The owner fetches what is
// left, and parks the span.
struct BorrowAgainstOwner : StandardWorld {
  static constexpr unsigned kThreads = 3;
  BorrowAgainstOwner() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 3);
    free_remote(1, 1);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 2);
    if (self == 2) {
      const Loan loan = borrow(1, 1);
      for (std::uint32_t i = 0; i < loan.count; ++i) free_remote(1, loan.blocks[i]);
      return;
    }
    if (const std::uint32_t b = allocate_hot(1); b != 0) free_any(1, b, 1);
    share(1, 1);
  }
  void at_rest() {
    collect_delayed(1);
    check_at_rest();
  }
};

// The owner ends, and leaves the span uncounted, with a block that was never carved; a
// borrower may find it hot still.
struct BorrowAgainstEnd : StandardWorld {
  static constexpr unsigned kThreads = 2;
  BorrowAgainstEnd() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 2);
    free_run(1, 1, 1);
  }
  void thread(unsigned self) {
    if (self == 0) return orphan_uncounted(1, 1);
    const Loan loan = borrow(1, 1);
    for (std::uint32_t i = 0; i < loan.count; ++i) free_remote(1, loan.blocks[i]);
    free_remote(1, 2);
  }
  void at_rest() {
    count_abandoned(2);
    check_at_rest();
  }
};

// Two want the same list: one of them has it, whole.
struct TwoBorrowers : StandardWorld {
  static constexpr unsigned kThreads = 2;
  TwoBorrowers() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 3);
    free_run(1, 1, 2);
  }
  void thread(unsigned self) { borrowed_[self] = borrow(1, 1, 2).count; }
  void at_rest() {
    MODEL_CHECK(borrowed_[0].get() + borrowed_[1].get() <= 2);  // (a busy lock is not waited for)
    check_at_rest(false);
  }
  Plain<std::uint32_t> borrowed_[2];
};

// The owner looks through what others have freed, while somebody borrows it.
template <bool kLocked>
struct BorrowAgainstCount : StandardWorld {
  static constexpr unsigned kThreads = 2;
  BorrowAgainstCount() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 3);
    free_run(1, 1, 2);
  }
  void thread(unsigned self) {
    if (self == 0) return check_remotes(1, 1, kLocked);
    borrow(1, 1);
  }
  void at_rest() { check_at_rest(false); }
};

TEST(StandardOwnership, Loans) {
  EXPECT_FINDS(BorrowAgainstCount<false>, "", {});
  EXPECT_HOLDS_EVERYWHERE(BorrowAgainstCount<true>, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(TwoBorrowers, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(BorrowAgainstEnd, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(BorrowAgainstOwner, 3, 2);
}

// Counted, but for what is on its list: then nobody ever finds it empty.
struct EndsMiscounted : StandardWorld {
  static constexpr unsigned kThreads = 2;
  EndsMiscounted() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 2);
  }
  void thread(unsigned self) {
    if (self != 0) return free_remote(1, 1);
    free_any(1, 2, 1);
    const Inside inside(*this);
    protocol().counted_to_abandoned(ref(1), CacheNumber{1}, kOrphanage, 1);
  }
  void at_rest() { check_at_rest(); }
};

TEST(StandardOwnership, ThreadTerminationWithWhatIsOut) {
  EXPECT_FINDS(EndsMiscounted, "== out", {});
  EXPECT_HOLDS_EVERYWHERE(EndsUncountedAgainstOne, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(EndsUncountedAgainstTwo, 4, 2);
}

// Under each memory a test of its own, because the larger bounds take minutes. (Stale reads with
// one preemption more are more executions than are explored anywhere.)
void expect_count_adopt_free_holds(MemoryModel memory, unsigned preemptions) {
  EXPECT_HOLDS(CountAdoptFree, {.memory = memory, .preemptions = preemptions, .max_steps = 20'000});
}
TEST(StandardOwnership, CountAdoptFreeUnderTso) {
  expect_count_adopt_free_holds(MemoryModel::tso, bound(2, 4));
}
TEST(StandardOwnership, CountAdoptFreeUnderPso) {
  expect_count_adopt_free_holds(MemoryModel::pso, bound(2, 4));
}
TEST(StandardOwnership, CountAdoptFreeUnderViews) {
  expect_count_adopt_free_holds(MemoryModel::views, bound(1, 2));
}

TEST(StandardOwnership, ThreadTermination) {
  EXPECT_FINDS(naive::TerminateForgetsEmptyHot, "in_pool", {});
  EXPECT_HOLDS_EVERYWHERE(EndsWithHotAgainstOne, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(EndsWithParkedAgainstOne, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(EndsAndLeavesOne, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(EndsWithHotAgainstTwo, 3, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithParkedAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TwoEnd, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndAdoptFree, 3, 2);
}

// --- A span's next life --------------------------------------------------------------------------

// A freer that is slow after its compare-and-swap comes late to the owner's lock: meanwhile the
// span went through the pool and lives again, with the same owner or another one.
template <std::uint32_t kNextOwner>
struct SlowFreer : StandardWorld {
  static constexpr unsigned kThreads = 2;
  SlowFreer() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) { start_parked(1, 1, 2); }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    free_any(1, 2, kNextOwner == 1 ? 1 : 3);  // by the owner or by a third party
    const std::uint32_t number = take_from_pool();
    if (number == 0) return;
    make_current(number, kNextOwner);
    allocate_hot(number);
    share(number, kNextOwner);
    free_any(number, 1, kNextOwner);
  }
  void at_rest() {
    collect_delayed(1);
    collect_delayed(2);
    MODEL_CHECK(in_pool_count() == 1);
    check_at_rest();
  }
};

// The owner's own free lets the other freer claim the span, which another thread cache then takes:
// the owner, who is about to settle it, must see that it is no longer his.
struct ClaimedUnderTheOwner : StandardWorld {
  static constexpr unsigned kThreads = 2;
  ClaimedUnderTheOwner() : StandardWorld({.capacity = 2, .partial_outstanding = 1}) {
    start_parked(1, 1, 2);
  }
  void thread(unsigned self) {
    if (self == 0) return free_any(1, 1, 1);
    free_remote(1, 2);
    const std::uint32_t number = take_from_pool();
    if (number == 0) return;
    make_current(number, 2);
    allocate_hot(number);
    share(number, 2);
  }
  void at_rest() {
    collect_delayed(1);
    check_at_rest();
  }
};

// The same for an orphan that lives on as a span of one block, which belongs to no thread cache,
// and then as a current span, whose record its new owner sets up without any lock.
struct SlowFreerOfOrphan : StandardWorld {
  static constexpr unsigned kThreads = 2;
  SlowFreerOfOrphan() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_parked(1, 3, 2);
    adopted(3);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    free_remote(1, 2);
    std::uint32_t number = take_from_pool();
    if (number == 0) return;
    make_single(number);
    free_any(number, 1, 2);
    number = take_from_pool();
    make_current(number, 2);
  }
  void at_rest() { check_at_rest(); }
};

// A span that a fork has cut off from its owner: parked with the abandoned list, on no list, a
// block of it lost for ever.
struct LostToFork : StandardWorld {
  static constexpr unsigned kThreads = 2;
  LostToFork() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_hot(1, 1, 2);
    Span& s = span(1);
    s.word.set(s.word.load_relaxed().with_state(SpanState::kShared).with_owner(kOrphanage));
  }
  void thread(unsigned self) { free_remote(1, self + 1); }
  void at_rest() {
    MODEL_CHECK(span(1).word.load_relaxed().outstanding() == 1);
    MODEL_CHECK(span(1).list() == ListId::kNone && cache(0u).partial[index_of(kClass)].is_empty());
    MODEL_CHECK(take_from_pool() == 0);
  }
};

using SlowFreerSameOwner = SlowFreer<1>;
using SlowFreerNewOwner = SlowFreer<2>;

// A span is emptied by its owner and another thread, whoever is last; a third takes it from the
// pool, and goes on with the lists that it has.
struct KeepsItsLists : StandardWorld {
  static constexpr unsigned kThreads = 3;
  KeepsItsLists() : StandardWorld({.capacity = 3, .partial_outstanding = 1}) {
    start_parked(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free_any(1, 1, 1);
      free_any(1, 2, 1);
      collect_delayed(1);
    } else if (self == 1) {
      free_remote(1, 3);
    } else if (take_from_pool() != 0) {
      make_hot_again(1, 2);
      for (int i = 0; i < 3; ++i) MODEL_CHECK(allocate_hot(1) != 0);
    }
  }
  void at_rest() { check_at_rest(false); }
};

TEST(StandardOwnership, TheNextLife) {
  EXPECT_HOLDS_EVERYWHERE(KeepsItsLists, 4, 3);
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(SlowFreerSameOwner, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(LostToFork, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(ClaimedUnderTheOwner, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(SlowFreerOfOrphan, 5, 3);
  EXPECT_HOLDS_EVERYWHERE(SlowFreerNewOwner, 5, 3);
}

}  // namespace
}  // namespace spanalloc::model
