// The whole library over a kernel that refuses: this program's mmap, munmap, mprotect, madvise and
// mremap come before libc's, so the library's calls are ours to refuse, from the very first one on
// (tests/support/kernel_refusals.hpp). Every run is a fresh process.
#include <dlfcn.h>
#include <malloc.h>
#include <spanalloc/spanalloc.h>
#include <stdlib.h>

#include "refusal_sweep.hpp"
#include "refusal_workload.hpp"
#include "support/harness.hpp"

/// Gives back what libc keeps for itself: for programs that look for leaks at their end.
extern "C" void __libc_freeres();

namespace {

using namespace spanalloc::test;

decltype(&sp_stats) statistics = nullptr;
bool maps_only_huge_blocks = false;
bool moves_only_vast_blocks = false;  // of more than 8 GiB, or those that its arena has no room for

// The C library's names; the compiler must not know them.
struct LibraryApi {
  static void* malloc(std::size_t n) { return ::malloc(n); }
  static void* calloc(std::size_t count, std::size_t size) { return ::calloc(count, size); }
  static void* realloc(void* block, std::size_t n) { return ::realloc(block, n); }
  static void* aligned_alloc(std::size_t alignment, std::size_t n) {
    return ::aligned_alloc(alignment, n);
  }
  static void free(void* block) { ::free(block); }
  static void trim() { malloc_trim(0); }
  static std::size_t huge_bytes() {
    return maps_only_huge_blocks ? (std::size_t{256} << 20) + 1 : 0;
  }
};

sp_statistics now() {
  sp_statistics s{};
  statistics(&s, sizeof s);
  return s;
}

// In the fresh process. libc and the C++ runtime may have blocks of their own.
template <class Program>
[[noreturn]] void work(kernel::Books& books) {
  const sp_statistics before = now();
  static Program program(books);
  program.run();
  // libc keeps the stacks of ended threads, and with each the vector that it allocated for the
  // thread's TLS: refused memory for a heap of its own, such a thread got that as a large object.
  __libc_freeres();
  const sp_statistics after = now();
  if (after.large_objects > before.large_objects || after.large_bytes > before.large_bytes) {
    end_with(books, "%zu large objects of %zu bytes are left; there were %zu of %zu",
             after.large_objects, after.large_bytes, before.large_objects, before.large_bytes);
  }
  constexpr std::size_t kLittle = 2 << 20;
  if (after.carved_bytes > before.carved_bytes + kLittle) {
    end_with(books, "%zu bytes of spans are in use, %zu at the start", after.carved_bytes,
             before.carved_bytes);
  }
  _exit(0);
}

// A fresh process of this program, its plan in its books.
void exec_self(const kernel::Plan& plan, kernel::Books& books, int fd, const char* role) {
  books.plan = plan;
  setenv(kernel::kBooksVariable, std::to_string(fd).c_str(), 1);
  char* const arguments[] = {const_cast<char*>("kernel_refusals"), const_cast<char*>(role),
                             nullptr};
  execv("/proc/self/exe", arguments);
  _exit(127);
}

void in_fresh_program(const kernel::Plan& plan, kernel::Books& books, int fd) {
  exec_self(plan, books, fd, "run_program");
}
void in_fresh_threads(const kernel::Plan& plan, kernel::Books& books, int fd) {
  exec_self(plan, books, fd, "run_threads");
}

void expect_all_refused(const SweepResult& result, const std::vector<kernel::Call>& calls) {
  printf("%s\n", result.text().c_str());
  CHECK(result.failure.empty(), "%s", result.failure.c_str());
  for (const kernel::Call c : calls) {
    CHECK(result.refused[c] != 0, "no %s was refused: do the library's calls come here?",
          kernel::kCallNames[c]);
  }
}

void each_call(const std::vector<std::string>&) {
  SweepResult sum;
  for (const std::size_t count : {std::size_t{1}, kernel::kForEver}) {
    sum += sweep({.calls = kernel::kAllCalls, .count = count}, in_fresh_program);
  }
  std::vector<kernel::Call> calls{kernel::kMmap, kernel::kMunmap, kernel::kMprotect,
                                  kernel::kMadvise};
  if (!moves_only_vast_blocks) calls.push_back(kernel::kMremap);
  expect_all_refused(sum, calls);
}

void threads_by_chance(const std::vector<std::string>&) {
  SweepResult sum;
  for (std::uint64_t seed = 0; seed < 20 && sum.failure.empty(); ++seed) {
    for (const unsigned permille : {20u, 200u, 700u}) {
      sum += run_refused({.calls = kernel::kAllCalls, .permille = permille, .seed = seed},
                         in_fresh_threads);
    }
  }
  expect_all_refused(sum, {kernel::kMmap, kernel::kMunmap, kernel::kMprotect, kernel::kMadvise});
}

struct Program : RefusalProgram<LibraryApi> {
  using RefusalProgram::RefusalProgram;
};
struct Threads : RefusalThreads<LibraryApi> {
  explicit Threads(kernel::Books& books) : RefusalThreads(books, 1) {}
};

}  // namespace

int main(int argc, char** argv) {
  statistics = reinterpret_cast<decltype(statistics)>(dlsym(RTLD_DEFAULT, "sp_stats"));
  const char* config = getenv("SPANALLOC_CONFIG");
  maps_only_huge_blocks = config != nullptr && strcmp(config, "a2alloc") == 0;
  moves_only_vast_blocks = config != nullptr && strcmp(config, "supermalloc") == 0;
  if (kernel::Books* books = kernel::told_books(); books != nullptr && argc == 2) {
    if (statistics == nullptr) end_with(*books, "the library is not here");
    strcmp(argv[1], "run_threads") == 0 ? work<Threads>(*books) : work<Program>(*books);
  }
  harness::require_library_malloc();
  if (statistics == nullptr) harness::skip("another library than ours has no sp_stats");
  return harness::run_case(argc, argv,
                           {{"each_call", each_call}, {"threads_by_chance", threads_by_chance}});
}
