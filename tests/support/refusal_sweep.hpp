// The same program again and again, each time in a process of its own and with another call of the
// kernel refused, until it makes no further one (refusal_workload.hpp, kernel_refusals.hpp).
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "kernel_refusals.hpp"
#include "random.hpp"

namespace spanalloc::test {

/// What a sweep has found.
struct SweepResult {
  std::string failure;  ///< of the first run that failed; empty: none did
  std::size_t runs = 0;
  std::size_t made[kernel::kCalls] = {};
  std::size_t refused[kernel::kCalls] = {};

  SweepResult& operator+=(const SweepResult& other) {
    if (failure.empty()) failure = other.failure;
    runs += other.runs;
    for (unsigned c = 0; c < kernel::kCalls; ++c) {
      made[c] += other.made[c];
      refused[c] += other.refused[c];
    }
    return *this;
  }
  std::string text() const {
    std::string line = std::to_string(runs) + " runs";
    for (unsigned c = 0; c < kernel::kCalls; ++c) {
      line += std::string(c == 0 ? "; refused/made: " : ", ") + kernel::kCallNames[c] + " " +
              std::to_string(refused[c]) + "/" + std::to_string(made[c]);
    }
    return line;
  }
};

inline std::string text_of(const kernel::Plan& plan) {
  std::string text = "refused of";
  for (unsigned c = 0; c < kernel::kCalls; ++c) {
    if ((plan.calls >> c & 1) != 0) text += std::string(" ") + kernel::kCallNames[c];
  }
  if (plan.permille != 0) {
    return text + ": " + std::to_string(plan.permille) + " in 1000, seed " +
           std::to_string(plan.seed);
  }
  text += ": number " + std::to_string(plan.first);
  if (plan.count != 1)
    text += plan.count == kernel::kForEver ? " and all after it"
                                           : " and " + std::to_string(plan.count - 1) + " after it";
  return text;
}

/// Books that a child shares with its parent, in a file that it can hand on.
class SharedBooks {
 public:
  SharedBooks() : fd_(memfd_create("refusals", 0)) {
    if (ftruncate(fd_, sizeof(kernel::Books)) != 0) std::abort();
    void* p = mmap(nullptr, sizeof(kernel::Books), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) std::abort();
    books_ = new (p) kernel::Books{};
  }
  ~SharedBooks() {
    munmap(books_, sizeof(kernel::Books));
    close(fd_);
  }
  SharedBooks(const SharedBooks&) = delete;
  SharedBooks& operator=(const SharedBooks&) = delete;
  int fd() const { return fd_; }
  kernel::Books& operator*() { return *books_; }
  kernel::Books* operator->() { return books_; }

 private:
  int fd_;
  kernel::Books* books_;
};

/// One run. `child(plan, books, fd)` is what the forked process does; it ends it.
template <class Child>
SweepResult run_refused(const kernel::Plan& plan, Child child, std::size_t* planned = nullptr) {
  SharedBooks books;
  SweepResult result;
  result.runs = 1;
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(540);  // a hang is a failure, too
    child(plan, *books, books.fd());
    _exit(0);
  }
  int status = 0;
  while (pid > 0 && waitpid(pid, &status, 0) != pid) {
  }
  if (pid < 0) {
    result.failure = "fork failed";
  } else if (WIFSIGNALED(status)) {
    result.failure = std::string("ended by ") + strsignal(WTERMSIG(status)) + "; " + text_of(plan);
  } else if (WEXITSTATUS(status) != 0) {
    result.failure =
        (books->failure[0] == '\0' ? std::string("exit code " + std::to_string(WEXITSTATUS(status)))
                                   : std::string(books->failure)) +
        "; " + text_of(plan);
  }
  for (unsigned c = 0; c < kernel::kCalls; ++c) {
    result.made[c] = books->made[c];
    result.refused[c] = books->refused[c];
  }
  if (planned != nullptr) *planned = books->planned;
  return result;
}

/// Runs with the plan's first refusal at every `step`th call, until a run makes no such call or one
/// fails. Something is refused: if there is no call but the first, that one.
template <class Child>
SweepResult sweep(kernel::Plan plan, Child child, std::size_t step = 1) {
  SweepResult sum;
  for (plan.first = kSeed % step;; plan.first += step) {
    std::size_t planned = 0;
    sum += run_refused(plan, child, &planned);
    if (!sum.failure.empty()) return sum;
    if (planned <= plan.first) break;
  }
  if (sum.runs > 1 || plan.first == 0) return sum;
  plan.first = 0;
  return sum += run_refused(plan, child);
}

/// Every single call of each kind; all calls of a kind from each one on; of all kinds together five
/// calls from each one on, and all.
template <class Child>
SweepResult sweep_all(Child child, std::size_t step = 1) {
  SweepResult sum;
  for (unsigned c = 0; c <= kernel::kCalls && sum.failure.empty(); ++c) {
    const bool together = c == kernel::kCalls;
    kernel::Plan plan{.calls = together ? kernel::kAllCalls : 1u << c,
                      .count = together ? std::size_t{5} : 1};
    sum += sweep(plan, child, step);
    plan.count = kernel::kForEver;
    if (sum.failure.empty()) sum += sweep(plan, child, step);
  }
  return sum;
}

}  // namespace spanalloc::test
