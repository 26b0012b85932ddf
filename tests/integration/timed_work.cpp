// What a thread does by the clock while it frees a block: it gives back blocks that it has kept,
// and each of these frees may be due to look at the clock as well. By then another thread must not
// have the span that the first free has changed.
#include <sched.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/clock.hpp"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

constexpr std::size_t kKept = 2048;  // of a class with a magazine
constexpr std::size_t kPlain = 48;
constexpr int kWaves = 3;
constexpr unsigned kRoundMs = 260;  // a little more than a round takes

std::uintptr_t span_of(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) >> 16;
}

void* allocate(std::size_t size) {
  void* volatile p = malloc(size);
  CHECK(p != nullptr, "%zu bytes are refused", size);
  return p;
}
// A look at the clock, whatever else the thread does: each cached span of one block is an event.
void look_at_clock() {
  for (int i = 0; i < 64; ++i) free(allocate(40000));
}

// Blocks that are out. Nothing here allocates while the thread's spans get into their state.
struct Blocks {
  std::array<void*, 4096> at;
  std::size_t count = 0;

  void add(void* p) { at[count++] = p; }
};
Blocks kept, plain, freed;
enum class Turn { kWorker, kOther };
std::atomic<Turn> turn{Turn::kWorker};

// Another thread frees every fourth block of the nine spans that were made last.
void free_elsewhere() {
  std::array<std::uintptr_t, 9> spans;
  std::array<unsigned, 9> seen{};
  std::size_t count = 0;
  const auto index_of = [&](const void* p) {
    std::size_t i = 0;
    while (i < count && spans[i] != span_of(p)) ++i;
    return i;
  };
  for (std::size_t i = kept.count; i-- > 0 && count < spans.size();) {
    if (index_of(kept.at[i]) == count) spans[count++] = span_of(kept.at[i]);
  }
  std::size_t stay = 0;
  freed.count = 0;
  for (std::size_t n = 0; n < kept.count; ++n) {
    const std::size_t i = index_of(kept.at[n]);
    if (i < count && seen[i]++ % 4 == 0)
      freed.add(kept.at[n]);
    else
      kept.at[stay++] = kept.at[n];
  }
  kept.count = stay;
  turn = Turn::kOther;
  while (turn != Turn::kWorker) sched_yield();
}
// Each time that the worker asks for it. (To start a thread allocates: the worker must not.)
void serve_worker() {
  for (int wave = 0; wave < kWaves; ++wave) {
    while (turn != Turn::kOther) sched_yield();
    std::thread([] {
      for (std::size_t i = 0; i < freed.count; ++i) free(freed.at[i]);
    }).join();
    turn = Turn::kWorker;
  }
}

void work() {
  void* volatile small = allocate(16);
  for (int i = 0; i < 40; ++i) plain.add(allocate(kPlain));
  for (int i = 0; i < 20 * 32; ++i) kept.add(allocate(kKept));
  // Refills with nearly full spans: the class gets a magazine.
  for (int wave = 0; wave < kWaves; ++wave) {
    free_elsewhere();
    const std::size_t of_each = freed.count / 9;
    for (std::size_t i = wave < 2 ? 9 * of_each : 8 * of_each + 3; i != 0; --i)
      kept.add(allocate(kKept));
  }
  harness::advance_clock(kRoundMs);
  small = allocate(16);
  plain.add(allocate(kPlain));
  kept.add(allocate(kKept));
  look_at_clock();
  // The magazine takes 16 blocks of the current span. The span's next frees count to its look at
  // the clock.
  const std::uintptr_t current = span_of(kept.at[kept.count - 1]);
  unsigned given = 0;
  for (std::size_t i = kept.count; i-- > 0 && given < 20;) {
    if (kept.at[i] == nullptr || span_of(kept.at[i]) != current) continue;
    free(kept.at[i]);
    kept.at[i] = nullptr;
    ++given;
  }
  for (int i = 0; i < 17; ++i) free(allocate(kKept));
  for (std::size_t i = 0; i < 31; ++i) free(plain.at[i]);
  harness::advance_clock(kRoundMs);
  look_at_clock();
  harness::advance_clock(kRoundMs);
  // Looks at the clock, gives the kept blocks back, and one of these frees looks once more.
  free(plain.at[31]);
  (void)small;
}

void frees_within_frees(const Arguments&) {
  harness::stop_clock();
  std::thread worker(work);
  serve_worker();
  worker.join();
  // Into spans that the thread has left.
  for (std::size_t i = 32; i < plain.count; ++i) free(plain.at[i]);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv, {{"frees_within_frees", frees_within_frees}});
}
