// Where the library's memory lies and what it takes of the address space: what it uses and little
// more, at places that differ from run to run, between guard pages; and it shares a limit, whenever
// that is set, with everything else that the program maps.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/clock.hpp"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uintptr_t address_of(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}
template <class F>
std::uintptr_t code_address(F* function) {
  return reinterpret_cast<std::uintptr_t>(function);
}

// --- How much ------------------------------------------------------------------------------------

void report_size(const Arguments&) {
  free(malloc(1));
  printf("address-space-kib %zu\n", harness::memory().address_space);
}

std::size_t size_of_run(bool with_library) {
  const auto outcome = harness::run_self({"report_size"}, [with_library] {
    if (!with_library) unsetenv("LD_PRELOAD");
  });
  harness::expect_success(outcome, "report");
  std::size_t kib = 0;
  CHECK(sscanf(outcome.out.c_str(), "address-space-kib %zu", &kib) == 1, "%s", outcome.out.c_str());
  return kib * 1024;
}

void little_is_mapped(const Arguments&) {
  harness::require_library_malloc();
  const std::size_t ours = size_of_run(true);
  const std::size_t libcs = size_of_run(false);
  printf("%zu KiB of address space, %zu KiB with libc's malloc\n", ours / 1024, libcs / 1024);
  CHECK(ours <= libcs + 64 * kMiB, "%zu bytes mapped, %zu with libc's malloc", ours, libcs);
}

// --- Where ---------------------------------------------------------------------------------------

struct Place {
  std::uintptr_t block = 0;
  std::uintptr_t libc = 0;
  std::uintptr_t program = 0;
  std::uintptr_t stack = 0;
};

void report_place(const Arguments&) {
  const void* block = malloc(64);
  const char here = 0;
  printf("place %zx %zx %zx %zx\n", address_of(block), code_address(&puts),
         code_address(&report_place), address_of(&here));
}

Place place_of_run(const char* seed) {
  const auto outcome = harness::run_self({"report_place"}, [seed] {
    unsetenv("SPANALLOC_SEED");
    if (seed != nullptr) setenv("SPANALLOC_SEED", seed, 1);
    // Whoever runs the tests may have switched randomisation off.
    if (const int now = personality(0xFFFFFFFF); now != -1)
      personality(static_cast<unsigned>(now) & ~ADDR_NO_RANDOMIZE);
  });
  harness::expect_success(outcome, "report");
  Place place;
  CHECK(sscanf(outcome.out.c_str(), "place %zx %zx %zx %zx", &place.block, &place.libc,
               &place.program, &place.stack) == 4,
        "%s", outcome.out.c_str());
  return place;
}

// Of n draws from 2^26 places hardly two are alike; and each of 26 bits is seen set and clear.
void places_differ(const Arguments&) {
  harness::require_library_malloc();
  constexpr int kRuns = 80;
  std::vector<Place> runs;
  for (int i = 0; i < kRuns; ++i) runs.push_back(place_of_run(nullptr));
  const auto check = [&](const char* from, auto difference) {
    std::set<std::uintptr_t> seen;
    std::uintptr_t ever_set = 0;
    std::uintptr_t ever_clear = 0;
    for (const Place& place : runs) {
      const std::uintptr_t distance = difference(place);
      seen.insert(distance);
      ever_set |= distance;
      ever_clear |= ~distance;
    }
    const int bits = __builtin_popcountll(ever_set & ever_clear);
    printf("%s: %zu different distances in %d runs, %d bits vary\n", from, seen.size(), kRuns,
           bits);
    CHECK(seen.size() >= kRuns - 1, "only %zu different distances", seen.size());
    CHECK(bits >= 26, "only %d bits vary", bits);
  };
  check("from 0", [](const Place& place) { return place.block; });
  check("from libc", [](const Place& place) { return place.libc - place.block; });
  check("from the program", [](const Place& place) { return place.program - place.block; });
  check("from the stack", [](const Place& place) { return place.stack - place.block; });
}

