// Heaps of the scalloc engine as objects: several at once, their threads, their end, forks.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "address_limit.hpp"
#include "child.hpp"
#include "os_calls.hpp"
#include "papers/scalloc/tests/test_support.hpp"
#include "sanitizers.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using scalloc::kVirtualSpan;
using scalloc::State;
using test::in_child;
using test::mapped_by_calls;

struct FirstConfig : Scalloc {};
struct OtherConfig : ScallocLazyReclaim {};
struct ClabConfig : ScallocClab {};
using First = OwnHeap<FirstConfig>;

template <class H>
class ScallocHeaps : public testing::Test {};
using Heaps = testing::Types<First, OwnHeap<OtherConfig>, OwnHeap<ClabConfig>>;
TYPED_TEST_SUITE(ScallocHeaps, Heaps);

template <class H>
void expect_census_adds_up(H& heap) {
  const scalloc::Census c = heap.census();
  EXPECT_EQ(c.carved, c.pooled + c.lost + c.hot + c.empty_hot + c.floating + c.suspect +
                          c.reusable + c.empty_idle);
}

template <class H>
void expect_empty(H& heap) {
  heap.trim();
  expect_census_adds_up(heap);
  EXPECT_TRUE(heap.census().nothing_held());
  EXPECT_EQ(heap.statistics().large_objects, 0u);
  EXPECT_EQ(heap.statistics().spans_lost_to_fork, 0u);
}

/// Objects of many sizes, filled, checked and freed; the last ones are left to the caller.
template <class H>
std::vector<void*> churn(H& heap, unsigned seed, int rounds, unsigned char fill) {
  std::vector<void*> living;
  for (int i = 0; i < rounds; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const std::size_t size = (seed >> 8) % (i % 50 == 0 ? 3 * kMiB : i % 7 == 0 ? 60000 : 700) + 1;
    auto* p = static_cast<unsigned char*>(heap.allocate(size));
    EXPECT_NE(p, nullptr);
    EXPECT_GE(heap.usable_size(p), size);
    p[0] = p[size - 1] = fill;
    living.push_back(p);
    if (living.size() < 40) continue;
    void*& victim = living[(seed >> 4) % living.size()];
    EXPECT_EQ(*static_cast<unsigned char*>(victim), fill);
    heap.deallocate(victim);
    victim = living.back();
    living.pop_back();
  }
  return living;
}

TYPED_TEST(ScallocHeaps, OffersWhatAnEngineOffers) {
  TypeParam heap;
  void* p = heap->allocate(100);
  EXPECT_TRUE(heap->owns(p));
  EXPECT_EQ(heap->usable_size(p), 112u);
  EXPECT_EQ(heap->resize(p, 110).block, p);
  auto* copy = static_cast<char*>(heap->allocate_copy(6, "hello", 6));
  EXPECT_STREQ(copy, "hello");
  auto* zeroes = static_cast<char*>(heap->allocate_zeroed(5000));
  EXPECT_EQ(zeroes[0] | zeroes[4999], 0);
  void* aligned = heap->allocate_aligned(100, 65536);
  EXPECT_EQ(address_of(aligned) % 65536, 0u);
  void* large = heap->allocate(5 * kMiB);
  EXPECT_EQ(heap->statistics().large_bytes, 5 * kMiB);
  EXPECT_EQ(heap->resize(large, 1000).block, nullptr);
  for (void* q : {p, static_cast<void*>(copy), static_cast<void*>(zeroes), aligned, large}) {
    heap->deallocate(q);
  }
  heap->deallocate(nullptr);
  expect_empty(*heap);
}

TYPED_TEST(ScallocHeaps, OnesBeforeTheFirstUseHoldNothing) {
  TypeParam heap;
  EXPECT_EQ(heap->statistics().reserved_bytes, 0u);
  EXPECT_EQ(heap->census().carved, 0u);
  EXPECT_FALSE(heap->trim());
  int outside = 0;
  EXPECT_FALSE(heap->owns(&outside));
}

