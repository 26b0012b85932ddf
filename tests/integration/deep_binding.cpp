// dlopen with RTLD_DEEPBIND, which the library's own dlopen drops, and what else that
// dlopen must leave as it is.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/harness.hpp"

// The plugin has one, too. The program exports its own.
extern "C" [[gnu::visibility("default")]] const char* deep_probe() {
  return "program";
}

namespace {

using Arguments = std::vector<std::string>;

// Linked at a fixed address, a program that takes malloc's address in its code has one of its own.
[[gnu::noinline]] bool is_malloc(void* address) {
  return address == reinterpret_cast<void*>(&malloc);
}

std::string in_plugins(const char* name) {
  const char* folder = getenv("SPANALLOC_TEST_PLUGINS");
  CHECK(folder != nullptr, "SPANALLOC_TEST_PLUGINS is not set");
  return std::string(folder) + "/" + name;
}

template <class Function>
Function* look_up(void* handle, const char* name) {
  auto* function = reinterpret_cast<Function*>(dlsym(handle, name));
  CHECK(function != nullptr, "dlsym: %s", dlerror());
  return function;
}

void require_our_malloc() {
  CHECK(is_malloc(dlsym(RTLD_DEFAULT, "malloc")), "malloc has two addresses");
  void* block = malloc(100);
  CHECK(look_up<int(const void*)>(RTLD_DEFAULT, "sp_owns")(block) == 1,
        "malloc is not the library's");
  free(block);
}

void* open_plugin() {
  void* plugin = dlopen(in_plugins("libdeep_plugin.so").c_str(), RTLD_NOW | RTLD_DEEPBIND);
  CHECK(plugin != nullptr, "dlopen: %s", dlerror());
  return plugin;
}

void exchange_blocks(void* plugin) {
  auto* give = look_up<char*(int)>(plugin, "plugin_gives");
  auto* take = look_up<void(void*, int)>(plugin, "plugin_takes");
  for (int round = 0; round < 1000; ++round) {
    for (int kind = 0; kind < 7; ++kind) {
      char* block = give(kind);
      CHECK(block != nullptr && memcmp(block, "block", 5) == 0, "no block of kind %d", kind);
      if (round % 2 != 0 && kind != 5) {
        block = static_cast<char*>(realloc(block, 3000));
        CHECK(block != nullptr && memcmp(block, "block", 5) == 0, "realloc lost a block of kind %d",
              kind);
      }
      if (kind == 5) {
        ::operator delete(block);
      } else {
        free(block);
      }
    }
    take(malloc(100), 0);
    take(strdup("a string of the C library"), 0);
    take(malloc(100000), 0);
    take(calloc(50, 50), 1);
    take(::operator new(300), 2);
    CHECK(look_up<bool()>(plugin, "plugin_uses_c_library")(), "strdup, asprintf, getline");
  }
}

void blocks_change_sides(const Arguments&) {
  require_our_malloc();
  exchange_blocks(open_plugin());
}

// The first calls of dlopen, at once.
void first_calls_by_threads(const Arguments&) {
  require_our_malloc();
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      while (!go.load()) std::this_thread::yield();
      exchange_blocks(open_plugin());
    });
  }
  go.store(true);
  for (auto& thread : threads) thread.join();
}

// Prints what deep_probe is to the plugin.
void say_what_plugin_sees(const Arguments&) {
  require_our_malloc();
  printf("%s\n", look_up<const char*()>(open_plugin(), "plugin_sees")());
}

void option_keeps_the_flag(const Arguments&) {
  const std::vector<std::string> child = {"say_what_plugin_sees"};
  const auto usual = harness::run_self(child);
  CHECK(usual.exited(0) && usual.out.rfind("program\n", 0) == 0, "%s", usual.describe().c_str());
  const auto kept = harness::run_self(child, [] { setenv("SPANALLOC_DEEPBIND", "keep", 1); });
  CHECK(kept.exited(0) && kept.out.rfind("plugin\n", 0) == 0, "%s", kept.describe().c_str());
  CHECK(kept.err.empty(), "said: %s", kept.err.c_str());
  const auto wrong = harness::run_self(child, [] { setenv("SPANALLOC_DEEPBIND", "yes", 1); });
  CHECK(wrong.exited(0) && wrong.out.rfind("program\n", 0) == 0, "%s", wrong.describe().c_str());
  CHECK(wrong.err == "spanalloc: ignored SPANALLOC_DEEPBIND=yes: want keep\n", "said: %s",
        wrong.err.c_str());
}

