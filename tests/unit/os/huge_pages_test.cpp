// What the kernel's switch says of huge pages.
#include "os/huge_pages.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace spanalloc {
namespace {

TEST(HugePages, AreExpectedUnlessTheSwitchSaysOtherwise) {
  char name[] = "/tmp/spanalloc-switch-XXXXXX";
  const std::string root = mkdtemp(name);
  EXPECT_TRUE(os::makes_huge_pages_unasked(root.c_str())) << "it cannot be read";
  const std::string folder = root + "/sys/kernel/mm/transparent_hugepage";
  std::filesystem::create_directories(folder);
  const auto says = [&](const char* line) {
    std::ofstream(folder + "/enabled") << line;
    return os::makes_huge_pages_unasked(root.c_str());
  };
  EXPECT_TRUE(says("[always] madvise never\n"));
  EXPECT_FALSE(says("always [madvise] never\n"));
  EXPECT_FALSE(says("always madvise [never]\n"));
  EXPECT_TRUE(says("always madvise never\n"));
  EXPECT_TRUE(says("always [inherit] madvise never\n"));
  EXPECT_TRUE(says(""));
  EXPECT_TRUE(os::makes_huge_pages_unasked(std::string(5000, 'x').c_str()));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace spanalloc
