// A process with as many mappings as the kernel allows (vm.max_map_count). Then mmap is refused,
// and so is what cuts a mapping in two, of mprotect, munmap, mremap and madvise: that is out of
// memory like any other. Null and ENOMEM, nothing torn, nothing lost for good; and with the
// mappings gone everything works again. And what the heap does not need takes no mapping from it:
// it goes on growing where it stands.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <new>
#include <utility>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

// To make more takes long, and memory of the kernel's.
constexpr std::size_t kMostMappings = 200'000;

std::size_t mappings_allowed() {
  char text[32] = {};
  const int file = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
  const ssize_t n = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  if (n <= 0) harness::skip("/proc/sys/vm/max_map_count cannot be read here");
  const std::size_t allowed = strtoull(text, nullptr, 10);
  if (allowed > kMostMappings) {
    harness::skip("a process may have %zu mappings here (vm.max_map_count): too many to make",
                  allowed);
  }
  return allowed;
}

// Mappings of a page each, as many as the process may have: in a range of which every
// second page is readable.
class Filling {
 public:
  explicit Filling(std::size_t allowed)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), pages_(allowed + 64) {
    void* const range = mmap(nullptr, pages_ * page_, PROT_NONE, kPrivate | MAP_NORESERVE, -1, 0);
    CHECK(range != MAP_FAILED, "mmap: %s", strerror(errno));
    range_ = static_cast<char*>(range);
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

  /// From here on no mapping can be cut in two.
  void fill() {
    errno = 0;
    while (next_ + 1 < pages_ && set_page(next_, PROT_READ)) next_ += 2;
    CHECK(next_ + 1 < pages_, "the kernel allows more mappings than it says");
    CHECK(errno == ENOMEM, "mprotect: %s", strerror(errno));
  }
  /// After that: nor can any be made, for which there may be room for one more.
  void fill_last() {
    // Shared ones are never joined with their neighbours.
    for (void* one = nullptr;
         (one = mmap(nullptr, page_, PROT_READ, kShared, -1, 0)) != MAP_FAILED;) {
      CHECK(last_count_ < std::size(last_),
            "there is room for more mappings than for what cuts them");
      last_[last_count_++] = one;
    }
    CHECK(errno == ENOMEM, "mmap: %s", strerror(errno));
  }
  /// Makes room for so many pairs again.
  void leave(std::size_t pairs) {
    for (; pairs != 0; --pairs) {
      next_ -= 2;
      CHECK(set_page(next_, PROT_NONE), "mprotect: %s", strerror(errno));
    }
  }
  void remove_last() {
    while (last_count_ != 0) munmap(last_[--last_count_], page_);
  }
  void remove_all() {
    remove_last();
    leave(1);  // the range's ends may be joined with other mappings, which are cut
    CHECK(munmap(range_, pages_ * page_) == 0, "munmap: %s", strerror(errno));
  }

 private:
  static constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  static constexpr int kShared = MAP_SHARED | MAP_ANONYMOUS;

  bool set_page(std::size_t number, int protection) {
    return mprotect(range_ + number * page_, page_, protection) == 0;
  }

  const std::size_t page_;
  const std::size_t pages_;
  char* range_ = nullptr;
  std::size_t next_ = 1;  // to become readable; those behind it are one mapping
  void* last_[8] = {};
  std::size_t last_count_ = 0;
};

// A block that has a word of its own in each page, and at its end.
struct Block {
  char* memory = nullptr;
  std::size_t size = 0;
  std::uint64_t mark = 0;

  void write() const {
    for (std::size_t at = 0; at < size; at = next(at)) {
      const std::uint64_t word = mark + at;
      memcpy(memory + at, &word, sizeof word);
    }
  }
  /// As it was when it had `old` bytes; only the end may be another one.
  void check(std::size_t old) const {
    const std::size_t common = std::min(old, size);
    for (std::size_t at = 0; at < common; at = next(at)) {
      if (at + kWord > common || (at % kStep != 0 && old != size)) continue;
      std::uint64_t word = 0;
      memcpy(&word, memory + at, sizeof word);
      CHECK(word == mark + at, "block %p of %zu bytes: damaged at %zu", static_cast<void*>(memory),
            size, at);
    }
  }

