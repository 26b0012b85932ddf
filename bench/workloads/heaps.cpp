// An arena a query: a heap is made, serves blocks of mixed sizes, frees some of them, and ends with
// all that is left.
// Source: beyond the papers.
//
// `kind` says whose heaps: spanalloc's (sp_heap_create), mimalloc's (mi_heap_new), jemalloc's
// arenas (arenas.create and mallocx with MALLOCX_ARENA, without a cache of the thread's), the
// standard library's std::pmr::monotonic_buffer_resource, or none: malloc, with a free for each
// block. The first three are looked for in `library`, or, where that is empty, in the process
// (LD_PRELOAD; jemalloc's mostly must be there, for its thread-local storage). `end`: each query
// has a new heap, or each thread one that is emptied after a query (mimalloc has no such function).
// An operation is one block. Each block's first and last words are written, and compared before it
// is freed or its heap ends.
#include <dlfcn.h>

#include <cstdlib>
#include <memory_resource>
#include <new>
#include <string>

#include "support/mapped_array.hpp"
#include "support/workload.hpp"

namespace {

/// What is asked of heaps. A heap is what make() returns; nullptr where there is no heap to name.
struct Kind {
  void* (*make)();
  void* (*allocate)(void* heap, std::size_t size);
  void (*free)(void* heap, void* block, std::size_t size);
  void (*empty)(void* heap);  // nullptr: it has no such function
  void (*end)(void* heap);
  bool frees_all = false;  // the program frees each block itself
};

void* handle = nullptr;
template <class F>
F* look_up(const char* name) {
  auto* const f = reinterpret_cast<F*>(dlsym(handle, name));
  if (f == nullptr) workload::unavailable((std::string("no function ") + name).c_str());
  return f;
}

// --- spanalloc -----------------------------------------------------------------------------------

void* (*sp_create)(const void*, std::size_t);
void* (*sp_malloc)(void*, std::size_t);
void (*sp_free)(void*, void*);
void (*sp_reset)(void*);
void (*sp_destroy)(void*);

Kind spanalloc() {
  sp_create = look_up<void*(const void*, std::size_t)>("sp_heap_create");
  sp_malloc = look_up<void*(void*, std::size_t)>("sp_heap_malloc");
  sp_free = look_up<void(void*, void*)>("sp_heap_free");
  sp_reset = look_up<void(void*)>("sp_heap_reset");
  sp_destroy = look_up<void(void*)>("sp_heap_destroy");
  return {[] { return sp_create(nullptr, 0); }, sp_malloc,
          [](void* heap, void* block, std::size_t) { sp_free(heap, block); }, sp_reset, sp_destroy};
}

// --- mimalloc ------------------------------------------------------------------------------------

void* (*mi_new)();
void* (*mi_malloc)(void*, std::size_t);
void (*mi_free_block)(void*);
void (*mi_destroy)(void*);

Kind mimalloc() {
  mi_new = look_up<void*()>("mi_heap_new");
  mi_malloc = look_up<void*(void*, std::size_t)>("mi_heap_malloc");
  mi_free_block = look_up<void(void*)>("mi_free");
  mi_destroy = look_up<void(void*)>("mi_heap_destroy");
  return {mi_new, mi_malloc, [](void*, void* block, std::size_t) { mi_free_block(block); }, nullptr,
          mi_destroy};
}

// --- jemalloc ------------------------------------------------------------------------------------

int (*je_mallctl)(const char*, void*, std::size_t*, void*, std::size_t);
void* (*je_mallocx)(std::size_t, int);
void (*je_dallocx)(void*, int);

constexpr int kNoCache = 1 << 8;  // MALLOCX_TCACHE_NONE
// MALLOCX_ARENA of an arena; a heap is its number plus one.
int flags_of(void* heap) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(heap)) << 20 | kNoCache;
}
void control_arena(void* heap, const char* what) {
  char name[64];
  std::snprintf(name, sizeof name, "arena.%u.%s",
                static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(heap)) - 1, what);
  workload::check(je_mallctl(name, nullptr, nullptr, nullptr, 0) == 0, "heaps: an arena");
}
Kind jemalloc() {
  je_mallctl = look_up<int(const char*, void*, std::size_t*, void*, std::size_t)>("mallctl");
  je_mallocx = look_up<void*(std::size_t, int)>("mallocx");
  je_dallocx = look_up<void(void*, int)>("dallocx");
  return {[]() -> void* {
            unsigned arena = 0;
            std::size_t size = sizeof arena;
            if (je_mallctl("arenas.create", &arena, &size, nullptr, 0) != 0) return nullptr;
            return reinterpret_cast<void*>(std::uintptr_t{arena} + 1);
          },
          [](void* heap, std::size_t size) { return je_mallocx(size, flags_of(heap)); },
          [](void*, void* block, std::size_t) { je_dallocx(block, kNoCache); },
          [](void* heap) { control_arena(heap, "reset"); },
          [](void* heap) { control_arena(heap, "destroy"); }};
}

