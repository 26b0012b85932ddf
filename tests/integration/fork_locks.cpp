// fork beside threads that wait in malloc with a lock of libc's in their hands, or hold one that
// fork wants: libio's list of streams (glibc bug 19431), the name service, the loader, exit
// handlers. And what a child has to do before it may go on. A process that hangs dies of its alarm.
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "support/clock.hpp"
#include "support/harness.hpp"
#include "support/step_count.hpp"

namespace {

using Arguments = std::vector<std::string>;

std::atomic<bool> stop{false};
std::atomic<std::size_t> threads_begun{0};

// Asked by a thread before each round of its work.
bool goes_on() {
  thread_local bool has_begun = false;
  if (!std::exchange(has_begun, true)) threads_begun.fetch_add(1);
  return !stop;
}

void await(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %s %d",
        WIFEXITED(status) ? "exit code" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

void churn_a_little(unsigned seed) {
  void* blocks[40];
  for (unsigned i = 0; i < 40; ++i) blocks[i] = malloc(1 + (seed * 7919 + i * 104729) % 70000);
  for (void* block : blocks) free(block);
}
void churn() {
  for (unsigned i = 0; goes_on(); ++i) churn_a_little(i);
}

// The stream's lock is held while its buffer grows in malloc.
void write_to_memory() {
  while (goes_on()) {
    char* text = nullptr;
    std::size_t size = 0;
    FILE* stream = open_memstream(&text, &size);
    CHECK(stream != nullptr, "open_memstream: %s", strerror(errno));
    for (int i = 0; i < 300; ++i) fprintf(stream, "%0100d", i);
    fclose(stream);
    usleep(100);
    free(text);
  }
}
// The same of a stream whose buffer is written by a function that uses the heap in earnest.
void write_to_heap_user() {
  cookie_io_functions_t functions{};
  functions.write = [](void*, const char*, std::size_t size) {
    void* blocks[200];
    for (unsigned i = 0; i < 200; ++i) blocks[i] = malloc(1000 + i * 20);
    for (void* block : blocks) free(block);
    return static_cast<ssize_t>(size);
  };
  FILE* stream = fopencookie(nullptr, "w", functions);
  CHECK(stream != nullptr, "fopencookie: %s", strerror(errno));
  while (goes_on()) {
    for (int i = 0; i < 10; ++i) fprintf(stream, "%01000d", i);
    usleep(100);  // libc's locks are not fair: others want the stream, too
  }
  fclose(stream);
}
void read_lines() {
  FILE* file = tmpfile();
  CHECK(file != nullptr, "tmpfile: %s", strerror(errno));
  for (int i = 1; i < 200; ++i) fprintf(file, "%0*d\n", i * 37, i);
  while (goes_on()) {
    rewind(file);
    char* line = nullptr;
    std::size_t size = 0;
    while (getline(&line, &size, file) > 0) {
    }
    free(line);
  }
  fclose(file);
}
// The list's lock is held while each stream's is waited for.
void flush_all() {
  while (goes_on()) {
    fflush(nullptr);
    usleep(20);
  }
}
void look_up_names() {
  while (goes_on()) {
    char buffer[1024];
    passwd entry{};
    passwd* found = nullptr;
    getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found);
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* addresses = nullptr;
    if (getaddrinfo("127.0.0.1", "80", &hints, &addresses) == 0) freeaddrinfo(addresses);
  }
}
void load_and_unload() {
  const char* folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  const std::string path = std::string(folder) + "/libplugin.so";
  while (goes_on()) {
    void* plugin = dlopen(path.c_str(), RTLD_NOW);
    CHECK(plugin != nullptr, "%s", dlerror());
    dlclose(plugin);
  }
}
// libc never lets go of their list: hence the rests.
void register_handlers() {
  for (unsigned i = 0; goes_on(); ++i) {
    CHECK(atexit([] { free(malloc(100)); }) == 0, "atexit refused handler %u", i);
    if (i % 100 == 99) usleep(1000);
  }
}

using Work = void (*)();

void fork_beside(std::initializer_list<Work> works, int forks) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  std::vector<std::thread> threads;
  for (const Work work : works) threads.emplace_back(work);
  while (threads_begun < works.size()) std::this_thread::yield();
  for (int i = 0; i < forks; ++i) {
    churn_a_little(static_cast<unsigned>(i));
    const pid_t child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
      alarm(harness::kSecondsToHang);
      churn_a_little(static_cast<unsigned>(i));
      FILE* null = fopen("/dev/null", "w");
      fprintf(null, "%d", i);
      fclose(null);
      fflush(nullptr);
      _exit(0);
    }
    await(child);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}

int forks_wanted() {
  return harness::is_full_run() ? 3000 : 150;
}

