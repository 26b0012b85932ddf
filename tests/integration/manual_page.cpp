// Sentences of spanalloc(7) that carry a number, "always" or "never", and that no other test holds.
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "spanalloc/spanalloc.h"
#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

constexpr int kMarker = 4711;  // no errno that any system call sets

// "free() never changes errno", and nor does realloc to nothing, which frees.
void free_keeping_errno(void* p, bool by_realloc) {
  const std::size_t n = malloc_usable_size(p);
  errno = kMarker;
  if (by_realloc && p != nullptr) {
    CHECK(realloc(p, 0) == nullptr, "realloc of %zu bytes to nothing gave a block", n);
  } else {
    free(p);
  }
  CHECK(errno == kMarker, "free of %zu bytes set errno to %d", n, errno);
}

void* of_any_size(harness::Random& random) {
  const std::size_t n = random.below(std::size_t{1} << random.below(26));
  return random.one_in(5) ? memalign(std::size_t{16} << random.below(13), n) : malloc(n);
}

void churn(std::uint64_t seed) {
  harness::Random random(seed);
  void* blocks[200] = {};
  for (int i = 0; i < 3000; ++i) {
    void*& block = blocks[random.below(200)];
    free_keeping_errno(block, random.one_in(2));
    block = of_any_size(random);
    if (block != nullptr) memset(block, 1, malloc_usable_size(block) % 100'000);
    if (random.one_in(100)) malloc_trim(0);
  }
  for (void* const block : blocks) free_keeping_errno(block, false);
}

// From here on the kernel refuses that call.
void refuse(long call, int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{4, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    harness::skip("this system has no seccomp filters: %s", strerror(errno));
  }
}

void free_keeps_errno(const Arguments&) {
  churn(1);
  std::thread([] { churn(2); }).join();
  // Allocated here, freed by a thread that has never allocated, and by its end.
  harness::Random random(3);
  std::vector<void*> blocks(500);
  for (void*& block : blocks) block = of_any_size(random);
  std::thread([&] {
    for (void* const block : blocks) free_keeping_errno(block, false);
  }).join();
  churn(4);
  for (const long call : {SYS_madvise, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_mmap}) {
    refuse(call, call == SYS_madvise ? EPERM : ENOMEM);
    churn(static_cast<std::uint64_t>(call) + 5);
  }
}

// "gives free pages back, and returns 1 if there were any, else 0".
void trim_tells_whether_there_were_any(const Arguments&) {
  malloc_trim(0);
  CHECK(malloc_trim(0) == 0, "nothing was free");
  std::vector<void*> blocks;
  for (const std::size_t n : {16u, 400u, 4096u, 14272u, 32768u, 100'000u}) {
    blocks.resize((std::size_t{24} << 20) / n / (n < 1000 ? 4 : 1));
    for (void*& block : blocks) {
      block = malloc(n);
      memset(block, 1, n);
    }
    for (void* const block : blocks) free(block);
    CHECK(malloc_trim(0) == 1, "%zu bytes: the blocks were free", n);
    for (const std::size_t padding : {std::size_t{0}, std::size_t{1} << 30, SIZE_MAX})
      CHECK(malloc_trim(padding) == 0, "%zu bytes: they were given back already", n);
  }
}

// "Large is an object above 1 MiB; in libspanalloc-a2alloc.so above 32 KiB; in
// libspanalloc-supermalloc.so above 14272 bytes".
void large_begins_where_it_says(const Arguments&) {
  const char* const config = getenv("SPANALLOC_CONFIG");
  const std::string name = config != nullptr ? config : "";
  const std::size_t bound = name == "a2alloc" ? 32768 : name == "supermalloc" ? 14272 : 1 << 20;
  for (const std::size_t n : {bound - 1, bound, bound + 1, 3 * bound}) {
    const std::size_t before = mallinfo2().hblks;
    void* const p = malloc(n);
    const std::size_t during = mallinfo2().hblks;
    free(p);
    CHECK(during - before == (n > bound ? 1 : 0), "a block of %zu bytes counts as %zu large ones",
          n, during - before);
    CHECK(mallinfo2().hblks == before, "a block of %zu bytes is counted after its free", n);
  }
}

// "realloc() of a block above 32 KiB to a size above 32 KiB shrinks it in place", and what has
// moved before, to 1 MiB or less, by a copy.
void shrinks_in_place(const Arguments&) {
  for (const std::size_t n : {40'000u, 100'000u, 1'048'576u, 3'000'000u, 50'000'000u}) {
    auto* const p = static_cast<unsigned char*>(malloc(n));
    memset(p, 0x5A, n);
    for (std::size_t to = n - n / 9; to > 32768; to -= to / 5)
      CHECK(realloc(p, to) == p, "from %zu bytes to %zu it moved", n, to);
    for (std::size_t i = 0; i < 32768; ++i) CHECK(p[i] == 0x5A, "byte %zu of %zu is lost", i, n);
    free(p);
  }
  constexpr std::size_t kMoved = std::size_t{48} << 20;
  void* p = malloc(kMoved / 2);
  void* const behind = malloc(kMoved / 2);
  memset(p, 0x5A, kMoved / 2);
  p = realloc(p, kMoved);
  for (const std::size_t to : {kMoved / 2, std::size_t{2} << 20}) {
    void* const shrunk = realloc(p, to);
    CHECK(shrunk == p, "a block that had moved moved when it shrank to %zu", to);
  }
  for (const std::size_t to : {std::size_t{1} << 20, std::size_t{40'000}}) {
    p = realloc(p, to);
    for (std::size_t i = 0; i < to; ++i)
      CHECK(static_cast<unsigned char*>(p)[i] == 0x5A, "byte %zu of %zu is lost", i, to);
  }
  free(p);
  free(behind);
}

// docs/using.md: "A heap is a piece of 64 KiB of which it touches two or three pages".
void a_heap_touches_three_pages(const Arguments&) {
  harness::judge_memory();
  using Create = sp_heap*(const sp_heap_options*, std::size_t);
  using Malloc = void*(sp_heap*, std::size_t);
  using Destroy = void(sp_heap*);
  auto* const create = reinterpret_cast<Create*>(dlsym(RTLD_DEFAULT, "sp_heap_create"));
  auto* const allocate = reinterpret_cast<Malloc*>(dlsym(RTLD_DEFAULT, "sp_heap_malloc"));
  auto* const destroy = reinterpret_cast<Destroy*>(dlsym(RTLD_DEFAULT, "sp_heap_destroy"));
  if (create == nullptr || allocate == nullptr || destroy == nullptr)
    harness::skip("another library than ours has no heaps");
  constexpr std::size_t kHeaps = 4000;
  static sp_heap* heaps[kHeaps];
  memset(heaps, 1, sizeof heaps);
  const std::size_t before = harness::memory().own;
  const std::size_t space = harness::memory().address_space;
  for (sp_heap*& heap : heaps) {
    heap = create(nullptr, 0);
    CHECK(heap != nullptr, "no heap");
    for (int i = 0; i < 5; ++i) memset(allocate(heap, 100), 1, 100);
  }
  const std::size_t each = (harness::memory().own - before) * 1024 / kHeaps;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // What the heap knows of them, beside: some bytes a heap.
  CHECK(each <= 3 * page + 256, "%zu bytes in memory for each heap", each);
  const std::size_t taken = (harness::memory().address_space - space) / 1024;
  CHECK(taken < kHeaps * 64 / 1024 * 2 + 64, "%zu MiB of addresses", taken);
  for (sp_heap* const heap : heaps) destroy(heap);
  const std::size_t full = harness::memory().own;
  for (int i = 0; i < 20'000; ++i) {
    sp_heap* const heap = create(nullptr, 0);
    memset(allocate(heap, 5000), 1, 5000);
    destroy(heap);
  }
  CHECK(harness::memory().own <= full + 1024, "%zu KiB more after 20,000 heaps",
        harness::memory().own - full);
}

}  // namespace

int main(int argc, char** argv) {
  harness::require_library_malloc();
  return harness::run_case(
      argc, argv,
      {{"free_keeps_errno", free_keeps_errno},
       {"trim_tells_whether_there_were_any", trim_tells_whether_there_were_any},
       {"large_begins_where_it_says", large_begins_where_it_says},
       {"shrinks_in_place", shrinks_in_place},
       {"a_heap_touches_three_pages", a_heap_touches_three_pages}});
}
