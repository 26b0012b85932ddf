// What a program has set on the pages of its blocks, and has not taken back before it freed them:
// once that memory has gone back to the kernel, the next owner must not get it. A child that is
// forked then would miss the owner's memory or find zeros in it, a core file would lack it, a page
// that was touched would cost a huge page. Each attribute that the kernel knows is tried.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <spanalloc/spanalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <functional>

#include "support/harness.hpp"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

namespace {

using Arguments = std::vector<std::string>;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 4096;

struct Area {
  std::uintptr_t from = 0;
  std::uintptr_t to = 0;
  void* start() const { return reinterpret_cast<void*>(from); }
  std::size_t bytes() const { return to - from; }
};

// Blocks between others that stay, so that none of them is the last of its range of addresses.
constexpr std::size_t kBlocks = 6;
constexpr std::size_t kBytes = 6 * kMiB + 3 * kPage;
struct Blocks {
  char* block[kBlocks];
  void* between[kBlocks];

  Blocks() {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      block[i] = static_cast<char*>(malloc(kBytes));
      between[i] = malloc(70000);
      CHECK(block[i] != nullptr && between[i] != nullptr, "no memory");
      memset(block[i], 0xA5, kBytes);
    }
  }
  /// The whole pages within one.
  Area pages(std::size_t i) const {
    const auto start = reinterpret_cast<std::uintptr_t>(block[i]);
    return {(start + kPage - 1) & ~(kPage - 1), (start + kBytes) & ~(kPage - 1)};
  }
  void free_blocks() const {
    for (char* p : block) free(p);
  }
};

// What a line of /proc/self/FILE that begins with `field` says of each mapping with a part in one
// of the areas: found(area, rest of the line).
void for_lines(const char* file, const char* field, const std::vector<Area>& areas,
               const std::function<void(const Area&, const char*)>& found) {
  FILE* lines = fopen(file, "r");
  if (lines == nullptr) harness::skip("there is no %s here", file);
  static char line[1024];
  Area mapping;
  while (fgets(line, sizeof line, lines) != nullptr) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2) mapping = {from, to};
    if (strncmp(line, field, strlen(field)) != 0) continue;
    for (const Area& area : areas) {
      if (mapping.from < area.to && mapping.to > area.from) found(area, line + strlen(field));
    }
  }
  fclose(lines);
}

// Flags of the mappings as the kernel abbreviates them: which of these areas have one.
std::size_t areas_with(const char* flag, const std::vector<Area>& areas) {
  std::size_t count = 0;
  for_lines("/proc/self/smaps", "VmFlags:", areas,
            [&](const Area&, const char* flags) { count += strstr(flags, flag) != nullptr; });
  return count;
}

// Sets something on each block's pages, frees them, has their memory go back, and looks.
void set_and_look(const std::function<bool(const Area&)>& set,
                  const std::function<std::size_t(const std::vector<Area>&)>& marked) {
  harness::require_library_malloc();
  std::vector<Area> areas;
  areas.reserve(kBlocks);
  const Blocks blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    areas.push_back(blocks.pages(i));
    if (!set(areas.back())) harness::skip("that cannot be set here: %s", strerror(errno));
  }
  CHECK(marked(areas) >= kBlocks, "it was set, and is not seen: nothing is tested");
  blocks.free_blocks();
  malloc_trim(0);
  const std::size_t left = marked(areas);
  CHECK(left == 0, "%zu mappings still have it", left);
  // And all of it can be used.
  const Blocks again;
  for (std::size_t i = 0; i < kBlocks; ++i) areas.push_back(again.pages(i));
  CHECK(marked(areas) == 0, "blocks got it from others");
  again.free_blocks();
}

void advise(int advice, const char* flag) {
  set_and_look([=](const Area& area) { return madvise(area.start(), area.bytes(), advice) == 0; },
               [=](const std::vector<Area>& areas) { return areas_with(flag, areas); });
}

