// The scalloc engine under the checker when memory is out: a thread takes any floating span of its
// own, or an orphan, that has a free block, while others free there.
#include "naive_span.hpp"
#include "scalloc_world.hpp"

namespace spanalloc::model {
namespace {

using World = ScallocWorld<>;
using SuspectWorld = ScallocWorld<ModelScallocSuspects>;  // few free blocks: floating, not reusable

// --- The span stays in use -----------------------------------------------------------------------

// A thread takes the last free blocks there are, out of its own floating span or an orphan,
// while another frees there.
template <class Base, bool kOrphan>
struct LastBlocks : Base {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  LastBlocks() {
    this->start_with(kOrphan ? 2 : 0, Base::kFour, 4, p);
    if (kOrphan) this->start_exited(2);
    this->start_with_lab(1);
    if (kOrphan) this->start_with_lab(0);
    this->start_without_memory();
  }
  void thread(unsigned self) {
    if (self == 1) {
      this->deallocate(p[1]);
      this->deallocate(p[2]);
      return;
    }
    if (kOrphan) this->deallocate(p[3]);
    void* q = this->allocate_if_any(Base::kFour);
    if (q != nullptr) this->deallocate(q);
  }
  void at_rest() {
    this->check_after_trim(kThreads);
    MODEL_CHECK(!this->is_free(p[0]));  // p[0] is still out
  }
};

using LastOwnBlocks = LastBlocks<World, false>;
using LastOwnBlocksHidden = LastBlocks<SuspectWorld, false>;
using LastOrphanBlocks = LastBlocks<World, true>;
using LastOrphanBlocksHidden = LastBlocks<SuspectWorld, true>;

// One block of a thread's own span is free all the time, so the thread gets one; even if another
// thread lists the span meanwhile.
template <class Base>
struct OneIsFree : Base {
  static constexpr unsigned kThreads = 2;
  void* p[8];
  OneIsFree() {
    this->start_with(0, Base::kFour, 8, p);  // 0..3: floating, 4..7: hot and full
    this->start_with_lab(1);
    this->start_without_memory();
    this->start_freed(0, p[0]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      this->allocate(Base::kFour);
    } else {
      this->deallocate(p[1]);
    }
  }
  void at_rest() { this->check_after_trim(kThreads); }
};

using OneIsFreeListed = OneIsFree<World>;
using OneIsFreeHidden = OneIsFree<SuspectWorld>;

TEST(ScallocLastResort, TakesWhatIsFree) {
  EXPECT_HOLDS_EVERYWHERE(LastOwnBlocks, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(LastOwnBlocksHidden, 6, 4);
  EXPECT_HOLDS_EVERYWHERE(LastOrphanBlocks, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LastOrphanBlocksHidden, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OneIsFreeListed, 3, 2);
  EXPECT_HOLDS_EVERYWHERE(OneIsFreeHidden, 3, 2);
}

// --- The span's life ends ------------------------------------------------------------------------

// The other thread frees the span's last blocks, and begins its next life: the span floats again,
// of another class or of the same, as another LAB's; or is listed there.
template <class Base, bool kOrphan, std::size_t kNext, bool kListed>
struct LastBlockGoes : Base {
  static constexpr unsigned kThreads = 2;
  void* p[4];
  LastBlockGoes() {
    const unsigned owner = kOrphan ? 2 : 0;
    this->start_with(owner, Base::kFour, 4, p);
    if (!kOrphan) this->start_without_hot(owner, Base::kFour);
    this->start_freed(owner, p[0]);
    if (kOrphan) {
      this->start_exited(owner);
      this->start_with_lab(0);
    }
    this->start_with_lab(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      this->allocate_floating(Base::kFour);
      return;
    }
    for (unsigned i = 1; i < 4; ++i) this->deallocate(p[i]);
    const std::uint32_t blocks = scalloc::info(scalloc::class_of(kNext)).blocks;
    void* first = this->allocate(kNext);
    for (std::uint32_t i = 0; i < blocks; ++i) this->allocate(kNext);
    if (kListed) this->deallocate(first);
  }
  void at_rest() { this->check_after_trim(kThreads); }
};

using ToAnotherClass = LastBlockGoes<World, false, World::kOne, false>;
using ToAnotherClassHidden = LastBlockGoes<SuspectWorld, false, World::kOne, false>;
using ToTheSameClass = LastBlockGoes<SuspectWorld, false, World::kFour, false>;
using ToAnothersSet = LastBlockGoes<World, false, World::kThree, true>;
using OrphanToAnotherClass = LastBlockGoes<World, true, World::kOne, false>;
using OrphanToAnothersSet = LastBlockGoes<World, true, World::kThree, true>;

// The last free and the next life are two threads'.
struct LastBlockGoesByThree : SuspectWorld {
  static constexpr unsigned kThreads = 3;
  void* p[4];
  LastBlockGoesByThree() {
    start_with(0, kFour, 4, p);
    start_without_hot(0, kFour);
    start_with_lab(1);
    start_with_lab(2);
    for (unsigned i = 0; i < 3; ++i) start_freed(1, p[i]);
  }
  void thread(unsigned self) {
    if (self == 0) {
      allocate_floating(kFour);
    } else if (self == 1) {
      deallocate(p[3]);
    } else {
      allocate(kOne);
      allocate(kOne);  // the first one's span floats
    }
  }
  void at_rest() { check_after_trim(kThreads); }
};

TEST(ScallocLastResort, LeavesWhatHasMovedOn) {
  EXPECT_FINDS(naive::TakenOnALaterEpoch, "taken_from", {});
  EXPECT_HOLDS_EVERYWHERE(ToAnotherClass, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(ToAnotherClassHidden, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(ToTheSameClass, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(ToAnothersSet, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OrphanToAnotherClass, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(OrphanToAnothersSet, 2, 1);
  EXPECT_HOLDS_EVERYWHERE(LastBlockGoesByThree, 2, 1);
}

}  // namespace
}  // namespace spanalloc::model
