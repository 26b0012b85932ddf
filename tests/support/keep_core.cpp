// Where scripts/run_ctest.py asks for it, a test that crashes or hangs leaves a core dump. Of its
// children, which often die on purpose, only one that hangs does.
//
// Each process ends by an alarm of its own, so many seconds after its start. A child starts later
// than its parent, and so does its alarm: no test takes the end of a child that hung for the death
// that it waits for. The parent's alarm came before, and has failed the test.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(),
                                 void* object);

namespace {

double seconds_to_hang = 0;  // 0: nobody asks

// (By the system call, as below: a test may count calls of the functions. One that filters system
// calls lets these pass.)
void allow_core(bool allowed) {
  rlimit64 limit{};
  if (syscall(SYS_prlimit64, 0, RLIMIT_CORE, nullptr, &limit) != 0) return;
  limit.rlim_cur = allowed ? limit.rlim_max : 0;
  syscall(SYS_prlimit64, 0, RLIMIT_CORE, &limit, nullptr);
}

// A folder for the core alone: a child that hung, too, writes its own at the same time.
void enter_own_folder() {
  char name[] = "hung-0000000000";
  auto number = static_cast<unsigned long>(syscall(SYS_getpid));
  for (char* digit = name + sizeof name - 2; number != 0; number /= 10) {
    *digit-- = static_cast<char>('0' + number % 10);
  }
  if (mkdir(name, 0777) == 0 && chdir(name) != 0) rmdir(name);
}

void end_as_hung(int) {
  constexpr std::string_view kSaid = "hung: ended by its alarm (tests/support/keep_core.cpp)\n";
  if (write(STDERR_FILENO, kSaid.data(), kSaid.size()) < 0) _exit(1);
  allow_core(true);
  enter_own_folder();
  // Not by abort(), in which it may hang.
  signal(SIGABRT, SIG_DFL);
  sigset_t abort_only;
  sigemptyset(&abort_only);
  sigaddset(&abort_only, SIGABRT);
  pthread_sigmask(SIG_UNBLOCK, &abort_only, nullptr);
  raise(SIGABRT);
  _exit(1);
}

// A timer and not alarm(), which a test may take back. Neither is inherited by a child.
void start_alarm() {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGALRM;
  int timer = 0;  // the kernel's
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0) return;
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(seconds_to_hang);
  when.it_value.tv_nsec =
      static_cast<long>((seconds_to_hang - static_cast<double>(when.it_value.tv_sec)) * 1e9);
  syscall(SYS_timer_settime, timer, 0, &when, nullptr);
}

// GoogleTest starts the program anew for a death test; no fork handler runs on that way.
bool is_death_test() {
  char text[4096];
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t bytes = read(file, text, sizeof text);
  close(file);
  const std::string_view line(text, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return line.find("gtest_internal_run_death_test") != std::string_view::npos;
}

void begin_as_child() {
  allow_core(false);
  if (seconds_to_hang > 0) start_alarm();
}

[[gnu::constructor]] void keep_core() {
  // (Also a program that a test starts.)
  if (const char* seconds = std::getenv("SPANALLOC_TEST_HANG_S"); seconds != nullptr) {
    seconds_to_hang = std::strtod(seconds, nullptr);
    signal(SIGALRM, end_as_hung);
    if (seconds_to_hang > 0) start_alarm();
  }
  const bool keeps_core = std::getenv("SPANALLOC_TEST_CORES") != nullptr;
  if (is_death_test()) {
    allow_core(false);
  } else if (keeps_core) {
    unsetenv("SPANALLOC_TEST_CORES");  // not for programs that the test starts
    allow_core(true);
  }
  // Of no object, so that it stays as long as the process: glibc 2.36 aborts where one thread forks
  // while the exit of another takes handlers off its list.
  if (keeps_core || seconds_to_hang > 0)
    __register_atfork(nullptr, nullptr, begin_as_child, nullptr);
}

}  // namespace