TYPED_TEST(ScallocHeaps, SeveralAtOnceKeepApart) {
  TypeParam a;
  TypeParam b;
  std::vector<void*> of_a;
  std::vector<void*> of_b;
  for (const std::size_t size : std::vector<std::size_t>{16, 100, 1000, 70000, 2000000}) {
    for (int i = 0; i < 20; ++i) {
      of_a.push_back(a->allocate(size));
      of_b.push_back(b->allocate(size));
    }
  }
  for (void* p : of_a) EXPECT_TRUE(a->owns(p) && !b->owns(p));
  for (void* p : of_b) EXPECT_TRUE(b->owns(p) && !a->owns(p));
  on_another_thread([&] {
    for (void* p : of_a) a->deallocate(p);
  });
  EXPECT_FALSE(b->census().nothing_held());
  expect_census_adds_up(*b);
  for (void* p : of_b) b->deallocate(p);
  expect_empty(*a);
  expect_empty(*b);
}

TYPED_TEST(ScallocHeaps, SeveralThreadsInSeveralHeaps) {
  TypeParam heaps[3];
  std::vector<void*> left[3][4];
  test::in_threads(4, [&](unsigned t) {
    for (unsigned h = 0; h < 3; ++h) {
      left[h][t] = churn(*heaps[h], 17 * t + h, 3000, static_cast<unsigned char>(1 + h));
    }
  });
  for (unsigned h = 0; h < 3; ++h) {
    expect_census_adds_up(*heaps[h]);
    EXPECT_EQ(heaps[h]->statistics().live_threads, 0u) << "their threads have ended";
    // Blocks of one thread are freed by others, in pairs.
    std::thread other([&] {
      for (void* p : left[h][0]) heaps[h]->deallocate(p);
      for (void* p : left[h][1]) heaps[h]->deallocate(p);
    });
    for (void* p : left[h][2]) heaps[h]->deallocate(p);
    for (void* p : left[h][3]) heaps[h]->deallocate(p);
    other.join();
    expect_empty(*heaps[h]);
  }
}

TYPED_TEST(ScallocHeaps, ManyThreadsOneAfterTheOtherUseOneRecord) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  TypeParam heap;
  heap->deallocate(heap->allocate(10));
  on_another_thread([&] { heap->deallocate(heap->allocate(100)); });  // a LAB
  const std::size_t before = mapped_by_calls();
  for (int i = 0; i < 300; ++i) {
    on_another_thread([&] { heap->deallocate(heap->allocate(100)); });
  }
  EXPECT_LE(heap->statistics().live_threads, 1u);
  EXPECT_EQ(mapped_by_calls(), before);
  EXPECT_EQ(records_of(*heap), 2u) << "this thread's and the others'";
  expect_empty(*heap);
}

TYPED_TEST(ScallocHeaps, DestroyGivesAllAddressSpaceBack) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  const std::size_t before = mapped_by_calls();
  {
    TypeParam heap;
    std::promise<void> used;
    std::promise<void> go_on;
    std::thread user([&] {
      churn(*heap, 5, 2000, 7);
      used.set_value();
      go_on.get_future().wait();
    });
    used.get_future().wait();
    churn(*heap, 6, 2000, 8);
    ASSERT_NE(heap->allocate(20 * kMiB), nullptr);
    EXPECT_GE(mapped_by_calls(), before + kGiB) << "a reservation at least";
    heap->destroy();  // with objects living, and before the thread ends
    EXPECT_EQ(heap->statistics().reserved_bytes, 0u);
    EXPECT_EQ(heap->census().carved, 0u);
    go_on.set_value();
    user.join();
    EXPECT_EQ(mapped_by_calls(), before);
    // It begins again.
    void* p = heap->allocate(100);
    EXPECT_TRUE(heap->owns(p));
    heap->deallocate(p);
    expect_empty(*heap);
  }
  EXPECT_EQ(mapped_by_calls(), before);
}

