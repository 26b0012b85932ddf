// The contract with the kernel that the rest of the house relies on.
#include "os/os.hpp"

#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "address_limit.hpp"
#include "base/bits.hpp"
#include "child.hpp"
#include "os_calls.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

TEST(Os, MapsAlignedAndPurgesToZero) {
  errno = 77;
  for (std::size_t alignment : {std::size_t{4096}, std::size_t{65536}, 4 * kMiB}) {
    auto* p = static_cast<char*>(os::map(3 * 65536, alignment));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(address_of(p) % alignment, 0u);
    std::memset(p, 1, 3 * 65536);
    EXPECT_TRUE(os::purge(p, 65536));
    EXPECT_EQ(p[65535], 0);
    EXPECT_EQ(p[65536], 1);
    os::release(p, 3 * 65536);
  }
  EXPECT_EQ(errno, 77) << "no call changes errno";
}

// A refused unmapping is one of addresses alone: in the middle of a mapping, where there are as
// many mappings as may be.
TEST(Os, WhatCannotBeUnmappedGivesItsPagesBack) {
  constexpr std::size_t kBytes = 3 * 65536;
  auto* const p = static_cast<char*>(os::map(kBytes, 1));
  ASSERT_NE(p, nullptr);
  std::memset(p, 1, kBytes);
  errno = 77;
  {
    const test::NothingIsUnmapped refused;
    EXPECT_FALSE(os::unmap(p, kBytes));
  }
  EXPECT_EQ(errno, 77);
  for (std::size_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(p[i], 0) << i;
  EXPECT_TRUE(os::unmap(p, kBytes));
}

// --- Mapping anew --------------------------------------------------------------------------------

// Open memory like an arena's; the part in the middle is renewed.
class OsRenew : public testing::Test {
 protected:
  OsRenew() : all_(static_cast<char*>(os::reserve(3 * kPart, kPart))) {
    os::start();
    EXPECT_TRUE(all_ != nullptr && os::open(all_, 3 * kPart));
    middle_ = all_ + kPart;
    std::memset(all_, 1, 3 * kPart);
  }
  ~OsRenew() override {
    if (all_ != nullptr) os::release(all_, 3 * kPart);
  }
  void expect_renewed() const {
    EXPECT_EQ(mappings(), 1u) << "it is one with its neighbours";
    for (std::size_t at = 0; at < 3 * kPart; at += 512)
      ASSERT_EQ(all_[at], at / kPart == 1 ? 0 : 1) << at;
    middle_[0] = middle_[kPart - 1] = 2;
  }
  // Of those in which a part of it lies.
  std::size_t mappings() const {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) {
      std::size_t from = 0;
      std::size_t to = 0;
      if (std::sscanf(line.c_str(), "%zx-%zx", &from, &to) == 2)
        count += from < address_of(all_) + 3 * kPart && to > address_of(all_);
    }
    return count;
  }

  static constexpr std::size_t kPart = 128 * kKiB;
  char* all_;
  char* middle_ = nullptr;
};

TEST_F(OsRenew, NothingIsLeftOfWhatWasAdvised) {
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  for (const int advice : {MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP, MADV_RANDOM}) {
    std::memset(middle_, 1, kPart);
    ASSERT_EQ(madvise(middle_, kPart, advice), 0) << advice;
    ASSERT_EQ(mappings(), 3u) << advice;
    errno = 77;
    EXPECT_TRUE(os::renew(middle_, kPart));
    EXPECT_EQ(errno, 77);
    expect_renewed();
  }
}

TEST_F(OsRenew, WhatIsLockedGoesBack) {
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  if (!test::may_lock(os::page_size())) GTEST_SKIP() << "nothing can be locked";
  ASSERT_EQ(mlock(middle_ + kPart / 2, os::page_size()), 0);
  EXPECT_FALSE(os::purge(middle_, kPart));
  EXPECT_TRUE(os::renew(middle_, kPart));
  expect_renewed();
}

