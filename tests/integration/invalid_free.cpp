// Bad input is caught and named: one line on stderr that says what and which address, then SIGABRT.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "support/harness.hpp"

namespace {

using Arguments = std::vector<std::string>;

// Hidden from the compiler, which rightly warns about what this test does on purpose.
template <class T>
T* opaque(T* p) {
  asm volatile("" : "+r"(p));
  return p;
}
void free_it(void* p) {
  free(opaque(p));
}

// Returns the line.
std::string expect_named_abort(const char* what, const std::function<void()>& body) {
  const auto outcome = harness::run_forked(body);
  CHECK(outcome.killed_by(SIGABRT), "%s: not aborted: %s", what, outcome.describe().c_str());
  CHECK(outcome.err.rfind("spanalloc: ", 0) == 0 &&
            std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1 &&
            outcome.err.back() == '\n',
        "%s: stderr is not one line of ours: %s", what, outcome.describe().c_str());
  printf("%s: %s", what, outcome.err.c_str());
  return outcome.err;
}

// The same, and the line names the address.
std::string expect_address_named(const char* what, void* bad,
                                 const std::function<void(void*)>& body) {
  char address[32];
  snprintf(address, sizeof address, "%p", bad);
  std::string line = expect_named_abort(what, [&] { body(bad); });
  CHECK(line.find(address) != std::string::npos, "%s: %s is not named in: %s", what, address,
        line.c_str());
  return line;
}

// The same where the address lies in a block that is in use: nothing was freed twice.
void expect_named_but_not_freed(const char* what, void* bad,
                                const std::function<void(void*)>& body) {
  const std::string line = expect_address_named(what, bad, body);
  CHECK(line.find("double free") == std::string::npos && line.find("is free") == std::string::npos,
        "%s: untrue: %s", what, line.c_str());
}

char in_static_data[64];

void foreign_pointers(const Arguments&) {
  harness::require_library_malloc();
  free(malloc(1));
  char on_stack[64];
  void* mapped =
      mmap(nullptr, 1u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct Foreign {
    const char* what;
    void* address;
  };
  const Foreign all[] = {
      {"stack", on_stack + 16},
      {"static data", in_static_data},
      {"a mapping of somebody else", mapped},
      {"inside a mapping of somebody else", static_cast<char*>(mapped) + 4096},
      {"address 1", reinterpret_cast<void*>(1)},
      {"address 16", reinterpret_cast<void*>(16)},
      {"last address", reinterpret_cast<void*>(UINTPTR_MAX)},
      {"a kernel address", reinterpret_cast<void*>(0xFFFF800000000000u)},
      {"a non-canonical address", reinterpret_cast<void*>(0x4141414141414141u)},
      {"code", reinterpret_cast<void*>(&foreign_pointers)},
  };
  for (const Foreign& one : all) {
    expect_address_named(one.what, one.address, free_it);
    expect_address_named(one.what, one.address, [](void* p) { free_it(realloc(opaque(p), 500)); });
    expect_address_named(one.what, one.address, [](void* p) { ::operator delete(opaque(p)); });
  }
}

// Addresses inside the reservation that were never handed out.
void unopened_address(const Arguments&) {
  harness::require_library_malloc();
  auto* p = static_cast<char*>(malloc(64));
  expect_address_named("64 MiB behind a block", p + (std::size_t{64} << 20), free_it);
  expect_address_named("16 GiB behind a block", p + (std::size_t{16} << 30), free_it);
  free(p);
}

// Blocks of a span that nobody has had yet, some way behind the only one that was handed out.
void untouched_block(const Arguments&) {
  harness::require_library_malloc();
  const bool has_headers = getenv("SPANALLOC_CONFIG") == std::string("a2alloc");
  const auto ask_size = [](void* block) {
    volatile std::size_t size = malloc_usable_size(opaque(block));
    static_cast<void>(size);
  };
  for (const std::size_t size :
       {240u, 432u, 512u, 1000u, 1024u, 2000u, 5000u, 8192u, 10000u, 20000u, 32768u}) {
    auto* first = static_cast<char*>(malloc(size));
    auto* second = static_cast<char*>(malloc(size));
    auto* p = std::max(first, second);
    const std::size_t stride = malloc_usable_size(p) + (has_headers ? 16 : 0);
    // (Where the memory was another size's before, a few blocks are put on the list at a time.)
    const std::size_t blocks = std::max<std::size_t>(16 * 1024 / stride, 5);
    char* bad = p + blocks * stride;
    printf("%zu bytes, %zu blocks on: ", size, blocks);
    // With headers it lies in a free block, which its owner may have freed as well.
    const auto expect = [&](const char* what, const std::function<void(void*)>& body) {
      has_headers ? void(expect_address_named(what, bad, body))
                  : expect_named_but_not_freed(what, bad, body);
    };
    expect("free", free_it);
    expect("free by another thread",
           [](void* block) { std::thread([block] { free_it(block); }).join(); });
    expect("realloc", [](void* block) { free_it(realloc(opaque(block), 70000)); });
    expect("size asked", ask_size);
    free(first);
    free(second);
  }
}

// A small block that was freed last: its size is no longer anybody's to ask.
void size_of_freed_block(const Arguments&) {
  harness::require_library_malloc();
  const auto ask_size = [](void* block) {
    volatile std::size_t size = malloc_usable_size(opaque(block));
    static_cast<void>(size);
  };
  for (const std::size_t size : {64u, 240u, 1000u, 2000u, 5000u, 20000u}) {
    void* keep = malloc(size);
    void* p = malloc(size);
    expect_address_named("size asked after free", p, [&](void* block) {
      free(block);
      ask_size(block);
    });
    expect_address_named("size asked after another thread's free", p, [&](void* block) {
      std::thread([block] { free(block); }).join();
      ask_size(block);
    });
    expect_address_named("realloc after free", p, [&](void* block) {
      free(block);
      free_it(realloc(opaque(block), 70000));
    });
    free(p);
    free(keep);
  }
}

void interior_pointers(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size : {32u, 64u, 200u, 1000u, 5000u, 40000u, 200000u}) {
    auto* p = static_cast<char*>(malloc(size));
    memset(p, 0, size);
    expect_address_named("8 bytes into a block", p + 8, free_it);
    expect_address_named("16 bytes into a block", p + 16, free_it);
    expect_address_named("1 byte into a block", p + 1, free_it);
    if (size > 5000) expect_address_named("a page into a block", p + 4096, free_it);
    free(p);
  }
}

void interior_pointers_of_large(const Arguments&) {
  harness::require_library_malloc();
  auto* p = static_cast<char*>(malloc(3000000));
  memset(p, 0, 3000000);
  const auto ask_size = [](void* block) {
    volatile std::size_t size = malloc_usable_size(opaque(block));
    static_cast<void>(size);
  };
  for (const std::size_t offset : {16u, 4096u, 1u << 16, 1u << 17, 1u << 20}) {
    expect_named_but_not_freed("free of an address in a large block", p + offset, free_it);
    expect_named_but_not_freed("realloc of an address in a large block", p + offset,
                               [](void* block) { free_it(realloc(opaque(block), 500)); });
    expect_named_but_not_freed("size asked of an address in a large block", p + offset, ask_size);
  }
  expect_address_named("a word before a large block", p - 16, free_it);
  free(p);
}

void double_free_in_a_row(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size :
       {1u, 16u, 24u, 64u, 100u, 256u, 500u, 1000u, 4000u, 10000u, 100000u, 500000u}) {
    void* p = malloc(size);
    expect_address_named("double free", p, [](void* block) {
      free_it(block);
      free_it(block);
    });
    free(p);
  }
}

