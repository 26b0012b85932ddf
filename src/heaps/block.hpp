// A block of a heap, and how it is known to be one.
//
// Blocks tile a run of slices, each with a header in front. A free block also has its links, and
// its size at its end: a boundary tag (Knuth), so that the block behind it finds its start.
//
//      header | payload ....................... | header | next | previous | ... | size | header
//     ^ a block in use                          ^ a free block                          ^ the next
//
// A header is one word: {check:32, size:28, flags:4}, where size counts bytes and is a multiple of
// 16. The check is a keyed function of the rest and of the header's address. So a word that the
// program has written there, a header that was moved, and one of another heap, or of the same heap
// before its reset, are told from a good one, but for a chance of 2^-32.
//
//   kFree          the block is free. A block that was freed keeps a header that says so after it
//                  has been merged with its neighbour, until the memory is handed out again: by it
//                  a double free is told
//   kPreviousFree  the block before is free; its size stands before this header
//   kEnd           no block: behind the last one of a run
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc::heaps {

/// Payloads are aligned to this, and blocks are multiples of it.
inline constexpr std::size_t kGranule = 16;
inline constexpr std::size_t kHeader = 8;
/// What a free block needs: header, two links, size.
inline constexpr std::size_t kLeastBlock = 32;

/// Bytes of a block with room for n bytes; n <= SIZE_MAX - 32.
constexpr std::size_t block_bytes(std::size_t n) {
  return max_of(align_up(n + kHeader, kGranule), kLeastBlock);
}

/// What a good header says; none: the header is bad.
struct Tag {
  enum : std::uint32_t { kFree = 1, kPreviousFree = 2, kEnd = 4 };

  std::uint32_t word = 0;

  explicit operator bool() const { return word != 0; }
  std::size_t size() const { return word & ~std::uint32_t{kGranule - 1}; }
  bool is_free() const { return (word & kFree) != 0; }
  bool previous_is_free() const { return (word & kPreviousFree) != 0; }
  bool is_end() const { return (word & kEnd) != 0; }
  /// A block that is handed out.
  bool is_used() const { return word != 0 && (word & (kFree | kEnd)) == 0; }

  Tag with_previous_free(bool free) const {
    return {free ? word | kPreviousFree : word & ~std::uint32_t{kPreviousFree}};
  }
  static Tag of(std::size_t size, std::uint32_t flags = 0) {
    return {static_cast<std::uint32_t>(size) | flags};
  }
};

/// What the headers and links of a heap are stored under: another one after each reset. Two numbers
/// of which neither tells the other one: a null link shows that of links, whatever it is mixed
/// with, to who can read free memory.
struct Key {
  std::uint64_t secret = 0;  // of headers
  std::uint64_t links = 0;

  // For one address a bijection of the tag: the factor is odd, and the tag stands in the upper half
  // alone. So no change of a tag goes unseen; nor one of the check.
  std::uint32_t check(const void* header, Tag tag) const {
    constexpr std::uint64_t kMixer = 0x9E3779B97F4A7C15;
    const std::uint64_t mixed =
        (secret ^ address_of(header) ^ std::uint64_t{tag.word} << 32) * kMixer;
    return static_cast<std::uint32_t>(mixed >> 32);
  }
};

/// At its header, 8 bytes before a multiple of 16. The shard's lock gives access; only the header
/// is read without it.
class Block {
 public:
  static Block* of(const void* payload) { return pointer_to<Block>(address_of(payload) - kHeader); }
  void* payload() const { return pointer_to(address_of(this) + kHeader); }
  Block* at(std::size_t offset) const { return pointer_to<Block>(address_of(this) + offset); }
  /// Whether a header can stand at this address.
  static bool may_be_at(const void* p) { return address_of(p) % kGranule == kGranule - kHeader; }

  Tag tag(Key key) const {
    const std::uint64_t word = header_.load_relaxed();
    const Tag tag{static_cast<std::uint32_t>(word)};
    return SPANALLOC_LIKELY(key.check(this, tag) == word >> 32) ? tag : Tag{};
  }
  /// After all stores before: a fork's child that finds the header finds what it leads to.
  void set_tag(Key key, Tag tag) {
    header_.store_release(std::uint64_t{key.check(this, tag)} << 32 | tag.word);
  }

  // --- Of a free block ---

  Block* next(Key key) const { return pointer_to<Block>(next_ ^ key.links); }
  Block* previous(Key key) const { return pointer_to<Block>(previous_ ^ key.links); }
  void set_next(Key key, const Block* next) { next_ = address_of(next) ^ key.links; }
  void set_previous(Key key, const Block* previous) {
    previous_ = address_of(previous) ^ key.links;
  }
  /// It leaves its list: who gets the memory is to read no link.
  void clear_links() { next_ = previous_ = 0; }
  /// Makes it a free block of so many bytes, behind a block in use.
  void become_free(Key key, std::size_t size) {
    *size_at(size) = size;
    set_tag(key, Tag::of(size, Tag::kFree));
  }
  /// The free block that ends here. nullptr: what should be its size is none.
  Block* previous_free(Key key, std::size_t room) const {
    const std::size_t size = *size_at(0);
    if (size < kLeastBlock || size > room || size % kGranule != 0) return nullptr;
    Block* const before = pointer_to<Block>(address_of(this) - size);
    const Tag tag = before->tag(key);
    return tag.is_free() && tag.size() == size ? before : nullptr;
  }

 private:
  std::size_t* size_at(std::size_t end) const {
    return pointer_to<std::size_t>(address_of(this) + end - sizeof(std::size_t));
  }

  Atomic<std::uint64_t> header_;
  std::uint64_t next_;  // links: an address, or null, xor the key
  std::uint64_t previous_;
};
static_assert(sizeof(Block) + sizeof(std::size_t) == kLeastBlock);

}  // namespace spanalloc::heaps