 private:
  static constexpr std::size_t kStep = 4096;
  static constexpr std::size_t kWord = sizeof(std::uint64_t);
  // 0, kStep, 2 * kStep, ..., and the last word.
  std::size_t next(std::size_t at) const {
    const std::size_t last = (size - kWord) / kWord * kWord;
    if (at >= last) return size;
    return std::min(at - at % kStep + kStep, last);
  }
};

// Of all kinds: of spans, of superblocks, of the arena, of mappings of their own.
std::size_t a_size(harness::Random& random) {
  switch (random.below(16)) {
    case 0:
      return kMiB + random.below(6 * kMiB);
    case 1:
    case 2:
      return 40 * kKiB + random.below(kMiB);
    case 3:
    case 4:
    case 5:
    case 6:
      return kKiB + random.below(32 * kKiB);
    default:
      return 16 + random.below(kKiB);
  }
}

// Blocks wander between threads through these.
std::atomic<void*> mailbox[64];

void empty_mailbox() {
  for (auto& slot : mailbox) free(slot.exchange(nullptr));
}

// What one thread does. It needs no memory itself.
class Churn {
 public:
  explicit Churn(std::uint64_t seed) : random_(seed) {}

  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
    check();
  }
  void check() const {
    for (const Block& block : blocks_) {
      if (block.memory != nullptr) block.check(block.size);
    }
  }
  /// Blocks until memory is out, or all have so many bytes; then they are freed.
  void hoard(std::size_t bytes) {
    Hoarded* last = nullptr;
    for (std::size_t taken = 0; taken < bytes;) {
      const std::size_t size = 16 * kKiB + random_.below(3 * kMiB);
      errno = 0;
      void* const memory = malloc(size);
      if (!was_given(memory, size)) break;
      last = new (memory) Hoarded{last, size};
      taken += size;
    }
    while (last != nullptr) {
      Hoarded* const block = std::exchange(last, last->before);
      CHECK(malloc_usable_size(block) >= block->size, "hoarded block %p: damaged",
            static_cast<void*>(block));
      free(block);
    }
  }
  /// Whether it was given.
  bool ask_for(std::size_t size) {
    errno = 0;
    void* const memory = malloc(size);
    if (!was_given(memory, size)) return false;
    auto* const bytes = static_cast<volatile char*>(memory);
    bytes[0] = 1;
    bytes[size - 1] = 1;
    free(memory);
    return true;
  }
  void end() {
    for (Block& block : blocks_) drop(block);
  }
  /// Since the last call.
  std::size_t refusals() { return std::exchange(refusals_, 0); }

 private:
  struct Hoarded {
    Hoarded* before;
    std::size_t size;
  };

  void step() {
    Block& block = blocks_[random_.below(std::size(blocks_))];
    if (block.memory == nullptr) {
      allocate(block);
    } else if (random_.below(3) == 0) {
      resize(block);
    } else {
      drop(block);
    }
    free(mailbox[random_.below(std::size(mailbox))].exchange(malloc(a_size(random_))));
    if (random_.below(50) == 0) malloc_trim(0);
  }
  void allocate(Block& block) {
    const std::size_t size = a_size(random_);
    const std::size_t kind = random_.below(8);
    errno = 0;
    void* const memory = kind < 2    ? calloc(1, size)
                         : kind == 2 ? memalign(std::size_t{64} << random_.below(12), size)
                                     : malloc(size);
    if (!was_given(memory, size)) return;
    CHECK(kind >= 2 || harness::all_zero(memory, size), "calloc of %zu bytes is not zero", size);
    block = {static_cast<char*>(memory), size, random_.next()};
    block.write();
  }
  void resize(Block& block) {
    const std::size_t size = a_size(random_);
    errno = 0;
    void* const memory = realloc(block.memory, size);
    if (!was_given(memory, size)) return;
    const std::size_t old = std::exchange(block.size, size);
    block.memory = static_cast<char*>(memory);
    block.check(old);
    block.write();
  }
  static void drop(Block& block) {
    if (block.memory == nullptr) return;
    block.check(block.size);
    free(block.memory);
    block.memory = nullptr;
  }
  bool was_given(const void* memory, std::size_t size) {
    if (memory != nullptr) return true;
    CHECK(errno == ENOMEM, "%zu bytes refused with errno %d", size, errno);
    ++refusals_;
    return false;
  }

  harness::Random random_;
  Block blocks_[100];
  std::size_t refusals_ = 0;
};