TYPED_TEST(ScallocHeaps, HeapsComeAndGo) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator keeps mappings in a way of its own";
  churn(*TypeParam{}, 1, 100, 1);
  const std::size_t before = mapped_by_calls();
  for (int i = 0; i < 50; ++i) {
    TypeParam heap;
    churn(*heap, static_cast<unsigned>(i), 200, 3);
  }
  EXPECT_EQ(mapped_by_calls(), before) << "nothing of fifty heaps remains";
}

// What a thread does in the last rounds of its specific destructors it does without a LAB.
TYPED_TEST(ScallocHeaps, AThreadPastItsExit) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "for the sanitizer the thread has ended before its last round";
  TypeParam heap;
  static typename TypeParam::Heap* the_heap;
  static std::atomic<int> rounds;
  static pthread_key_t key;
  static std::vector<void*>* left;
  std::vector<void*> kept;
  left = &kept;
  the_heap = &*heap;
  rounds = 0;
  ASSERT_EQ(pthread_key_create(&key,
                               [](void* round) {
                                 ++rounds;
                                 for (int i = 0; i < 100; ++i) {
                                   the_heap->deallocate(the_heap->allocate(100));
                                   the_heap->deallocate(the_heap->allocate(100000));
                                 }
                                 left->push_back(the_heap->allocate(64));
                                 // Once more, as long as libc does it
                                 pthread_setspecific(key, round);
                               }),
            0);
  on_another_thread([&] {
    left->push_back(heap->allocate(64));
    pthread_setspecific(key, &key);
  });
  pthread_key_delete(key);
  EXPECT_GE(rounds.load(), 3);
  EXPECT_EQ(heap->statistics().live_threads, 0u);
  EXPECT_EQ(records_of(*heap), 1u) << "no second record was made for a thread that is going";
  for (void* p : kept) heap->deallocate(p);
  expect_empty(*heap);
}

TYPED_TEST(ScallocHeaps, AForkWithASecondHeapInUse) {
  if (test::kUnderAsan) GTEST_SKIP() << "the sanitizer's own malloc may be locked in the child";
  if (test::kUnderTsan)
    GTEST_SKIP() << "the sanitizer allows no threads in the child of a threaded process";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  TypeParam heap;
  TypeParam other;
  std::vector<void*> mine = churn(*heap, 1, 500, 9);
  std::atomic<bool> stop{false};
  std::atomic<int> working{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      ++working;
      for (unsigned round = 0; !stop.load(); ++round) {
        for (void* p : churn(*heap, t + round, 300, 9)) heap->deallocate(p);
        for (void* p : churn(*other, t + round, 300, 9)) other->deallocate(p);
      }
    });
  }
  while (working.load() < 2) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(540);
      bool good = true;
      for (void* p : mine) heap->deallocate(p);
      for (TypeParam* h : {&heap, &other}) {
        for (void* p : churn(**h, 3, 300, 9)) (*h)->deallocate(p);
        std::thread([&] {
          for (void* p : churn(**h, 4, 300, 9)) (*h)->deallocate(p);
        }).join();
        // Of the vanished threads none is counted as living.
        good = good && (*h)->statistics().live_threads <= 1;
        // What the others held stays, but no more than one LAB a thread.
        good = good && records_of(**h) <= 4;
        (*h)->destroy();
      }
      _exit(good && !testing::Test::HasFailure() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (void* p : mine) heap->deallocate(p);
  expect_empty(*heap);
  expect_empty(*other);
}

TEST(ScallocHeapsOfSeveralConfigs, KeepApartFromEachOtherAndTheDefaultHeap) {
  using E = ScallocEngine<FirstConfig>;
  First first;
  OwnHeap<OtherConfig> other;
  void* p = E::allocate(100);
  void* q = first->allocate(100);
  void* r = other->allocate(100);
  EXPECT_TRUE(E::owns(p) && !E::owns(q) && !E::owns(r));
  EXPECT_TRUE(!first->owns(p) && first->owns(q) && !first->owns(r));
  EXPECT_TRUE(!other->owns(p) && !other->owns(q) && other->owns(r));
  on_another_thread([&] {
    E::deallocate(p);
    first->deallocate(q);
    other->deallocate(r);
  });
  expect_empty(*first);
  expect_empty(*other);
  expect_nothing_held<E>();
}

