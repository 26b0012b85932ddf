// Every engine over a kernel that refuses: each call of it in turn, runs of them, and
// by chance under threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <type_traits>
#include <vector>

#include "api/malloc_api.hpp"
#include "census_check.hpp"
#include "environment.hpp"
#include "papers/a2alloc/engine/engine.hpp"
#include "papers/scalloc/engine/engine.hpp"
#include "papers/supermalloc/engine/engine.hpp"
#include "refusal_sweep.hpp"
#include "refusal_workload.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "standard/engine.hpp"
#include "tested_engines.hpp"

namespace spanalloc::test {
namespace {

template <class E>
struct EngineApi : MallocApi<E> {
  using Engine = E;
  static void trim() { E::trim(); }
  static std::size_t huge_bytes() {
    return std::is_same_v<E, A2allocEngine<A2alloc>> ? a2alloc::kLargestInGlobalHeap + 1 : 0;
  }
};

// Nothing is allocated any more, and the kernel refuses nothing.
template <class E>
void expect_nothing_lost(kernel::Books& books) {
  const std::string text = leftovers<E>();
  if (!text.empty()) end_with(books, "%s", text.c_str());
  if constexpr (std::is_same_v<E, StandardEngine>) {
    const EngineStatistics left = E::statistics();
    // Slice 0 is nobody's.
    const std::size_t known =
        left.pooled_bytes + left.small_bytes_carved + standard::SizeClasses<Standard>::kSlice;
    // Between two calls of the kernel another thread may be given the place that a block's pages
    // have left: such a range is lost for good.
    const std::size_t lost = E::pages.arena.statistics().lost_bytes;
    const std::size_t taken =
        books.made[kernel::kMremap] == 0 ? 0 : min_of(lost, left.opened_bytes - known);
    if (known + taken != left.opened_bytes) {
      end_with(books, "of %zu bytes opened only %zu are pooled or carved, %zu lost",
               left.opened_bytes, known, lost);
    }
  }
  // What looked like a limit has ended the reservation, and the kernel has refused to unmap: then
  // addresses are lost.
  if (E::statistics().reserved_bytes == E::statistics().opened_bytes &&
      books.refused[kernel::kMunmap] != 0)
    return;
  if constexpr (std::is_same_v<E, A2allocEngine<A2alloc>>) {
    if (E::census().lost != 0) end_with(books, "%zu pieces are lost", E::census().lost);
  }
  if constexpr (std::is_same_v<E, ScallocEngine<Scalloc>>) {
    // Slice 0 is nobody's.
    const std::size_t spans = E::heap().backend().directory().limit.load_relaxed() - 1;
    if (E::census().carved != spans)
      end_with(books, "of %zu spans %zu are known", spans, E::census().carved);
  }
}

template <class Api, template <class> class Program = RefusalProgram>
void child(const kernel::Plan& plan, kernel::Books& books, int) {
  kernel::arm(plan, books);
  Api::Engine::process_start();
  static auto program = [&] {
    if constexpr (std::is_constructible_v<Program<Api>, kernel::Books&>) {
      return Program<Api>(books);
    } else {
      return Program<Api>(books, plan.seed);
    }
  }();
  program.run();
  expect_nothing_lost<typename Api::Engine>(books);
}

// Sanitizers and emulators stand between a program and these calls.
#define SKIP_WHERE_CALLS_ARE_NOT_OURS()                                             \
  if (kUnderAsan || kUnderTsan)                                                     \
    GTEST_SKIP() << "a sanitizer must see every mapping, so the calls are its own"; \
  if (kEmulated)                                                                    \
  GTEST_SKIP() << "an emulator records every reserved page: too slow for thousands of processes"

void expect_found(const SweepResult& result, const std::vector<kernel::Call>& calls) {
  EXPECT_EQ(result.failure, "") << result.text();
  for (const kernel::Call c : calls) EXPECT_GT(result.refused[c], 0u) << kernel::kCallNames[c];
  std::printf("%s\n", result.text().c_str());
}

template <class E>
class Refusals : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WHERE_CALLS_ARE_NOT_OURS(); }
};
struct Names {
  template <class E>
  static std::string GetName(int) {
    return E::kName;
  }
};
TYPED_TEST_SUITE(Refusals, ShippedEngines, Names);

// All engines make all of these calls, and are refused each of them; but for
// supermalloc, which moves pages of objects that the arena has no room for only: such a
// one is copied where that is refused.
template <class E>
std::vector<kernel::Call> every_call() {
  std::vector<kernel::Call> calls{kernel::kMmap, kernel::kMunmap, kernel::kMprotect,
                                  kernel::kMadvise};
  if (!std::is_same_v<E, SupermallocEngine<Supermalloc>>) calls.push_back(kernel::kMremap);
  return calls;
}

// Each run is a process: every day every second call is refused.
std::size_t every_step() {
  return is_full() ? 1 : 2;
}

TYPED_TEST(Refusals, AnyCallOfTheKernelMayBeRefused) {
  const Variable decay("SPANALLOC_DECAY_MS", "20");
  expect_found(sweep_all(child<EngineApi<TypeParam>>, every_step()), every_call<TypeParam>());
}

using StandardRefusals = Refusals<StandardEngine>;
TEST_F(StandardRefusals, AnyCallOfTheKernelMayBeRefusedWhereNothingStaysWarm) {
  const Variable decay("SPANALLOC_DECAY_MS", "0");
  SweepResult sum;
  for (const std::size_t count : {std::size_t{1}, std::size_t{5}}) {
    sum += sweep({.calls = kernel::kAllCalls, .count = count}, child<EngineApi<StandardEngine>>,
                 every_step());
  }
  expect_found(sum, every_call<StandardEngine>());
}