void a_seed_repeats_them(const Arguments&) {
  harness::require_library_malloc();
  const std::uintptr_t first = place_of_run("42").block;
  for (int i = 0; i < 5; ++i)
    CHECK(place_of_run("42").block == first, "another place with the same seed");
  CHECK(place_of_run("43").block != first, "the same place with another seed");
  const auto outcome =
      harness::run_self({"report_place"}, [] { setenv("SPANALLOC_SEED", "dice", 1); });
  CHECK(outcome.err.find("SPANALLOC_SEED") != std::string::npos, "no warning: %s",
        outcome.err.c_str());
}

// --- Guards --------------------------------------------------------------------------------------

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool writable = false;
  bool accessible = false;
};

std::vector<Mapping> mappings() {
  FILE* maps = fopen("/proc/self/maps", "re");
  CHECK(maps != nullptr, "cannot open /proc/self/maps");
  std::vector<Mapping> all;
  all.reserve(4096);
  char line[512];
  while (fgets(line, sizeof line, maps) != nullptr) {
    Mapping mapping;
    char rights[8] = {};
    if (sscanf(line, "%zx-%zx %7s", &mapping.begin, &mapping.end, rights) != 3) continue;
    mapping.writable = rights[1] == 'w';
    mapping.accessible = strncmp(rights, "---", 3) != 0;
    all.push_back(mapping);
  }
  fclose(maps);
  return all;
}

// All that is ours: what libc and the loader map lies above the program, or above a
// third of the address space.
void guards_stand_around_everything(const Arguments&) {
  harness::require_library_malloc();
  std::vector<void*> blocks;
  for (std::size_t size = 16; size <= 64 * kMiB; size *= 2) blocks.push_back(malloc(size));
  pthread_t threads[20];
  for (pthread_t& thread : threads) {
    CHECK(pthread_create(
              &thread, nullptr, [](void*) -> void* { return malloc(100); }, nullptr) == 0,
          "no thread");
  }
  for (pthread_t& thread : threads) pthread_join(thread, nullptr);
  const std::uintptr_t bound = std::uintptr_t{1} << 45;
  const std::vector<Mapping> all = mappings();
  int writable = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].writable || all[i].begin >= bound) continue;
    ++writable;
    CHECK(i != 0 && all[i - 1].end == all[i].begin && !all[i - 1].accessible, "no guard before %zx",
          all[i].begin);
    CHECK(i + 1 < all.size() && all[i + 1].begin == all[i].end && !all[i + 1].accessible,
          "no guard behind %zx", all[i].end);
  }
  // The arena, span records, LABs, the manager's four tables.
  CHECK(writable >= 6, "only %d mappings found", writable);
  for (void* p : blocks) free(p);
}

// --- Limits --------------------------------------------------------------------------------------

// Read without allocating: memory may be out.
std::size_t used_of(int resource) {
  char text[4096] = {};
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "cannot read /proc/self/status");
  close(fd);
  const char* name = resource == RLIMIT_AS ? "VmSize:" : "VmData:";
  const char* line = strstr(text, name);
  CHECK(line != nullptr, "%s is missing", name);
  return strtoul(line + strlen(name), nullptr, 10) * 1024;
}

std::size_t allow(int resource, std::size_t bytes) {
  rlimit limit{};
  CHECK(getrlimit(resource, &limit) == 0, "getrlimit");
  limit.rlim_cur = used_of(resource) + bytes;
  CHECK(setrlimit(resource, &limit) == 0, "setrlimit");
  return limit.rlim_cur;
}
void lift(int resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max;
  CHECK(setrlimit(resource, &limit) == 0, "setrlimit");
}

void* map_pages(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}
bool a_thread_runs() {
  pthread_t thread{};
  const auto body = [](void*) -> void* {
    void* p = malloc(1000);
    free(p);
    return p;
  };
  if (pthread_create(&thread, nullptr, body, nullptr) != 0) return false;
  pthread_join(thread, nullptr);
  return true;
}

