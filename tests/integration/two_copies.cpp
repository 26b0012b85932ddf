// Two copies of libspanalloc_sp.a in one process, each in a library of its own that is opened
// while the program runs: as many as the C library's reserve of static thread-local storage has
// room for.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

struct Copy {
  void* handle;
  void* (*take)(std::size_t);
  int (*owns)(const void*);
  void (*give)(void*);
};

Copy open_copy(const std::string& path) {
  Copy copy{};
  copy.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(copy.handle != nullptr, "dlopen: %s", dlerror());
  const auto find = [&](const char* name) {
    void* const found = dlsym(copy.handle, name);
    CHECK(found != nullptr, "dlsym: %s", dlerror());
    return found;
  };
  copy.take = reinterpret_cast<decltype(copy.take)>(find("copy_take"));
  copy.owns = reinterpret_cast<decltype(copy.owns)>(find("copy_owns"));
  copy.give = reinterpret_cast<decltype(copy.give)>(find("copy_give"));
  return copy;
}

// Bytes of thread-local storage of the library whose name ends so.
struct Sought {
  std::string end;
  std::size_t bytes;
};
std::size_t thread_local_bytes(const std::string& end) {
  Sought sought{end, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& of = *static_cast<Sought*>(data);
        const std::string name = info->dlpi_name;
        if (name.size() < of.end.size() || name.substr(name.size() - of.end.size()) != of.end)
          return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) of.bytes += info->dlpi_phdr[i].p_memsz;
        return 1;
      },
      &sought);
  return sought.bytes;
}

void side_by_side(const Arguments&) {
  const char* const folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  std::array<Copy, 2> copies{};
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::string name = "/libcopy_" + std::to_string(i + 1) + ".so";
    copies[i] = open_copy(folder + name);
    const std::size_t bytes = thread_local_bytes(name);
    CHECK(bytes > 0 && bytes < 800, "a copy has %zu bytes of thread-local storage", bytes);
  }
  const auto use = [&] {
    for (const std::size_t n : {16u, 1000u, 30'000u, 500'000u, 5'000'000u}) {
      void* const p = copies[0].take(n);
      void* const q = copies[1].take(n);
      CHECK(p != nullptr && q != nullptr, "no memory");
      memset(p, 1, n);
      memset(q, 2, n);
      CHECK(copies[0].owns(p) == 1 && copies[1].owns(q) == 1, "%zu bytes: not its own", n);
      CHECK(copies[0].owns(q) == 0 && copies[1].owns(p) == 0, "%zu bytes: another's", n);
      copies[0].give(p);
      copies[1].give(q);
    }
  };
  use();
  std::thread(use).join();
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv, {{"side_by_side", side_by_side}});
}