// --- The C++ library, and malloc -----------------------------------------------------------------

using Monotonic = std::pmr::monotonic_buffer_resource;

Kind monotonic() {
  return {
      []() -> void* { return new (std::nothrow) Monotonic; },
      [](void* heap, std::size_t size) { return static_cast<Monotonic*>(heap)->allocate(size); },
      [](void* heap, void* block, std::size_t size) {
        static_cast<Monotonic*>(heap)->deallocate(block, size);
      },
      [](void* heap) { static_cast<Monotonic*>(heap)->release(); },
      [](void* heap) { delete static_cast<Monotonic*>(heap); }};
}

Kind plain() {
  static char none;
  return {[]() -> void* { return &none; },
          [](void*, std::size_t size) { return std::malloc(size); },
          [](void*, void* block, std::size_t) { std::free(block); },
          [](void*) {},
          [](void*) {},
          true};
}

// --- A query -------------------------------------------------------------------------------------

struct Block {
  char* p;
  std::size_t size;
};

void mark(const Block& block, std::uint64_t word) {
  std::memcpy(block.p, &word, sizeof word);
  std::memcpy(block.p + block.size - sizeof word, &word, sizeof word);
}
void compare(const Block& block, std::uint64_t word) {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::memcpy(&first, block.p, sizeof first);
  std::memcpy(&last, block.p + block.size - sizeof last, sizeof last);
  workload::check(first == word && last == word, "heaps: a block was overwritten");
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "heaps", "beyond the papers",
                            "an arena a query: a heap is made, serves, and ends with its blocks");
  const std::size_t kind_index = options.choice(
      "kind", {"spanalloc", "mimalloc", "jemalloc", "monotonic", "malloc"}, "whose heaps");
  const std::string library = options.text("library", "", "where they are; empty: preloaded");
  const std::size_t how = options.choice("end", {"destroy", "reset"}, "what ends a query");
  const auto queries = options.integer("queries", 100'000, 1, 1u << 31, "queries of each thread");
  const auto blocks = options.integer("blocks", 100, 1, 1u << 24, "blocks of a query");
  const auto largest = options.integer("largest", 512, 16, 1u << 24, "bytes of a block");
  const auto freed =
      options.integer("freed", 0, 0, 100, "of a hundred blocks, freed before the query ends");
  const auto threads = options.integer("threads", 1, 1, 1024, "threads");
  const auto seed = options.integer("seed", 1, 0, UINT32_MAX, "of sizes");
  options.done();

  handle = library.empty() ? RTLD_DEFAULT : dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library.empty() && handle == nullptr) workload::unavailable(dlerror());
  Kind (*const kinds[])() = {spanalloc, mimalloc, jemalloc, monotonic, plain};
  const Kind kind = kinds[kind_index]();
  const bool resets = how == 1;
  if (resets && kind.empty == nullptr) workload::unavailable("these heaps cannot be emptied");

  // Small sizes more often, by doublings; the same for every query and contender.
  workload::MappedArray<std::size_t> sizes(blocks);
  workload::Random random(seed);
  std::size_t bytes = 0;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::size_t limit = std::size_t{16} << random.below(std::bit_width(largest / 16));
    sizes[i] = random.between(16, limit);
    bytes += sizes[i];
  }

  const std::uint64_t elapsed = workload::run_threads(threads, [&](std::uint64_t thread) {
    workload::MappedArray<Block> held(blocks);
    void* heap = resets ? kind.make() : nullptr;
    for (std::uint64_t query = 0; query < queries; ++query) {
      const std::uint64_t word = thread << 32 ^ query;
      if (!resets) heap = kind.make();
      workload::check(heap != nullptr, "heaps: no heap");
      for (std::uint64_t i = 0; i < blocks; ++i) {
        Block& block = held[i];
        block = {static_cast<char*>(kind.allocate(heap, sizes[i])), sizes[i]};
        workload::check(block.p != nullptr, "heaps: malloc or its like returned null");
        mark(block, word ^ i);
        // The block before, while this one stands, as temporary ones of a program.
        if (i != 0 && i * 37 % 100 < freed) {
          compare(held[i - 1], word ^ (i - 1));
          kind.free(heap, held[i - 1].p, held[i - 1].size);
          held[i - 1].p = nullptr;
        }
      }
      for (std::uint64_t i = 0; i < blocks; ++i) {
        if (held[i].p == nullptr) continue;
        compare(held[i], word ^ i);
        if (kind.frees_all) kind.free(heap, held[i].p, held[i].size);
      }
      if (resets) {
        kind.empty(heap);
      } else {
        kind.end(heap);
      }
    }
    if (resets) kind.end(heap);
  });

  workload::Record record(options, threads);
  record.metric("ns_a_query", elapsed, queries);
  record.print(threads * queries * blocks, elapsed, threads * bytes);
}
