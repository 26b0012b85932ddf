// fork from programs whose other threads rest, outside of malloc and free: what it costs parent and
// child is counted, in pages that the kernel must copy; and what the child finds of those threads
// is put away later, in whatever way it goes on: by its first thread, by another one that was made
// without a call of malloc, by both at once, while one of them forks.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "support/harness.hpp"
#include "support/step_count.hpp"

namespace {

using Arguments = std::vector<std::string>;

struct Block {
  char* at = nullptr;
  std::size_t size = 0;
};

constexpr std::size_t kBlocks = 3000;
constexpr unsigned kMostThreads = 20;

// What a thread has: blocks of all small sizes, and some larger ones; every fourth one was freed
// again, by the thread itself or by another one.
std::vector<Block> fill_heap(std::uint64_t seed) {
  harness::Random random(seed);
  std::vector<Block> blocks;
  blocks.reserve(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const std::size_t size = 16 + random.below(random.below(20) == 0 ? 40000 : 1000);
    blocks.push_back({static_cast<char*>(malloc(size)), size});
    CHECK(blocks.back().at != nullptr, "malloc(%zu) refused", size);
    harness::fill(blocks.back().at, size);
  }
  for (std::size_t i = 0; i < kBlocks; i += 4) {
    free(blocks[i].at);
    blocks[i].at = nullptr;
  }
  return blocks;
}

void drop(std::vector<Block>& blocks, std::size_t from, std::size_t step) {
  for (std::size_t i = from; i < blocks.size(); i += step) {
    if (blocks[i].at == nullptr) continue;
    CHECK(harness::intact(blocks[i].at, blocks[i].size), "block %p overwritten",
          static_cast<void*>(blocks[i].at));
    free(blocks[i].at);
    blocks[i].at = nullptr;
  }
}

// Threads that have filled their heaps, and wait.
class ParkedThreads {
 public:
  explicit ParkedThreads(unsigned count) : blocks_(count) {
    pthread_barrier_init(&filled_, nullptr, count + 1);
    pthread_barrier_init(&end_, nullptr, count + 1);
    for (unsigned t = 0; t < count; ++t) {
      threads_.emplace_back([this, t] {
        blocks_[t] = fill_heap(t + 1);
        pthread_barrier_wait(&filled_);
        pthread_barrier_wait(&end_);
      });
    }
    pthread_barrier_wait(&filled_);
    for (std::vector<Block>& blocks : blocks_) drop(blocks, 1, 8);
  }
  ~ParkedThreads() {
    pthread_barrier_wait(&end_);
    for (std::thread& thread : threads_) thread.join();
  }
  ParkedThreads(const ParkedThreads&) = delete;
  ParkedThreads& operator=(const ParkedThreads&) = delete;

  std::vector<std::vector<Block>>& blocks() { return blocks_; }

 private:
  std::vector<std::vector<Block>> blocks_;
  std::vector<std::thread> threads_;
  pthread_barrier_t filled_{};
  pthread_barrier_t end_{};
};

void await(pid_t child, const char* what) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "waitpid");
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: %s %d", what,
        WIFEXITED(status) ? "exit code" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}
pid_t fork_child() {
  const pid_t child = fork();
  CHECK(child >= 0, "fork");
  if (child == 0) alarm(harness::kSecondsToHang);
  return child;
}
std::size_t page_faults() {
  struct rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_minflt);
}

// Without a call of malloc or free by the calling thread: the new one may be given the stack of a
// thread that a fork has left behind, and so its thread pointer.
template <class F>
void run_in_thread(F& body) {
  pthread_t thread{};
  const auto start = [](void* what) -> void* {
    (*static_cast<F*>(what))();
    return nullptr;
  };
  CHECK(pthread_create(&thread, nullptr, start, &body) == 0, "pthread_create");
  CHECK(pthread_join(thread, nullptr) == 0, "pthread_join");
}