void huge_pages(const Arguments&) {
  advise(MADV_HUGEPAGE, " hg");
}
void no_huge_pages(const Arguments&) {
  advise(MADV_NOHUGEPAGE, " nh");
}
void not_dumped(const Arguments&) {
  advise(MADV_DONTDUMP, " dd");
}
void merged(const Arguments&) {
  advise(MADV_MERGEABLE, " mg");
}
void read_in_sequence(const Arguments&) {
  advise(MADV_SEQUENTIAL, " sr");
}
void read_at_random(const Arguments&) {
  advise(MADV_RANDOM, " rr");
}

// A child of fork must find what the next owner has written.
void expect_children_see_blocks() {
  const Blocks blocks;
  harness::expect_success(harness::run_forked([&] {
                            for (const char* p : blocks.block) {
                              for (std::size_t at = 0; at < kBytes; at += kPage)
                                CHECK(p[at] == static_cast<char>(0xA5), "%d at %zu", p[at], at);
                            }
                          }),
                          "a fork's child");
  blocks.free_blocks();
}
void not_forked(const Arguments&) {
  advise(MADV_DONTFORK, " dc");
  expect_children_see_blocks();
}
void wiped_on_fork(const Arguments&) {
  advise(MADV_WIPEONFORK, " wf");
  expect_children_see_blocks();
}

void lock(unsigned flags) {
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_MEMLOCK, &unlimited);
  set_and_look(
      [=](const Area& area) { return syscall(SYS_mlock2, area.start(), area.bytes(), flags) == 0; },
      [](const std::vector<Area>& areas) { return areas_with(" lo", areas); });
}
void locked(const Arguments&) {
  lock(0);
}
void locked_on_fault(const Arguments&) {
  lock(MLOCK_ONFAULT);
}

// Bound to node 0 of the machine's memory, which every machine has.
void memory_policy(const Arguments&) {
  constexpr int kBind = 2;  // MPOL_BIND
  set_and_look(
      [](const Area& area) {
        const unsigned long node0 = 1;
        return syscall(SYS_mbind, area.start(), area.bytes(), kBind, &node0, 8 * sizeof node0, 0) ==
               0;
      },
      [](const std::vector<Area>& areas) {
        FILE* lines = fopen("/proc/self/numa_maps", "r");
        if (lines == nullptr) harness::skip("there is no /proc/self/numa_maps here");
        static char line[1024];
        std::size_t bound = 0;
        // One line a mapping, which says where it begins only: as if it ended where the next one
        // begins.
        unsigned long bound_from = 0;  // 0: not bound
        while (fgets(line, sizeof line, lines) != nullptr) {
          char policy[32] = "";
          unsigned long from = 0;
          if (sscanf(line, "%lx %31s", &from, policy) != 2) continue;
          for (const Area& area : areas)
            bound += bound_from != 0 && bound_from < area.to && area.from < from;
          bound_from = strcmp(policy, "default") == 0 ? 0 : from;
        }
        fclose(lines);
        return bound;
      });
}

// Pages that are missing are asked for by a thread of the program's, which this one does not have:
// who touched one would wait for ever.
void user_faults(const Arguments&) {
  const int file = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (file < 0) harness::skip("userfaultfd: %s", strerror(errno));
  uffdio_api api{};
  api.api = UFFD_API;
  if (ioctl(file, UFFDIO_API, &api) != 0) harness::skip("userfaultfd: %s", strerror(errno));
  set_and_look(
      [=](const Area& area) {
        uffdio_register all{};
        all.range = {area.from, area.bytes()};
        all.mode = UFFDIO_REGISTER_MODE_MISSING;
        return ioctl(file, UFFDIO_REGISTER, &all) == 0;
      },
      [](const std::vector<Area>& areas) { return areas_with(" um", areas); });
  close(file);
}

