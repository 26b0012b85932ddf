// What the kernel maps into every process is read by its own tables, of either kind.
#include "os/vdso.hpp"

#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <time.h>

#include "shared_object.hpp"

namespace spanalloc {
namespace {

using test::Hash;
using test::SharedObject;

int answer() {
  return 42;
}
const void* const kFunction = reinterpret_cast<const void*>(&answer);

TEST(Vdso, AFunctionIsFoundByEitherTable) {
  for (const Hash hash : {Hash::kOld, Hash::kGnu, Hash::kBoth}) {
    for (const std::uintptr_t own_address :
         {std::uintptr_t{0}, std::uintptr_t{0xFFFFFFFFFF700000}}) {
      SharedObject object;
      object.make("some_function", kFunction, hash, own_address);
      EXPECT_EQ(os::function_in(object.address(), "some_function"), kFunction) << int(hash);
      EXPECT_EQ(os::function_in(object.address(), "some_functio"), nullptr);
      EXPECT_EQ(os::function_in(object.address(), "some_function_"), nullptr);
    }
  }
}

TEST(Vdso, WhatHasNoTableOrIsNoObjectHasNoFunctions) {
  SharedObject object;
  object.make("some_function", kFunction, Hash::kNone);
  EXPECT_EQ(os::function_in(object.address(), "some_function"), nullptr);
  static const char kOther[256] = "\177ELG";
  EXPECT_EQ(os::function_in(kOther, "some_function"), nullptr);
  EXPECT_EQ(os::function_in(nullptr, "some_function"), nullptr);
}

TEST(Vdso, TheKernelsClockIsLibcs) {
  if (getauxval(AT_SYSINFO_EHDR) == 0) GTEST_SKIP() << "this kernel or emulator has mapped nothing";
#if defined(__aarch64__)
  const void* const found = os::vdso_function("__kernel_clock_gettime");
#else
  const void* const found = os::vdso_function("__vdso_clock_gettime");
#endif
  ASSERT_NE(found, nullptr);
  const auto clock = reinterpret_cast<int (*)(clockid_t, timespec*)>(const_cast<void*>(found));
  timespec before{};
  timespec now{};
  timespec after{};
  ASSERT_EQ(clock_gettime(CLOCK_MONOTONIC_COARSE, &before), 0);
  ASSERT_EQ(clock(CLOCK_MONOTONIC_COARSE, &now), 0);
  ASSERT_EQ(clock_gettime(CLOCK_MONOTONIC_COARSE, &after), 0);
  const auto order = [](const timespec& a) { return std::pair(a.tv_sec, a.tv_nsec); };
  EXPECT_LE(order(before), order(now));
  EXPECT_LE(order(now), order(after));
}

}  // namespace
}  // namespace spanalloc
