// Heaps of a program's own over a kernel that refuses: each call of it in turn, and runs of them.
#include <errno.h>
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/bits.hpp"
#include "kernel_refusals.hpp"
#include "refusal_sweep.hpp"
#include "sanitizers.hpp"

namespace spanalloc::test {
namespace {

struct Work {
  kernel::Books& books;
  bool may_fail;

  [[noreturn]] void end(const char* what) const {
    std::snprintf(books.failure, sizeof books.failure, "%s%s", what,
                  may_fail ? "" : ", though the kernel refused nothing");
    _exit(1);
  }
  // Null is allowed with ENOMEM, and while calls are refused.
  template <class T>
  T* checked(T* got) const {
    if (got == nullptr && (!may_fail || errno != ENOMEM)) end("a failure");
    errno = 0;
    return got;
  }

  static bool is(const unsigned char* p, std::size_t n, unsigned char mark) {
    for (std::size_t i = 0; i < n; i += n / 50 + 1) {
      if (p[i] != mark) return false;
    }
    return true;
  }

  void use(sp_heap* heap, unsigned number) const {
    constexpr std::size_t kSizes[] = {10, 3000, 70'000, 300'000, 2'000'000};
    const auto mark = static_cast<unsigned char>(number + 1);
    unsigned char* blocks[20] = {};
    std::size_t sizes[20] = {};
    for (unsigned i = 0; i < 20; ++i) {
      const std::size_t n = kSizes[(i + number) % 5];
      auto* p = static_cast<unsigned char*>(checked(
          i % 3 == 0 ? sp_heap_calloc(heap, n, 1) : sp_heap_aligned_alloc(heap, 16 << i % 8, n)));
      if (p == nullptr) continue;
      if (i % 3 == 0 && !is(p, n, 0)) end("memory of calloc that is not zero");
      std::memset(p, mark, n);
      blocks[i] = p;
      sizes[i] = n;
      auto* const larger = static_cast<unsigned char*>(checked(sp_heap_realloc(heap, p, n * 3)));
      if (larger == nullptr) continue;
      if (!is(larger, n, mark)) end("contents lost by realloc");
      std::memset(larger, mark, n * 3);
      blocks[i] = larger;
      sizes[i] = n * 3;
    }
    for (unsigned i = 0; i < 20; ++i) {
      if (blocks[i] == nullptr) continue;
      if (!is(blocks[i], sizes[i], mark)) end("a block that was changed");
      if (i % 2 == 0) sp_heap_free(heap, blocks[i]);
    }
  }

  void all() const {
    sp_heap* heaps[12] = {};
    for (unsigned i = 0; i < 12; ++i) {
      heaps[i] = checked(sp_heap_create(nullptr, 0));
      if (heaps[i] == nullptr) continue;
      use(heaps[i], i);
      if (i % 4 == 1) sp_heap_reset(heaps[i]);
      if (i % 4 == 2) {
        sp_heap_destroy(heaps[i]);
        heaps[i] = nullptr;
      }
      kernel::advance_clock(100);
    }
    for (sp_heap* const heap : heaps) sp_heap_destroy(heap);
  }
};

void program(const kernel::Plan& plan, kernel::Books& books, int) {
  kernel::arm(plan, books);
  Work{books, true}.all();
  kernel::disarm();
  Work{books, false}.all();
  _exit(0);
}

TEST(HeapsRefusals, LoseNothing) {
  if (kEmulated) GTEST_SKIP() << "too slow for hundreds of processes";
  const SweepResult result = sweep_all(program, 9);
  EXPECT_EQ(result.failure, "") << result.text();
  EXPECT_GT(result.refused[kernel::kMprotect] + result.refused[kernel::kMmap], 0u);
}

}  // namespace
}  // namespace spanalloc::test