TEST_F(OsRenew, WhereAPageIsMissingNothingIsMapped) {
  char* const hole = middle_ + kPart / 2;
  ASSERT_TRUE(os::release(hole, os::page_size()));
  EXPECT_FALSE(os::renew(middle_, kPart));
  EXPECT_EQ(os::reserve_at(hole, os::page_size()), os::Placed::kYes) << "it is missing still";
}

// What its parent has excepted from forks may be somebody else's there.
TEST_F(OsRenew, AForksChildOnlyPurges) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer has its own mmap";
  ASSERT_EQ(madvise(middle_, kPart, MADV_DONTFORK), 0);
  const int file = memfd_create("somebody else's", 0);
  ASSERT_EQ(ftruncate(file, kPart), 0);
  EXPECT_EQ(test::run_in_child([&] {
              char* const other = static_cast<char*>(
                  mmap(middle_, kPart, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
              if (other != middle_) return 1;
              std::memset(other, 3, kPart);
              (void)os::renew(middle_, kPart);
              if (other[0] != 3 || other[kPart - 1] != 3) return 2;
              if (!os::renew(all_, kPart) || all_[0] != 0) return 3;
              return os::may_renew() ? 4 : 0;
            }),
            0);
  close(file);
}

TEST_F(OsRenew, WhatIsRefusedIsPurged) {
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  ASSERT_EQ(madvise(middle_, kPart, MADV_DONTDUMP), 0);
  const test::NothingIsMappedOver refused(test::NothingIsMappedOver::kKeeps);
  EXPECT_TRUE(os::renew(middle_, kPart));
  EXPECT_EQ(refused.refused(), 1u);
  EXPECT_EQ(middle_[0], 0);
  EXPECT_EQ(mappings(), 3u);
}

TEST_F(OsRenew, WhatIsLockedAndRefusedStays) {
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  if (!test::may_lock(os::page_size())) GTEST_SKIP() << "nothing can be locked";
  const test::NothingIsMappedOver refused(test::NothingIsMappedOver::kKeeps);
  ASSERT_EQ(mlock(middle_, os::page_size()), 0);
  middle_[0] = 1;
  EXPECT_FALSE(os::renew(middle_, kPart));
  EXPECT_EQ(middle_[0], 1);
}

TEST_F(OsRenew, WhatARefusalHasUnmappedIsMappedOnceMore) {
  if (!os::may_renew()) GTEST_SKIP() << "nothing is mapped anew here";
  const test::NothingIsMappedOver refused(test::NothingIsMappedOver::kUnmaps);
  EXPECT_TRUE(os::renew(middle_, kPart));
  EXPECT_EQ(refused.refused(), 1u);
  expect_renewed();
}

// Purging is what helps when memory is out: it may not need any itself.
TEST(Os, PurgesWithoutAddressSpaceLeft) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator does not enforce limits on address space";
  test::in_fresh_process([] {
    auto* p = static_cast<char*>(os::map(65536, 4096));
    ASSERT_NE(p, nullptr);
    std::memset(p, 1, 65536);
    const rlimit none{0, 0};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
    EXPECT_EQ(os::map(4096, 4096), nullptr);
    EXPECT_TRUE(os::purge(p, 65536));
    EXPECT_EQ(p[0], 0);
  });
}

TEST(Os, TellsWhatBecomesOfANewPage) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator does not enforce limits on address space";
  EXPECT_EQ(os::new_page(), os::NewPage::kPlain);
  test::in_fresh_process([] {
    const rlimit none{0, 0};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
    EXPECT_EQ(os::new_page(), os::NewPage::kRefused);
  });
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock its memory";
  EXPECT_EQ(os::new_page(), os::NewPage::kLocked);
  munlockall();
}

TEST(Os, RefusalIsAnOrdinaryAnswer) {
  errno = 77;
  EXPECT_EQ(os::map(SIZE_MAX - 4095, 4096), nullptr);
  EXPECT_EQ(os::map(std::size_t{1} << 60, kMiB), nullptr);
  EXPECT_EQ(os::reserve(std::size_t{1} << 60, kMiB), nullptr);
  EXPECT_EQ(errno, 77);
}

