// The library itself loaded by dlopen into a program that runs on libc's malloc: early and late,
// beside libraries that use much thread-local storage, from another thread, and closed again. Its
// dlopen changes nothing then.
//
// Runs without LD_PRELOAD; SPANALLOC_LIBRARY names the library.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <functional>
#include <thread>

#include "support/harness.hpp"

// deep_plugin.cpp has one, too.
extern "C" [[gnu::visibility("default")]] const char* deep_probe() {
  return "program";
}

namespace {

using Arguments = std::vector<std::string>;

struct Heap {
  void* handle;
  void* (*malloc)(std::size_t);
  void* (*calloc)(std::size_t, std::size_t);
  void* (*realloc)(void*, std::size_t);
  void* (*aligned_alloc)(std::size_t, std::size_t);
  void (*free)(void*);
};

template <class Function>
void look_up(Heap& heap, Function*& slot, const std::string& name) {
  slot = reinterpret_cast<Function*>(dlsym(heap.handle, name.c_str()));
  CHECK(slot != nullptr, "%s: %s", name.c_str(), dlerror());
  Dl_info where{};
  CHECK(dladdr(reinterpret_cast<void*>(slot), &where) != 0 &&
            std::string(realpath(where.dli_fname, nullptr)) == harness::library_path(),
        "%s comes from %s", name.c_str(), where.dli_fname);
}

Heap load(int mode, const std::string& prefix) {
  Heap heap{};
  heap.handle = dlopen(harness::library_path().c_str(), mode);
  CHECK(heap.handle != nullptr, "dlopen: %s", dlerror());
  look_up(heap, heap.malloc, prefix + "malloc");
  look_up(heap, heap.calloc, prefix + "calloc");
  look_up(heap, heap.realloc, prefix + "realloc");
  look_up(heap, heap.aligned_alloc, prefix + "aligned_alloc");
  look_up(heap, heap.free, prefix + "free");
  return heap;
}

void churn(const Heap& heap, std::uint64_t seed) {
  struct Slot {
    void* block = nullptr;
    std::size_t size = 0;
  } slots[100];
  harness::Random random(seed);
  for (int i = 0; i < 5000; ++i) {
    Slot& slot = slots[random.below(100)];
    if (slot.block != nullptr) {
      CHECK(harness::intact(slot.block, slot.size), "block %p overwritten", slot.block);
      if (random.below(4) == 0) {
        slot.size = random.size(1u << 21);
        slot.block = heap.realloc(slot.block, slot.size);
        harness::fill(slot.block, slot.size);
      } else {
        heap.free(slot.block);
        slot.block = nullptr;
      }
      continue;
    }
    slot.size = random.size(1u << 21);
    switch (random.below(3)) {
      case 0:
        slot.block = heap.malloc(slot.size);
        break;
      case 1:
        slot.block = heap.calloc(1, slot.size);
        CHECK(slot.block != nullptr && harness::all_zero(slot.block, slot.size),
              "calloc is not zero");
        break;
      default:
        slot.block = heap.aligned_alloc(256, slot.size);
        break;
    }
    CHECK(slot.block != nullptr, "refused %zu bytes", slot.size);
    harness::fill(slot.block, slot.size);
    free(malloc(slot.size % 3000));  // libc's heap beside ours
  }
  for (Slot& slot : slots) heap.free(slot.block);
}

void churn_in_threads(const Heap& heap) {
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { churn(heap, i); });
  for (auto& thread : threads) thread.join();
  churn(heap, 77);
}

void sp_functions(const Arguments&) {
  churn_in_threads(load(RTLD_NOW | RTLD_LOCAL, "sp_"));
}
void malloc_by_dlsym(const Arguments&) {
  churn_in_threads(load(RTLD_LAZY | RTLD_GLOBAL, ""));
}
void deep_binding(const Arguments&) {
  churn_in_threads(load(RTLD_NOW | RTLD_DEEPBIND, "sp_"));
}