// Blocks of `size` until there is none, each intact to the end. Only the start of big ones is
// written: it is address space that gets short.
std::size_t written(std::size_t size) {
  return std::min<std::size_t>(size, 4096);
}
struct Pile {
  void* blocks[400000];
  std::size_t count = 0;
};
Pile pile;
void fill_up(std::size_t size) {
  errno = 0;
  while (pile.count < 400000) {
    void* p = malloc(size);
    if (p == nullptr) break;
    harness::fill(p, written(size));
    pile.blocks[pile.count++] = p;
  }
  CHECK(pile.count == 400000 || errno == ENOMEM, "errno %d", errno);
}
void free_pile(std::size_t size) {
  while (pile.count != 0) {
    void* p = pile.blocks[--pile.count];
    CHECK(harness::intact(p, written(size)), "block %p overwritten", p);
    free(p);
  }
}

// A limit of this kind is set while the program runs. It and we share what is left of it.
void shares(int resource, std::size_t size) {
  harness::require_library_malloc();
  CHECK(a_thread_runs(), "no thread without a limit");
  constexpr std::size_t kLimit = 256 * kMiB;
  const std::size_t allowed = allow(resource, kLimit);
  void* theirs = map_pages(100 * kMiB);
  CHECK(theirs != nullptr, "the program's own mapping is refused");
  const int rounds = harness::is_full_run() ? 3 : 2;
  for (int round = 0; round < rounds; ++round) {
    fill_up(size);
    const std::size_t bytes = pile.count * size;
    CHECK(bytes >= 64 * kMiB, "round %d: %zu bytes of blocks of %zu bytes, then no more", round,
          bytes, size);
    CHECK(used_of(resource) <= allowed, "the limit is passed");
    CHECK(malloc(kLimit) == nullptr && errno == ENOMEM, "granted beyond the limit");
    free_pile(size);
    // All works again, for us and for the program.
    CHECK(a_thread_runs(), "round %d: no thread after everything was freed", round);
    void* more = map_pages(100 * kMiB);
    CHECK(more != nullptr, "round %d: no mapping after everything was freed: %zu MiB in use", round,
          used_of(resource) / kMiB);
    munmap(more, 100 * kMiB);
  }
  munmap(theirs, 100 * kMiB);
  lift(resource);
  void* large = malloc(2 * kLimit);
  CHECK(large != nullptr, "refused without a limit");
  memset(large, 1, kMiB);
  memset(static_cast<char*>(large) + 2 * kLimit - kMiB, 1, kMiB);
  _exit(0);
}

void shares_address_space(const Arguments&) {
  for (const std::size_t size : {1000u, 3000u, 30000u, 100000u, 3000000u}) {
    const auto outcome = harness::run_forked([size] { shares(RLIMIT_AS, size); });
    harness::expect_success(outcome, std::to_string(size).c_str());
  }
}
void shares_data(const Arguments&) {
  for (const std::size_t size : {1000u, 3000u, 30000u, 100000u, 3000000u}) {
    const auto outcome = harness::run_forked([size] { shares(RLIMIT_DATA, size); });
    harness::expect_success(outcome, std::to_string(size).c_str());
  }
}

// What malloc has not been refused, either: it gives back what is left of a limit to the program at
// once. (Of a limit on data it has to have met it. Nobody can ask for that without taking what the
// limit leaves to others.)
void comes_back_at_once(const Arguments&) {
  harness::require_library_malloc();
  for (const int resource : {RLIMIT_AS, RLIMIT_DATA}) {
    for (const std::size_t size : {1000u, 20000u, 100000u, 1000000u, 5000000u}) {
      const auto outcome = harness::run_forked([resource, size] {
        allow(resource, 80 * kMiB);
        for (; pile.count < 50 * kMiB / size; ++pile.count) {
          pile.blocks[pile.count] = malloc(size);
          CHECK(pile.blocks[pile.count] != nullptr, "block %zu refused", pile.count);
          harness::fill(pile.blocks[pile.count], written(size));
        }
        if (resource == RLIMIT_DATA) {
          CHECK(malloc(80 * kMiB) == nullptr && errno == ENOMEM, "granted beyond the limit");
        }
        // In scattered pieces, too.
        if (size >= kMiB) {
          for (std::size_t i = 0; i < pile.count; i += 2)
            free(std::exchange(pile.blocks[i], nullptr));
          // (A limit on data is met when it refuses something: what was opened ahead before, up to
          // 16 MiB, is still charged.)
          const std::size_t left = (resource == RLIMIT_DATA ? 29 : 45) * kMiB;
          CHECK(map_pages(left) != nullptr, "no mapping after every second block was freed");
          _exit(0);
        }
        free_pile(size);
        CHECK(map_pages(60 * kMiB) != nullptr, "no mapping after everything was freed");
        _exit(0);
      });
      harness::expect_success(outcome, std::to_string(size).c_str());
    }
  }
}