TEST(Os, PlacesExactlyOrNotAtAll) {
  void* p = os::reserve(kMiB, kMiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(os::reserve_at(p, kMiB), os::Placed::kTaken);
  EXPECT_EQ(os::open_at(p, 4096), os::Placed::kTaken);
  os::release(p, kMiB);
  EXPECT_EQ(os::open_at(p, kMiB), os::Placed::kYes);
  EXPECT_EQ(os::open_at(pointer_to(std::uintptr_t{1} << 40), std::size_t{1} << 50),
            os::Placed::kRefused);
  *static_cast<char*>(p) = 1;
  os::release(p, kMiB);
}

// Whatever more room the kernel looks for behind a hint.
TEST(Os, PlacesWhatJustFitsIntoAHole) {
  if (os::page_size() != 4096) GTEST_SKIP() << "huge pages of another size";
  if (test::kUnderTsan)
    GTEST_SKIP() << "thread sanitizer ends a process that maps where it has put nothing";
  const test::HintsWantMoreRoom as_some_kernels_do;
  for (const std::size_t bytes : {4096 + std::size_t{0}, 2 * kMiB - 4096, 2 * kMiB, 2 * kMiB + 4096,
                                  3 * kMiB, 4 * kMiB, 7 * kMiB + 8192, 64 * kMiB}) {
    auto* all = static_cast<char*>(os::reserve(bytes + 2 * kMiB, 2 * kMiB));
    ASSERT_NE(all, nullptr);
    char* hole = all + kMiB;
    ASSERT_TRUE(os::release(hole, bytes));
    const std::size_t mapped = test::mapped_by_calls();
    EXPECT_EQ(os::open_at(hole, bytes), os::Placed::kYes) << bytes;
    EXPECT_EQ(test::mapped_by_calls(), mapped + bytes);
    hole[0] = hole[bytes - 1] = 1;
    ASSERT_TRUE(os::release(hole, bytes));
    EXPECT_EQ(os::reserve_at(hole, bytes), os::Placed::kYes) << bytes;
    ASSERT_TRUE(os::release(hole, bytes));
    // Of a hole with something in it nothing is kept.
    for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 4096}) {
      char* theirs = hole + align_down(at, 4096);
      ASSERT_EQ(os::open_at(theirs, 4096), os::Placed::kYes);
      theirs[0] = 7;
      const std::size_t before = test::mapped_by_calls();
      EXPECT_EQ(os::open_at(hole, bytes), os::Placed::kTaken) << bytes << ' ' << at;
      EXPECT_EQ(test::mapped_by_calls(), before);
      EXPECT_EQ(theirs[0], 7);
      ASSERT_TRUE(os::release(theirs, 4096));
    }
    os::release(all, bytes + 2 * kMiB);
  }
}

// At a limit an aligned mapping needs no more than it takes.
TEST(Os, MapsAlignedInWhatALimitLeaves) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator does not enforce limits on address space";
  test::in_child([] {
    // (There is such a place, wherever the kernel has put everything else.)
    os::unmap(os::map(2 * kMiB, 16 * kMiB), 2 * kMiB);
    ASSERT_TRUE(test::leave_address_space(2 * kMiB));
    for (const std::size_t bytes : {kMiB + kMiB / 2, std::size_t{4096}}) {
      void* p = os::map(bytes, 16 * kMiB);
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(address_of(p) % (16 * kMiB), 0u);
      static_cast<char*>(p)[bytes - 1] = 1;
      os::unmap(p, bytes);
    }
    EXPECT_EQ(os::map(3 * kMiB, 16 * kMiB), nullptr);
  });
}

