// The standard engine under the checker, second part: spans that change their owner. Adoption,
// threads' ends, and a span's next life.
#include "naive_span.hpp"
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

// --- Adoption ------------------------------------------------------------------------------------

// Two threads want the same abandoned span while a third frees its last block.
struct TwoAdopters : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[1];
  TwoAdopters() {
    start_with(kHelper, kTwo, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 2) {
      free(p[0]);
    } else {
      malloc(kTwo);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// An abandoned span all of whose blocks are out gets its first free ones, while another thread
// looks for such.
struct FullAbandoned : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[3];
  FullAbandoned() {
    start_with(kHelper, kThree, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 2) {
      malloc(kThree);
    } else {
      free(p[self]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// One adopts, and frees again; another frees what the former owner had handed out.
struct AdoptAndFree : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  AdoptAndFree() {
    start_with(kHelper, kThree, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      free(malloc(kThree));
    } else {
      free(p[0]);
      free(p[1]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// A batch goes to a span that another thread adopts meanwhile.
struct BatchAgainstAdopter : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  BatchAgainstAdopter() {
    start_with(kHelper, kFour, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
    start_freed(1, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kFour);
      malloc(kFour);
    } else {
      free(p[1]);
      free(p[2]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

TEST(StandardOwnership, Adoption) {
  EXPECT_FINDS(naive::StaleEpochAfterAdoption, "in_pool", {});
  EXPECT_FINDS(naive::PutToOldOwner, "links", {});
  EXPECT_HOLDS_EVERYWHERE(AdoptAndFree, 4, 2);
  EXPECT_HOLDS_EVERYWHERE(BatchAgainstAdopter, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(FullAbandoned, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(TwoAdopters, 2, 1);
}

// --- Several abandoned spans ---------------------------------------------------------------------

// Two abandoned spans, shown on different stacks. Two threads look for one each.
struct TwoAbandoned : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2][1];
  TwoAbandoned() : StandardWorld(2) {
    start_with(kHelper, kTwo, p[0]);
    start_with(2, kTwo, p[1]);
    start_attached(0);
    start_ended(kHelper);
    start_attached(1);
    start_ended(2);
  }
  void thread(unsigned) { malloc(kTwo); }
  void at_rest() {
    MODEL_CHECK(word_of(p[0][0]).state() == SpanState::kOwned);
    MODEL_CHECK(word_of(p[1][0]).state() == SpanState::kOwned);
    check_to_the_end();
  }
};

// A thread takes the last abandoned span while a thread ends and leaves another one, or the first
// free into a full one shows that.
template <bool kEnds>
struct TakenAndShown : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2][1];
  void* full[2];
  TakenAndShown() : StandardWorld(2) {
    start_with(kHelper, kTwo, p[0]);
    start_attached(0);
    if (kEnds) {
      start_with(1, kTwo, p[1]);
    } else {
      start_with(2, kTwo, full);
      start_ended(2);
      start_attached(1);
    }
    start_ended(kHelper);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kTwo);
    } else if (kEnds) {
      end();
    } else {
      free(full[0]);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using TakenAsOneEnds = TakenAndShown<true>;
using TakenAsOneFrees = TakenAndShown<false>;

TEST(StandardOwnership, SeveralAbandoned) {
  EXPECT_HOLDS_EVERYWHERE(TwoAbandoned, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(TakenAsOneEnds, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(TakenAsOneFrees, 4, 3);
}

// --- A thread's end ------------------------------------------------------------------------------

// A thread ends with a current span with free blocks; others free its blocks meanwhile. With the
// last one the span is free.
template <unsigned kOthers>
struct EndsWithCurrent : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[1 + kOthers];
  EndsWithCurrent() {
    start_with(0, kFour, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 0) end();
  }
  void at_rest() {
    check();
    start_given_up(kHelper);
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};
using EndsWithCurrentAgainstOne = EndsWithCurrent<1>;
using EndsWithCurrentAgainstTwo = EndsWithCurrent<2>;

// ... with an away span and a full current one.
template <unsigned kOthers>
struct EndsWithAway : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[4];
  EndsWithAway() {
    start_with(0, kTwo, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    free(p[self - 1]);
    if (kOthers == 1) free(p[1]);
  }
  void at_rest() {
    check();
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};
using EndsWithAwayAgainstOne = EndsWithAway<1>;
using EndsWithAwayAgainstTwo = EndsWithAway<2>;

// ... with two away spans and a current one.
struct EndsWithTwoAway : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[7];
  EndsWithTwoAway() {
    start_with(0, kThree, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    free(p[0]);
    free(p[3]);
  }
  void at_rest() { check_to_the_end(); }
};

// ... after it has given its span up, into which it goes on to free.
template <unsigned kOthers>
struct EndsWithGivenUp : StandardWorld {
  static constexpr unsigned kThreads = 1 + kOthers;
  void* p[2 + kOthers];
  EndsWithGivenUp() {
    start_with(0, kFour, p);
    for (unsigned t = 1; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self != 0) return free(p[self]);
    trim();
    free(p[0]);
    end();
    free(p[1 + kOthers]);
  }
  void at_rest() {
    MODEL_CHECK(is_free(p[0]));
    check_to_the_end();
  }
};
using EndsWithGivenUpAgainstOne = EndsWithGivenUp<1>;
using EndsWithGivenUpAgainstTwo = EndsWithGivenUp<2>;

// ... with a batch, which its end flushes, while the span's owner ends, or takes it back.
template <bool kOwnerEnds>
struct EndsWithBatch : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  EndsWithBatch() {
    start_away(0, kFour, p);
    start_attached(1);
    start_freed(1, p[1]);
  }
  void thread(unsigned self) {
    if (self == 1) {
      free(p[2]);
      end();
    } else if (kOwnerEnds) {
      end();
    } else {
      free(p[0]);
      malloc(kFour);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using EndsWithBatchAgainstEnd = EndsWithBatch<true>;
using EndsWithBatchAgainstOwner = EndsWithBatch<false>;

// ... with cached large spans, while another one takes them away, and allocates one.
struct EndsWithCachedLarge : StandardWorld {
  static constexpr unsigned kThreads = 2;
  EndsWithCachedLarge() {
    start_attached(0);
    start_attached(1);
    as(1, [&] { malloc(kOne); });
  }
  void thread(unsigned self) {
    if (self == 0) {
      end();
    } else {
      malloc(kOne);
      take_large_spans();
    }
  }
  void at_rest() { check_to_the_end(); }
};

// Two threads end at once, a third frees what both had handed out.
struct TwoEnd : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[2][1];
  TwoEnd() {
    start_with(0, kTwo, p[0]);
    start_with(1, kTwo, p[1]);
    start_attached(2);
  }
  void thread(unsigned self) {
    if (self != 2) return end();
    free(p[0][0]);
    free(p[1][0]);
  }
  void at_rest() {
    check();
    start_given_up(kHelper);
    MODEL_CHECK(is_free(p[0][0]) && is_free(p[1][0]));
    check_to_the_end();
  }
};

// One ends, one adopts what it leaves behind, one frees.
struct EndAdoptFree : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[1];
  EndAdoptFree() {
    start_with(0, kTwo, p);
    start_attached(1);
    start_attached(2);
  }
  void thread(unsigned self) {
    if (self == 0) {
      end();
    } else if (self == 1) {
      free(p[0]);
    } else {
      malloc(kTwo);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// One purges the abandoned span's pages, which holds it, another one adopts it, a third frees into
// it.
struct HoldAdoptFree : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[3];
  HoldAdoptFree() {
    start_with(kHelper, kFour, p);
    start_freed(kHelper, p[2]);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      hold_abandoned(span_of(p[0]));
    } else if (self == 1) {
      malloc(kFour);
    } else {
      free(p[0]);
      free(p[1]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

TEST(StandardOwnership, ThreadEnds) {
  EXPECT_FINDS(naive::TerminateForgetsEmptyHot, "in_pool", {});
  EXPECT_HOLDS_EVERYWHERE(EndsWithCurrentAgainstOne, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithAwayAgainstOne, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithTwoAway, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithGivenUpAgainstOne, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithBatchAgainstEnd, 2, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithBatchAgainstOwner, 2, 2);
  EXPECT_HOLDS_EVERYWHERE(EndsWithCachedLarge, 3, 2);
}
TEST(StandardOwnership, ThreadEndsAgainstTwo) {
  EXPECT_HOLDS_EVERYWHERE(EndsWithCurrentAgainstTwo, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithAwayAgainstTwo, 1, 1);
  EXPECT_HOLDS_EVERYWHERE(EndsWithGivenUpAgainstTwo, 1, 1);
  EXPECT_HOLDS_EVERYWHERE(TwoEnd, 1, 1);
  EXPECT_HOLDS_EVERYWHERE(EndAdoptFree, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(HoldAdoptFree, 1, 0);
}

// --- Spans that stay nobody's --------------------------------------------------------------------

// Two threads are lent blocks of the same span, or of its class; one after it has ended.
template <bool kOneHasEnded>
struct TwoAreLent : LendingWorld {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  TwoAreLent() {
    start_with(kHelper, kFour, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
    if (kOneHasEnded) start_ended(1);
  }
  void thread(unsigned) { free(malloc(kFour)); }
  void at_rest() { check_to_the_end(); }
};
using BothLiveAreLent = TwoAreLent<false>;
using OneHasEndedIsLent = TwoAreLent<true>;

// Blocks are lent while another thread frees the last ones that are out.
struct LentAgainstLastFrees : LendingWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  LentAgainstLastFrees() {
    start_with(kHelper, kFour, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kFour);
    } else {
      free(p[0]);
      free(p[1]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// A thread ends with what was lent to it, while another one frees into the span, and is lent some.
struct EndsWithLent : LendingWorld {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  EndsWithLent() {
    start_with(0, kFour, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) return end();
    free(p[0]);
    malloc(kFour);
  }
  void at_rest() { check_to_the_end(); }
};

// One adopts the span of which another is lent blocks, and has blocks itself.
struct LentAgainstAdopter : LendingOnceWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  LentAgainstAdopter() {
    start_with(0, kThree, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 0) free(p[0]);
    malloc(kThree);
  }
  void at_rest() { check_to_the_end(); }
};

// A purge holds the span meanwhile.
struct LentAgainstPurge : LendingWorld {
  static constexpr unsigned kThreads = 3;
  void* p[1];
  LentAgainstPurge() {
    start_with(kHelper, kFour, p);
    start_ended(kHelper);
    for (unsigned t = 0; t < kThreads; ++t) start_attached(t);
  }
  void thread(unsigned self) {
    if (self == 0) {
      malloc(kFour);
    } else if (self == 1) {
      hold_abandoned(span_of(p[0]));
    } else {
      free(p[0]);
    }
  }
  void at_rest() { check_to_the_end(); }
};

TEST(StandardOwnership, SpansThatStayNobodys) {
  EXPECT_HOLDS_EVERYWHERE(BothLiveAreLent, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OneHasEndedIsLent, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(LentAgainstLastFrees, 4, 3);
  EXPECT_HOLDS_EVERYWHERE(EndsWithLent, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(LentAgainstAdopter, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(LentAgainstPurge, 2, 1);
}

// --- A span's next life --------------------------------------------------------------------------

// A freer is slow after its compare-and-swap: meanwhile the span went through the pool and lives
// again, with the same owner or another one.
template <unsigned kNextOwner>
struct SlowFreer : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  SlowFreer() {
    start_away(kNextOwner == 0 ? 0 : kHelper, kTwo, p);
    start_attached(0);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) return free(p[0]);
    free(p[1]);
    free(malloc(kTwo));
  }
  void at_rest() { check_to_the_end(); }
};
using SlowFreerSameOwner = SlowFreer<0>;
using SlowFreerNewOwner = SlowFreer<1>;

// A thread claims another one's away span, and has it away itself, while the former owner has it in
// its queue still: and comes to it there, or ends.
template <bool kEnds>
struct InTheFormerOwnersQueue : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  InTheFormerOwnersQueue() {
    start_away(0, kTwo, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) {
      free(p[0]);
      free(p[1]);
      for (int i = 0; i < 3; ++i) malloc(kTwo);
      end();
    } else if (kEnds) {
      end();
    } else {
      for (int i = 0; i < 3; ++i) malloc(kTwo);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using QueuedWhileOwnerSearches = InTheFormerOwnersQueue<false>;
using QueuedWhileOwnerEnds = InTheFormerOwnersQueue<true>;

// A span is emptied by its owner and another thread, whoever is last; a third takes it from the
// pool: to go on with the lists that it has, for another class, or for one large block.
template <std::size_t kSize>
struct LivesAgain : StandardWorld {
  static constexpr unsigned kThreads = 3;
  void* p[2];
  LivesAgain() {
    start_away(0, kTwo, p);
    start_attached(1);
    start_attached(2);
    as(2, [&] { malloc(kOne); });  // the cached large span
  }
  void thread(unsigned self) {
    if (self == 2) {
      malloc(kSize);
    } else {
      free(p[self]);
    }
  }
  void at_rest() { check_to_the_end(); }
};
using LivesAgainInItsClass = LivesAgain<StandardWorld::kTwo>;
using LivesAgainInAnother = LivesAgain<StandardWorld::kThree>;
using LivesAgainWithOneBlock = LivesAgain<StandardWorld::kOne>;

// Spans of one block: freed by another thread than allocated them, cached, taken away, and used
// again for several blocks.
struct OneBlockPassedOn : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[1];
  OneBlockPassedOn() {
    start_with(0, kOne, p);
    start_attached(1);
  }
  void thread(unsigned self) {
    if (self == 1) {
      free(p[0]);
      malloc(kTwo);
    } else {
      take_large_spans();
      malloc(kTwo);
    }
  }
  void at_rest() { check_to_the_end(); }
};

// The owner has a map, which leads to its span until another thread, who frees last, has claimed
// it: the entry is cleared before that thread owns the span, whatever the owner maps meanwhile.
struct ClaimedFromMap : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[2];
  ClaimedFromMap() {
    start_mapped(0);
    start_mapped(1);
    start_away(0, kTwo, p);
  }
  void thread(unsigned self) {
    free(p[self]);
    void* q = malloc(kTwo);
    free(q);
  }
  void at_rest() { check_to_the_end(); }
};
// ... or ends, and another thread with a map adopts the span.
struct AdoptedFromMap : StandardWorld {
  static constexpr unsigned kThreads = 2;
  void* p[3];
  AdoptedFromMap() {
    start_mapped(0);
    start_mapped(1);
    start_with(0, kFour, p);
  }
  void thread(unsigned self) {
    free(p[self]);
    if (self == 0) return end();
    free(malloc(kFour));
  }
  void at_rest() { check_to_the_end(); }
};

TEST(StandardOwnership, Maps) {
  EXPECT_HOLDS_EVERYWHERE(ClaimedFromMap, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(AdoptedFromMap, 2, 1);
}

TEST(StandardOwnership, TheNextLife) {
  EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", {});
  EXPECT_HOLDS_EVERYWHERE(SlowFreerSameOwner, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(SlowFreerNewOwner, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(QueuedWhileOwnerSearches, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(QueuedWhileOwnerEnds, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LivesAgainInItsClass, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LivesAgainInAnother, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LivesAgainWithOneBlock, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OneBlockPassedOn, 3, 1);
}

}  // namespace
}  // namespace spanalloc::model
