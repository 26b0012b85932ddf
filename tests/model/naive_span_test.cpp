// Every known trap of span protocols is found by the checker; and the one that needs store buffers
// is not found without them.
#include "naive_span.hpp"

namespace spanalloc::model {
namespace {

// The difference that makes store buffers necessary: all interleavings of the naive
// emptiness check are fine.
TEST(NaiveSpan, TheLostEmptySpanNeedsStoreBuffers) {
  EXPECT_HOLDS(naive::CountsApart, {.memory = MemoryModel::interleaving, .preemptions = 100});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {.memory = MemoryModel::tso});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {.memory = MemoryModel::pso});
  EXPECT_FINDS(naive::CountsApart, "in_pool", {.memory = MemoryModel::views});
}

// ... and one read-modify-write instead of the owner's plain store makes it exact.
struct CountsApartButUpdated : naive::CountsApart {
  void thread(unsigned self) {
    if (self == 0) {
      span.local_frees.exchange_seq_cst(span.local_frees.load_relaxed() + 1);
    } else {
      span.remote_frees.fetch_add_seq_cst(1);
    }
    const std::uint32_t frees = span.local_frees.load_seq_cst() + span.remote_frees.load_seq_cst();
    if (frees == kCapacity && span.transition(naive::Epoch{0, naive::kNearlyFull}, naive::kFree)) {
      span.in_pool.fetch_add_relaxed(1);
    }
  }
};

TEST(NaiveSpan, AReadModifyWriteOnEachSideRepairsIt) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(CountsApartButUpdated, {.memory = memory, .preemptions = 100});
  }
}

TEST(NaiveSpan, EveryKnownTrapIsFound) {
  for (const MemoryModel memory :
       {MemoryModel::interleaving, MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    const Options options{.memory = memory, .preemptions = 3};
    EXPECT_FINDS(naive::CountBesideTheList, "taken", options);
    EXPECT_FINDS(naive::CountServesAsTag, "held", options);
    EXPECT_FINDS(naive::CrossesTwoEvents, "in_pool", options);
    EXPECT_FINDS(naive::EpochForgottenInPool, "in_use_again", options);
    EXPECT_FINDS(naive::ReusableThenLinked, "in_pool", options);
    EXPECT_FINDS(naive::PutIntoClosedSet, "reachable", options);
    EXPECT_FINDS(naive::SharedLink, "next", options);
    EXPECT_FINDS(naive::StaleEpochAfterAdoption, "in_pool", options);
    EXPECT_FINDS(naive::PutToOldOwner, "links", options);
    EXPECT_FINDS(naive::TakenOnALaterEpoch, "taken_from", options);
    EXPECT_FINDS(naive::TerminateForgetsEmptyHot, "in_pool", options);
    EXPECT_FINDS(naive::FreeBetweenRefillAndFloating, "remote_frees", options);
  }
}

}  // namespace
}  // namespace spanalloc::model
