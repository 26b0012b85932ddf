// Control groups as made-up trees of files tell them.
#include "os/cgroup.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/bits.hpp"

namespace spanalloc {
namespace {

namespace fs = std::filesystem;

class Cgroup : public testing::Test {
 protected:
  Cgroup() {
    char name[] = "/tmp/spanalloc-cgroup-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~Cgroup() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // The process is in the group `place`, of version 2.
  void begin_version_2(const std::string& place, const std::string& shown = "/") {
    write("/proc/self/cgroup", "0::" + place + "\n");
    write("/proc/self/mountinfo",
          "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
          "31 23 0:28 " +
              shown + " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void begin_version_1(const std::string& memory, const std::string& cpu) {
    write("/proc/self/cgroup", "9:name=systemd:/x\n8:pids:/\n4:memory:" + memory +
                                   "\n3:cpuset:/\n2:cpu,cpuacct:" + cpu + "\n0::/elsewhere\n");
    write("/proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
          "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
          "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
          "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
          "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }
  void group_2(const std::string& place, const std::string& max, const std::string& high,
               std::size_t current, std::size_t inactive_file = 0) {
    const std::string folder = "/sys/fs/cgroup" + place;
    write(folder + "/memory.max", max + "\n");
    write(folder + "/memory.high", high + "\n");
    write(folder + "/memory.current", std::to_string(current) + "\n");
    write(folder + "/memory.stat",
          "anon 1234\nfile 99\ninactive_file_of_another 77\ninactive_file " +
              std::to_string(inactive_file) + "\nactive_file 5\n");
  }
  // What is read, which leaves errno and the process's files as they were.
  os::MemoryGroup read() {
    os::MemoryGroup group;
    errno = 77;
    const int next_file = dup(0);
    close(next_file);
    is_told = os::read_memory_group(group, root_.c_str());
    EXPECT_EQ(errno, 77);
    const int same_file = dup(0);
    close(same_file);
    EXPECT_EQ(next_file, same_file) << "a file stays open";
    return group;
  }
  unsigned quota() { return os::cpu_quota(root_.c_str()); }

  bool is_told = false;

 private:
  std::string root_;
};

TEST_F(Cgroup, WithoutFilesNothingIsTold) {
  os::MemoryGroup group{5, 3};
  EXPECT_FALSE(os::read_memory_group(group, "/nowhere"));
  EXPECT_EQ(group.limit, 5u);
  EXPECT_EQ(os::cpu_quota("/nowhere"), 0u);
  begin_version_2("/a/b");
  read();
  EXPECT_FALSE(is_told) << "the group has no controller of memory";
  write("/proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n");
  read();
  EXPECT_FALSE(is_told);
  EXPECT_EQ(quota(), 0u);
}

TEST_F(Cgroup, TheRootHasNoLimit) {
  begin_version_2("/");
  EXPECT_EQ(read().limit, SIZE_MAX);
  EXPECT_TRUE(is_told);
}

TEST_F(Cgroup, AGroupWithoutALimitHasNone) {
  begin_version_2("/a");
  group_2("/a", "max", "max", 1000);
  EXPECT_EQ(read().limit, SIZE_MAX);
  EXPECT_TRUE(is_told);
}

TEST_F(Cgroup, WhatIsUsedCountsWithoutFilesThatNobodyUses) {
  begin_version_2("/a");
  group_2("/a", "1000000", "max", 700000, 300000);
  const os::MemoryGroup group = read();
  EXPECT_EQ(group.limit, 1000000u);
  EXPECT_EQ(group.used, 400000u);
  EXPECT_EQ(group.room(), 600000u);
  EXPECT_EQ(group.margin(), 125000u);
}

TEST_F(Cgroup, TheLowerOneOfMaxAndHighIsTheLimit) {
  begin_version_2("/a");
  group_2("/a", "1000000", "800000", 900000);
  EXPECT_EQ(read().limit, 800000u);
  EXPECT_EQ(read().room(), 0u) << "more is used than that";
}

TEST_F(Cgroup, OfNestedGroupsTheOneThatIsNearestToItsLimitCounts) {
  begin_version_2("/a/b/c");
  group_2("", "max", "max", 0);
  group_2("/a", "10000000", "max", 2000000);
  group_2("/a/b", "max", "max", 1500000);
  group_2("/a/b/c", "3000000", "max", 1000000);
  EXPECT_EQ(read().limit, 3000000u);
  group_2("/a", "10000000", "max", 9000000);
  EXPECT_EQ(read().limit, 10000000u) << "siblings have filled it";
  group_2("/a", "10000000", "max", 5000000);
  group_2("/a/b", "1500000", "max", 1500000);
  EXPECT_EQ(read().limit, 1500000u) << "read again, as it is now";
}

// The file of places may name the group as the host sees it.
TEST_F(Cgroup, AMountMayShowAPartOfTheTree) {
  begin_version_2("/docker/4711/inner", "/docker/4711");
  group_2("/inner", "5000000", "max", 1);
  group_2("", "4000000", "max", 1);
  EXPECT_EQ(read().limit, 4000000u);
  begin_version_2("/docker/4711", "/docker/4711");
  EXPECT_EQ(read().limit, 4000000u);
  begin_version_2("/docker/47110", "/docker/4711");
  EXPECT_EQ(read().limit, 4000000u) << "elsewhere: the topmost that is shown";
  begin_version_2("/../up");
  EXPECT_EQ(read().limit, 4000000u);
}

TEST_F(Cgroup, Version1CountsGroupsThatCannotBeSeen) {
  begin_version_1("/pod/box", "/");
  const std::string folder = "/sys/fs/cgroup/memory";
  write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder + "/pod/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder + "/pod/box/memory.limit_in_bytes", "9223372036854771712\n");
  write(folder + "/pod/box/memory.usage_in_bytes", "500000\n");
  write(folder + "/pod/box/memory.stat",
        "inactive_file 1\nhierarchical_memory_limit 9223372036854771712\ntotal_inactive_file 2\n");
  EXPECT_EQ(read().limit, SIZE_MAX);
  EXPECT_TRUE(is_told);
  write(folder + "/pod/box/memory.limit_in_bytes", "800000\n");
  write(folder + "/pod/box/memory.stat",
        "hierarchical_memory_limit 600000\ntotal_inactive_file 100000\n");
  EXPECT_EQ(read().limit, 600000u);
  EXPECT_EQ(read().used, 400000u);
}

TEST_F(Cgroup, LongPathsAndOddFilesAreNone) {
  begin_version_2("/" + std::string(2000, 'a'));
  read();
  EXPECT_FALSE(is_told);
  write("/proc/self/cgroup", "");
  read();
  EXPECT_FALSE(is_told);
  write("/proc/self/cgroup", "0:\n:\n::\nmemory\n4:memory\n4:memory:relative\n");
  read();
  EXPECT_FALSE(is_told);
  begin_version_2("/a");
  group_2("/a", "", "99999999999999999999999999", 1);
  EXPECT_EQ(read().limit, SIZE_MAX);
}

TEST_F(Cgroup, AQuotaIsRoundedUpToWholeCpus) {
  begin_version_2("/a/b");
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 0u);
  write("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 3u);
  write("/sys/fs/cgroup/a/b/cpu.max", "10000 100000\n");
  EXPECT_EQ(quota(), 1u);
  write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(quota(), 3u) << "the lowest of all";
}

TEST_F(Cgroup, Version1HasTwoFilesForAQuota) {
  begin_version_1("/", "/box");
  const std::string folder = "/sys/fs/cgroup/cpu,cpuacct/box";
  write(folder + "/cpu.cfs_quota_us", "-1\n");
  write(folder + "/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 0u);
  write(folder + "/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(quota(), 2u);
  write(folder + "/cpu.cfs_period_us", "0\n");
  EXPECT_EQ(quota(), 0u);
}

}  // namespace
}  // namespace spanalloc