// There the arena grows, or maps again. What was a mapping of its own is such a place.
TEST(Os, WhatAnArenaReleasesIsNoPlaceForAMapping) {
  if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer needs its address space";
  if (test::kEmulated) GTEST_SKIP() << "the emulator does not enforce limits on address space";
  test::in_child([] {
    constexpr std::size_t kAlignment = 16 * kMiB;
    void* const place = pointer_to(20 * kTiB);
    // Below the place that the kernel chooses something shall be in the way.
    void* chosen = os::map(kMiB, 4096);
    while (address_of(chosen) % kAlignment == 0) chosen = os::map(kMiB, 4096);
    os::reserve_at(pointer_to(align_down(address_of(chosen), kAlignment)), 4096);
    os::unmap(chosen, kMiB);
    ASSERT_TRUE(test::leave_address_space(2 * kMiB));
    for (const bool is_arena : {true, false}) {
      ASSERT_EQ(os::open_at(place, kMiB), os::Placed::kYes);
      ASSERT_TRUE(is_arena ? os::release(place, kMiB) : os::unmap(place, kMiB));
      EXPECT_EQ(os::map(kMiB, kAlignment), is_arena ? nullptr : place);
    }
  });
}

TEST(Os, ReleaseTellsWhetherItWasRefused) {
  void* p = os::reserve(kMiB, kMiB);
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(os::release(p, kMiB));
  if (test::kUnderAsan || test::kUnderTsan || test::kEmulated)
    GTEST_SKIP() << "a sanitizer or an emulator needs mappings itself when there are none left";
  std::size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  if (most == 0 || most > 300000)
    GTEST_SKIP() << "a process may have too many mappings to use them up";
  test::in_child([most] {
    char* hole = static_cast<char*>(os::reserve(3 * 65536, 65536));
    ASSERT_NE(hole, nullptr);
    ASSERT_TRUE(os::open(hole, 3 * 65536));
    hole[65536] = 7;
    // Every second page is a mapping of its own.
    const std::size_t page = os::page_size();
    char* many = static_cast<char*>(os::reserve(2 * most * page, page));
    ASSERT_NE(many, nullptr);
    std::size_t at = page;
    while (at < 2 * most * page && os::open(many + at, page)) at += 2 * page;
    errno = 77;
    EXPECT_FALSE(os::release(hole + 65536, 65536));
    EXPECT_EQ(errno, 77);
    EXPECT_EQ(hole[65536], 7) << "it is as it was";
    ASSERT_TRUE(os::release(many, 2 * most * page));
    EXPECT_TRUE(os::release(hole + 65536, 65536));
  });
}

TEST(Os, RemapKeepsContents) {
  auto* p = static_cast<char*>(os::map(65536, 4096));
  ASSERT_NE(p, nullptr);
  std::memset(p, 7, 65536);
  auto* q = static_cast<char*>(os::remap(p, 65536, 4 * kMiB));
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q[65535], 7);
  EXPECT_EQ(q[65536], 0);
  os::release(q, 4 * kMiB);
}

// What was in the middle of a mapping leaves a hole there; what becomes smaller stays.
TEST(Os, RemapMovesAPartOfAMapping) {
  constexpr std::size_t kOld = kMiB;
  auto* all = static_cast<char*>(os::map(4 * kMiB, 4096));
  ASSERT_NE(all, nullptr);
  std::memset(all, 1, 4 * kMiB);
  char* from = all + kMiB;
  auto* to = static_cast<char*>(os::remap(from, kOld, 3 * kOld));
  ASSERT_NE(to, nullptr);
  ASSERT_NE(to, from);
  EXPECT_EQ(to[0] + to[kOld - 1], 2);
  EXPECT_EQ(to[kOld] + to[3 * kOld - 1], 0);
  EXPECT_EQ(all[kMiB - 1] + all[2 * kMiB], 2);
  EXPECT_EQ(os::open_at(from, kOld), os::Placed::kYes) << "nothing is mapped there";
  EXPECT_EQ(from[0], 0);
  EXPECT_EQ(os::remap(to, 3 * kOld, kOld), to);
  EXPECT_EQ(os::open_at(to + kOld, 2 * kOld), os::Placed::kYes) << "the rest is gone";
  EXPECT_EQ(os::remap(to, kOld, kOld), to);
  os::release(all, 4 * kMiB);
  os::release(to, 3 * kOld);
}

