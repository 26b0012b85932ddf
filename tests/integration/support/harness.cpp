#include "support/harness.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace harness {

namespace {

// stdio may be what is broken: lines are built on the stack and written directly.
void write_line(int fd, const char* prefix, const char* format, va_list arguments) {
  char line[1024];
  int n = snprintf(line, sizeof line, "%s", prefix);
  n += vsnprintf(line + n, sizeof line - static_cast<std::size_t>(n) - 1, format, arguments);
  if (n > static_cast<int>(sizeof line) - 2) n = static_cast<int>(sizeof line) - 2;
  line[n++] = '\n';
  if (write(fd, line, static_cast<std::size_t>(n)) < 0) _exit(1);
}

std::string real_path(const char* path) {
  char resolved[PATH_MAX];
  return realpath(path, resolved) != nullptr ? resolved : path;
}

// Reads what fits of a /proc file into `text`, zero-terminated.
void read_file(const char* path, char* text, std::size_t capacity) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "cannot open %s: %s", path, strerror(errno));
  std::size_t used = 0;
  ssize_t n = 0;
  while (used < capacity - 1 && (n = read(fd, text + used, capacity - 1 - used)) > 0) {
    used += static_cast<std::size_t>(n);
  }
  text[used] = '\0';
  close(fd);
}

std::size_t field(const char* text, const char* name) {
  const char* at = strstr(text, name);
  return at == nullptr ? 0 : strtoull(at + strlen(name), nullptr, 10);
}

// What the child has written; it ended, and so did all that it waited for.
std::string text_in(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0;
       (n = pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  return text;
}

Outcome spawn(const std::function<void()>& in_child) {
  const int out = memfd_create("out", MFD_CLOEXEC);
  const int err = memfd_create("err", MFD_CLOEXEC);
  CHECK(out >= 0 && err >= 0, "memfd_create: %s", strerror(errno));
  const pid_t child = fork();
  CHECK(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    dup2(out, 1);
    dup2(err, 2);
    alarm(kSecondsToHang);
    // Some children are to be aborted: nobody wants their memory in files.
    rlimit cores{};
    getrlimit(RLIMIT_CORE, &cores);
    cores.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &cores);
    in_child();
    _exit(0);
  }
  Outcome outcome;
  while (waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
  }
  outcome.out = text_in(out);
  outcome.err = text_in(err);
  return outcome;
}

}  // namespace

void fail(const char* file, int line, const char* format, ...) {
  char prefix[256];
  snprintf(prefix, sizeof prefix, "FAILED %s:%d (SPANALLOC_TEST_SEED=%llu): ", file, line,
           static_cast<unsigned long long>(test_seed()));
  va_list arguments;
  va_start(arguments, format);
  write_line(2, prefix, format, arguments);
  va_end(arguments);
  _exit(1);
}

void skip(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(1, "SKIPPED: ", format, arguments);
  va_end(arguments);
  _exit(77);
}

std::string library_path() {
  const char* path = getenv("SPANALLOC_LIBRARY");
  return path != nullptr ? real_path(path) : std::string();
}

void require_library_malloc() {
  const std::string wanted = library_path();
  CHECK(!wanted.empty(), "SPANALLOC_LIBRARY is not set: which malloc is under test?");
  for (const char* name : {"malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc",
                           "memalign", "malloc_usable_size", "_Znwm", "_ZdlPv"}) {
    void* address = dlsym(RTLD_DEFAULT, name);
    Dl_info where{};
    CHECK(address != nullptr && dladdr(address, &where) != 0, "%s: not found", name);
    CHECK(real_path(where.dli_fname) == wanted, "%s comes from %s, not from %s", name,
          where.dli_fname, wanted.c_str());
  }
}

bool is_standard() {
  const char* config = getenv("SPANALLOC_CONFIG");
  return config == nullptr || strcmp(config, "standard") == 0;
}

bool is_full_run() {
  const char* full = getenv("SPANALLOC_TEST_FULL");
  return full != nullptr && *full != '\0' && strcmp(full, "0") != 0;
}

Memory memory() {
  char text[8192];
  read_file("/proc/self/status", text, sizeof text);
  Memory now;
  now.peak_resident = field(text, "VmHWM:");
  now.page_tables = field(text, "VmPTE:");
  now.locked = field(text, "VmLck:");
  now.address_space = field(text, "VmSize:");
  // The kernel counts here what it keeps in its counters for each CPU above, and leaves out what
  // the page cache happens to hold.
  read_file("/proc/self/smaps_rollup", text, sizeof text);
  now.own = field(text, "Anonymous:") + field(text, "Swap:");
  return now;
}