// All that is there is freed, by two threads, and the like allocated and freed again.
void use_heap(ParkedThreads& threads, bool beside_another) {
  std::atomic<bool> begun{false};
  const auto half = [&](std::size_t first) {
    for (std::vector<Block>& blocks : threads.blocks()) {
      drop(blocks, first, 2);
      std::vector<Block> own = fill_heap(first + 99);
      drop(own, 0, 1);
    }
  };
  auto second = [&] {
    begun = true;
    half(1);
  };
  if (!beside_another) {
    half(0);
    return run_in_thread(second);
  }
  pthread_t thread{};
  const auto start = [](void* what) -> void* {
    (*static_cast<decltype(second)*>(what))();
    return nullptr;
  };
  CHECK(pthread_create(&thread, nullptr, start, &second) == 0, "pthread_create");
  while (!begun) sched_yield();
  half(0);
  CHECK(pthread_join(thread, nullptr) == 0, "pthread_join");
}

// --- What it costs
// -------------------------------------------------------------------------------------------------

struct Faults {
  std::size_t parent = 0;
  std::size_t child = 0;
};

// Of the middle one of many forks: a kernel that moves pages has faults of its own.
Faults faults_of_fork() {
  std::vector<std::size_t> of_parent(21);
  std::vector<std::size_t> of_child(of_parent.size());
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0, "pipe");
  for (std::size_t i = 0; i < of_parent.size(); ++i) {
    const std::size_t before = page_faults();
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
      const std::size_t count = page_faults();
      _exit(write(pipe_ends[1], &count, sizeof count) == sizeof count ? 0 : 1);
    }
    await(child, "child that counts");
    CHECK(read(pipe_ends[0], &of_child[i], sizeof of_child[i]) == sizeof of_child[i], "read");
    of_parent[i] = page_faults() - before;
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  std::sort(of_parent.begin(), of_parent.end());
  std::sort(of_child.begin(), of_child.end());
  return {of_parent[of_parent.size() / 2], of_child[of_child.size() / 2]};
}

// A child touches one page of each thread's: glibc's own, where it has its stacks. (glibc's malloc
// has two, and one in the parent, for the lock of each arena.) a2alloc writes into each thread's
// heap that it is idle, supermalloc into each four caches, or so.
void few_pages(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  const Faults alone = faults_of_fork();
  Faults with_threads;
  {
    ParkedThreads threads(kMostThreads);
    with_threads = faults_of_fork();
  }
  printf(
      "page faults of a fork, parent and child: alone %zu and %zu, with %u threads %zu and %zu\n",
      alone.parent, alone.child, kMostThreads, with_threads.parent, with_threads.child);
  CHECK(with_threads.parent <= alone.parent + kMostThreads / 2,
        "the parent copies pages of each thread");
  CHECK(with_threads.child <= alone.child + kMostThreads * 5 / 2 + 5,
        "the child copies more of each thread than its own mark");
}

// Mappings of the library and its heap: its data, and all memory without a name that is neither
// libc's or the program's data nor where libc keeps what it has of this thread.
template <class Visit>
void for_our_mappings(Visit visit) {
  static char text[1 << 20];
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "cannot open /proc/self/maps");
  std::size_t length = 0;
  for (ssize_t n; (n = read(fd, text + length, sizeof text - 1 - length)) > 0;)
    length += std::size_t(n);
  close(fd);
  text[length] = '\0';
  static const std::string library = harness::library_path();
  const std::size_t slash = library.rfind('/');
  const char* const name = library.c_str() + (slash == std::string::npos ? 0 : slash + 1);
  std::uintptr_t end_of_others = 0;
  for (char* line = strtok(text, "\n"); line != nullptr; line = strtok(nullptr, "\n")) {
    std::uintptr_t first = 0;
    std::uintptr_t end = 0;
    char rights[8] = "";
    int at = 0;
    CHECK(sscanf(line, "%zx-%zx %7s %*s %*s %*s %n", &first, &end, rights, &at) == 3 && at > 0,
          "%s", line);
    const bool is_named = line[at] != '\0';
    const auto own = reinterpret_cast<std::uintptr_t>(&errno);
    const bool is_others = is_named ? strstr(line + at, name) == nullptr
                                    : first == end_of_others || (first <= own && own < end);
    if (is_others) {
      end_of_others = end;
    } else {
      visit(first, end, rights[1] == 'w');
    }
  }
}
// Of what they write to the pages that are in memory.
template <class Visit>
void for_our_pages(Visit visit) {
  constexpr std::uint64_t kThere = std::uint64_t{1} << 63;
  constexpr std::uint64_t kExclusive = std::uint64_t{1} << 56;
  constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "cannot open /proc/self/pagemap");
  for_our_mappings([&](std::uintptr_t first, std::uintptr_t end, bool is_written) {
    if (!is_written) return;
    static std::uint64_t words[512];
    for (std::uintptr_t at = first; at < end;) {
      const std::size_t wanted = std::min(sizeof words, (end - at) / page * sizeof words[0]);
      const ssize_t got = pread(fd, words, wanted, static_cast<off_t>(at / page * sizeof words[0]));
      CHECK(got == static_cast<ssize_t>(wanted), "cannot read /proc/self/pagemap");
      for (std::size_t i = 0; i < wanted / sizeof words[0]; ++i) {
        if ((words[i] & kThere) == 0 || (words[i] & kOfFile) != 0) continue;
        visit(at + i * page, (words[i] & kExclusive) != 0);
      }
      at += wanted / sizeof words[0] * page;
    }
  });
  close(fd);
}
// Those that are not shared with another process.
std::size_t pages_of_our_own() {
  std::size_t pages = 0;
  for_our_pages([&](std::uintptr_t, bool is_exclusive) { pages += is_exclusive; });
  return pages;
}

