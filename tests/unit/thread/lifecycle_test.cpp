#include "thread/lifecycle.hpp"

#include <errno.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#endif

#include <set>
#include <thread>
#include <vector>

#include "child.hpp"
#include "os/os.hpp"
#include "sanitizers.hpp"
#include "sync/spin_lock.hpp"
#include "threads.hpp"

namespace spanalloc::thread {
namespace {

// What a thread keeps, and how its end was told.
struct State {
  ExitKey* key = nullptr;
  std::uint8_t round = 0;
  bool leaves = false;
  int calls = 0;
  bool found_in_between = true;
};
int marks_seen = 0;

// A thread sanitizer takes the last round for after the thread's end: it must see no access there.
[[gnu::no_sanitize_thread]] void at_exit(void* kept) {
  if (ExitKey::has_left(kept)) {
    ++marks_seen;
    ExitKey::stay_away(kept);
    return;
  }
  auto& state = *static_cast<State*>(kept);
  ++state.calls;
  const bool again = state.key->comes_again(&state, state.round);
  state.found_in_between = state.found_in_between && (state.key->find() != nullptr) == again;
  if (!again && state.leaves) {
    state.key->leave();
    state.found_in_between = state.found_in_between && ExitKey::has_left(state.key->find());
  }
}

TEST(ExitKey, TellsAThreadsEndAsLateAsOthersMayStillCall) {
  ExitKey key;
  State states[2] = {{&key}, {&key}};
  for (State& state : states) {
    std::thread([&] {
      EXPECT_EQ(key.find(), nullptr) << "nothing yet, and nothing of other threads'";
      ASSERT_TRUE(key.watch_this_thread(&state, at_exit));
      EXPECT_EQ(key.find(), &state);
      EXPECT_EQ(state.calls, 0);
    }).join();
    EXPECT_EQ(state.calls, PTHREAD_DESTRUCTOR_ITERATIONS - 1) << "one round is left for others";
    EXPECT_TRUE(state.found_in_between);
  }
  key.remove();
}

TEST(ExitKey, AThreadThatHasLeftIsKnownByAMark) {
  ExitKey key;
  State state{.key = &key, .leaves = true};
  marks_seen = 0;
  std::thread([&] { EXPECT_TRUE(key.watch_this_thread(&state, at_exit)); }).join();
  EXPECT_EQ(state.calls, PTHREAD_DESTRUCTOR_ITERATIONS - 1);
  EXPECT_TRUE(state.found_in_between);
  EXPECT_EQ(marks_seen, 1) << "in the round that is left";
  key.remove();
}

TEST(ExitKey, NothingIsToldAfterItsRemoval) {
  ExitKey key;
  State state{&key};
  std::thread([&] {
    EXPECT_TRUE(key.watch_this_thread(&state, at_exit));
    key.remove();
    EXPECT_EQ(key.find(), nullptr);
  }).join();
  EXPECT_EQ(state.calls, 0);
  EXPECT_TRUE(key.watch_this_thread(&state, at_exit)) << "and it begins again";
  EXPECT_EQ(key.find(), &state);
  key.remove();
}

TEST(ExitKey, SaysWhenNoKeyIsLeft) {
  std::vector<ExitKey> keys(PTHREAD_KEYS_MAX + 1);
  State state;
  std::size_t watched = 0;
  errno = 77;
  while (watched < keys.size() && keys[watched].watch_this_thread(&state, at_exit)) ++watched;
  EXPECT_EQ(errno, 77);
  ASSERT_GT(watched, 0u);
  ASSERT_LT(watched, keys.size());
  EXPECT_EQ(keys[watched].find(), nullptr);
  keys[0].remove();
  EXPECT_TRUE(keys[watched].watch_this_thread(&state, at_exit)) << "now one is";
  for (ExitKey& key : keys) key.remove();
}

struct Watch : ForkWatch {
  Watch() : ForkWatch{[](ForkWatch* self) { ++static_cast<Watch*>(self)->calls; }} {}
  int calls = 0;
};

TEST(ForkWatch, IsToldInEveryChildOfAProcessWithThreadsOnceUntilItIsTakenOut) {
  const test::RestingThread left_behind;
  Watch watches[3];
  const auto calls_in_child = [&] {
    return test::run_in_child(
        [&] { return watches[0].calls * 100 + watches[1].calls * 10 + watches[2].calls; });
  };
  EXPECT_EQ(calls_in_child(), 0);
  for (Watch& watch : watches) watch_forks(watch);
  watch_forks(watches[1]);
  EXPECT_EQ(calls_in_child(), 111) << "each once, though one was entered twice";
  EXPECT_EQ(watches[0].calls, 0) << "not in the parent";
  unwatch_forks(watches[1]);
  EXPECT_EQ(calls_in_child(), 101);
  unwatch_forks(watches[1]);
  unwatch_forks(watches[2]);
  EXPECT_EQ(calls_in_child(), 100);
  unwatch_forks(watches[0]);
  EXPECT_EQ(calls_in_child(), 0);
}

#if __has_include(<sys/single_threaded.h>)
// Whether a process knows that it never had another thread, and draws numbers of its own in a
// child.
bool knows_that_it_is_alone() {
  unsetenv("SPANALLOC_SEED");  // makes numbers repeatable
  os::start();
  return os::children_show_themselves() && __libc_single_threaded != 0;
}

// Whose child has lost nobody. It draws other numbers than its parent and its siblings all the
// same.
TEST(ForkWatch, IsNotToldWhereThereNeverWasAnotherThread) {
  if (test::kUnderTsan) GTEST_SKIP() << "thread sanitizer has a thread of its own";
  test::in_fresh_process([] {
    if (!knows_that_it_is_alone()) return;  // a sanitizer's thread, an emulator
    static Watch watch;
    watch_forks(watch);
    const auto look = [](std::uint64_t of_parent) {
      if (watch.calls != 0 || SpinLock::generation() != 0) return 2;
      return os::random_bits() == of_parent ? 4 : 0;
    };
    EXPECT_EQ(test::run_in_child([&] {
                // A child's child, too; and none of it as soon as there was a thread.
                if (const int code = test::run_in_child([&] { return look(0); }); code != 0)
                  return 10 + code;
                std::thread([] {}).join();
                const int calls = test::run_in_child([] { return watch.calls; });
                return calls != 1 ? 20 + calls : look(0);
              }),
              0);
    std::set<std::uint64_t> drawn;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(test::run_in_child([&] {
                  const std::uint64_t number = os::random_bits();
                  return write(ends[1], &number, sizeof number) == sizeof number ? look(0) : 5;
                }),
                0);
      std::uint64_t number = 0;
      ASSERT_EQ(read(ends[0], &number, sizeof number), ssize_t{sizeof number});
      drawn.insert(number);
    }
    drawn.insert(os::random_bits());
    EXPECT_EQ(drawn.size(), 9u);
  });
}

// The handlers of other libraries that run after ours may start a thread.
TEST(ForkWatch, IsToldWhereAThreadIsStartedWithinTheFork) {
  if (test::kEmulated) GTEST_SKIP() << test::kNoThreadedForks;
  test::in_fresh_process([] {
    pthread_atfork(
        [] {
          std::thread([] {
            for (;;) pause();
          }).detach();
        },
        nullptr, nullptr);
    static Watch watch;
    watch_forks(watch);
    if (!knows_that_it_is_alone()) return;
    EXPECT_EQ(test::run_in_child([] { return watch.calls; }), 1);
    EXPECT_EQ(test::run_in_child([] { return watch.calls; }), 1) << "and later";
  });
}
#endif

}  // namespace
}  // namespace spanalloc::thread