void protection_key(const Arguments&) {
#ifdef SYS_pkey_alloc
  const long key = syscall(SYS_pkey_alloc, 0, 0);
  if (key < 0)
    harness::skip("this CPU, or this kernel, has no protection keys: %s", strerror(errno));
  set_and_look(
      [=](const Area& area) {
        return syscall(SYS_pkey_mprotect, area.start(), area.bytes(), PROT_READ | PROT_WRITE,
                       key) == 0;
      },
      [](const std::vector<Area>& areas) {
        std::size_t count = 0;
        for_lines("/proc/self/smaps", "ProtectionKey:", areas,
                  [&](const Area&, const char* text) { count += atol(text) != 0; });
        return count;
      });
#else
  harness::skip("there are no protection keys here");
#endif
}

// Heaps of a program's own have an arena of theirs.
void in_own_heaps(const Arguments&) {
  harness::require_library_malloc();
  const auto create =
      reinterpret_cast<decltype(&sp_heap_create)>(dlsym(RTLD_DEFAULT, "sp_heap_create"));
  const auto take =
      reinterpret_cast<decltype(&sp_heap_malloc)>(dlsym(RTLD_DEFAULT, "sp_heap_malloc"));
  const auto destroy =
      reinterpret_cast<decltype(&sp_heap_destroy)>(dlsym(RTLD_DEFAULT, "sp_heap_destroy"));
  if (create == nullptr) harness::skip("another library than ours has no heaps");
  sp_heap* const heap = create(nullptr, 0);
  std::vector<Area> areas;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    auto* p = static_cast<char*>(take(heap, kBytes));
    CHECK(p != nullptr, "no memory");
    memset(p, 0xA5, kBytes);
    const auto start = (reinterpret_cast<std::uintptr_t>(p) + kPage - 1) & ~(kPage - 1);
    areas.push_back({start, start + 6 * kMiB});
    CHECK(madvise(areas[i].start(), areas[i].bytes(), MADV_DONTFORK) == 0, "madvise: %s",
          strerror(errno));
  }
  CHECK(areas_with(" dc", areas) >= kBlocks, "nothing is tested");
  destroy(heap);
  malloc_trim(0);
  CHECK(areas_with(" dc", areas) == 0, "free memory still has it");
}

// A program that sets something on every block, with others between them, has as many mappings as
// at its start when they are freed.
void mappings_are_joined(const Arguments&) {
  harness::require_library_malloc();
  const Blocks warm;
  warm.free_blocks();
  malloc_trim(0);
  const std::size_t before = harness::map_count();
  for (int round = 0; round < 3; ++round) {
    const Blocks blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const Area area = blocks.pages(i);
      for (std::uintptr_t at = area.from + kMiB; at + kMiB <= area.to; at += kMiB) {
        CHECK(madvise(reinterpret_cast<void*>(at), kPage, MADV_DONTDUMP) == 0, "madvise: %s",
              strerror(errno));
      }
    }
    CHECK(harness::map_count() > before + kBlocks, "nothing is tested");
    blocks.free_blocks();
    malloc_trim(0);
  }
  const std::size_t after = harness::map_count();
  printf("%zu mappings, then %zu\n", before, after);
  CHECK(after <= before + 4, "%zu mappings, and %zu at the start", after, before);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"huge_pages", huge_pages},
                            {"no_huge_pages", no_huge_pages},
                            {"not_forked", not_forked},
                            {"wiped_on_fork", wiped_on_fork},
                            {"not_dumped", not_dumped},
                            {"merged", merged},
                            {"read_in_sequence", read_in_sequence},
                            {"read_at_random", read_at_random},
                            {"memory_policy", memory_policy},
                            {"locked", locked},
                            {"locked_on_fault", locked_on_fault},
                            {"user_faults", user_faults},
                            {"protection_key", protection_key},
                            {"in_own_heaps", in_own_heaps},
                            {"mappings_are_joined", mappings_are_joined}});
}