// The file is in the opener's RUNPATH and nowhere else.
void runpath_of_the_caller(const Arguments&) {
  require_our_malloc();
  CHECK(dlopen("libopened.so", RTLD_NOW) == nullptr,
        "found without the opener: this test shows nothing");
  void* opener = dlopen(in_plugins("opener/libopener.so").c_str(), RTLD_NOW);
  CHECK(opener != nullptr, "dlopen: %s", dlerror());
  for (const int flags : {RTLD_NOW, RTLD_NOW | RTLD_DEEPBIND}) {
    void* opened =
        look_up<void*(const char*, int)>(opener, "open_from_here")("libopened.so", flags);
    CHECK(opened != nullptr, "dlopen: %s", dlerror());
    CHECK(look_up<int()>(opened, "opened_works")(), "the library that was opened");
    CHECK(dlclose(opened) == 0, "dlclose: %s", dlerror());
  }
}

Lmid_t namespace_of(void* handle) {
  Lmid_t id = -1;
  CHECK(dlinfo(handle, RTLD_DI_LMID, &id) == 0, "dlinfo: %s", dlerror());
  return id;
}

void namespace_of_the_caller(const Arguments&) {
  require_our_malloc();
  void* opener = dlmopen(LM_ID_NEWLM, in_plugins("opener/libopener.so").c_str(), RTLD_NOW);
  CHECK(opener != nullptr, "dlmopen: %s", dlerror());
  CHECK(namespace_of(opener) != LM_ID_BASE, "no namespace of its own");
  for (const int flags : {RTLD_NOW, RTLD_NOW | RTLD_DEEPBIND}) {
    void* opened =
        look_up<void*(const char*, int)>(opener, "open_from_here")("libopened.so", flags);
    CHECK(opened != nullptr && namespace_of(opened) == namespace_of(opener),
          "opened in another namespace");
    CHECK(look_up<int()>(opened, "opened_works")(), "the library that was opened");
    CHECK(dlclose(opened) == 0, "dlclose: %s", dlerror());
  }
}

void answers_as_before(const Arguments&) {
  require_our_malloc();
  for (const int deep : {0, RTLD_DEEPBIND}) {
    CHECK(dlerror() == nullptr, "an error before anything failed");
    CHECK(dlopen("libthere-is-no-such-library.so", RTLD_NOW | deep) == nullptr,
          "opened what is not there");
    const char* error = dlerror();
    CHECK(error != nullptr && strstr(error, "libthere-is-no-such-library.so") != nullptr,
          "dlerror: %s", error);
    CHECK(dlerror() == nullptr, "an error told twice");
    CHECK(dlopen("libc.so.6", deep) == nullptr && dlerror() != nullptr,
          "a mode without RTLD_NOW or RTLD_LAZY");

    const std::string path = in_plugins("libdeep_plugin.so");
    CHECK(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | deep) == nullptr, "RTLD_NOLOAD has loaded");
    CHECK(dlerror() == nullptr, "an error of RTLD_NOLOAD");
    void* plugin = dlopen(path.c_str(), RTLD_LAZY | deep);
    CHECK(plugin != nullptr && dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | deep) == plugin,
          "RTLD_NOLOAD");
    CHECK(dlclose(plugin) == 0 && dlclose(plugin) == 0, "dlclose: %s", dlerror());

    void* program = dlopen(nullptr, RTLD_NOW | deep);
    CHECK(
        program != nullptr && dlsym(program, "deep_probe") == reinterpret_cast<void*>(&deep_probe),
        "dlopen(NULL) is not the program");
    errno = 4711;
    CHECK(dlopen(nullptr, RTLD_NOW | deep) == program && errno == 4711, "errno is %d", errno);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"blocks_change_sides", blocks_change_sides},
                            {"first_calls_by_threads", first_calls_by_threads},
                            {"say_what_plugin_sees", say_what_plugin_sees},
                            {"option_keeps_the_flag", option_keeps_the_flag},
                            {"runpath_of_the_caller", runpath_of_the_caller},
                            {"namespace_of_the_caller", namespace_of_the_caller},
                            {"answers_as_before", answers_as_before}});
}
