// Where an engine's spans get their address ranges: the concept between the engines and the page layer.
//
// The arena is cut into granules. A source hands out naturally aligned ranges of 2^order granules, opened
// (readable, writable, zero) only as they are handed out, and takes nothing back: the engine keeps what
// became free. (A source that takes ranges back and coalesces them is coalescing_arena.hpp.) Granules are
// named by their number in the arena; engines keep their per-granule side tables by that number.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace spanalloc {

/// What a source tells about itself. bytes_reserved >= bytes_opened >= bytes handed out.
struct PageSourceStatistics {
  std::size_t reserved_bytes = 0;
  std::size_t opened_bytes = 0;
  std::size_t lost_bytes = 0;  ///< address ranges that another mapping took from under us
};

template <class S>
concept PageSource = requires(S source, std::uint32_t granule, unsigned order) {
  // Prepares the reservation; safe to call again; false when not even a minimal reservation can be had.
  { source.start() } -> std::same_as<bool>;
  // First granule number of a fresh range of 2^order granules; 0 when exhausted (granule 0 is never handed
  // out). Lock-based or lock-free; off every hot path.
  { source.allocate(order) } -> std::same_as<std::uint32_t>;
  // Address of granule 0; granules handed out so far (numbers below `limit()` are open or lost); granules
  // there can ever be, constant after start(): engines size their tables by it.
  { source.base() } -> std::same_as<std::uintptr_t>;
  { source.limit() } -> std::same_as<std::size_t>;
  { source.capacity() } -> std::same_as<std::size_t>;
  { source.statistics() } -> std::same_as<PageSourceStatistics>;
  // In a fork's child, first of all: afterwards it goes on, whatever calls vanished threads were in.
  source.enter_child();
};

/// Where an engine's objects outside spans come from. Thread-safe throughout.
template <class S>
concept LargeObjectSource = requires(S source, void* p, const void* cp, std::size_t n) {
  // Zeroed, at least n bytes, at a multiple of a power of two; nullptr when memory is out.
  { source.allocate(n, n) } -> std::same_as<void*>;
  // False when p is not exactly a living object's address: then nothing has changed.
  { source.free(p) } -> std::same_as<bool>;
  // 0 when cp is not exactly a living object's address.
  { source.usable_size(cp) } -> std::same_as<std::size_t>;
  // In place or by moving pages; nullptr when that cannot be done: then nothing has changed.
  { source.resize(p, n) } -> std::same_as<void*>;
  { source.statistics().bytes } -> std::convertible_to<std::size_t>;
  { source.statistics().objects } -> std::convertible_to<std::size_t>;
  source.enter_child();  // as above
};

}  // namespace spanalloc
