// What a thread keeps in its own memory: the hot lists of the small classes and who it is. 16 bytes and a
// multiplier a class keep it below the 1 KiB of initial-exec TLS that a dlopen'ed library may have.
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "engines/virtual_span/standard/config.hpp"
#include "engines/virtual_span/standard/span.hpp"
#include "engines/virtual_span/standard/span_word.hpp"

namespace spanalloc::standard {

struct Lab;

/// Entry 0 of each array belongs to no class: requests of size 0 and those that overflow land there, as do
/// pointers whose hint is unset; it never holds a block or matches a page.
struct ThreadState {
  Block* head[kSmallClasses + 1];             ///< hot list of each small class; kNoBlock when empty
  std::uint64_t hot_page[kSmallClasses + 1];  ///< address >> 16 of the hot span; 0: none
  std::uint32_t magic[kSmallClasses + 1];     ///< divisibility_magic32 of the block size; 0: no hot span
  bool exited;                    ///< the exit hook has run: a LAB is taken for one call at a time
  std::uint64_t parked_identity;  ///< (my LAB, parked) and (my LAB, hot) as in SpanWord::identity();
  std::uint64_t hot_identity;     ///< all ones while there is no LAB, which equals nothing
  Lab* lab;

  constexpr ThreadState()
      : head{},
        hot_page{},
        magic{},
        exited(false),
        parked_identity(~0ull),
        hot_identity(~0ull),
        lab(nullptr) {
    for (Block*& h : head) h = const_cast<Block*>(&kNoBlock);
  }
};
static_assert(sizeof(ThreadState) <= 768);

SPANALLOC_TLS inline constinit thread_local ThreadState thread_state;

}  // namespace spanalloc::standard
