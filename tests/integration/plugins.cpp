// dlopen and dlclose of libraries that use the heap in their constructors,
// destructors and thread_locals.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;
using Work = void*(std::size_t);

std::string plugin(const char* name) {
  const char* folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  return std::string(folder) + "/" + name;
}

void* open_plugin(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr, "dlopen: %s", dlerror());
  return handle;
}

void* work(void* handle, std::size_t size) {
  auto* function = reinterpret_cast<Work*>(dlsym(handle, "plugin_work"));
  CHECK(function != nullptr, "dlsym: %s", dlerror());
  return function(size);
}

void load_and_unload(const Arguments&) {
  harness::judge_memory();
  harness::require_library_malloc();
  for (const char* name : {"libplugin.so", "libplugin_big_tls.so"}) {
    const std::string path = plugin(name);
    std::size_t settled = 0;
    for (std::size_t i = 0; i < 400; ++i) {
      // A thread of its own, because thread_local objects pin a library in the thread that made
      // them.
      std::thread([&] {
        void* handle = open_plugin(path);
        void* block = work(handle, 1000 + i);
        dlclose(handle);
        free(block);
      }).join();
      if (i == 50) settled = harness::memory().footprint();
    }
    const std::size_t now = harness::memory().footprint();
    CHECK(now <= settled + 2048, "grew from %zu to %zu KiB in 350 rounds", settled, now);
  }
}

void loaded_by_many_threads(const Arguments&) {
  harness::require_library_malloc();
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < 6; ++k) {
    threads.emplace_back([k] {
      const std::string path = plugin(k % 2 == 0 ? "libplugin.so" : "libplugin_big_tls.so");
      for (std::size_t i = 0; i < 50; ++i) {
        std::thread([&] {
          void* handle = open_plugin(path);
          void* block = work(handle, 100 * k + i + 1);
          dlclose(handle);
          free(block);
        }).join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(
      argc, argv,
      {{"load_and_unload", load_and_unload}, {"loaded_by_many_threads", loaded_by_many_threads}});
}