void judge_memory() {
  char text[64];
  const int fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n < 0 ? 0 : n] = '\0';
  if (strstr(text, "[always]") != nullptr) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
}

std::size_t map_count() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "cannot open /proc/self/maps: %s", strerror(errno));
  std::size_t lines = 0;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) > 0) {
    for (ssize_t i = 0; i < n; ++i) lines += buffer[i] == '\n';
  }
  close(fd);
  return lines;
}

bool Outcome::exited(int code) const {
  return WIFEXITED(status) && WEXITSTATUS(status) == code;
}
bool Outcome::killed_by(int signal) const {
  return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

std::string Outcome::describe() const {
  char how[64];
  if (WIFEXITED(status)) {
    snprintf(how, sizeof how, "exit code %d", WEXITSTATUS(status));
  } else {
    snprintf(how, sizeof how, "signal %d%s", WTERMSIG(status),
             WTERMSIG(status) == SIGALRM ? " (hung)" : "");
  }
  return std::string(how) + "; stdout: " + out.substr(0, 300) + "; stderr: " + err.substr(0, 300);
}

Outcome run(const std::vector<std::string>& command, const std::function<void()>& prepare) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return spawn([&] {
    if (prepare) prepare();
    execvp(argv[0], argv.data());
    dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(127);
  });
}

Outcome run_self(const std::vector<std::string>& arguments, const std::function<void()>& prepare) {
  std::vector<std::string> command = {real_path("/proc/self/exe")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command, prepare);
}

Outcome run_forked(const std::function<void()>& body) {
  return spawn(body);
}

void expect_success(const Outcome& outcome, const char* what) {
  if (outcome.exited(77)) skip("%s: %s", what, outcome.out.c_str());
  CHECK(outcome.exited(0), "%s: %s", what, outcome.describe().c_str());
}

void limit_resource(int resource, std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  CHECK(setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0, "setrlimit: %s",
        strerror(errno));
  if (resource != RLIMIT_AS) return;
  constexpr rlim_t kUsualStack = 8u << 20;
  rlimit stack{};
  CHECK(getrlimit(RLIMIT_STACK, &stack) == 0, "getrlimit: %s", strerror(errno));
  if (stack.rlim_cur <= kUsualStack) return;
  stack.rlim_cur = kUsualStack;
  CHECK(setrlimit(RLIMIT_STACK, &stack) == 0, "setrlimit: %s", strerror(errno));
}

namespace {

// One byte of the pattern; the address makes a block handed out twice visible.
std::uint64_t pattern_word(const void* block, std::size_t size, std::size_t index) {
  std::uint64_t x =
      reinterpret_cast<std::uintptr_t>(block) ^ (size << 20) ^ (index * 0x9E3779B97F4A7C15u);
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

}  // namespace

void fill(void* block, std::size_t size) {
  auto* bytes = static_cast<unsigned char*>(block);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = pattern_word(block, size, i);
    memcpy(bytes + i, &word, size - i < 8 ? size - i : 8);
  }
}

bool intact(const void* block, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(block);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = pattern_word(block, size, i);
    if (memcmp(bytes + i, &word, size - i < 8 ? size - i : 8) != 0) return false;
  }
  return true;
}

bool all_zero(const void* block, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(block);
  return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

// Known before main: a static of the function's own is guarded, and a fork while one thread is
// inside leaves the child's waiting for it.
std::uint64_t test_seed() {
  return spanalloc::test::kSeed;
}

std::size_t Random::size(std::size_t largest) {
  const std::size_t dice = below(1000);
  std::size_t bound = 128;
  if (dice >= 998) {
    bound = largest;
  } else if (dice >= 970) {
    bound = 65536;
  } else if (dice >= 850) {
    bound = 4096;
  } else if (dice >= 600) {
    bound = 512;
  }
  return 1 + below(bound < largest ? bound : largest);
}

int run_case(int argc, char** argv, const std::vector<Case>& cases) {
  setlinebuf(stdout);  // what was said is there, however the process ends
  if (argc >= 2) {
    for (const Case& one : cases) {
      if (strcmp(one.name, argv[1]) != 0) continue;
      one.body(std::vector<std::string>(argv + 2, argv + argc));
      printf("%s: ok\n", argv[1]);
      fflush(stdout);
      return 0;
    }
  }
  fprintf(stderr, "usage: %s CASE, one of:", argv[0]);
  for (const Case& one : cases) fprintf(stderr, " %s", one.name);
  fprintf(stderr, "\n");
  return 2;
}

}  // namespace harness