void double_free_of_large(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size : {1500000u, 3000000u, 50000000u}) {
    void* p = malloc(size);
    expect_address_named("double free of a large block", p, [](void* block) {
      free_it(block);
      free_it(block);
    });
    // Not only in a row: the side table knows.
    expect_address_named("double free of a large block, another one between", p, [](void* block) {
      void* other = malloc(70000000);
      free_it(block);
      free_it(other);
      free_it(block);
    });
    free(p);
  }
}

void double_free_by_another_thread(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size : {16u, 64u, 1000u, 20000u}) {
    void* keep = malloc(size);  // the span does not become empty
    void* p = malloc(size);
    expect_address_named("double free by another thread", p, [](void* block) {
      std::thread([block] {
        free_it(block);
        free_it(block);
      }).join();
    });
    free(p);
    free(keep);
  }
}

// The span of the block has gone back: its address is in no live span.
void free_into_returned_span(const Arguments&) {
  harness::require_library_malloc();
  for (const std::size_t size : {64u, 1000u, 30000u, 300000u}) {
    expect_named_abort("free into a span that went back", [size] {
      std::vector<void*> blocks;
      for (std::size_t bytes = 0; bytes < (16u << 20); bytes += size)
        blocks.push_back(malloc(size));
      void* middle = blocks[blocks.size() / 2];
      for (void* p : blocks) free(p);
      malloc_trim(0);
      free_it(middle);
    });
  }
}

