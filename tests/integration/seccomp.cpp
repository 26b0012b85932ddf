// A seccomp filter that refuses every system call an allocator can do without. The filter is
// installed before exec, so that it stands from the library's first instruction on. (One that
// kills: killing_filter.cpp.)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "support/harness.hpp"

#ifndef SYS_rseq
#define SYS_rseq 334
#endif

namespace {

using Arguments = std::vector<std::string>;

const std::vector<long> kOptional = {
    SYS_madvise, SYS_mremap,    SYS_rseq,    SYS_membarrier,  SYS_sched_getaffinity,
    SYS_getcpu,  SYS_getrandom, SYS_mincore, SYS_sched_yield, SYS_prlimit64};

void forbid(int error) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const long number : kOptional) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    harness::skip("this system has no seccomp filters: %s", strerror(errno));
  }
}

void prove_filter() {
  char page[1];
  CHECK(syscall(SYS_madvise, page, 0, MADV_DONTNEED) == -1 && (errno == EPERM || errno == ENOSYS),
        "the filter is not in force");
}

// Grows and shrinks large blocks, where mremap would have helped.
void resize_large_blocks() {
  std::size_t size = 100000;
  auto* p = static_cast<unsigned char*>(malloc(size));
  CHECK(p != nullptr, "malloc(%zu) refused", size);
  memset(p, 0x77, size);
  for (const std::size_t next :
       {3000000u, 9000000u, 40000000u, 5000000u, 1200000u, 2000u, 8000000u}) {
    p = static_cast<unsigned char*>(realloc(p, next));
    CHECK(p != nullptr, "realloc from %zu to %zu refused", size, next);
    const std::size_t kept = size < next ? size : next;
    for (std::size_t i = 0; i < kept; i += 1000)
      CHECK(p[i] == 0x77, "byte %zu lost between %zu and %zu", i, size, next);
    memset(p, 0x77, next);
    size = next;
  }
  free(p);
}

void child(const Arguments&) {
  harness::require_library_malloc();
  prove_filter();
  resize_large_blocks();
  // madvise fails: memory that was "returned" must still read as zero where zero was promised.
  for (const std::size_t size : {100u, 5000u, 70000u, 500000u, 3000000u}) {
    for (int i = 0; i < 50; ++i) {
      void* p = malloc(size);
      memset(p, 0xEE, size);
      free(p);
      p = calloc(1, size);
      CHECK(p != nullptr && harness::all_zero(p, size), "calloc(%zu) is not zero", size);
      memset(p, 0xEE, size);
      free(p);
    }
  }
}

std::string sibling(const char* name) {
  const char* folder = getenv("SPANALLOC_TEST_PROGRAMS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PROGRAMS is not set");
  return std::string(folder) + "/" + name;
}

void run_forbidden(int error) {
  const auto prepare = [error] { forbid(error); };
  harness::expect_success(harness::run_self({"child"}, prepare), "large blocks and zeroes");
  harness::expect_success(harness::run({sibling("workload"), "mixed", "4", "16", "8000"}, prepare),
                          "workload");
  harness::expect_success(harness::run({"/bin/ls", "/"}, prepare), "ls");
}

void fails_with_eperm(const Arguments&) {
  run_forbidden(EPERM);
}
void fails_with_enosys(const Arguments&) {
  run_forbidden(ENOSYS);
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"fails_with_eperm", fails_with_eperm},
                            {"fails_with_enosys", fails_with_enosys},
                            {"child", child}});
}
