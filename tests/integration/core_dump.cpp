// A core dump holds what the program touched, not what the library reserved or opened.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
namespace fs = std::filesystem;

void require_plain_core_files() {
  char pattern[256] = {};
  FILE* file = fopen("/proc/sys/kernel/core_pattern", "re");
  if (file == nullptr) harness::skip("cannot read core_pattern: %s", strerror(errno));
  const bool read = fgets(pattern, sizeof pattern, file) != nullptr;
  fclose(file);
  if (!read || pattern[0] == '|' || strchr(pattern, '/') != nullptr) {
    harness::skip("core dumps do not go to the working directory: core_pattern is %s", pattern);
  }
}

// Touches memory of all kinds, frees a part of it, says how much is resident, and aborts.
void child(const Arguments&) {
  harness::judge_memory();
  // What a dump holds is the machine's to choose: private and shared memory of no file, as by
  // default.
  if (FILE* filter = fopen("/proc/self/coredump_filter", "we"); filter != nullptr) {
    fputs("0x3", filter);
    fclose(filter);
  }
  harness::require_library_malloc();
  harness::Random random(1);
  std::vector<void*> blocks;
  for (std::size_t bytes = 0; bytes < (40u << 20);) {
    const std::size_t size = random.size(4u << 20);
    void* p = malloc(size);
    memset(p, 1, size);
    blocks.push_back(p);
    bytes += size;
  }
  for (std::size_t i = 0; i < blocks.size(); i += 3) free(blocks[i]);
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  if (setrlimit(RLIMIT_CORE, &unlimited) != 0)
    harness::skip("cannot raise RLIMIT_CORE: %s", strerror(errno));
  printf("peak %zu\n", harness::memory().peak_resident);
  fflush(stdout);
  abort();
}

void stays_proportional(const Arguments&) {
  require_plain_core_files();
  char pattern[] = "/tmp/spanalloc-core-XXXXXX";
  CHECK(mkdtemp(pattern) != nullptr, "mkdtemp: %s", strerror(errno));
  const auto outcome = harness::run_self({"child"}, [&] {
    if (chdir(pattern) != 0) _exit(1);
  });
  if (outcome.exited(77)) harness::skip("%s", outcome.out.c_str());
  std::size_t peak = 0;
  std::size_t stored = 0;
  std::size_t apparent = 0;
  for (const auto& entry : fs::directory_iterator(pattern)) {
    struct stat info{};
    CHECK(stat(entry.path().c_str(), &info) == 0, "stat: %s", strerror(errno));
    stored += static_cast<std::size_t>(info.st_blocks) / 2;
    apparent += static_cast<std::size_t>(info.st_size) / 1024;
  }
  fs::remove_all(pattern);
  CHECK(outcome.killed_by(SIGABRT), "%s", outcome.describe().c_str());
  CHECK(sscanf(outcome.out.c_str(), "peak %zu", &peak) == 1, "no peak in %s", outcome.out.c_str());
  if (stored == 0) harness::skip("the kernel wrote no core file here");
  printf("peak resident %zu KiB; core file %zu KiB, %zu KiB with holes\n", peak, stored, apparent);
  CHECK(stored <= peak + 8 * 1024, "%zu KiB of core for %zu KiB of memory", stored, peak);
  // Where a tool copies the file, holes become zeroes. The paper's config
  // opens 2 MiB a span by design.
  if (harness::is_standard()) {
    CHECK(apparent <= 3 * peak + 64 * 1024, "%zu KiB of core with its holes for %zu KiB of memory",
          apparent, peak);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"stays_proportional", stays_proportional}, {"child", child}});
}
