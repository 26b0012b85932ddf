// Start-up and exit of a tiny program. Source: beyond the papers.
//
// Starts startup_child, a C program whose main does one malloc, `starts` times, one after the
// other, and waits for each to end. It stands beside this program and inherits its
// environment, LD_PRELOAD included, so that a start takes the loading of the allocator's
// library, its first malloc and its exit. The child is written in C: a library that brings the
// C++ runtime with it pays for that here, as it does in every C program. Operations are
// starts. A tracer adds its own time to each.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/workload.hpp"

namespace {

std::string beside_this_program(const char* name) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  workload::check(length > 0 && length < static_cast<ssize_t>(sizeof path),
                  "startup: cannot find this program");
  const std::string own(path, static_cast<std::size_t>(length));
  return own.substr(0, own.rfind('/') + 1) + name;
}

void start_and_wait(const char* path) {
  char* const arguments[] = {const_cast<char*>(path), nullptr};
  pid_t child;
  workload::check(posix_spawn(&child, path, nullptr, nullptr, arguments, environ) == 0,
                  "startup: cannot start the child");
  int status = 0;
  while (waitpid(child, &status, 0) < 0) workload::check(errno == EINTR, "startup: waitpid failed");
  workload::check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "startup: the child failed");
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "startup", "beyond the papers",
                            "start-up and exit of a tiny program");
  const auto starts =
      options.integer("starts", 300, 1, 1u << 20, "how often the tiny program is started");
  options.done();

  const std::string child = beside_this_program("startup_child");
  start_and_wait(child.c_str());  // its files are in the page cache from here on
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t i = 0; i < starts; ++i) start_and_wait(child.c_str());
  const std::uint64_t elapsed = workload::now_ns() - begin;

  workload::Record(options, 1).print(starts, elapsed, 100);  // the block of a child
}
