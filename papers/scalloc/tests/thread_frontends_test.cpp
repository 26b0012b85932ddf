// A thread's first use of a heap beside the default one, interrupted.
#include "papers/scalloc/engine/thread_frontends.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "child.hpp"
#include "papers/scalloc/tests/test_support.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {
// Called once, when a thread is about to be given what a key finds.
std::atomic<void (*)()> before_setspecific{nullptr};
}  // namespace
}  // namespace spanalloc

#ifndef SPANALLOC_TEST_TSAN  // whose runtime calls it in threads that it does not know yet
// In place of libc's, for this program: the library's calls come through here, of
// several threads at once.
extern "C" int pthread_setspecific(pthread_key_t key, const void* value) noexcept {
  using Function = int (*)(pthread_key_t, const void*);
  static constinit std::atomic<Function> libcs{nullptr};
  Function function = libcs.load();
  if (function == nullptr) {
    function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_setspecific"));
    libcs = function;
  }
  if (auto* hook = spanalloc::before_setspecific.exchange(nullptr); hook != nullptr) hook();
  return function(key, value);
}
#endif

namespace spanalloc {
namespace {

// The handler forks when the record has been taken, and the key does not find it yet: in the child
// it is the thread's, not one for the next thread that comes.
TEST(ScallocThreadFrontends, AHandlersForkInTheMiddleOfTheFirstUse) {
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer does not follow forks of threaded programs";
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::in_fresh_process([] {
    OwnHeap<Scalloc> heap;
    signal(SIGUSR1, &test::fork_and_go_on_as_the_child);
    before_setspecific = [] { raise(SIGUSR1); };
    void* p = heap->allocate(64);
    ASSERT_EQ(before_setspecific.load(), nullptr) << "the first use asks for the key";
    ASSERT_NE(p, nullptr);
    std::thread([&] { EXPECT_NE(heap->allocate(64), nullptr); }).join();
    EXPECT_EQ(records_of(*heap), 2u) << "one for each of two threads at once";
    EXPECT_EQ(heap->statistics().live_threads, 1u);
    heap->deallocate(p);
  });
}

}  // namespace
}  // namespace spanalloc
