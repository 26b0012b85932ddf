// Free blocks: one link in the first word of each, and what it must look like.
//
// A link is the next block's address xor the block's own, stored xor a secret key of the process.
// Within a real span it is a small multiple of 16, whichever way it leads; to the list's end, which
// is null, it is the block's own address.
//
//   on a list     the word is a link
//   handed out    the word was cleared when the block left its list, and is the program's
//
// So a block that is taken from a list and has no link there is on it a second time, or was
// written to after its free: it is not handed out. And one that is freed and has a link looks
// free: a program in order meets that by a chance of 2^-47, or when it has copied the word from
// elsewhere. It is looked for.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/operators.hpp"
#include "papers/scalloc/engine/size_classes.hpp"

namespace spanalloc::scalloc {

/// Chosen by the first start of a heap.
inline constinit LinkKey link_key{};

/// Nobody reads `stored` but through link(). Nothing else is ever written into a free block.
struct [[gnu::may_alias]] FreeBlock {
  std::uint64_t stored;

  template <class Caller = NoOperator>
  SPANALLOC_INLINE std::uint64_t link() const {
    return stored ^ link_key.read_by<Caller>();
  }
  SPANALLOC_INLINE void set_link(std::uint64_t link) { stored = link ^ link_key.read(); }
  SPANALLOC_INLINE void clear_link() { stored = 0; }

  SPANALLOC_INLINE std::uint64_t link_leading_to(const FreeBlock* next) const {
    return address_of(next) ^ address_of(this);
  }
  SPANALLOC_INLINE FreeBlock* block_behind(std::uint64_t link) const {
    return pointer_to<FreeBlock>(address_of(this) ^ link);
  }

  /// nullptr: it is the last one. Anything, if the block has no link.
  FreeBlock* next() const { return block_behind(link()); }
  void link_to(const FreeBlock* next) { set_link(link_leading_to(next)); }
  /// To another place of its virtual span, or to the end.
  bool has_link() const {
    const std::uint64_t l = link();
    return (l & no_link_bits(kVirtualSpan)) == 0 || l == address_of(this);
  }
};

}  // namespace spanalloc::scalloc
