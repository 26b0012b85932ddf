// The tables that the engine keeps beside its arena, when something foreign stands in their way.
#include "standard/page_layer.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "sanitizers.hpp"
#include "standard/test_support.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using large::E;

// Where the mappings that `p` lies in, and those that follow without a hole, end.
std::uintptr_t end_of_mappings_at(const void* p) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::uintptr_t found = 0;
  while (std::getline(maps, line)) {
    std::size_t begin = 0;
    std::size_t end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx", &begin, &end) != 2) continue;
    if ((address_of(p) >= begin && address_of(p) < end) || begin == found) found = end;
  }
  return found;
}

// Blocks of 1 MiB: more than a step of the records' table is about
constexpr std::size_t kMany = 3000;

void fill_beyond_the_gap() {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < kMany; ++i) {
    blocks.push_back(E::allocate(kMiB));
    ASSERT_NE(blocks.back(), nullptr) << i;
    *static_cast<char*>(blocks.back()) = 1;
    EXPECT_TRUE(E::owns(blocks.back()));
    EXPECT_EQ(E::usable_size(blocks.back()), kMiB);
  }
  // Small ones, too, by this thread and others.
  test::on_another_thread([] {
    for (int i = 0; i < 10'000; ++i) E::deallocate(E::allocate(100));
  });
  std::vector<void*> small;
  for (int i = 0; i < 100'000; ++i) small.push_back(E::allocate(64));
  for (void* p : small) E::deallocate(p);
  large::free_all(blocks);
}

class PageLayerGaps : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kUnderAsan || test::kUnderTsan || test::kEmulated)
      GTEST_SKIP() << "needs gigabytes of addresses";
  }
};

TEST_F(PageLayerGaps, SomethingForeignInTheWayOfRecordsCostsWhatItCovers) {
  large::in_fresh_process([] {
    void* first = E::allocate(kMiB);
    const auto record = E::pages.any_slice_at(address_of(first)).record;
    const std::uintptr_t end = end_of_mappings_at(record);
    void* theirs = mmap(pointer_to(end), 4096, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ASSERT_EQ(theirs, pointer_to(end));
    fill_beyond_the_gap();
    const std::size_t lost = E::pages.arena.statistics().lost_bytes;
    EXPECT_GT(lost, 0u);
    EXPECT_LE(lost, 4 * 64 * 64 * kKiB);  // three pages of records of 64 bytes, each about 64 KiB
    E::deallocate(first);
  });
}

TEST_F(PageLayerGaps, AnAddressWithoutARecordIsRefused) {
  large::in_fresh_process([] {
    void* first = E::allocate(kMiB);
    const auto record = E::pages.any_slice_at(address_of(first)).record;
    const std::uintptr_t end = end_of_mappings_at(record);
    ASSERT_NE(mmap(pointer_to(end), 4096, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
              MAP_FAILED);
    fill_beyond_the_gap();
    // The slice whose record would be what is mapped there.
    const std::size_t number =
        (end - address_of(E::pages.span(standard::SpanNumber{0}).record)) / 64;
    void* inside = pointer_to(E::pages.arena.base() + number * 64 * kKiB);
    EXPECT_FALSE(E::owns(inside));
    const int end_of_child = test::run_in_child([&] {
      E::deallocate(inside);
      return 0;
    });
    EXPECT_EQ(end_of_child, 128 + SIGABRT) << "refused, not followed";
  });
}

}  // namespace
}  // namespace spanalloc