// A process that never had another thread leaves nobody behind: there is nothing to put right, and
// nothing to write, in parent or child. What either writes to after the fork is the child's own.
void alone_writes_nothing(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  std::vector<Block> blocks = fill_heap(1);
  CHECK(pages_of_our_own() > 400, "the heap is not found: %zu pages", pages_of_our_own());
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0, "pipe");
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      char byte = 0;
      CHECK(read(pipe_ends[0], &byte, 1) == 1, "read");  // the parent is out of fork
      const std::size_t pages = pages_of_our_own();
      CHECK(pages == 0, "%zu pages of the library's are not shared", pages);
      drop(blocks, 0, 1);
      CHECK(pages_of_our_own() > 0, "what is written is not seen");
      _exit(0);
    }
    CHECK(write(pipe_ends[1], "", 1) == 1, "write");
    await(child, "child that counts pages");
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  drop(blocks, 0, 1);
}

// Nobody has told such a child that it is one. It has threads, leaves them behind when it forks,
// and so does its child, which has had none of its own.
void alone_then_beside_threads(const Arguments&) {
  harness::require_library_malloc();
  std::vector<Block> blocks = fill_heap(1);
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      ParkedThreads threads(8);
      const pid_t second = fork_child();
      if (second == 0) {
        if (i % 2 != 0) use_heap(threads, true);
        const pid_t third = fork_child();
        if (third != 0) await(third, "grandchild's child");
        use_heap(threads, i >= 2);
        drop(blocks, 0, 1);
        _exit(0);
      }
      await(second, "grandchild");
      use_heap(threads, true);
      drop(blocks, 0, 1);
      _exit(0);
    }
    await(child, "child that nobody has told");
  }
  drop(blocks, 0, 1);
}

// What a fork copies beside pages: mappings, and pages of page tables. Of the heap and
// its tables, which stand where nothing else is: 64 KiB of each size, and as few tables
// in as few places as can be.
void few_tables(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  if (sysconf(_SC_PAGESIZE) != 4096) harness::skip("counted for pages of 4 KiB");
  constexpr std::uintptr_t kEndOfOurs = std::uintptr_t{80} << 40;
  std::vector<Block> blocks = fill_heap(1);
  std::size_t mappings = 0;
  for_our_mappings(
      [&](std::uintptr_t first, std::uintptr_t, bool) { mappings += first < kEndOfOurs; });
  std::set<std::pair<unsigned, std::uintptr_t>> tables;  // the level, and what it is about
  std::size_t pages = 0;
  for_our_pages([&](std::uintptr_t at, bool) {
    if (at >= kEndOfOurs) return;
    ++pages;
    for (const unsigned bits : {21u, 30u, 39u}) tables.emplace(bits, at >> bits);
  });
  printf("%zu mappings, %zu pages of page tables, %zu pages in memory\n", mappings, tables.size(),
         pages);
  CHECK(pages > 400, "the heap is not found");
  CHECK(mappings <= 19, "%zu mappings", mappings);
  CHECK(tables.size() <= 18, "%zu pages of page tables", tables.size());
  drop(blocks, 0, 1);
}

// --- What the child finds
// -------------------------------------------------------------------------------------------------

