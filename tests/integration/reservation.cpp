// What the library holds of the address space: few mappings in any case; and where it reserves, the
// full 2^45 where nothing forbids it, less where asked.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

// The longest run of adjacent anonymous mappings that begin and end where the permissions may
// change.
std::size_t longest_reservation() {
  FILE* maps = fopen("/proc/self/maps", "re");
  CHECK(maps != nullptr, "cannot open /proc/self/maps");
  char line[512];
  std::size_t longest = 0;
  std::size_t run_begin = 0;
  std::size_t run_end = 0;
  while (fgets(line, sizeof line, maps) != nullptr) {
    std::size_t begin = 0;
    std::size_t end = 0;
    char rest[256] = {};
    if (sscanf(line, "%zx-%zx %*s %*s %*s %*s %255s", &begin, &end, rest) < 2) continue;
    const bool anonymous = rest[0] == '\0' || strncmp(rest, "[anon:", 6) == 0;
    if (!anonymous || begin != run_end) run_begin = begin;
    run_end = anonymous ? end : 0;
    if (anonymous) longest = std::max(longest, run_end - run_begin);
  }
  fclose(maps);
  return longest;
}

// The number after name=" in malloc_info's XML, anywhere.
std::string malloc_info_text() {
  char* text = nullptr;
  std::size_t length = 0;
  FILE* stream = open_memstream(&text, &length);
  CHECK(stream != nullptr && malloc_info(0, stream) == 0, "malloc_info failed");
  fclose(stream);
  std::string copy(text, length);
  free(text);
  return copy;
}

void full_reservation(const Arguments&) {
  harness::require_library_malloc();
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) harness::skip("there is an address space limit");
  const auto outcome = harness::run_self({"report"}, [] { unsetenv("SPANALLOC_ARENA_BITS"); });
  harness::expect_success(outcome, "default reservation");
  std::size_t longest = 0;
  CHECK(sscanf(outcome.out.c_str(), "longest %zu", &longest) == 1, "%s", outcome.out.c_str());
  CHECK(longest >= std::size_t{1} << 45, "only %zu bytes reserved at a stretch", longest);
  const std::string reserved = std::to_string(std::size_t{1} << 45);
  CHECK(outcome.out.find(reserved) != std::string::npos,
        "malloc_info does not tell the reserved size: %s", outcome.out.c_str());
}

void report(const Arguments&) {
  harness::require_library_malloc();
  free(malloc(1));
  printf("longest %zu\n", longest_reservation());
  // The far and the near end of what the engine can reach are used alike.
  std::thread([] { free(calloc(1, 1u << 20)); }).join();
  printf("%s\n", malloc_info_text().c_str());
}

void smaller_on_request(const Arguments&) {
  for (const char* bits : {"30", "32", "36", "40"}) {
    const auto outcome =
        harness::run_self({"report"}, [bits] { setenv("SPANALLOC_ARENA_BITS", bits, 1); });
    harness::expect_success(outcome, bits);
    CHECK(outcome.err.empty(), "SPANALLOC_ARENA_BITS=%s: %s", bits, outcome.err.c_str());
    std::size_t longest = 0;
    CHECK(sscanf(outcome.out.c_str(), "longest %zu", &longest) == 1, "%s", outcome.out.c_str());
    const std::size_t wanted = std::size_t{1} << strtoul(bits, nullptr, 10);
    CHECK(longest >= wanted && longest < 2 * wanted, "SPANALLOC_ARENA_BITS=%s reserves %zu bytes",
          bits, longest);
  }
}

// 2 GiB of all sizes through 256 MiB of live blocks, freed in random order.
void few_mappings(const Arguments&) {
  harness::require_library_malloc();
  const std::size_t at_start = harness::map_count();
  harness::Random random(11);
  std::vector<std::pair<char*, std::size_t>> live;
  live.reserve(1u << 20);
  std::size_t live_bytes = 0;
  std::size_t most = 0;
  for (std::size_t total = 0; total < (std::size_t{2} << 30);) {
    const std::size_t dice = random.below(100);
    const std::size_t largest = dice < 90 ? 100000 : dice < 99 ? 4u << 20 : 32u << 20;
    const std::size_t size = dice < 50 ? random.size(largest) : 1 + random.below(largest);
    auto* p = static_cast<char*>(malloc(size));
    CHECK(p != nullptr, "malloc(%zu) refused", size);
    p[0] = p[size - 1] = 1;
    live.emplace_back(p, size);
    live_bytes += size;
    total += size;
    while (live_bytes > (std::size_t{256} << 20)) {
      auto& victim = live[random.below(live.size())];
      free(victim.first);
      live_bytes -= victim.second;
      victim = live.back();
      live.pop_back();
    }
    if (live.size() % 256 == 0) most = std::max(most, harness::map_count());
  }
  for (auto& one : live) free(one.first);
  const std::size_t at_end = harness::map_count();
  printf("mappings: %zu at the start, at most %zu, %zu at the end\n", at_start, most, at_end);
  CHECK(most <= at_start + 1000, "up to %zu mappings", most);
  CHECK(at_end <= at_start + 64, "%zu mappings after everything was freed, %zu at the start",
        at_end, at_start);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"full_reservation", full_reservation},
                            {"smaller_on_request", smaller_on_request},
                            {"few_mappings", few_mappings},
                            {"report", report}});
}
