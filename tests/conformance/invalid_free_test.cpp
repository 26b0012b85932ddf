// Bad pointers and overwritten free blocks end the process: one line on stderr that
// names the address, SIGABRT.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engines.hpp"
#include "sanitizers.hpp"

namespace spanalloc::test {
namespace {

std::string hex(std::uintptr_t address) {
  char text[32];
  snprintf(text, sizeof text, "0x%zx", static_cast<std::size_t>(address));
  return text;
}

// All of stderr: one line of ours with the address in it (and an emulator's,
// that its program has died).
std::string one_line_naming(std::uintptr_t address) {
  return "^spanalloc: [^\n]*" + hex(address) + "[^\n]*\n(qemu: [^\n]*\n)?$";
}
const char* const kOneLine = "^spanalloc: [^\n]*0x[^\n]*\n(qemu: [^\n]*\n)?$";

// Makes the engine live through what may follow a bad free: takes `count` blocks of `n` bytes and
// frees none. If it hands out `bad` the child ends well, which fails the death test.
template <class E>
void allocate_until_caught(std::size_t n, std::uintptr_t bad, int count = 200000) {
  for (int i = 0; i < count; ++i) {
    void* p = E::allocate(n);
    if (p == nullptr || address_of(p) == bad) {
      fprintf(stderr, "handed out %p\n", p);
      _exit(0);
    }
  }
  fprintf(stderr, "never caught\n");
  _exit(0);
}

// Blocks with live ones between them, so that they stay blocks of their own
// where free neighbours merge.
template <class E>
void take_apart(std::size_t n, void* (&blocks)[4]) {
  for (void*& p : blocks) {
    p = E::allocate(n);
    E::allocate(n);
  }
}

#define EXPECT_ABORT(statement, regex) \
  EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), regex)

template <class E>
class InvalidFreeDeathTest : public EngineTest<E> {};
TYPED_TEST_SUITE(InvalidFreeDeathTest, AllEngines, EngineNames);

TYPED_TEST(InvalidFreeDeathTest, ForeignPointers) {
  using Api = MallocApi<TypeParam>;
  void* block = Api::malloc(64);  // the heap exists
  long on_stack = 0;
  static long in_data = 0;
  void* mapped =
      mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::uintptr_t foreign[] = {address_of(&on_stack),
                                    address_of(&in_data),
                                    address_of("text"),
                                    address_of(mapped),
                                    address_of(mapped) + 2 * kMiB,
                                    align_up(address_of(mapped), 2 * kMiB),
                                    16,
                                    4096,
                                    std::uintptr_t{1} << 46,
                                    std::uintptr_t{0xdeadbeefdeadbee0},
                                    UINTPTR_MAX - 15};
  for (std::uintptr_t address : foreign) {
    void* p = pointer_to(address);
    EXPECT_FALSE(TypeParam::owns(p)) << p;
    EXPECT_ABORT(Api::free(p), one_line_naming(address));
    EXPECT_ABORT(Api::realloc(p, 100), one_line_naming(address));
    EXPECT_ABORT(Api::realloc(p, 0), one_line_naming(address));
    EXPECT_ABORT(Api::realloc(p, SIZE_MAX), one_line_naming(address));
    EXPECT_ABORT(Api::malloc_usable_size(p), one_line_naming(address));
  }
  munmap(mapped, 4 * kMiB);
  Api::free(block);
}

TYPED_TEST(InvalidFreeDeathTest, FirstCallOfTheProcessIsABadFree) {
  // A type of its own is a heap that nobody has used. The engines that ship are one type each and
  // have been used by now; the test double's state does not matter.
  long on_stack[2] = {};  // as large as the least object
  EXPECT_ABORT(MallocApi<TypeParam>::free(&on_stack), one_line_naming(address_of(&on_stack)));
}

