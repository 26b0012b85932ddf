// Out of memory is an ordinary event: null and ENOMEM, nothing lost, nothing torn, and once memory
// has been freed everything works again.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <new>
#include <sstream>
#include <thread>

#include "support/clock.hpp"
#include "support/harness.hpp"
#include "support/step_count.hpp"

namespace {

using Arguments = std::vector<std::string>;
constexpr std::size_t kMiB = 1u << 20;

// Hidden from the optimiser, which knows that these sizes cannot succeed.
std::size_t opaque(std::size_t n) {
  asm volatile("" : "+r"(n));
  return n;
}
// Hidden as well: after a refused realloc the block is still ours.
void* opaque(void* p) {
  asm volatile("" : "+r"(p));
  return p;
}

void expect_refused(void* p, const char* call, std::size_t n) {
  CHECK(p == nullptr, "%s of %zu gave %p", call, n, p);
  CHECK(errno == ENOMEM, "%s of %zu: errno %d instead of ENOMEM", call, n, errno);
  errno = 0;
}

void huge_sizes(const Arguments&) {
  harness::require_library_malloc();
  void* kept = malloc(100);
  harness::fill(kept, 100);
  errno = 0;
  for (const std::size_t n :
       {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4095, SIZE_MAX - 4 * kMiB, SIZE_MAX / 2 + 1,
        SIZE_MAX / 2, SIZE_MAX / 2 - 4096, std::size_t{1} << 62, std::size_t{1} << 48}) {
    expect_refused(malloc(opaque(n)), "malloc", n);
    expect_refused(calloc(1, opaque(n)), "calloc", n);
    expect_refused(calloc(opaque(n), 16), "calloc", n);
    expect_refused(realloc(nullptr, opaque(n)), "realloc of null", n);
    expect_refused(realloc(opaque(kept), opaque(n)), "realloc", n);
    expect_refused(reallocarray(opaque(kept), opaque(n), 8), "reallocarray", n);
    expect_refused(memalign(64, opaque(n)), "memalign", n);
    expect_refused(aligned_alloc(1 << 20, opaque(n)), "aligned_alloc", n);
    expect_refused(valloc(opaque(n)), "valloc", n);
    expect_refused(pvalloc(opaque(n)), "pvalloc", n);
    void* slot = kept;
    errno = 0;
    const int result = posix_memalign(&slot, 4096, opaque(n));
    CHECK(result == ENOMEM && errno == ENOMEM && slot == kept,
          "posix_memalign of %zu: %d, errno %d", n, result, errno);
    CHECK(::operator new(opaque(n), std::nothrow) == nullptr, "nothrow new of %zu", n);
    bool threw = false;
    try {
      ::operator delete(::operator new(opaque(n)));
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    CHECK(threw, "operator new of %zu did not throw", n);
  }
  CHECK(harness::intact(kept, 100), "a refused realloc changed its block");
  free(kept);
}

// Blocks of one size in a list that threads through them, so that the test itself needs no memory.
struct Block {
  Block* next;
};

struct Pile {
  Block* top = nullptr;
  std::size_t count = 0;

  bool add(std::size_t size) {
    void* p = malloc(size);
    if (p == nullptr) return false;
    if (size > sizeof(Block)) {
      harness::fill(static_cast<char*>(p) + sizeof(Block), body(size));
    }
    top = new (p) Block{top};
    ++count;
    return true;
  }
  void clear(std::size_t size) {
    while (top != nullptr) {
      Block* block = top;
      top = block->next;
      CHECK(harness::intact(reinterpret_cast<char*>(block) + sizeof(Block), body(size)),
            "block %p of %zu bytes was overwritten", static_cast<void*>(block), size);
      free(block);
    }
    count = 0;
  }
  // Only the start of big blocks is written, so that the address limit binds
  // before the machine does.
  static std::size_t body(std::size_t size) { return (size < 4096 ? size : 4096) - sizeof(Block); }
};

void fill_to_the_brim(const Arguments& arguments) {
  harness::require_library_malloc();
  CHECK(arguments.size() == 2, "usage: fill SIZE LEAST_MIB");
  const std::size_t size = strtoull(arguments[0].c_str(), nullptr, 10);
  const std::size_t least = strtoull(arguments[1].c_str(), nullptr, 10) * kMiB;
  Pile pile;
  errno = 0;
  while (pile.add(size)) {
  }
  CHECK(errno == ENOMEM, "malloc(%zu) at the limit: errno %d", size, errno);
  const std::size_t first = pile.count;
  CHECK(first * size >= least, "only %zu blocks of %zu bytes before ENOMEM", first, size);

  errno = 0;
  expect_refused(malloc(size), "malloc at the limit", size);
  expect_refused(realloc(pile.top, std::size_t{1} << 40), "realloc at the limit",
                 std::size_t{1} << 40);
  expect_refused(calloc(1, std::size_t{1} << 40), "calloc at the limit", std::size_t{1} << 40);

  // One freed, one allocated: the block that came back is usable again at once.
  Block* block = pile.top;
  pile.top = block->next;
  --pile.count;
  free(block);
  CHECK(pile.add(size), "nothing to be had after a free at the limit (size %zu)", size);

  for (int round = 0; round < (harness::is_full_run() ? 3 : 1); ++round) {
    pile.clear(size);
    while (pile.add(size)) {
    }
    CHECK(pile.count >= first - first / 10, "refill %d of size %zu: %zu blocks, at first %zu",
          round, size, pile.count, first);
  }
  pile.clear(size);
  // Address space that spans took stays with the spans, so another size may still be refused: with
  // ENOMEM, and without harm to the next one that can be served.
  errno = 0;
  void* other = malloc(8 * kMiB);
  CHECK(other != nullptr || errno == ENOMEM, "8 MiB after everything was freed: errno %d", errno);
  free(other);
  CHECK(pile.add(size), "nothing to be had after everything was freed (size %zu)", size);
  pile.clear(size);
}

void until_null(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size : {16, 64, 200, 1000, 4000, 20000, 70000, 300000, 1500000, 6000000}) {
    // The paper's config spends 2 MiB of address space on every 32 KiB of small blocks.
    const std::size_t least = size > 1000000           ? 100
                              : harness::is_standard() ? 24
                              : size >= 20000          ? 2
                                                       : 0;
    const std::size_t limit = harness::is_full_run() || size > 1000000 ? 512 : 160;
    const auto outcome =
        harness::run_self({"fill", std::to_string(size), std::to_string(least)},
                          [limit] { harness::limit_resource(RLIMIT_AS, limit * kMiB); });
    harness::expect_success(outcome, ("fill with blocks of " + std::to_string(size)).c_str());
  }
}

void threads_fill(const Arguments&) {
  harness::require_library_malloc();
  constexpr int kThreads = 6;
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, kThreads);
  std::atomic<std::size_t> bytes[3] = {};
  auto worker = [&](unsigned id) {
    static constexpr std::size_t kSizes[] = {48, 700, 5000, 40000, 200000, 3000000};
    for (int round = 0; round < 3; ++round) {
      pthread_barrier_wait(&barrier);
      Pile piles[6];
      harness::Random random(id * 77 + static_cast<unsigned>(round));
      for (int refused = 0; refused < 30;) {
        const std::size_t which = random.below(6);
        errno = 0;
        if (piles[which].add(kSizes[which])) {
          bytes[round].fetch_add(kSizes[which]);
        } else {
          CHECK(errno == ENOMEM, "errno %d", errno);
          ++refused;
        }
      }
      pthread_barrier_wait(&barrier);
      for (int i = 0; i < 6; ++i) piles[i].clear(kSizes[i]);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(worker, i);
  for (auto& thread : threads) thread.join();
  printf("%zu, %zu, %zu bytes\n", bytes[0].load(), bytes[1].load(), bytes[2].load());
  for (int round = 1; round < 3; ++round) {
    CHECK(bytes[round] >= bytes[0] / 2, "round %d got %zu bytes, the first got %zu", round,
          bytes[round].load(), bytes[0].load());
  }
}

void threads_until_null(const Arguments&) {
  const auto outcome =
      harness::run_self({"threads_fill"}, [] { harness::limit_resource(RLIMIT_AS, 768 * kMiB); });
  harness::expect_success(outcome, "six threads at the limit");
  printf("%s", outcome.out.c_str());
}

// A limit set after the library has made its reservation.
void limit_at_run_time(const Arguments&) {
  harness::require_library_malloc();
  free(malloc(100));
  harness::limit_resource(RLIMIT_AS, harness::memory().address_space * 1024 + 64 * kMiB);
  constexpr std::size_t kSize = 1500000;
  Pile pile;
  errno = 0;
  while (pile.count < 4096 && pile.add(kSize)) {
  }
  if (pile.count < 4096) CHECK(errno == ENOMEM, "errno %d", errno);
  const std::size_t first = pile.count;
  CHECK(first >= 20, "only %zu blocks of %zu bytes in 64 MiB", first, kSize);
  void* small[1000];
  for (void*& p : small) {
    p = malloc(40);
    CHECK(p != nullptr,
          "40 bytes refused although they need no address space beyond the reservation");
    harness::fill(p, 40);
  }
  pile.clear(kSize);
  while (pile.count < first && pile.add(kSize)) {
  }
  CHECK(pile.count >= first - 2, "second filling: %zu blocks, first %zu", pile.count, first);
  pile.clear(kSize);
  for (void* p : small) {
    CHECK(harness::intact(p, 40), "small block %p overwritten", p);
    free(p);
  }
}

// How much each of several pieces of work takes, by name: instructions and how many of them
// call the kernel, or time.
struct Cost {
  double amount = 0;
  std::size_t kernel_calls = 0;
};
using Costs = std::map<std::string, Cost>;

// The middle one of several times, in microseconds of this thread alone. Nothing is allocated:
// memory is out.
template <class Work>
double usual_time_of(Work work) {
  std::array<double, 50> all{};
  for (double& time : all) {
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    work();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    time = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e6 +
           static_cast<double>(end.tv_nsec - begin.tv_nsec) / 1e3;
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// Prints what refusals cost: in instructions, or in time.
class Meter {
 public:
  explicit Meter(bool counts) : counts_(counts) {}
  template <class Work>
  void print_cost_of(const std::string& name, Work work) const {
    const double amount =
        counts_ ? static_cast<double>(harness::instructions_of(work)) : usual_time_of(work);
    printf("%s %.1f %zu\n", name.c_str(), amount, counts_ ? harness::kernel_calls_counted() : 0);
  }

 private:
  bool counts_;
};

Costs costs_in(const std::string& text) {
  Costs costs;
  std::istringstream lines(text);
  std::string name;
  Cost cost;
  while (lines >> name >> cost.amount >> cost.kernel_calls) costs[name] = cost;
  return costs;
}

void expect_aligned(int result) {
  CHECK(result == ENOMEM, "posix_memalign: %d", result);
}

// Of every kind of block, filled up and freed in turn.
void print_aligned_refusals(const Meter& meter) {
  std::vector<void*> blocks;
  blocks.reserve(200'000);
  for (const std::size_t alignment :
       {std::size_t{64}, std::size_t{4096}, std::size_t{65536}, kMiB}) {
    for (const std::size_t size :
         {std::size_t{5'000}, std::size_t{100'000}, std::size_t{2'000'000}}) {
      // Between the least and the largest nothing differs much.
      if (alignment != 64 && alignment != kMiB && !harness::is_full_run()) continue;
      const std::string name = std::to_string(size) + "-at-" + std::to_string(alignment);
      void* p = nullptr;
      while (posix_memalign(&p, alignment, size) == 0) blocks.push_back(p);
      meter.print_cost_of(name, [&] { expect_aligned(posix_memalign(&p, alignment, size)); });
      free(blocks.back());
      CHECK(posix_memalign(&blocks.back(), alignment, size) == 0, "%zu bytes freed, and refused",
            size);
      for (void* block : blocks) free(block);
      blocks.clear();
    }
  }
}

// Large objects beside many free small ones, and blocks of large alignment, where
// everything between them is free.
void print_large_refusals(const Meter& meter, std::size_t limit) {
  {
    Pile small;
    while (small.count < limit * 3 / 8 / 5000 && small.add(5000)) {
    }
    small.clear(5000);
  }
  // What is wanted later is there before memory is out, whatever else the heap has room for then.
  const std::string after_free = "large-after-free";
  void* last = malloc(opaque(2 * kMiB));
  CHECK(last != nullptr, "not even 2 MiB");
  Pile large;
  while (large.add(20 * kMiB)) {
  }
  const auto refuse = [limit] { expect_refused(malloc(opaque(limit / 2)), "malloc", limit / 2); };
  meter.print_cost_of("large", refuse);
  // Also after a bit of memory that comes back.
  meter.print_cost_of(after_free, [&] {
    free(last);
    last = malloc(opaque(2 * kMiB));
    refuse();
  });
  CHECK(last != nullptr, "2 MiB freed, and refused");
  free(last);
  large.clear(20 * kMiB);
  std::vector<void*> aligned;
  aligned.reserve(4096);
  void* p = nullptr;
  while (posix_memalign(&p, kMiB, 1000) == 0) aligned.push_back(p);
  meter.print_cost_of("small-of-large-alignment", [] {
    void* q = nullptr;
    expect_aligned(posix_memalign(&q, kMiB, 1000));
  });
  for (void* block : aligned) free(block);
}

void refused(const Arguments& arguments) {
  harness::require_library_malloc();
  CHECK(arguments.size() == 2, "usage: refused count|time LIMIT_MIB");
  const Meter meter(arguments[0] == "count");
  const std::size_t limit = strtoull(arguments[1].c_str(), nullptr, 10) * kMiB;
  // No time passes between refusals that are counted, as hardly any does between others.
  if (arguments[0] == "count") harness::stop_clock();
  print_large_refusals(meter, limit);
  print_aligned_refusals(meter);
}

// What one request may take that ends with a refusal, whatever the heap's size. The kernel is asked
// for more in one way or two, and for each of the limits that may stand, before and after: up to 6
// calls when this was written, and 6,500 instructions with what is looked at in between, 1,600 of
// them for each CPU's pool. Twice as much is allowed; a search that asks the kernel for each hole,
// or tries one size after the other, takes many times that.
constexpr const char* kCpus = "2";
constexpr std::size_t kMostKernelCalls = 12;
constexpr double kMostInstructions = 13'000;

Costs refusals_under(const char* measure, std::size_t mib) {
  const auto outcome = harness::run_self({"refused", measure, std::to_string(mib)}, [mib] {
    setenv("SPANALLOC_CPUS", kCpus, 1);
    harness::limit_resource(RLIMIT_AS, mib * kMiB);
  });
  harness::expect_success(outcome, "refusals");
  Costs costs = costs_in(outcome.out);
  CHECK(costs.count("large") == 1, "no costs in %s", outcome.out.c_str());
  return costs;
}

bool is_of_large_object(const std::string& name) {
  return name.rfind("large", 0) == 0;
}

// Freed, taken again, refused.
unsigned requests_of(const std::string& name) {
  return name == "large-after-free" ? 3 : 1;
}

// A thread that is refused gives up its empty spans. If it had one, the heap is searched once more.
unsigned searches_of(const std::string& name) {
  return name == "large-after-free" ? 4 : 1;
}

// A refusal does not turn the heap upside down each time: it is one question to the kernel, not a
// search. A search takes so many times the instructions in a heap that is so many times as large.
// Engines of papers that keep no list of what is nearly full do search, for small blocks: some
// instructions for each that they have.
void refusals_are_quick(const Arguments&) {
  constexpr std::size_t kLittle = 80;
  constexpr std::size_t kMuch = 400;
  harness::require_step_count();
  const Costs little = refusals_under("count", kLittle);
  const Costs much = refusals_under("count", kMuch);
  for (const auto& [name, cost] : much) {
    const double before = little.at(name).amount;
    const double count = cost.amount;
    printf("%s: %.0f instructions under %zu MiB, %.0f under %zu MiB, %zu calls of the kernel\n",
           name.c_str(), before, kLittle, count, kMuch, cost.kernel_calls);
    const bool may_search = !harness::is_standard() && !is_of_large_object(name);
    const double most = may_search ? before + 1000 * (kMuch - kLittle) : before * 1.5 + 500;
    CHECK(count <= most,
          "a refusal, %s, takes %.0f instructions under %zu MiB and %.0f under %zu MiB",
          name.c_str(), before, kLittle, count, kMuch);
    CHECK(cost.kernel_calls <= requests_of(name) * kMostKernelCalls,
          "a refusal, %s, calls the kernel %zu times", name.c_str(), cost.kernel_calls);
    CHECK(may_search || count <= searches_of(name) * kMostInstructions,
          "a refusal, %s, takes %.0f instructions", name.c_str(), count);
  }
}

// The same with what the kernel takes.
void refusals_take_no_time(const Arguments&) {
  for (const auto& [name, cost] : refusals_under("time", 400)) {
    const double time = cost.amount;
    printf("%s: %.1f us\n", name.c_str(), time);
    const bool is_aligned = name.find("-at-") != std::string::npos;
    const double most = !is_aligned ? 100 : harness::is_standard() ? 10 : 300;
    CHECK(time < most, "a refusal, %s, takes %.1f us", name.c_str(), time);
  }
}

// To free what was never touched takes no page.
void untouched_blocks_stay_untouched(const Arguments&) {
  harness::require_library_malloc();
  std::vector<void*> blocks(200);
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  for (const std::size_t size : {std::size_t{50'000}, std::size_t{300'000}, 3 * kMiB}) {
    for (void*& p : blocks) p = malloc(size);
    const long before = faults();
    for (void* p : blocks) free(p);
    const long more = faults() - before;
    CHECK(more < 50, "%ld page faults for freeing 200 untouched blocks of %zu bytes", more, size);
  }
}

void* reserve_of_handler = nullptr;
int handler_calls = 0;

void new_handler_frees(const Arguments&) {
  const auto outcome =
      harness::run_self({"handler"}, [] { harness::limit_resource(RLIMIT_AS, 512 * kMiB); });
  harness::expect_success(outcome, "a new_handler that frees");
}

void handler(const Arguments&) {
  harness::require_library_malloc();
  reserve_of_handler = malloc(128 * kMiB);
  CHECK(reserve_of_handler != nullptr, "no 128 MiB under 512 MiB");
  std::set_new_handler([] {
    ++handler_calls;
    if (reserve_of_handler == nullptr) throw std::bad_alloc();
    free(reserve_of_handler);
    reserve_of_handler = nullptr;
  });
  // More than what is left beside the handler's block, less than what is left without it.
  Pile pile;
  while (pile.add(4 * kMiB)) {
  }
  void* p = ::operator new(100 * kMiB);
  CHECK(p != nullptr && handler_calls == 1, "the handler ran %d times", handler_calls);
  CHECK(::operator new(400 * kMiB, std::nothrow) == nullptr, "400 MiB from a full address space");
  CHECK(handler_calls == 2, "nothrow new: the handler ran %d times", handler_calls);
  ::operator delete(p);
  pile.clear(4 * kMiB);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"huge_sizes", huge_sizes},
                            {"until_null", until_null},
                            {"threads_until_null", threads_until_null},
                            {"limit_at_run_time", limit_at_run_time},
                            {"new_handler_frees", new_handler_frees},
                            {"refusals_are_quick", refusals_are_quick},
                            {"refusals_take_no_time", refusals_take_no_time},
                            {"refused", refused},
                            {"untouched_blocks_stay_untouched", untouched_blocks_stay_untouched},
                            {"fill", fill_to_the_brim},
                            {"threads_fill", threads_fill},
                            {"handler", handler}});
}