// Replaces blocks at random, under refusals and without.
template <class Api>
class RefusalReplacement {
 public:
  explicit RefusalReplacement(kernel::Books& books) : user_(books, 1, true) {}

  void run() {
    replace(20000);
    kernel::disarm();
    for (auto& block : blocks_) user_.ask_again(block);
    replace(20000);
    user_.take_most();
    for (auto& block : blocks_) user_.give(block);
    Api::trim();
  }

 private:
  void replace(unsigned times) {
    Random random(7);
    for (unsigned i = 0; i < times; ++i) {
      auto& block = blocks_[random.next() % kBlocks];
      user_.give(block);
      user_.take(block, (&block - blocks_) % 3 == 0 ? 2000 : 500);
      if (i % 4000 == 3999) {
        ++user_.step;
        kernel::advance_clock(30);
        user_.take(large_, 3 * RefusalUser<Api>::kMiB);  // kept blocks are given back for it
        user_.give(large_);
      }
    }
  }

  static constexpr unsigned kBlocks = 3000;
  RefusalUser<Api> user_;
  typename RefusalUser<Api>::Block blocks_[kBlocks];
  typename RefusalUser<Api>::Block large_;
};

TEST_F(StandardRefusals, WhoReplacesBlocksAtRandomMayBeRefusedAnyCall) {
  const Variable decay("SPANALLOC_DECAY_MS", "20");
  SweepResult sum;
  for (const std::size_t count : {std::size_t{1}, std::size_t{5}}) {
    sum += sweep({.calls = kernel::kAllCalls, .count = count},
                 child<EngineApi<StandardEngine>, RefusalReplacement>);
  }
  expect_found(sum, {kernel::kMmap, kernel::kMprotect, kernel::kMadvise});
}

TYPED_TEST(Refusals, ThreadsMayBeRefusedAnything) {
  SweepResult sum;
  for (std::uint64_t seed = 0; seed < 60 && sum.failure.empty(); ++seed) {
    for (const unsigned permille : {20u, 200u, 700u}) {
      const kernel::Plan plan{
          .calls = kernel::kAllCalls, .permille = permille, .seed = seed_of(seed)};
      sum += run_refused(plan, child<EngineApi<TypeParam>, RefusalThreads>);
    }
  }
  // Whether pages move depends on who is where.
  expect_found(sum, {kernel::kMmap, kernel::kMunmap, kernel::kMprotect, kernel::kMadvise});
}

// --- Does the program find what it is for? -------------------------------------------------------

enum class Defect {
  kDirtyCalloc,
  kHarmsRefusedBlock,
  kWrongErrno,
  kStaysRefused,
  kLosesBlock,
  kAborts,
  kNeverSmaller
};

/// The engine with a defect that shows once the kernel has refused something.
template <Defect kDefect>
struct DefectiveApi : EngineApi<StandardEngine> {
  using Sound = EngineApi<StandardEngine>;
  static bool refused() { return kernel::refusals() != 0; }

  static void* malloc(std::size_t n) {
    static bool was_refused = false;
    void* p = kDefect == Defect::kStaysRefused && was_refused ? nullptr : Sound::malloc(n);
    if (p != nullptr) return p;
    was_refused = true;
    if (kDefect == Defect::kAborts) std::abort();
    errno = kDefect == Defect::kWrongErrno ? EAGAIN : ENOMEM;
    return nullptr;
  }
  static void* calloc(std::size_t count, std::size_t size) {
    if (kDefect == Defect::kDirtyCalloc && refused()) return Sound::malloc(count * size);
    return Sound::calloc(count, size);
  }
  static void* realloc(void* block, std::size_t n) {
    if (kDefect == Defect::kNeverSmaller && refused() && n < Sound::malloc_usable_size(block) / 2) {
      errno = ENOMEM;
      return nullptr;
    }
    void* p = Sound::realloc(block, n);
    if (p == nullptr && kDefect == Defect::kHarmsRefusedBlock) static_cast<char*>(block)[0] ^= 1;
    return p;
  }
  static void free(void* block) {
    static bool lost = false;
    if (kDefect == Defect::kLosesBlock && refused() && !lost) {
      lost = true;
      return;
    }
    Sound::free(block);
  }
};

template <Defect kDefect>
std::string failure_of() {
  return sweep({.calls = kernel::kAllCalls, .count = kernel::kForEver},
               child<DefectiveApi<kDefect>>)
      .failure;
}

#define EXPECT_FOUND(defect, words) \
  SKIP_WHERE_CALLS_ARE_NOT_OURS();  \
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, words, failure_of<Defect::defect>())

TEST(RefusalsItself, FindsDirtyCalloc) {
  EXPECT_FOUND(kDirtyCalloc, "is not zero");
}
TEST(RefusalsItself, FindsAHarmedBlock) {
  EXPECT_FOUND(kHarmsRefusedBlock, "was changed at 0");
}
TEST(RefusalsItself, FindsAWrongErrno) {
  EXPECT_FOUND(kWrongErrno, "failed with errno");
}
TEST(RefusalsItself, FindsARefusalThatStays) {
  EXPECT_FOUND(kStaysRefused, "the kernel refused nothing");
}
TEST(RefusalsItself, FindsALostBlock) {
  EXPECT_FOUND(kLosesBlock, "; refused of");
}
TEST(RefusalsItself, FindsAnAbort) {
  EXPECT_FOUND(kAborts, "ended by Aborted");
}
TEST(RefusalsItself, FindsABlockThatCannotBeMadeSmaller) {
  EXPECT_FOUND(kNeverSmaller, "fewer bytes than there were");
}

}  // namespace
}  // namespace spanalloc::test