TEST(Os, AskingWhetherAPageCanBeReadNeverWaits) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator's own threads wait, too";
  auto* page = static_cast<std::uint32_t*>(os::map(os::page_size(), os::page_size()));
  ASSERT_NE(page, nullptr);
  rusage before{};
  rusage after{};
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &before), 0);
  for (int i = 0; i < 100; ++i) {
    *page = i < 50 ? 0 : ~0u;
    EXPECT_TRUE(os::can_be_read(page));
  }
  ASSERT_EQ(getrusage(RUSAGE_THREAD, &after), 0);
  EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, 50) << "how often the thread has slept";
  ASSERT_EQ(mprotect(page, os::page_size(), PROT_NONE), 0);
  EXPECT_FALSE(os::can_be_read(page));
  os::release(page, os::page_size());
  EXPECT_FALSE(os::can_be_read(page));
}

TEST(Os, RemapOfSeveralMappingsIsRefused) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator has mappings of its own";
  auto* all = static_cast<char*>(os::map(2 * kMiB, 4096));
  ASSERT_NE(all, nullptr);
  std::memset(all, 1, 2 * kMiB);
  ASSERT_EQ(mprotect(all + kMiB, kMiB, PROT_READ), 0);
  EXPECT_EQ(os::remap(all, 2 * kMiB, 4 * kMiB), nullptr);
  EXPECT_EQ(all[0] + all[2 * kMiB - 1], 2);
  os::release(all, 2 * kMiB);
}

TEST(Os, ResidentPagesAreCounted) {
  if (test::kEmulated) GTEST_SKIP() << "the emulator's own pages are as its kernel has them";
  constexpr std::size_t kPages = 3000;  // more than are asked about at once
  auto* p = static_cast<char*>(os::map(kPages * os::page_size(), 4096));
  ASSERT_NE(p, nullptr);
  os::forbid_huge_pages(p, kPages * os::page_size());
  EXPECT_EQ(os::resident_pages(p, kPages * os::page_size()), 0u);
  for (std::size_t i = 0; i < kPages; i += 3) p[i * os::page_size()] = 1;
  EXPECT_EQ(os::resident_pages(p, kPages * os::page_size()), kPages / 3);
  EXPECT_EQ(os::resident_pages(p + os::page_size(), 2 * os::page_size()), 0u);
  os::release(p, kPages * os::page_size());
  EXPECT_EQ(os::resident_pages(p, os::page_size()), 0u) << "nothing is mapped there";
}

TEST(Os, WordsInOptionsAreCheckedAloud) {
  static constexpr const char* kWords[] = {"few", "more", "many"};
  unsetenv("SPANALLOC_UNIT_TEST");
  EXPECT_EQ(os::option_choice("UNIT_TEST", kWords, 3, 1, "few or more"), 1u);
  for (unsigned i = 0; i < 3; ++i) {
    setenv("SPANALLOC_UNIT_TEST", kWords[i], 1);
    EXPECT_EQ(os::option_choice("UNIT_TEST", kWords, 3, 1, "few or more"), i);
  }
  for (const char* bad : {"Few", "fewer", "fe", "1"}) {
    setenv("SPANALLOC_UNIT_TEST", bad, 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(os::option_choice("UNIT_TEST", kWords, 3, 1, "few or more"), 1u) << bad;
    EXPECT_EQ(
        testing::internal::GetCapturedStderr(),
        std::string("spanalloc: ignored SPANALLOC_UNIT_TEST=") + bad + ": want few or more\n");
  }
  unsetenv("SPANALLOC_UNIT_TEST");
}

TEST(Os, TextsInOptionsAreCopiedOrReported) {
  char text[8] = "before";
  unsetenv("SPANALLOC_UNIT_TEST");
  EXPECT_FALSE(os::option_text("UNIT_TEST", text, sizeof text));
  setenv("SPANALLOC_UNIT_TEST", "1234567", 1);
  EXPECT_TRUE(os::option_text("UNIT_TEST", text, sizeof text));
  EXPECT_STREQ(text, "1234567");
  setenv("SPANALLOC_UNIT_TEST", "12345678", 1);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(os::option_text("UNIT_TEST", text, sizeof text));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("ignored SPANALLOC_UNIT_TEST="),
            std::string::npos);
  unsetenv("SPANALLOC_UNIT_TEST");
}