// A write after free changes the link in a free block: caught before that address is handed out.
void overwritten_link(const Arguments&) {
  harness::require_library_malloc();
  for (const std::uintptr_t wild : {std::uintptr_t{0x4141414141414141u}, std::uintptr_t{0x1000},
                                    reinterpret_cast<std::uintptr_t>(&in_static_data)}) {
    expect_named_abort("overwritten link", [wild] {
      constexpr int kBlocks = 20000;
      static void* blocks[kBlocks];
      for (void*& p : blocks) p = malloc(64);
      for (int i = 0; i < kBlocks; i += 2) free(blocks[i]);
      for (int i = 0; i < kBlocks; i += 2) {
        *static_cast<volatile std::uintptr_t*>(opaque(blocks[i])) = wild;
      }
      for (int i = 0; i < 10 * kBlocks; ++i) {
        void* p = opaque(malloc(64));
        CHECK(p != reinterpret_cast<void*>(wild), "the written address was handed out");
      }
    });
  }
}

// No false alarms: what is legal stays silent.
void legal_uses_stay_silent(const Arguments&) {
  harness::require_library_malloc();
  const auto outcome = harness::run_forked([] {
    free(nullptr);
    free_it(malloc(0));
    for (const std::size_t alignment : {16u, 64u, 4096u, 65536u, 1u << 21}) {
      for (const std::size_t size : {1u, 100u, 5000u, 100000u, 3000000u}) {
        void* p = aligned_alloc(alignment, size);
        CHECK(p != nullptr && reinterpret_cast<std::uintptr_t>(p) % alignment == 0,
              "aligned_alloc(%zu, %zu)", alignment, size);
        memset(p, 1, malloc_usable_size(p));
        p = realloc(p, size + 1);
        std::thread([p] { free(p); }).join();
      }
    }
  });
  CHECK(outcome.exited(0) && outcome.err.empty(), "%s", outcome.describe().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return harness::run_case(argc, argv,
                           {{"foreign_pointers", foreign_pointers},
                            {"unopened_address", unopened_address},
                            {"untouched_block", untouched_block},
                            {"size_of_freed_block", size_of_freed_block},
                            {"interior_pointers", interior_pointers},
                            {"interior_pointers_of_large", interior_pointers_of_large},
                            {"double_free_in_a_row", double_free_in_a_row},
                            {"double_free_of_large", double_free_of_large},
                            {"double_free_by_another_thread", double_free_by_another_thread},
                            {"free_into_returned_span", free_into_returned_span},
                            {"overwritten_link", overwritten_link},
                            {"legal_uses_stay_silent", legal_uses_stay_silent}});
}