void streams(const Arguments&) {
  fork_beside(
      {write_to_memory, write_to_heap_user, write_to_heap_user, flush_all, read_lines, churn},
      forks_wanted());
}
void names(const Arguments&) {
  fork_beside({look_up_names, look_up_names, churn}, forks_wanted());
}
void loader(const Arguments&) {
  fork_beside({load_and_unload, churn}, forks_wanted());
}
void exit_handlers(const Arguments&) {
  fork_beside({register_handlers, churn, flush_all}, forks_wanted());
}
void everything(const Arguments&) {
  fork_beside({write_to_memory, write_to_heap_user, flush_all, read_lines, look_up_names,
               load_and_unload, register_handlers, churn},
              forks_wanted());
}

// The process ends while threads fork: exit handlers and destructors use malloc,
// and streams are flushed.
void exit_meanwhile(const Arguments&) {
  const int runs = harness::is_full_run() ? 20 : 8;
  for (int i = 0; i < runs; ++i) {
    const auto outcome = harness::run_self({"exit_beside_forks"});
    CHECK(outcome.exited(0), "%s", outcome.describe().c_str());
  }
}

void exit_beside_forks(const Arguments&) {
  harness::require_library_malloc();
  for (int i = 0; i < 200; ++i) {
    atexit([] {
      for (unsigned k = 0; k < 20; ++k) churn_a_little(k);
    });
  }
  std::thread(write_to_memory).detach();
  static std::atomic<unsigned> forks{0};
  for (int t = 0; t < 2; ++t) {
    std::thread([] {
      for (;;) {
        const pid_t child = fork();
        if (child == 0) {
          alarm(harness::kSecondsToHang);
          churn_a_little(1);
          _exit(0);
        }
        if (child > 0) waitpid(child, nullptr, 0);
        forks.fetch_add(1);
      }
    }).detach();
  }
  while (forks < 20) std::this_thread::yield();
  exit(0);
}

// --- What the child does before it goes on -------------------------------------------------------

