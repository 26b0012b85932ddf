// Stamps: what a workload writes into an object and finds again before it frees it.
//
// A stamp is a word of the object's address and size, so that it needs no table of its own, and an
// allocator that hands out memory twice, too small, or overwrites it is found at the free. It goes
// to the first and last eight bytes (fewer in a smaller object) and to one word in every 4 KiB
// between them: large objects become resident without the workload measuring memset.
#ifndef SPANALLOC_BENCH_STAMP_HPP
#define SPANALLOC_BENCH_STAMP_HPP

#include <cstddef>
#include <cstdint>

namespace workload {

inline constexpr std::size_t kStampStride = 4096;

// The word for this object; `salt` tells apart two objects of one size that follow
// each other at one address.
inline std::uint64_t stamp_word(const void* object, std::size_t size, std::uint64_t salt) {
  std::uint64_t z =
      reinterpret_cast<std::uintptr_t>(object) ^ (static_cast<std::uint64_t>(size) << 48) ^ salt;
  z *= 0x9e3779b97f4a7c15u;
  return z ^ (z >> 29);
}

namespace detail {
// The built-in, as -fno-builtin would make a call of every std::memcpy.
inline void store(unsigned char* at, std::uint64_t word, std::size_t bytes) {
  if (bytes >= sizeof word) [[likely]]
    __builtin_memcpy(at, &word, sizeof word);
  else
    for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(word >> (8 * i));
}
inline bool holds(const unsigned char* at, std::uint64_t word, std::size_t bytes) {
  if (bytes >= sizeof word) [[likely]] {
    std::uint64_t found;
    __builtin_memcpy(&found, at, sizeof found);
    return found == word;
  }
  for (std::size_t i = 0; i < bytes; ++i)
    if (at[i] != static_cast<unsigned char>(word >> (8 * i))) return false;
  return true;
}
}  // namespace detail

// Stamps bytes [from, size) of the object. No two words overlap.
inline void stamp(void* object, std::size_t size, std::uint64_t word, std::size_t from = 0) {
  auto* const bytes = static_cast<unsigned char*>(object);
  detail::store(bytes + from, word, size - from);
  if (size - from < 2 * sizeof word) {
    if (size - from > sizeof word)
      detail::store(bytes + from + sizeof word, word, size - from - sizeof word);
    return;
  }
  for (std::size_t at = kStampStride; at + 2 * sizeof word <= size; at += kStampStride)
    detail::store(bytes + at, word, sizeof word);
  detail::store(bytes + size - sizeof word, word, sizeof word);
}

// True where nothing has been written since stamp() with the same arguments.
inline bool stamped(const void* object, std::size_t size, std::uint64_t word,
                    std::size_t from = 0) {
  const auto* const bytes = static_cast<const unsigned char*>(object);
  if (!detail::holds(bytes + from, word, size - from)) return false;
  if (size - from < 2 * sizeof word)
    return size - from <= sizeof word ||
           detail::holds(bytes + from + sizeof word, word, size - from - sizeof word);
  for (std::size_t at = kStampStride; at + 2 * sizeof word <= size; at += kStampStride)
    if (!detail::holds(bytes + at, word, sizeof word)) return false;
  return detail::holds(bytes + size - sizeof word, word, sizeof word);
}

}  // namespace workload

#endif  // SPANALLOC_BENCH_STAMP_HPP
