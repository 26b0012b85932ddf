#include "thread/record_registry.hpp"
#include "threads.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <thread>
#include <vector>

namespace spanalloc::thread {
namespace {

struct Record {
  Record* next_idle = nullptr;
  Record* next_of_all = nullptr;
  int users = 0;
};

// A registry and the memory of its records.
class Records : public testing::Test {
 protected:
  Record* take() {
    return registry_.take([&](bool) { return &made_.emplace_back(); });
  }
  std::multiset<const Record*> all() const {
    std::multiset<const Record*> found;
    registry_.for_each([&](const Record& record) { found.insert(&record); });
    return found;
  }

  RecordRegistry<Record> registry_;
  std::deque<Record> made_;  // under the registry's lock
};

TEST_F(Records, OneSuffices) {
  Record* const first = take();
  registry_.give_back(first);
  EXPECT_EQ(take(), first);
  Record* const second = take();
  EXPECT_NE(second, first);
  EXPECT_EQ(all(), (std::multiset<const Record*>{first, second}));
}

TEST_F(Records, MemoryMayBeOut) {
  EXPECT_EQ(registry_.take([](bool) -> Record* { return nullptr; }), nullptr);
  EXPECT_TRUE(all().empty());
}

TEST_F(Records, OneThatLivesElsewhereIsEnteredOnce) {
  Record elsewhere;
  Record* const taken = take();
  registry_.publish(&elsewhere);
  registry_.publish(&elsewhere);
  EXPECT_EQ(all(), (std::multiset<const Record*>{taken, &elsewhere}));
  EXPECT_NE(take(), &elsewhere) << "it was not idle";
}

TEST_F(Records, AChildsIdleOnesAreThoseItNames) {
  Record* const first = take();
  Record* const second = take();
  registry_.give_back(first);
  registry_.recover_in_child([](const Record&) { return true; });
  EXPECT_EQ((std::set<const Record*>{take(), take()}), (std::set<const Record*>{first, second}));
  EXPECT_EQ(made_.size(), 2u);
  EXPECT_NE(take(), first);
}

// The kernel copies each page that the child writes to.
TEST_F(Records, AChildWritesNothingWhereTheListIsRight) {
  Record* const first = take();
  Record* const second = take();
  take();
  registry_.give_back(first);
  registry_.give_back(second);
  const Record* const behind = second->next_idle;
  registry_.recover_in_child(
      [&](const Record& record) { return &record == first || &record == second; });
  EXPECT_EQ(second->next_idle, behind);
  EXPECT_EQ(take(), second);
  EXPECT_EQ(take(), first);
  EXPECT_EQ(made_.size(), 3u);
}

TEST_F(Records, ForgetsAll) {
  registry_.give_back(take());
  registry_.destroy();
  EXPECT_TRUE(all().empty());
  take();
  EXPECT_EQ(made_.size(), 2u);
}

TEST_F(Records, AreOneThreadsAtATime) {
  test::in_threads(4, [&](unsigned) {
    for (int i = 0; i < 2000; ++i) {
      Record* const record = take();
      EXPECT_EQ(record->users++, 0);
      if (i % 64 == 0) std::this_thread::yield();
      --record->users;
      registry_.give_back(record);
    }
  });
  EXPECT_LE(made_.size(), 4u);
  EXPECT_EQ(all().size(), made_.size());
}

}  // namespace
}  // namespace spanalloc::thread