// Blocks of 65,000 bytes that nobody touches, every second one freed.
class ManyBlocks {
 public:
  explicit ManyBlocks(std::size_t bytes) : blocks_(bytes / 65'000) {
    for (void*& block : blocks_) CHECK((block = malloc(65'000)) != nullptr, "refused");
    for (std::size_t i = 0; i < blocks_.size(); i += 2) free(std::exchange(blocks_[i], nullptr));
  }
  ~ManyBlocks() {
    for (void* block : blocks_) free(block);
  }
  ManyBlocks(const ManyBlocks&) = delete;
  ManyBlocks& operator=(const ManyBlocks&) = delete;
  std::size_t count() const { return blocks_.size(); }

 private:
  std::vector<void*> blocks_;
};

// A thread that is in malloc or free nearly always, or one that has been there and waits.
class SecondThread {
 public:
  explicit SecondThread(bool is_busy)
      : thread_([this, is_busy] {
          churn_a_little(3);
          has_begun_ = true;
          has_begun_.notify_all();
          while (is_busy && !stop) churn_a_little(3);
          stop.wait(false);
        }) {
    has_begun_.wait(false);
  }
  ~SecondThread() {
    stop = true;
    stop.notify_all();
    thread_.join();
    stop = false;
  }
  SecondThread(const SecondThread&) = delete;
  SecondThread& operator=(const SecondThread&) = delete;

 private:
  std::atomic<bool> has_begun_{false};
  std::thread thread_;
};

// What a child reports of its first moments.
template <class Report, class Measure>
Report report_of_child(Measure measure) {
  int ends[2];
  CHECK(pipe(ends) == 0, "pipe: %s", strerror(errno));
  const pid_t child = fork();
  CHECK(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    alarm(harness::kSecondsToHang);
    const Report report = measure();
    if (write(ends[1], &report, sizeof report) != sizeof report) _exit(1);
    churn_a_little(5);
    _exit(0);
  }
  close(ends[1]);
  Report report;
  CHECK(read(ends[0], &report, sizeof report) == sizeof report, "no answer from the child");
  close(ends[0]);
  await(child);
  return report;
}

// Counted from the first of the child's handlers on: the library's is told of later.
std::atomic<bool> children_count{false};
void count_in_child() {
  if (children_count) harness::begin_count();
}
// Of no object, so that it stays as long as the process: glibc 2.36 aborts where one thread forks
// while the exit of another takes handlers off its list.
extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(),
                                 void* object);
void tell_of_counting(int, char**, char**) {
  __register_atfork(nullptr, nullptr, count_in_child, nullptr);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_all)(int, char**,
                                                                       char**) = tell_of_counting;

// Until malloc has answered in the child.
std::size_t instructions_of_child() {
  children_count = true;
  const auto count = report_of_child<std::size_t>([] {
    free(malloc(100));
    return harness::end_count();
  });
  children_count = false;
  return count;
}
std::size_t page_faults_of_child() {
  return report_of_child<std::size_t>([] {
    free(malloc(100));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::size_t>(usage.ru_minflt);
  });
}

// Where the other thread was inside, the child walks over the records: it copies their pages, but
// none of the heap's own. Where it was not, the child looks at some words of bits.
void child_is_quick(const Arguments&) {
  harness::require_library_malloc();
  harness::require_step_count();
  alarm(harness::kSecondsToHang);
  // No tick of the decay comes in between: a child that counts is slow.
  harness::stop_clock();
  std::size_t instructions_before = 0;
  std::size_t blocks_before = 0;
  for (const std::size_t mib : {std::size_t{32}, std::size_t{512}}) {
    const ManyBlocks blocks(mib << 20);
    {
      const SecondThread second(false);
      const std::size_t instructions = instructions_of_child();
      printf("%zu MiB, %zu blocks: %zu instructions\n", mib, blocks.count(), instructions);
      // Twice what it took when this was written; then what more blocks may add.
      const std::size_t most =
          blocks_before == 0 ? 16'000
                             : instructions_before + 2000 + 3 * (blocks.count() - blocks_before);
      CHECK(instructions <= most,
            "%zu instructions with %zu blocks, %zu with %zu: the child walks over the heap",
            instructions, blocks.count(), instructions_before, blocks_before);
      instructions_before = instructions;
      blocks_before = blocks.count();
    }
    const SecondThread second(true);
    std::vector<std::size_t> faults(60);
    for (std::size_t& one : faults) one = page_faults_of_child();
    std::sort(faults.begin(), faults.end());
    printf("the other thread busy: %zu to %zu page faults\n", faults.front(), faults.back());
    // The middle one: a kernel that moves pages has faults of its own.
    const std::size_t usual = faults[faults.size() / 2];
    CHECK(usual <= 150 + blocks.count() / 30,
          "%zu page faults in a child of a process with %zu blocks", usual, blocks.count());
  }
}

double milliseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// What fork takes, in milliseconds.
struct ForkTime {
  double until_return = 0;  // from its call to its return in the child
  double work = 0;          // the child's own time until then
};

// Of 15 forks the lower quartile: the machine may be busy. But where the other thread is, the child
// may wait for a core each time: until_return is the quickest then.
ForkTime time_of_fork(std::size_t bytes, bool is_busy) {
  const ManyBlocks blocks(bytes);
  const SecondThread second(is_busy);
  std::vector<double> until_return;
  std::vector<double> work;
  for (int i = 0; i < 15; ++i) {
    const double begin = milliseconds(CLOCK_MONOTONIC);
    // The clock of a process is 0 at its birth.
    const auto taken = report_of_child<ForkTime>([begin] {
      return ForkTime{milliseconds(CLOCK_MONOTONIC) - begin,
                      milliseconds(CLOCK_PROCESS_CPUTIME_ID)};
    });
    until_return.push_back(taken.until_return);
    work.push_back(taken.work);
  }
  std::sort(until_return.begin(), until_return.end());
  std::sort(work.begin(), work.end());
  return {until_return[is_busy ? 0 : 3], work[3]};
}

void child_takes_no_time(const Arguments&) {
  harness::require_library_malloc();
  alarm(harness::kSecondsToHang);
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  for (const std::size_t gib : {std::size_t{4}, std::size_t{16}}) {
    for (const bool is_busy : {false, true}) {
      const ForkTime taken = time_of_fork(gib * kGiB, is_busy);
      const char* how = is_busy ? "busy" : "idle";
      printf("%zu GiB, the other thread %s: %.3f ms, %.3f ms of work\n", gib, how,
             taken.until_return, taken.work);
      // Where the other thread was inside the child walks over the records: 260,000 take 22 ms on
      // the slowest machine seen. (To copy what they fill would take some hundreds.)
      const double most_work = is_busy ? 60 : 9;
      CHECK(taken.until_return <= 9 && taken.work <= most_work,
            "%zu GiB, the other thread %s: %.1f ms, %.1f ms of work", gib, how, taken.until_return,
            taken.work);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"streams", streams},
                            {"names", names},
                            {"loader", loader},
                            {"exit_handlers", exit_handlers},
                            {"everything", everything},
                            {"exit_meanwhile", exit_meanwhile},
                            {"exit_beside_forks", exit_beside_forks},
                            {"child_is_quick", child_is_quick},
                            {"child_takes_no_time", child_takes_no_time}});
}
