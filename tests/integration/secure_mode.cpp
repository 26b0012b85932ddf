// AT_SECURE: a program that gained privileges ignores SPANALLOC_* variables, which its caller controls.
//
// LD_PRELOAD is itself restricted in such a program, so this one is linked with the library. The test makes a
// set-group-id copy of itself and compares how much address space is reserved.
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

constexpr char kOption[] = "SPANALLOC_ARENA_BITS";

void child(const Arguments&) {
  harness::require_library_malloc();
  free(malloc(100));
  printf("secure %lu address-space-kib %zu\n", getauxval(AT_SECURE), harness::memory().address_space);
}

struct Report {
  unsigned long secure = 0;
  std::size_t address_space = 0;
};

Report report_of(const std::string& program, const char* arena_bits) {
  const auto outcome = harness::run({program, "child"}, [&] {
    unsetenv(kOption);
    if (arena_bits != nullptr) setenv(kOption, arena_bits, 1);
  });
  harness::expect_success(outcome, program.c_str());
  CHECK(outcome.err.empty(), "%s", outcome.err.c_str());
  Report report;
  CHECK(sscanf(outcome.out.c_str(), "secure %lu address-space-kib %zu", &report.secure,
               &report.address_space) == 2,
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
  if (chown(copy.c_str(), static_cast<uid_t>(-1), another_group()) != 0 || chmod(copy.c_str(), 02755) != 0) {
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
  const Report plain_small = report_of(plain, "32");
  const Report secure_default = report_of(secure, nullptr);
  const Report secure_small = report_of(secure, "32");
  if (secure_default.secure != 1) {
    fs::remove_all(cleanup.folder);
    harness::skip("the set-group-id copy did not become AT_SECURE (nosuid file system?)");
  }
  CHECK(plain_default.secure == 0, "the plain program is AT_SECURE");
  CHECK(plain_small.address_space < plain_default.address_space / 2,
        "the option does nothing in a plain program: %zu and %zu KiB", plain_small.address_space,
        plain_default.address_space);
  CHECK(secure_small.address_space == secure_default.address_space ||
            secure_small.address_space > plain_default.address_space / 2,
        "the option was obeyed in a secure program: %zu instead of %zu KiB", secure_small.address_space,
        secure_default.address_space);
}

// A malformed option is told about in a plain program, and not even looked at in a secure one.
void malformed_option(const Arguments&) {
  const auto outcome = harness::run_self({"child"}, [] { setenv(kOption, "many", 1); });
  CHECK(outcome.exited(0), "%s", outcome.describe().c_str());
  CHECK(outcome.err.find("SPANALLOC_ARENA_BITS") != std::string::npos &&
            outcome.err.find('\n') == outcome.err.size() - 1,
        "expected one line that names the option, got: %s", outcome.err.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"options_are_ignored", options_are_ignored},
                            {"malformed_option", malformed_option},
                            {"child", child}});
}