// A handler of a signal forks: it finds out whether the thread that it has interrupted is inside.
TEST(ScallocHeapsOfSeveralConfigs, ASignalHandlerForksInTheMiddleOfACall) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  using Config = HookedConfig<>;
  in_child([] {
    // The child of a process without others has nothing to find out
    const test::RestingThread left_behind;
    OwnHeap<Config> heap;
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 3; ++i) blocks.push_back(heap->allocate(512 * kKiB));
    static pid_t child;
    signal(SIGUSR1, [](int) { child = fork(); });
    Config::arm(scalloc::Step::kBeforeFloating, [](scalloc::Span*) { raise(SIGUSR1); });
    void* p = heap->allocate(512 * kKiB);
    EXPECT_TRUE(Config::fired());
    EXPECT_NE(p, nullptr);
    for (void* block : blocks) heap->deallocate(block);
    heap->deallocate(p);
    expect_empty(*heap);
    if (child == 0) test::tell_and_exit();
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  });
}

// Another thread's set, whose lock that thread holds: it is adding a span, and may be closing the
// set.
template <class H>
class TornSet {
 public:
  TornSet(H& heap, bool closing)
      : heap_(heap), other_([this, closing] {
          blocks_ = make_floating_span(*heap_, 256);
          for (std::size_t i = 0; i < 110; ++i) heap_->deallocate(blocks_[i]);
          lab = ScallocTestAccess::lab(*heap_);
          scalloc::ReusableSet& set = lab->set(kClass);
          // As between the word's change to reusable and the linking
          (void)set.lock.lock();
          set.unlink(span_of(blocks_[0]));
          owner_ = set.owner.load_relaxed();
          if (closing) set.owner.store_release(scalloc::kTerminated);
          torn_.set_value();
          done_.get_future().wait();
          set.owner.store_release(owner_);
          set.link(span_of(blocks_[0]), scalloc::SetList::kReusable);
          set.lock.unlock();
        }) {
    torn_.get_future().wait();
  }
  ~TornSet() {
    done_.set_value();
    other_.join();
    for (std::size_t i = 110; i < blocks_.size(); ++i) heap_->deallocate(blocks_[i]);
  }
  TornSet(const TornSet&) = delete;
  TornSet& operator=(const TornSet&) = delete;
  // In a fork's child: its lists are right, and it is open.
  bool is_whole() const {
    const scalloc::ReusableSet& set = lab->set(kClass);
    return set.lock.is_free() && set.first_reusable() == span_of(blocks_[0]) &&
           set.owner.load_relaxed() == owner_;
  }

  static constexpr scalloc::ClassId kClass = scalloc::class_of(256);
  scalloc::Lab* lab = nullptr;

 private:
  H& heap_;
  std::promise<void> torn_;
  std::promise<void> done_;
  std::vector<void*> blocks_;
  scalloc::OwnerWord owner_{};
  std::thread other_;
};

// A set whose lock a vanished thread held is whole when the fork's handler ends. Later another
// thread could begin a span's next life while the set is made anew. If its thread was closing it,
// it is open again: a span that is in a set must not be adopted.
void expect_whole_in_a_fork(bool closing) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  First heap;
  {
    const TornSet set(heap, closing);
    EXPECT_EQ(test::run_in_child([&] { return set.is_whole() ? 0 : 1; }), 0);
  }
  expect_empty(*heap);
}

TEST(ScallocHeapsOfSeveralConfigs, AForkMakesATornSetAnewAtOnce) {
  expect_whole_in_a_fork(false);
}

TEST(ScallocHeapsOfSeveralConfigs, AForkOpensASetAgainThatWasBeingClosed) {
  expect_whole_in_a_fork(true);
}

