// SPANALLOC_STATS_AT_EXIT: what is written when a process ends, by which processes, and that
// nothing which becomes of it changes how they end.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr char kOption[] = "SPANALLOC_STATS_AT_EXIT";

struct Folder {
  Folder() {
    char pattern[] = "/tmp/spanalloc-statistics-XXXXXX";
    CHECK(mkdtemp(pattern) != nullptr, "mkdtemp: %s", strerror(errno));
    path = pattern;
  }
  ~Folder() { fs::remove_all(path); }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path)) found.push_back(entry.path().filename());
    return found;
  }
  fs::path path;
};

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// One whole document, as far as its ends tell. (conformance.statistics reads such documents.)
bool is_document(const std::string& text) {
  return text.rfind("{\n  \"schema\": 1,\n", 0) == 0 && text.size() > 4 &&
         text.compare(text.size() - 3, 3, "\n}\n") == 0 && text.find("\n}\n") == text.size() - 3;
}

harness::Outcome run_child(const std::string& value, const Arguments& arguments) {
  return harness::run_self(arguments, [&] { setenv(kOption, value.c_str(), 1); });
}

// Ends as the argument says.
void child(const Arguments& how) {
  harness::require_library_malloc();
  free(malloc(1000));
  if (how[0] == "code") exit(42);
  if (how[0] == "_exit") _exit(0);
  if (how[0] == "fork") {
    for (int i = 0; i < 2; ++i) {
      const pid_t pid = fork();
      if (pid == 0) exit(0);
      int status = 0;
      CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "a child: %d", status);
    }
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    CHECK(pid > 0 && waitpid(pid, nullptr, 0) == pid, "a child that ends by _exit");
  }
  if (how[0] == "exec") {
    const std::string self = fs::read_symlink("/proc/self/exe");
    execl(self.c_str(), self.c_str(), "child", "plain", nullptr);
    CHECK(false, "exec: %s", strerror(errno));
  }
  if (how[0] == "forgets") {  // its environment, and where that was
    char* value = getenv(kOption);
    memset(value, 'x', strlen(value));
    clearenv();
  }
  if (how[0] == "retitles") {  // writes over what the kernel has told it
    for (char* text : {program_invocation_name, reinterpret_cast<char*>(getauxval(AT_EXECFN))})
      memset(text, 'x', strlen(text));
  }
  if (how[0] == "limited") {
    const rlimit no_files{0, 0};
    CHECK(setrlimit(RLIMIT_FSIZE, &no_files) == 0, "setrlimit: %s", strerror(errno));
    exit(7);
  }
  if (how[0] == "threads") {
    static std::atomic<unsigned> rounds{0};
    for (int i = 0; i < 3; ++i) {
      std::thread([] {
        for (;; ++rounds) free(malloc(rounds % 9000));
      }).detach();
    }
    while (rounds < 10000) std::this_thread::yield();
    exit(0);
  }
}

void written_at_exit(const Arguments&) {
  const Folder folder;
  const fs::path file = folder.path / "file";
  for (const char* how : {"plain", "forgets", "code"}) {
    std::ofstream(file) << std::string(100000, 'x');  // is written over
    const auto outcome = run_child(file, {"child", how});
    CHECK(outcome.exited(strcmp(how, "code") == 0 ? 42 : 0), "%s", outcome.describe().c_str());
    CHECK(outcome.err.empty(), "%s", outcome.err.c_str());
    const std::string text = text_of(file);
    CHECK(is_document(text), "%s: %s", how, text.c_str());
    CHECK(text.find("\"pid\": ") != std::string::npos, "the kernel was not asked: %s",
          text.c_str());
  }
  CHECK(folder.files().size() == 1, "more files than one");
  fs::remove(file);
  harness::expect_success(run_child(file, {"child", "_exit"}), "_exit");
  CHECK(folder.files().empty(), "_exit has written statistics");
}

void of_each_process(const Arguments&) {
  const Folder folder;
  harness::expect_success(run_child(folder.path / "a%%%p.%x", {"child", "fork"}), "fork");
  CHECK(folder.files().size() == 3, "%zu processes have written, not 3", folder.files().size());
  for (const std::string& name : folder.files()) {
    const std::string text = text_of(folder.path / name);
    const std::string number = name.substr(2, name.find('.') - 2);
    CHECK(is_document(text) && text.find("\"pid\": " + number + ",") != std::string::npos &&
              name == "a%" + number + ".%x",
          "%s: %s", name.c_str(), text.c_str());
    fs::remove(folder.path / name);
  }
  // What a process executes is a process of its own, under the same number: it alone ends by exit.
  harness::expect_success(run_child(folder.path / "%p", {"child", "exec"}), "exec");
  CHECK(folder.files().size() == 1, "%zu files", folder.files().size());
}