TYPED_TEST(InvalidFreeDeathTest, LargeObjects) {
  using Api = MallocApi<TypeParam>;
  auto* p = static_cast<char*>(Api::malloc(5 * kMiB));
  void* neighbour = Api::malloc(5 * kMiB);
  EXPECT_ABORT((Api::free(p), Api::free(p)), one_line_naming(address_of(p)));
  for (std::size_t offset : {std::size_t{1}, std::size_t{16}, std::size_t{4096}, 2 * kMiB}) {
    EXPECT_ABORT(Api::free(p + offset), one_line_naming(address_of(p) + offset));
    EXPECT_ABORT(Api::realloc(p + offset, 6 * kMiB), one_line_naming(address_of(p) + offset));
  }
  Api::free(p);
  Api::free(neighbour);
}

template <class E>
class InvalidSmallFreeDeathTest : public EngineTest<E> {};
TYPED_TEST_SUITE(InvalidSmallFreeDeathTest, TestedEngines, EngineNames);

constexpr std::size_t kSmallSizes[] = {16, 64, 208, 1000, 5000, 40000};

TYPED_TEST(InvalidSmallFreeDeathTest, SpanThatWasNeverOpened) {
  using Api = MallocApi<TypeParam>;
  void* p = Api::malloc(64);
  const std::uintptr_t far = address_of(p) + 16 * kGiB;
  EXPECT_FALSE(TypeParam::owns(pointer_to(far)));
  EXPECT_ABORT(Api::free(pointer_to(far)), one_line_naming(far));
  EXPECT_ABORT(Api::malloc_usable_size(pointer_to(far)), one_line_naming(far));
  Api::free(p);
}

TYPED_TEST(InvalidSmallFreeDeathTest, TwiceInARow) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : kSmallSizes) {
    void* p = Api::malloc(n);
    void* other = Api::malloc(n);
    EXPECT_ABORT((Api::free(p), Api::free(p)), one_line_naming(address_of(p))) << n;
    EXPECT_ABORT((Api::free(other), Api::free(p), Api::free(p)), one_line_naming(address_of(p)))
        << n;
    Api::free(p);
    Api::free(other);
  }
}

// --- Freed a second time after others ------------------------------------------------------------

// In which order blocks are freed, each letter one of four.
constexpr const char* kOrders[] = {"aba", "abca", "abcda", "abcba", "abdcb"};

enum class Blocks {
  kTogether,  // taken one after the other
  kApart,     // in several spans
  kReused     // in memory that has been freed as a whole
};

// Every block that is handed out afterwards is another one: takes more than were ever out, until
// the mistake is noticed. Ends the child well if it is not.
template <class E>
void take_no_block_twice(std::size_t n, std::vector<void*> out) {
  const std::size_t more = out.size() + 1000 + 2 * kMiB / n;
  for (std::size_t i = 0; i < more; ++i) out.push_back(E::allocate(n));
  std::sort(out.begin(), out.end());
  fprintf(stderr, "%s\n",
          std::adjacent_find(out.begin(), out.end()) != out.end() ? "handed out twice"
                                                                  : "never caught");
  _exit(0);
}

// Takes blocks, frees four of them in the order, and takes others. All by one thread,
// or the frees by another.
template <class E>
void free_in_order(const char* order, std::size_t n, Blocks which, bool by_another) {
  using Api = MallocApi<E>;
  const std::size_t apart = which == Blocks::kTogether ? 1 : 1 + 300 * kKiB / n;
  std::vector<void*> out(4 * apart);
  for (void*& p : out) p = Api::malloc(n);
  if (which == Blocks::kReused) {
    for (void* p : out) Api::free(p);
    for (void*& p : out) p = Api::malloc(n);
  }
  void* named[4];
  for (std::size_t i = 4; i-- > 0;) {
    named[i] = out[i * apart];
    out.erase(out.begin() + static_cast<std::ptrdiff_t>(i * apart));
  }
  const auto free_them = [&] {
    for (const char* letter = order; *letter != 0; ++letter) Api::free(named[*letter - 'a']);
  };
  if (by_another) {
    std::thread(free_them).join();
  } else {
    free_them();
  }
  for (int i = 0; i < 4; ++i) {  // those that were not freed are out as well
    if (strchr(order, 'a' + i) == nullptr) out.push_back(named[i]);
  }
  take_no_block_twice<E>(n, out);
}

