// AT_SECURE: a program that gained privileges ignores SPANALLOC_* variables,
// which its caller controls.
//
// LD_PRELOAD is itself restricted in such a program, so this one is linked with the library. The
// test makes a set-group-id copy of itself and compares what an option does in both.
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
namespace fs = std::filesystem;

// What the option decides can be seen from outside: where memory lies (SPANALLOC_SEED),
// or how much is reserved.
const char* option() {
  return harness::is_standard() ? "SPANALLOC_SEED" : "SPANALLOC_ARENA_BITS";
}

void child(const Arguments&) {
  harness::require_library_malloc();
  const void* p = malloc(100);
  const std::size_t seen = harness::is_standard() ? reinterpret_cast<std::uintptr_t>(p)
                                                  : harness::memory().address_space;
  printf("secure %lu seen %zu\n", getauxval(AT_SECURE), seen);
}

struct Report {
  unsigned long secure = 0;
  std::size_t seen = 0;
};

Report report_of(const std::string& program, const char* value) {
  const auto outcome = harness::run({program, "child"}, [&] {
    unsetenv(option());
    if (value != nullptr) setenv(option(), value, 1);
  });
  harness::expect_success(outcome, program.c_str());
  CHECK(outcome.err.empty(), "%s", outcome.err.c_str());
  Report report;
  CHECK(sscanf(outcome.out.c_str(), "secure %lu seen %zu", &report.secure, &report.seen) == 2,
        "no report in %s", outcome.out.c_str());
  return report;
}

// Any group but ours will do: the real group differs from the effective one then.
gid_t another_group() {
  if (geteuid() == 0) return getegid() + 1;
  gid_t groups[256];
  const int count = getgroups(256, groups);
  for (int i = 0; i < count; ++i) {
    if (groups[i] != getgid()) return groups[i];
  }
  harness::skip("needs root or a supplementary group to make a set-group-id program");
}

std::string privileged_copy(const fs::path& folder) {
  const fs::path copy = folder / "secure_copy";
  fs::copy_file("/proc/self/exe", copy);
  if (chown(copy.c_str(), static_cast<uid_t>(-1), another_group()) != 0 ||
      chmod(copy.c_str(), 02755) != 0) {
    harness::skip("cannot make a set-group-id copy: %s", strerror(errno));
  }
  return copy;
}

void options_are_ignored(const Arguments&) {
  harness::require_library_malloc();
  char pattern[] = "/tmp/spanalloc-secure-XXXXXX";
  CHECK(mkdtemp(pattern) != nullptr, "mkdtemp: %s", strerror(errno));
  struct Cleanup {
    fs::path folder;
    ~Cleanup() { fs::remove_all(folder); }
  } cleanup{pattern};
  const std::string plain = fs::read_symlink("/proc/self/exe");
  const std::string secure = privileged_copy(pattern);

  const Report plain_default = report_of(plain, nullptr);
  const Report plain_set = report_of(plain, "32");
  const Report plain_again = report_of(plain, "32");
  const Report secure_default = report_of(secure, nullptr);
  const Report secure_set = report_of(secure, "32");
  if (secure_default.secure != 1) {
    fs::remove_all(cleanup.folder);
    harness::skip("the set-group-id copy did not become AT_SECURE (nosuid file system?)");
  }
  CHECK(plain_default.secure == 0, "the plain program is AT_SECURE");
  if (harness::is_standard()) {
    CHECK(plain_set.seen == plain_again.seen && plain_set.seen != plain_default.seen,
          "the option does nothing in a plain program");
    CHECK(secure_set.seen != plain_set.seen, "the option was obeyed in a secure program");
  } else {
    CHECK(plain_set.seen < plain_default.seen / 2,
          "the option does nothing in a plain program: %zu and %zu KiB", plain_set.seen,
          plain_default.seen);
    CHECK(secure_set.seen == secure_default.seen || secure_set.seen > plain_default.seen / 2,
          "the option was obeyed in a secure program: %zu instead of %zu KiB", secure_set.seen,
          secure_default.seen);
  }
}

// The name of a file to write to is the caller's, too.
void statistics_are_not_written(const Arguments&) {
  harness::require_library_malloc();
  char pattern[] = "/tmp/spanalloc-secure-XXXXXX";
  CHECK(mkdtemp(pattern) != nullptr, "mkdtemp: %s", strerror(errno));
  struct Cleanup {
    fs::path folder;
    ~Cleanup() { fs::remove_all(folder); }
  } cleanup{pattern};
  const fs::path file = cleanup.folder / "statistics";
  const auto run = [&](const std::string& program) {
    const auto outcome = harness::run({program, "child"},
                                      [&] { setenv("SPANALLOC_STATS_AT_EXIT", file.c_str(), 1); });
    harness::expect_success(outcome, program.c_str());
    CHECK(outcome.err.empty(), "%s", outcome.err.c_str());
    return outcome.out;
  };
  run(fs::read_symlink("/proc/self/exe"));
  CHECK(fs::remove(file), "a plain program has written no statistics");
  const std::string told = run(privileged_copy(cleanup.folder));
  if (told.find("secure 1") == std::string::npos) {
    fs::remove_all(cleanup.folder);
    harness::skip("the set-group-id copy did not become AT_SECURE (nosuid file system?)");
  }
  CHECK(!fs::exists(file), "a secure program has written statistics where its caller said");
}

// A malformed option is told about in a plain program, and not even looked at in a secure one.
void malformed_option(const Arguments&) {
  const auto outcome = harness::run_self({"child"}, [] { setenv(option(), "many", 1); });
  CHECK(outcome.exited(0), "%s", outcome.describe().c_str());
  CHECK(outcome.err.find(option()) != std::string::npos &&
            outcome.err.find('\n') == outcome.err.size() - 1,
        "expected one line that names the option, got: %s", outcome.err.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"options_are_ignored", options_are_ignored},
                            {"malformed_option", malformed_option},
                            {"statistics_are_not_written", statistics_are_not_written},
                            {"child", child}});
}
