// One thread's dealings with an engine's heap, every promise checked: alignment, ownership,
// usable size, zeroed memory, and the content of each block from the moment it was allocated
// to the moment it is freed.
#pragma once

#include <cstring>

#include "api/malloc_api.hpp"
#include "census_check.hpp"
#include "stress_support.hpp"

namespace spanalloc::stress {

/// A block and the seed of the pattern that fills it.
struct Block {
  unsigned char* start = nullptr;
  std::size_t size = 0;
  std::uint64_t seed = 0;
};

/// The pattern: every word of a small block, every 64th word of a bigger one (its last bytes
/// always), so that a stray write of the heap into a block, or a block handed out twice, is seen.
class Pattern {
 public:
  static void write(const Block& block) {
    each_chunk(block, [](unsigned char* at, std::size_t n, std::uint64_t word) {
      std::memcpy(at, &word, n);
      return true;
    });
  }
  static bool stands(const Block& block, std::size_t bytes) {
    Block prefix = block;
    prefix.size = bytes;
    return each_chunk(prefix, [](const unsigned char* at, std::size_t n, std::uint64_t word) {
      return std::memcmp(at, &word, n) == 0;
    });
  }

 private:
  template <class Visit>
  static bool each_chunk(const Block& block, Visit&& visit) {
    const std::size_t stride = block.size <= 8192 ? 8 : 512;
    for (std::size_t i = 0; i < block.size; i += stride) {
      const std::size_t left = block.size - i;
      const std::uint64_t word = (block.seed ^ i) * 0xBF58476D1CE4E5B9u;
      if (!visit(block.start + i, left < 8 ? left : 8, word)) return false;
    }
    return true;
  }
};

template <class E>
class HeapUser {
 public:
  using Api = MallocApi<E>;

  HeapUser(std::uint64_t stream, Report& report)
      : random_(test::seed_of(stream)), report_(report) {}
  ~HeapUser() { report_.operations.fetch_add(operations_, std::memory_order_relaxed); }
  HeapUser(const HeapUser&) = delete;
  HeapUser& operator=(const HeapUser&) = delete;

  Random& random() { return random_; }

  /// A block by one of the family's functions.
  Block allocate() { return allocate(random_.size()); }
  Block allocate(std::size_t size) {
    ++operations_;
    std::size_t alignment = size < 16 ? 8 : 16;
    Block block{nullptr, size, random_.next()};
    switch (random_.below(12)) {
      case 0:
        block.start = static_cast<unsigned char*>(Api::calloc(1, size));
        if (block.start != nullptr) expect_zero(block);
        break;
      case 1:
        alignment = std::size_t{16} << random_.below(9);
        block.start = static_cast<unsigned char*>(Api::aligned_alloc(alignment, size));
        break;
      default:
        block.start = static_cast<unsigned char*>(Api::malloc(size));
    }
    expect_good(block, alignment);
    // What is usable is the caller's too: writing it finds blocks that are smaller than they say.
    if (block.start != nullptr && random_.one_in(4)) block.size = E::usable_size(block.start);
    Pattern::write(block);
    return block;
  }

  void free(Block& block) {
    if (block.start == nullptr) return;
    ++operations_;
    expect_content(block, block.size, "free");
    Api::free(block.start);
    block = {};
  }

  template <class Blocks>
  void free_all(Blocks& blocks) {
    for (Block& block : blocks) free(block);
  }

  /// A block on its way to another thread: a parcel, which lies in memory of the
  /// same heap. nullptr: refused.
  static Block* pack(const Block& block) {
    void* memory = Api::malloc(sizeof(Block));
    return memory == nullptr ? nullptr : new (memory) Block(block);
  }
  /// Frees a parcel, if it is one, and its block.
  void free_parcel(Block* parcel) {
    if (parcel == nullptr) return;
    Block block = *parcel;
    Api::free(parcel);
    free(block);
  }

  void resize(Block& block) {
    ++operations_;
    const std::size_t wanted =
        random_.one_in(3) ? random_.size() : block.size / 2 + random_.below(block.size + 16);
    const std::size_t size = wanted == 0 ? 1 : wanted;
    expect_content(block, block.size, "realloc");
    Block moved{static_cast<unsigned char*>(Api::realloc(block.start, size)), size, block.seed};
    expect_good(moved, 8);
    if (moved.start == nullptr) return;
    // The pattern's stride depends on the size: compare as much as both have of the denser one.
    const std::size_t kept = size < block.size ? size : block.size;
    if (block.size <= 8192) expect_content(moved, kept, "what realloc moved");
    Pattern::write(moved);
    block = moved;
  }

 private:
  void expect_good(const Block& block, std::size_t alignment) {
    if (block.start == nullptr) {
      report_.error("%zu bytes were refused", block.size);
    } else if (reinterpret_cast<std::uintptr_t>(block.start) % alignment != 0) {
      report_.error("%p of %zu bytes is not aligned to %zu", static_cast<void*>(block.start),
                    block.size, alignment);
    } else if (!E::owns(block.start)) {
      report_.error("%p of %zu bytes is not the engine's", static_cast<void*>(block.start),
                    block.size);
    } else if (E::usable_size(block.start) < block.size) {
      report_.error("%p: %zu bytes usable, %zu asked", static_cast<void*>(block.start),
                    E::usable_size(block.start), block.size);
    }
  }
  void expect_zero(const Block& block) {
    for (std::size_t i = 0; i < block.size; ++i) {
      if (block.start[i] == 0) continue;
      report_.error("calloc of %zu bytes: byte %zu is not zero", block.size, i);
      return;
    }
  }
  void expect_content(const Block& block, std::size_t bytes, const char* when) {
    if (block.start == nullptr || Pattern::stands(block, bytes)) return;
    report_.error("%s: content of %p (%zu bytes) was changed", when,
                  static_cast<void*>(block.start), block.size);
  }

  Random random_;
  Report& report_;
  std::size_t operations_ = 0;
};

/// With every thread joined and every block freed: nothing may be left anywhere.
template <class E>
void expect_everything_returned(Report& report) {
  const std::string left = test::leftovers<E>();
  if (!left.empty()) report.error("%s", left.c_str());
}

/// At rest, with blocks still out: each span is in exactly one place.
template <class E>
void expect_consistent(Report& report) {
  if constexpr (requires(E& engine) { test::census_of(engine); }) {
    E engine;
    const test::CensusVerdict verdict = test::judge(test::census_of(engine));
    if (!verdict.consistent) report.error("census with live blocks: %s", verdict.text.c_str());
  }
}

}  // namespace spanalloc::stress
