// `ulimit -v`: the reservation shrinks to what is allowed, and programs run.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
constexpr std::size_t kMiB = 1u << 20;

std::string sibling(const char* name) {
  const char* folder = getenv("SPANALLOC_TEST_PROGRAMS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PROGRAMS is not set");
  return std::string(folder) + "/" + name;
}

void sixty_four_threads_in_1_gib(const Arguments&) {
  std::vector<std::string> command = {sibling("workload"), "mixed", "64", "4", "3000"};
  // A thread's hot spans of the paper's config take 2 MiB of address space a class: 64 threads
  // cannot have them all. It may say so, and must go on.
  if (!harness::is_standard()) command.push_back("refusals");
  const auto outcome =
      harness::run(command, [] { harness::limit_resource(RLIMIT_AS, 1024 * kMiB); });
  harness::expect_success(outcome, "64 threads under 1 GiB");
  printf("%s", outcome.out.c_str());
}

void few_threads_in_256_mib(const Arguments&) {
  std::vector<std::string> command = {sibling("workload"), "mixed", "4", "4", "8000"};
  if (!harness::is_standard()) command.push_back("refusals");
  const auto outcome =
      harness::run(command, [] { harness::limit_resource(RLIMIT_AS, 256 * kMiB); });
  harness::expect_success(outcome, "4 threads under 256 MiB");
  printf("%s", outcome.out.c_str());
}

// A file of 5000 lines that are not in order. Not one of the system's: none need be there.
class Lines {
 public:
  Lines() {
    const int file = mkstemp(path_);
    CHECK(file >= 0, "mkstemp: %s", strerror(errno));
    for (unsigned i = 0; i < 5000; ++i)
      dprintf(file, "%08x a line to be sorted\n", i * 2654435761u);
    close(file);
  }
  ~Lines() { unlink(path_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  const char* path() const { return path_; }

 private:
  char path_[40] = "/tmp/spanalloc-lines-XXXXXX";
};

// A folder of 2000 files. Not one of the system's: others may change it meanwhile.
class Folder {
 public:
  Folder() {
    CHECK(mkdtemp(path_) != nullptr, "mkdtemp: %s", strerror(errno));
    for (int i = 0; i < 2000; ++i) {
      const int file =
          open((std::string(path_) + "/" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY, 0600);
      CHECK(file >= 0, "open: %s", strerror(errno));
      close(file);
    }
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const char* path() const { return path_; }

 private:
  char path_[40] = "/tmp/spanalloc-folder-XXXXXX";
};

void simple_programs(std::size_t limit) {
  const Lines lines;
  const Folder folder;
  const std::vector<std::vector<std::string>> commands = {
      {"/bin/true"},
      {"/bin/ls", "-la", folder.path()},
      {"/bin/sh", "-c", "echo hello | sort | wc -l"},
      {"/usr/bin/sort", lines.path()},
      {"/usr/bin/python3", "-c", "pass"},
      {"/usr/bin/python3", "-c", "print(sum(len(str(i)) for i in range(100000)))"},
  };
  for (const auto& command : commands) {
    if (access(command[0].c_str(), X_OK) != 0) {
      printf("not on this machine: %s\n", command[0].c_str());
      continue;
    }
    // Other locales' files are larger than some of the limits.
    const auto prepare = [limit] {
      setenv("LC_ALL", "C", 1);
      harness::limit_resource(RLIMIT_AS, limit);
    };
    const auto outcome = harness::run(command, prepare);
    CHECK(outcome.exited(0), "%s under %zu MiB: %s", command[0].c_str(), limit / kMiB,
          outcome.describe().c_str());
    CHECK(outcome.err.empty(), "%s under %zu MiB said: %s", command[0].c_str(), limit / kMiB,
          outcome.err.c_str());
  }
}

void programs_in_64_mib(const Arguments&) {
  simple_programs(64 * kMiB);
}
void programs_in_256_mib(const Arguments&) {
  simple_programs(256 * kMiB);
}

// Limits at which nobody can do much: a program may fail for want of memory, but
// says so; it never crashes.
void too_tiny(const Arguments&) {
  for (std::size_t mib = 4; mib <= 32; mib += 2) {
    const auto outcome =
        harness::run({"/bin/ls", "/"}, [mib] { harness::limit_resource(RLIMIT_AS, mib * kMiB); });
    CHECK(!outcome.killed_by(11) && !outcome.killed_by(7) && !outcome.killed_by(6),
          "ls under %zu MiB: %s", mib, outcome.describe().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"sixty_four_threads_in_1_gib", sixty_four_threads_in_1_gib},
                            {"few_threads_in_256_mib", few_threads_in_256_mib},
                            {"programs_in_64_mib", programs_in_64_mib},
                            {"programs_in_256_mib", programs_in_256_mib},
                            {"too_tiny", too_tiny}});
}