// A call that a handler's fork has interrupted may come to such a set before the recovery does.
TEST(ScallocHeapsOfSeveralConfigs, ACallThatForkedOpensASetThatWasBeingClosed) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  using Config = HookedConfig<>;
  OwnHeap<Config> heap;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 3; ++i) blocks.push_back(heap->allocate(512 * kKiB));
  int ended = -1;
  {
    TornSet set(heap, true);
    Config::arm(scalloc::Step::kBeforeFloating, [&](scalloc::Span*) {
      ended = test::run_in_child([&] {
        if (!set.lab->set(set.kClass).lock.owner_died()) return 1;  // nothing was recovered yet
        ScallocTestAccess::lock_set(*heap, *set.lab, set.kClass);
        return set.is_whole() ? 0 : 2;
      });
    });
    blocks.push_back(heap->allocate(512 * kKiB));
  }
  EXPECT_EQ(ended, 0);
  for (void* p : blocks) heap->deallocate(p);
  expect_empty(*heap);
}

struct CoreLocalHookedConfig : HookedConfig<3> {
  static constexpr bool kCoreLocal = true;
};

// The user of a shared LAB vanishes between the LAB's word of the hot span and the span's own.
TEST(ScallocHeapsOfSeveralConfigs, AForkLosesAHotSpanThatItsSharedLabDoesNotName) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  using Config = CoreLocalHookedConfig;
  OwnHeap<Config> heap;
  std::vector<void*> blocks;
  std::promise<void> given_up;
  std::promise<void> done;
  std::thread other([&] {
    blocks.push_back(heap->allocate(512 * kKiB));
    while (blocks.size() < scalloc::info(scalloc::class_of(512 * kKiB)).blocks)
      blocks.push_back(heap->allocate(512 * kKiB));
    Config::arm(scalloc::Step::kBeforeFloating, [&](scalloc::Span*) {
      given_up.set_value();
      done.get_future().wait();
    });
    blocks.push_back(heap->allocate(512 * kKiB));
  });
  given_up.get_future().wait();
  const std::vector<void*> theirs = blocks;
  EXPECT_EQ(test::run_in_child([&] {
              heap->deallocate(heap->allocate(100));  // recovers
              if (heap->statistics().spans_lost_to_fork != 1) return 1;
              for (void* p : theirs) heap->deallocate(p);
              heap->trim();
              return heap->statistics().live_blocks == 0 ? 0 : 2;
            }),
            0);
  done.set_value();
  other.join();
  for (void* p : blocks) heap->deallocate(p);
  expect_empty(*heap);
}

// The thread that starts the heap vanishes while it opens a LAB, whose sets nobody knows yet. A
// thread of the child's might have its mark, and would wait for itself.
TEST(ScallocHeapsOfSeveralConfigs, AForkFreesTheSetsOfALabThatWasBeingOpened) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  First heap;
  heap->process_start();
  SpinLock& lock = ScallocTestAccess::begin_start(*heap).set(scalloc::class_of(256)).lock;
  std::promise<void> locked;
  std::promise<void> done;
  std::thread other([&] {
    (void)lock.lock();
    locked.set_value();
    done.get_future().wait();
    lock.unlock();
  });
  locked.get_future().wait();
  EXPECT_EQ(test::run_in_child([&] {
              if (!lock.is_free()) return 1;
              return heap->allocate(100) != nullptr ? 0 : 2;
            }),
            0);
  done.set_value();
  other.join();
}

// The thread that starts the heap vanishes.
TEST(ScallocHeapsOfSeveralConfigs, AForkFreesTheLockOfWhoStartsTheHeap) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  First heap;
  heap->process_start();
  WakingLock& lock = ScallocTestAccess::carve_lock(*heap);
  std::promise<void> locked;
  std::promise<void> done;
  std::thread other([&] {
    (void)lock.lock();
    locked.set_value();
    done.get_future().wait();
    lock.unlock();
  });
  locked.get_future().wait();
  // A thread of the child's might have that one's mark, and wait for itself.
  EXPECT_EQ(test::run_in_child([&] {
              if (!lock.is_free()) return 1;
              return heap->allocate(100) != nullptr ? 0 : 2;
            }),
            0);
  done.set_value();
  other.join();
}