TYPED_TEST(InvalidSmallFreeDeathTest, TwiceWithOthersInBetween) {
  for (std::size_t n : {16u, 64u, 208u, 400u, 1000u, 2000u, 5000u, 30000u}) {
    for (Blocks which : {Blocks::kTogether, Blocks::kApart, Blocks::kReused}) {
      for (const char* order : kOrders) {
        for (bool by_another : {false, true}) {
          EXPECT_ABORT(free_in_order<TypeParam>(order, n, which, by_another), kOneLine)
              << order << " of " << n << " bytes, blocks " << static_cast<int>(which)
              << (by_another ? ", by another thread" : "");
        }
      }
    }
  }
}

TYPED_TEST(InvalidSmallFreeDeathTest, BlockOfAFreeSpan) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : kSmallSizes) {
    // Enough blocks for several spans: the first one's are full by then, so that allocation has
    // moved on from it and the last free returns it.
    std::vector<void*> blocks(12 * kMiB / n);
    for (void*& p : blocks) p = Api::malloc(n);
    for (void* p : blocks) Api::free(p);
    Api::malloc_trim(0);
    void* p = blocks[100];
    EXPECT_ABORT(Api::free(p), one_line_naming(address_of(p))) << n;
    EXPECT_ABORT(Api::realloc(p, 2 * n), one_line_naming(address_of(p))) << n;
    EXPECT_ABORT(Api::malloc_usable_size(p), one_line_naming(address_of(p))) << n;
  }
}

TYPED_TEST(InvalidSmallFreeDeathTest, NoBlocksStart) {
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : kSmallSizes) {
    for (std::size_t offset : {std::size_t{1}, std::size_t{8}, n / 2 + 16, n - 1}) {
      if (offset >= n) continue;
      auto* p = static_cast<char*>(Api::malloc(n));
      // Caught at once, or at the latest before the address is handed out.
      EXPECT_ABORT(
          (Api::free(p + offset), allocate_until_caught<TypeParam>(n, address_of(p) + offset)),
          kOneLine)
          << n << "+" << offset;
      Api::free(p);
    }
  }
}

TYPED_TEST(InvalidSmallFreeDeathTest, OverwrittenFreeBlock) {
  if (kUnderAsan)
    GTEST_SKIP() << "free blocks are poisoned: AddressSanitizer reports the write itself";
  using Api = MallocApi<TypeParam>;
  for (std::size_t n : {std::size_t{16}, std::size_t{64}, std::size_t{1000}, std::size_t{5000}}) {
    for (int bytes : {8, 16}) {
      EXPECT_ABORT(
          {
            void* warm[4];
            take_apart<TypeParam>(n, warm);
            for (void* p : warm) Api::free(p);
            memset(warm[2], 0x41, static_cast<std::size_t>(bytes));
            memset(warm[3], 0x41, static_cast<std::size_t>(bytes));
            allocate_until_caught<TypeParam>(n, 0x4141414141414141);
          },
          kOneLine)
          << n;
    }
  }
}

TYPED_TEST(InvalidSmallFreeDeathTest, FreeListThatLeadsIntoForeignMemory) {
  if (kUnderAsan)
    GTEST_SKIP() << "free blocks are poisoned: AddressSanitizer reports the write itself";
  using Api = MallocApi<TypeParam>;
  static unsigned char victim[4096] = {};
  EXPECT_ABORT(
      {
        void* warm[4];
        take_apart<TypeParam>(64, warm);
        for (void* p : warm) Api::free(p);
        void* target = victim + 64;
        memcpy(warm[3], &target, sizeof target);
        allocate_until_caught<TypeParam>(64, address_of(target));
      },
      kOneLine);
}

}  // namespace
}  // namespace spanalloc::test