// More than there is anywhere: so the kernel is asked.
constexpr std::size_t kMuch = 512 * kMiB;

// supermalloc's memory is one mapping, and address space behind it another: more memory makes the
// one longer. What is larger than all that it has there is a mapping of its own.
constexpr std::size_t kMoreThanSupermallocHas = 9 * 1024 * kMiB;
bool is_supermalloc() {
  const char* config = getenv("SPANALLOC_CONFIG");
  return config != nullptr && strcmp(config, "supermalloc") == 0;
}

constexpr int kSteps = 300;

// A child has as many mappings.
void work_in_child(Churn& churn) {
  const pid_t child = fork();
  CHECK(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    alarm(harness::kSecondsToHang);
    churn.check();
    churn.steps(kSteps);
    churn.ask_for(kMuch);
    churn.end();
    empty_mailbox();
    malloc_trim(0);
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %s %d",
        WIFEXITED(status) ? "exit code" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

// Threads that begin before the mappings are made, and allocate for the first
// time when there are all.
constexpr int kLevels = 6;
pthread_barrier_t level_begins;
pthread_barrier_t level_ends;

void* work_at_all_levels(void* own) {
  Churn& churn = *static_cast<Churn*>(own);
  for (int level = 0; level < kLevels; ++level) {
    pthread_barrier_wait(&level_begins);
    churn.steps(kSteps);
    churn.hoard(16 * kMiB);
    churn.steps(kSteps);
    pthread_barrier_wait(&level_ends);
  }
  churn.end();
  return nullptr;
}

void work_at_the_limit(unsigned other_threads) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  const std::size_t allowed = mappings_allowed();
  pthread_barrier_init(&level_begins, nullptr, other_threads + 1);
  pthread_barrier_init(&level_ends, nullptr, other_threads + 1);
  static Churn churns[] = {Churn(1), Churn(2), Churn(3)};
  Churn& churn = churns[0];
  pthread_t others[std::size(churns) - 1];
  for (unsigned i = 0; i < other_threads; ++i) {
    const int result = pthread_create(&others[i], nullptr, work_at_all_levels, &churns[i + 1]);
    CHECK(result == 0, "pthread_create: %s", strerror(result));
  }
  churn.steps(5 * kSteps);
  CHECK(churn.refusals() == 0, "refused although there was room");
  // So much a machine need not have.
  const bool is_told_by_more = is_supermalloc() && churn.ask_for(kMoreThanSupermallocHas);
  churn.refusals();

  static Filling filling(allowed);
  std::size_t refusals = 0;
  for (int level = 0; level < kLevels; ++level) {
    // No mapping can be made; or one, but none can be cut; or a few, of which
    // the library may need more.
    const bool is_full = level % 2 == 0;
    filling.fill();
    if (is_full) {
      filling.fill_last();
      if (is_supermalloc()) {
        CHECK(churn.ask_for(kMuch), "refused although it takes no mapping");
        CHECK(!is_told_by_more || !churn.ask_for(kMoreThanSupermallocHas),
              "the limit is not met: the library has mapped more");
      } else {
        CHECK(!churn.ask_for(kMuch), "the limit is not met: the library has mapped more");
      }
      refusals += churn.refusals();
    } else {
      filling.leave(static_cast<std::size_t>(level / 2));
    }
    pthread_barrier_wait(&level_begins);
    churn.steps(kSteps);
    // More each time: what the last level has got is not enough.
    churn.hoard(static_cast<std::size_t>(level + 1) * 64 * kMiB);
    work_in_child(churn);
    churn.steps(kSteps);
    pthread_barrier_wait(&level_ends);
    filling.remove_last();
    refusals += churn.refusals();
  }
  filling.remove_all();

  churn.steps(5 * kSteps);
  churn.hoard((kLevels + 1) * 64 * kMiB);
  churn.ask_for(kMuch);
  if (is_told_by_more) churn.ask_for(kMoreThanSupermallocHas);
  CHECK(churn.refusals() == 0, "refused although there is room again");
  churn.end();
  for (unsigned i = 0; i < other_threads; ++i) pthread_join(others[i], nullptr);
  empty_mailbox();
  printf("%zu mappings allowed: %zu requests refused\n", allowed, refusals);
}

void one_thread(const Arguments&) {
  work_at_the_limit(0);
}
void many_threads(const Arguments&) {
  work_at_the_limit(2);
}

// How many of served_at_map_count.c's requests are served.
constexpr int kAsked = 20'000;
int served(const char* when, bool by_glibc, const char* huge_pages = nullptr) {
  const char* programs = getenv("SPANALLOC_TEST_PROGRAMS");
  CHECK(programs != nullptr, "SPANALLOC_TEST_PROGRAMS is not set");
  const std::string allowed = std::to_string(mappings_allowed());
  const harness::Outcome outcome =
      harness::run({std::string(programs) + "/served_at_map_count", when, allowed}, [&] {
        if (by_glibc) unsetenv("LD_PRELOAD");
        if (huge_pages != nullptr) setenv("SPANALLOC_THP", huge_pages, 1);
      });
  harness::expect_success(outcome, when);
  return atoi(outcome.out.c_str());
}

// All that the heap needs to grow it has, and it grows where it stands, which takes no mapping
// more.
void serves_all(const char* when) {
  harness::require_library_malloc();
  const int ours = served(when, false);
  const int glibcs = served(when, true);
  printf("%d of %d served, by glibc %d\n", ours, kAsked, glibcs);
  CHECK(ours == kAsked, "%d of %d requests were served (by glibc %d)", ours, kAsked, glibcs);
}
void served_at_start(const Arguments&) {
  serves_all("start");
}
void served_at_first_free(const Arguments&) {
  serves_all("first_free");
}
void served_at_threads_first_free(const Arguments&) {
  serves_all("threads_first_free");
}
void served_in_growth(const Arguments&) {
  serves_all("growth");
}
void served_in_purge(const Arguments&) {
  serves_all("purge");
}
// What a child opens is a mapping of its own each time, whoever opens it.
void served_in_child(const Arguments&) {
  harness::require_library_malloc();
  const int ours = served("child", false);
  const int glibcs = served("child", true);
  printf("%d of %d served, by glibc %d\n", ours, kAsked, glibcs);
  CHECK(ours * 100 >= glibcs * 99, "%d of %d requests were served, by glibc %d", ours, kAsked,
        glibcs);
}
// Advice on huge pages makes mappings differ that would be one.
void served_with_advice(const Arguments&) {
  harness::require_library_malloc();
  for (const char* huge_pages : {"never", "always"}) {
    for (const char* when : {"start", "growth", "purge"}) {
      const int ours = served(when, false, huge_pages);
      CHECK(ours == kAsked, "SPANALLOC_THP=%s, %s: %d of %d requests were served", huge_pages, when,
            ours, kAsked);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"one_thread", one_thread},
                            {"many_threads", many_threads},
                            {"served_at_start", served_at_start},
                            {"served_at_first_free", served_at_first_free},
                            {"served_at_threads_first_free", served_at_threads_first_free},
                            {"served_in_growth", served_in_growth},
                            {"served_in_purge", served_in_purge},
                            {"served_in_child", served_in_child},
                            {"served_with_advice", served_with_advice}});
}