// Where address space is limited that of pooled spans is given back. Here is one that was written.
constexpr std::size_t kPooled = 512 * kKiB;
scalloc::Span* pool_a_span(First& heap) {
  scalloc::Span* span = nullptr;
  on_another_thread([&] {
    void* const p = heap->allocate(kPooled);
    std::memset(p, 1, kPooled);
    span = span_of(p);
    heap->deallocate(p);
  });
  EXPECT_EQ(heap->census().pooled, 1u);
  return span;
}

// A thread that gives a pooled span's addresses back is about to call the kernel, or has just
// called it.
class StandsAsItCloses {
 public:
  StandsAsItCloses(First& heap, const scalloc::Span* span, bool has_called) : before_(&stand) {
    if (has_called) gone_ = span->address() + os::page_size();
    closing_ = std::thread([&heap] { EXPECT_TRUE(heap->backend().close_pooled()); });
    stands_.get_future().wait();
  }
  ~StandsAsItCloses() {
    go_on_.set_value();
    closing_.join();
  }
  StandsAsItCloses(const StandsAsItCloses&) = delete;
  StandsAsItCloses& operator=(const StandsAsItCloses&) = delete;

 private:
  static void stand() {
    if (has_stood_) return;
    has_stood_ = true;
    if (gone_ != 0) os::release(pointer_to(gone_), kPooled);
    stands_.set_value();
    go_on_.get_future().wait();
  }

  static inline std::uintptr_t gone_ = 0;
  static inline bool has_stood_ = false;
  static inline std::promise<void> stands_;
  static inline std::promise<void> go_on_;
  const test::BeforeEachCall before_;
  std::thread closing_;
};

// The child believes no page to be open that is gone, and can map all that is.
TEST(ScallocHeapsOfSeveralConfigs, AForkFindsWhatOfAPooledSpanIsOpen) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  for (const bool has_called : {false, true}) {
    SCOPED_TRACE(has_called);
    in_child([has_called] {
      ASSERT_TRUE(test::leave_address_space(kGiB));
      First heap;
      const scalloc::Span* const span = pool_a_span(heap);
      const StandsAsItCloses other(heap, span, has_called);
      EXPECT_EQ(test::run_in_child([&] {
                  auto* const p = static_cast<char*>(heap->allocate_zeroed(kPooled));
                  if (p == nullptr || span_of(p) != span) return 1;
                  for (std::size_t i = 0; i < kPooled; ++i) {
                    if (std::exchange(p[i], 1) != 0) return 2;
                  }
                  return 0;
                }),
                0);
    });
  }
}

TEST(ScallocHeapsOfSeveralConfigs, APooledSpanThatTheKernelDoesNotCloseIsOpen) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << test::kNoLimits;
  in_child([] {
    ASSERT_TRUE(test::leave_address_space(kGiB));
    First heap;
    const scalloc::Span* const span = pool_a_span(heap);
    {
      const test::NothingIsUnmapped refuses;
      EXPECT_FALSE(heap->backend().close_pooled());
    }
    EXPECT_EQ(span_of(heap->allocate(kPooled)), span);
  });
}

using ScallocHeapsDeathTest = testing::Test;

TEST(ScallocHeapsDeathTest, ABlockOfAnotherHeapIsNone) {
  First a;
  First b;
  void* small = b->allocate(100);
  void* large = b->allocate(3 * kMiB);
  EXPECT_DEATH(a->deallocate(small), "free of a pointer that is not an object's");
  EXPECT_DEATH(a->deallocate(large), "free of a pointer that is not an object's");
  EXPECT_DEATH(ScallocEngine<FirstConfig>::deallocate(small),
               "free of a pointer that is not an object's");
  EXPECT_DEATH((void)a->usable_size(small), "size asked of a pointer that is not an object's");
  b->deallocate(small);
  b->deallocate(large);
}

}  // namespace
}  // namespace spanalloc