void named_by_the_program(const Arguments&) {
  const Folder folder;
  harness::expect_success(run_child(folder.path / "%n.%%n", {"child", "retitles"}), "retitles");
  const auto files = folder.files();
  CHECK(files.size() == 1 &&
            files[0] == fs::read_symlink("/proc/self/exe").filename().string() + ".%n",
        "%zu files, %s", files.size(), files.empty() ? "" : files[0].c_str());
}

void standard_error(const Arguments&) {
  for (const char* place : {"-", "stderr"}) {
    const auto outcome = run_child(place, {"child", "code"});
    CHECK(outcome.exited(42), "%s", outcome.describe().c_str());
    CHECK(is_document(outcome.err), "%s", outcome.err.c_str());
  }
}

void what_cannot_be_written(const Arguments&) {
  const Folder folder;
  const fs::path fifo = folder.path / "fifo";
  CHECK(mkfifo(fifo.c_str(), 0600) == 0, "mkfifo: %s", strerror(errno));
  const struct {
    std::string place;
    const char* why;
  } kRefused[] = {{"/nowhere/at/all", "No such file or directory"},
                  {folder.path.string(), "Is a directory"},
                  {"/dev/full", "not all of it could be written"},
                  {fifo.string(), "No such device or address"},
                  {std::string(4000, 'n'), "File name too long"},
                  {std::string(3999, '%') + "p", "File name too long"}};
  for (const auto& [place, why] : kRefused) {
    const auto outcome = run_child(place, {"child", "code"});
    CHECK(outcome.exited(42), "%s: %s", place.c_str(), outcome.describe().c_str());
    const std::string wanted = ": " + std::string(why) + "\n";
    CHECK(outcome.err.rfind("spanalloc: cannot write statistics to " + place.substr(0, 150), 0) ==
                  0 &&
              outcome.err.size() < 300 && outcome.err.ends_with(wanted),
          "%s", outcome.err.c_str());
  }
  const auto named = run_child("/nowhere/a.%p", {"child", "code"});
  CHECK(named.err.find("%p") == std::string::npos, "%s", named.err.c_str());
  const auto too_long = run_child(std::string(5000, 'n'), {"child", "code"});
  CHECK(too_long.exited(42), "%s", too_long.describe().c_str());
  CHECK(too_long.err.rfind("spanalloc: ignored SPANALLOC_STATS_AT_EXIT=", 0) == 0, "%s",
        too_long.err.c_str());
  const auto unset = run_child("", {"child", "code"});
  CHECK(unset.exited(42) && unset.err.empty(), "%s", unset.describe().c_str());
}

void keeps_the_exit_code(const Arguments&) {
  const Folder folder;
  // Beyond a limit on files: SIGXFSZ. (Standard error may be such a file, too.)
  const fs::path file = folder.path / "file";
  const auto limited = run_child(file, {"child", "limited"});
  CHECK(limited.exited(7), "%s", limited.describe().c_str());
  CHECK(fs::exists(file) && fs::file_size(file) == 0, "the limit has stopped nothing");
  // To a pipe that nobody reads: SIGPIPE. To no file at all.
  for (const bool is_pipe : {true, false}) {
    const auto outcome = harness::run_self({"child", "code"}, [&] {
      setenv(kOption, "-", 1);
      signal(SIGPIPE, SIG_DFL);
      int ends[2];
      if (is_pipe && pipe(ends) == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
      } else {
        close(2);
      }
    });
    CHECK(outcome.exited(42), "%s", outcome.describe().c_str());
  }
}

void while_threads_run(const Arguments&) {
  const Folder folder;
  for (int i = 0; i < 20; ++i) {
    const fs::path file = folder.path / "file";
    harness::expect_success(run_child(file, {"child", "threads"}), "threads");
    CHECK(is_document(text_of(file)), "%s", text_of(file).c_str());
    fs::remove(file);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"written_at_exit", written_at_exit},
                            {"of_each_process", of_each_process},
                            {"named_by_the_program", named_by_the_program},
                            {"standard_error", standard_error},
                            {"what_cannot_be_written", what_cannot_be_written},
                            {"keeps_the_exit_code", keeps_the_exit_code},
                            {"while_threads_run", while_threads_run},
                            {"child", child}});
}