void used_at_once(const Arguments&) {
  harness::require_library_malloc();
  ParkedThreads threads(8);
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      use_heap(threads, i % 2 != 0);
      _exit(0);
    }
    await(child, "child that uses its heap");
  }
}

void thread_comes_first(const Arguments&) {
  harness::require_library_malloc();
  ParkedThreads threads(8);
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      auto body = [&] { use_heap(threads, i % 2 != 0); };
      run_in_thread(body);
      use_heap(threads, false);
      _exit(0);
    }
    await(child, "child whose new thread comes first");
  }
}

// Nobody has put anything away when the child forks: its first thread, or one that
// it has made; and so again.
void fork_again(const Arguments&) {
  harness::require_library_malloc();
  ParkedThreads threads(8);
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      auto grandchild = [&] {
        const pid_t second = fork_child();
        if (second != 0) return await(second, "grandchild");
        auto third_generation = [&] {
          const pid_t third = fork_child();
          if (third != 0) return await(third, "its child");
          use_heap(threads, true);
          _exit(0);
        };
        if (i % 4 >= 2) {
          run_in_thread(third_generation);
        } else {
          third_generation();
        }
        use_heap(threads, false);
        _exit(0);
      };
      if (i % 2 != 0) {
        run_in_thread(grandchild);
      } else {
        grandchild();
      }
      use_heap(threads, true);
      _exit(0);
    }
    await(child, "child that forks");
  }
}

// Another thread is putting away what was left while the child's first one forks: at steps all
// along its first call, in which it stops behind one instruction after the other.
std::atomic<bool> stands_in_call{false};
std::atomic<bool> goes_on{false};
void stand_in_call() {
  stands_in_call = true;
  while (!goes_on) sched_yield();
}
std::size_t first_call() {
  return harness::instructions_of([] { free(malloc(3000)); });
}

std::size_t length_of_first_call() {
  int ends[2];
  CHECK(pipe(ends) == 0, "pipe");
  const pid_t child = fork_child();
  std::size_t length = 0;
  if (child == 0) {
    auto body = [&] { length = first_call(); };
    run_in_thread(body);
    _exit(write(ends[1], &length, sizeof length) == sizeof length ? 0 : 1);
  }
  await(child, "child that counts");
  CHECK(read(ends[0], &length, sizeof length) == sizeof length, "read");
  close(ends[0]);
  close(ends[1]);
  return length;
}

void fork_meanwhile(const Arguments&) {
  harness::require_library_malloc();
  harness::require_step_count();
  ParkedThreads threads(2);
  const std::size_t length = length_of_first_call();
  const std::size_t forks = harness::is_full_run() ? 100 : 8;
  printf("the first call: %zu instructions; %zu forks in the middle of it\n", length, forks);
  CHECK(length > forks, "%zu instructions are no call", length);
  for (std::size_t i = 0; i < forks; ++i) {
    const pid_t child = fork_child();
    if (child == 0) {
      // (Of a call that has turned out shorter the other thread is at its end.)
      std::atomic<bool> done{false};
      auto body = [&] {
        harness::call_behind(1 + length * i / forks, stand_in_call);
        first_call();
        if (!stands_in_call) stand_in_call();
        while (!done) {
          std::vector<Block> own = fill_heap(7);
          drop(own, 0, 1);
        }
      };
      const auto start = [](void* what) -> void* {
        (*static_cast<decltype(body)*>(what))();
        return nullptr;
      };
      pthread_t thread{};
      CHECK(pthread_create(&thread, nullptr, start, &body) == 0, "pthread_create");
      while (!stands_in_call) sched_yield();
      const pid_t second = fork_child();
      if (second == 0) {
        use_heap(threads, true);
        _exit(0);
      }
      goes_on = true;
      await(second, "child of a fork meanwhile");
      done = true;
      CHECK(pthread_join(thread, nullptr) == 0, "pthread_join");
      _exit(0);
    }
    await(child, "child that forks meanwhile");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"few_pages", few_pages},
                            {"few_tables", few_tables},
                            {"alone_writes_nothing", alone_writes_nothing},
                            {"alone_then_beside_threads", alone_then_beside_threads},
                            {"used_at_once", used_at_once},
                            {"thread_comes_first", thread_comes_first},
                            {"fork_again", fork_again},
                            {"fork_meanwhile", fork_meanwhile}});
}