TEST(Os, AnEmptyOptionIsAnUnsetOne) {
  static constexpr const char* kWords[] = {"few", "more"};
  char text[8];
  setenv("SPANALLOC_UNIT_TEST", "", 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(os::option("UNIT_TEST"), nullptr);
  EXPECT_EQ(os::option_number("UNIT_TEST", 1, 100, 42), 42u);
  EXPECT_EQ(os::option_size("UNIT_TEST", "all", 42, "bytes or all"), 42u);
  EXPECT_EQ(os::option_choice("UNIT_TEST", kWords, 2, 1, "few or more"), 1u);
  EXPECT_TRUE(os::option_switch("UNIT_TEST", true));
  EXPECT_FALSE(os::option_text("UNIT_TEST", text, sizeof text));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  unsetenv("SPANALLOC_UNIT_TEST");
}

TEST(Os, SwitchesAreSaidInSeveralWords) {
  unsetenv("SPANALLOC_UNIT_TEST");
  for (const bool fallback : {false, true}) {
    EXPECT_EQ(os::option_switch("UNIT_TEST", fallback), fallback);
    for (const char* on : {"1", "yes", "on", "true"}) {
      setenv("SPANALLOC_UNIT_TEST", on, 1);
      EXPECT_TRUE(os::option_switch("UNIT_TEST", fallback)) << on;
    }
    for (const char* off : {"0", "no", "off", "false"}) {
      setenv("SPANALLOC_UNIT_TEST", off, 1);
      EXPECT_FALSE(os::option_switch("UNIT_TEST", fallback)) << off;
    }
    for (const char* bad : {"2", "01", "y", "Yes", "enabled"}) {
      setenv("SPANALLOC_UNIT_TEST", bad, 1);
      testing::internal::CaptureStderr();
      EXPECT_EQ(os::option_switch("UNIT_TEST", fallback), fallback) << bad;
      EXPECT_NE(testing::internal::GetCapturedStderr().find("want 0 or 1"), std::string::npos);
    }
    unsetenv("SPANALLOC_UNIT_TEST");
  }
}

TEST(Os, FilesForStatisticsAreMadeAnew) {
  char folder[] = "/tmp/spanalloc-os-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/file";
  for (const char* text : {"a longer text", "short"}) {
    const int file = os::make_file(path.c_str());
    ASSERT_GE(file, 0);
    EXPECT_TRUE(os::write_text(file, text, strlen(text)));
    EXPECT_TRUE(os::close_file(file));
    EXPECT_FALSE(os::write_text(file, text, 1)) << "it is closed";
    FILE* read = fopen(path.c_str(), "r");
    ASSERT_NE(read, nullptr);
    char found[32] = {};
    EXPECT_EQ(fread(found, 1, sizeof found, read), strlen(text));
    EXPECT_STREQ(found, text);
    fclose(read);
  }
  EXPECT_EQ(os::make_file(folder), -EISDIR);
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(os::make_file(path.c_str()), -ENXIO) << "nobody reads: it does not wait";
  unlink(path.c_str());
  rmdir(folder);
  EXPECT_EQ(os::process_id(), getpid());
  EXPECT_EQ(os::kernel_thread_id(), getpid());
}

TEST(Os, NumbersInOptionsAreCheckedAloud) {
  unsetenv("SPANALLOC_UNIT_TEST");
  EXPECT_EQ(os::option("UNIT_TEST"), nullptr);
  EXPECT_EQ(os::option_number("UNIT_TEST", 1, 100, 42), 42u);
  setenv("SPANALLOC_UNIT_TEST", "17", 1);
  EXPECT_EQ(os::option_number("UNIT_TEST", 1, 100, 42), 17u);
  for (const char* bad : {"x", "-1", "1 ", "0", "101", "99999999999999999999999", "0x10"}) {
    setenv("SPANALLOC_UNIT_TEST", bad, 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(os::option_number("UNIT_TEST", 1, 100, 42), 42u) << bad;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("SPANALLOC_UNIT_TEST"), std::string::npos) << bad;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << "one line: " << said;
  }
  unsetenv("SPANALLOC_UNIT_TEST");
}

TEST(Os, SizesInOptionsAreCheckedAloud) {
  const auto size = [] { return os::option_size("UNIT_TEST", "all", 42, "bytes or all"); };
  unsetenv("SPANALLOC_UNIT_TEST");
  EXPECT_EQ(size(), 42u);
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 60) - 1;
  const std::pair<const char*, std::uint64_t> good[] = {{"0", 0},
                                                        {"17", 17},
                                                        {"3K", 3 * kKiB},
                                                        {"512M", 512 * kMiB},
                                                        {"1g", kGiB},
                                                        {"4T", 4096 * kGiB},
                                                        {"1152921504606846975", kMost},
                                                        {"all", os::kSizeIsWord}};
  for (const auto& [text, bytes] : good) {
    setenv("SPANALLOC_UNIT_TEST", text, 1);
    EXPECT_EQ(size(), bytes) << text;
  }
  for (const char* bad : {"K", "M5", "5MB", "5 M", "-1", "0x10", "all ", "1.5G", "90%", "5P",
                          "1152921504606846976", "1048576T", "99999999999999999999999"}) {
    setenv("SPANALLOC_UNIT_TEST", bad, 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(size(), 42u) << bad;
    EXPECT_EQ(
        testing::internal::GetCapturedStderr(),
        std::string("spanalloc: ignored SPANALLOC_UNIT_TEST=") + bad + ": want bytes or all\n");
  }
  unsetenv("SPANALLOC_UNIT_TEST");
}

TEST(Os, FatalNamesWhatAndWhereInOneLine) {
  EXPECT_DEATH(os::fatal("double free of", pointer_to(0x1234)),
               "^spanalloc: double free of 0x1234\n(qemu: [^\n]*\n)?$");
}

TEST(Os, FatalSaysWhatIsKnownOfTheAddress) {
  const auto dies = [](const char* what, bool (*describe)(const void*, os::AddressFacts&)) {
    os::before_fatal([] {}, describe);
    os::fatal(what, pointer_to(0x1234));
  };
  const auto all = [](const void*, os::AddressFacts& out) {
    out = {0x1230, 48, "span", 3, 0x1000, "owned", address_of(os::thread_id())};
    return true;
  };
  const std::string thread = test::kUnderAsan || test::kUnderTsan ? "0x[0-9a-f]+" : [] {
    char text[32];
    snprintf(text, sizeof text, "%#zx", static_cast<std::size_t>(pthread_self()));
    return std::string(text);
  }();
  EXPECT_DEATH(dies("double free of", all),
               "^spanalloc: double free of 0x1234 \\(inside the block of 48 bytes at 0x1230; "
               "span 3 at 0x1000: owned, thread " +
                   thread + " \\(this one\\)\\)\n(qemu: [^\n]*\n)?$");
  EXPECT_DEATH(dies("double free of",
                    [](const void*, os::AddressFacts& out) {
                      out = {0x1234, 48};
                      return true;
                    }),
               "^spanalloc: double free of 0x1234 \\(block of 48 bytes\\)\n");
  EXPECT_DEATH(dies("free of", [](const void*, os::AddressFacts&) { return false; }),
               "^spanalloc: free of 0x1234\n");
  EXPECT_DEATH(
      (os::before_fatal([] {}, all), os::fatal_of_range("too many in", pointer_to(0x1000))),
      "^spanalloc: too many in 0x1000 \\(span 3 at 0x1000: owned, thread ");
  // A heap so damaged that the look at its records ends the process.
  EXPECT_DEATH(dies("free of", [](const void*, os::AddressFacts&) -> bool { _exit(7); }),
               "^spanalloc: free of 0x1234");
  // What does not fit is left out; what is known comes all the same, and the line's end.
  EXPECT_DEATH(dies(std::string(600, 'x').c_str(), all),
               "^spanalloc: x+ \\(inside the block of 48 bytes [^\n]*\\)\n(qemu: [^\n]*\n)?$");
}

}  // namespace
}  // namespace spanalloc