// A limit that nothing has come near: what is free in small pieces stays mapped, as each would be a
// hole, and a process may have 65,530 mappings.
void generous_limit_makes_few_holes(const Arguments&) {
  harness::require_library_malloc();
  const auto outcome = harness::run_forked([] {
    harness::stop_clock();
    allow(RLIMIT_AS, std::size_t{60} << 30);
    constexpr std::size_t kSize = 60000;
    for (pile.count = 0; pile.count < 200000; ++pile.count) {
      pile.blocks[pile.count] = malloc(kSize);
      CHECK(pile.blocks[pile.count] != nullptr, "block %zu refused", pile.count);
    }
    for (std::size_t i = 0; i < pile.count; i += 2) free(pile.blocks[i]);
    for (int tick = 0; tick < 4; ++tick) {
      harness::advance_clock(300);
      free(malloc(kMiB));
    }
    const std::size_t mappings = harness::map_count();
    CHECK(mappings < 5000, "%zu mappings", mappings);
    CHECK(a_thread_runs() && map_pages(kMiB) != nullptr,
          "the program's own thread or mapping is refused");
    for (std::size_t i = 0; i < pile.count; i += 2) {
      pile.blocks[i] = malloc(kSize);
      CHECK(pile.blocks[i] != nullptr, "block %zu refused the second time", i);
    }
    _exit(0);
  });
  harness::expect_success(outcome, "60 GiB");
}

// Set by somebody else, while threads allocate.
void set_from_outside(const Arguments&) {
  harness::require_library_malloc();
  const auto outcome = harness::run_forked([] {
    int told[2];
    CHECK(pipe(told) == 0, "pipe");
    const pid_t parent = getpid();
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
      char byte = 0;
      if (read(told[0], &byte, 1) != 1) _exit(1);
      const rlimit limit{512 * kMiB, RLIM_INFINITY};
      _exit(prlimit(parent, RLIMIT_AS, &limit, nullptr) == 0 ? 0 : 2);
    }
    pile.blocks[pile.count++] = malloc(100000);
    harness::fill(pile.blocks[0], written(100000));
    CHECK(write(told[1], "x", 1) == 1, "write");
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child could not set the limit");
    fill_up(100000);
    CHECK(pile.count < 6000 && pile.count > 1000, "%zu blocks of 100,000 bytes in 512 MiB",
          pile.count);
    CHECK(used_of(RLIMIT_AS) <= 512 * kMiB, "the limit is passed");
    free_pile(100000);
    CHECK(a_thread_runs() && map_pages(400 * kMiB) != nullptr, "not enough came back");
  });
  harness::expect_success(outcome, "prlimit");
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"little_is_mapped", little_is_mapped},
                            {"places_differ", places_differ},
                            {"a_seed_repeats_them", a_seed_repeats_them},
                            {"guards_stand_around_everything", guards_stand_around_everything},
                            {"shares_address_space", shares_address_space},
                            {"shares_data", shares_data},
                            {"set_from_outside", set_from_outside},
                            {"comes_back_at_once", comes_back_at_once},
                            {"generous_limit_makes_few_holes", generous_limit_makes_few_holes},
                            {"report_size", report_size},
                            {"report_place", report_place}});
}