void from_second_thread(const Arguments&) {
  Heap heap{};
  std::thread([&] {
    heap = load(RTLD_NOW | RTLD_LOCAL, "sp_");
    churn(heap, 1);
  }).join();
  churn_in_threads(heap);
}

// Threads that exist already get the library's initial-exec thread-local storage too.
void beside_running_threads(const Arguments&) {
  std::atomic<bool> loaded{false};
  Heap heap{};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!loaded.load()) std::this_thread::yield();
      churn(heap, i);
    });
  }
  heap = load(RTLD_NOW | RTLD_LOCAL, "sp_");
  loaded.store(true);
  for (auto& thread : threads) thread.join();
}

// The loader keeps a small surplus of static thread-local storage for everybody; others use it too.
void beside_big_tls(const Arguments&) {
  const char* folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  for (const char* name : {"libplugin_big_tls.so", "libplugin.so", "libplugin_static_tls.so"}) {
    const std::string path = std::string(folder) + "/" + name;
    void* plugin = dlopen(path.c_str(), RTLD_NOW);
    CHECK(plugin != nullptr, "dlopen: %s", dlerror());
    auto* work = reinterpret_cast<void* (*)(std::size_t)>(dlsym(plugin, "plugin_work"));
    CHECK(work != nullptr, "dlsym: %s", dlerror());
    free(work(100));
  }
  churn_in_threads(load(RTLD_NOW | RTLD_LOCAL, "sp_"));
}

// dlclose while threads that used the heap live on and exit later.
void closed_again(const Arguments&) {
  std::atomic<int> phase{0};
  std::thread user;
  {
    const Heap heap = load(RTLD_NOW | RTLD_LOCAL, "sp_");
    user = std::thread([&phase, heap] {
      churn(heap, 1);
      phase.store(1);
      while (phase.load() != 2) std::this_thread::yield();
    });
    churn(heap, 2);
    while (phase.load() != 1) std::this_thread::yield();
    dlclose(heap.handle);
  }
  phase.store(2);
  user.join();
  churn_in_threads(load(RTLD_NOW | RTLD_LOCAL, "sp_"));
}

// libc's malloc is the program's: the library's own dlopen, if somebody finds it,
// leaves RTLD_DEEPBIND alone.
void keeps_deep_binding(const Arguments&) {
  const char* folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  for (const int mode : {RTLD_NOW | RTLD_GLOBAL, RTLD_NOW | RTLD_DEEPBIND}) {
    const auto outcome = harness::run_forked([&] {
      const Heap heap = load(mode, "");
      auto* open = reinterpret_cast<void* (*)(const char*, int)>(dlsym(heap.handle, "dlopen"));
      Dl_info where{};
      CHECK(dladdr(reinterpret_cast<void*>(open), &where) != 0 &&
                std::string(realpath(where.dli_fname, nullptr)) == harness::library_path(),
            "dlopen comes from %s", where.dli_fname);
      void* plugin =
          open((std::string(folder) + "/libdeep_plugin.so").c_str(), RTLD_NOW | RTLD_DEEPBIND);
      CHECK(plugin != nullptr, "dlopen: %s", dlerror());
      auto* sees = reinterpret_cast<const char* (*)()>(dlsym(plugin, "plugin_sees"));
      CHECK(sees != nullptr && strcmp(sees(), "plugin") == 0, "RTLD_DEEPBIND was dropped");
    });
    harness::expect_success(outcome, "a library loaded by dlopen");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(getenv("LD_PRELOAD") == nullptr, "this test is about a library that is not preloaded");
  return harness::run_case(argc, argv,
                           {{"sp_functions", sp_functions},
                            {"malloc_by_dlsym", malloc_by_dlsym},
                            {"deep_binding", deep_binding},
                            {"from_second_thread", from_second_thread},
                            {"beside_running_threads", beside_running_threads},
                            {"beside_big_tls", beside_big_tls},
                            {"closed_again", closed_again},
                            {"keeps_deep_binding", keeps_deep_binding}});
}
