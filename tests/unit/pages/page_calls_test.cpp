#include "pages/page_calls.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "child.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

constexpr Interval kWindows[] = {{5 * kTiB, 25 * kTiB}, {32 * kGiB, 128 * kGiB}};

// The place that a child finds that is the first in its process to look for one.
template <class First>
std::uintptr_t place_in_child(First first) {
  int ends[2];
  std::uintptr_t place = 0;
  if (pipe(ends) != 0) return place;
  const pid_t child = fork();
  if (child == 0) {
    first();
    place = random_place<PageCalls>(kWindows, kMiB);
    _exit(write(ends[1], &place, sizeof place) == sizeof place ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read(ends[0], &place, sizeof place), static_cast<ssize_t>(sizeof place));
  close(ends[0]);
  close(ends[1]);
  return place;
}

TEST(RandomPlace, IsFixedWithoutRandomisationUnlessItIsTaken) {
  if (test::kUnderTsan) GTEST_SKIP() << "no place is ever chosen there";
  if (!test::may_change_randomisation()) GTEST_SKIP() << "no process may change it";
  test::in_fresh_process([] {
    unsetenv("SPANALLOC_SEED");
    ASSERT_NE(personality(ADDR_NO_RANDOMIZE), -1);
    const std::uintptr_t fixed = place_in_child([] {});
    ASSERT_NE(fixed, 0u);
    EXPECT_EQ(place_in_child([] {}), fixed);
    const auto take_it = [fixed] {
      if (os::reserve_at(pointer_to(fixed), os::page_size()) != os::Placed::kYes) _exit(2);
    };
    const std::uintptr_t other = place_in_child(take_it);
    EXPECT_NE(other, 0u);
    EXPECT_NE(other, fixed);
    EXPECT_EQ(place_in_child(take_it), other);
  });
}

}  // namespace
}  // namespace spanalloc
