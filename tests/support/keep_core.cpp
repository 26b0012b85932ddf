// Where scripts/run_ctest.py asks for it, a test that crashes leaves a core dump. Of its children,
// which often die on purpose, none does.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

extern "C" int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(),
                                 void* object);

namespace {

// (By the system call: a test may count calls of the functions. One that filters system
// calls lets this one pass.)
void allow_core(bool allowed) {
  rlimit64 limit{};
  if (syscall(SYS_prlimit64, 0, RLIMIT_CORE, nullptr, &limit) != 0) return;
  limit.rlim_cur = allowed ? limit.rlim_max : 0;
  syscall(SYS_prlimit64, 0, RLIMIT_CORE, &limit, nullptr);
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

[[gnu::constructor]] void keep_core() {
  if (is_death_test()) return allow_core(false);
  if (std::getenv("SPANALLOC_TEST_CORES") == nullptr) return;
  unsetenv("SPANALLOC_TEST_CORES");  // not for programs that the test starts
  allow_core(true);
  // Of no object, so that it stays as long as the process: glibc 2.36 aborts where one thread forks
  // while the exit of another takes handlers off its list.
  __register_atfork(nullptr, nullptr, [] { allow_core(false); }, nullptr);
}

}  // namespace
