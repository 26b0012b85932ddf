// Faults planted in the memory orders of the standard engine: all operations on some words have
// less than the code says.
#pragma once

#include <cstdint>

#include "model_test.hpp"
#include "standard/engine.hpp"

namespace spanalloc::model {

inline Order without_release(Order order) {
  return order == Order::acq_rel   ? Order::acquire
         : order == Order::release ? Order::relaxed
                                   : order;
}
inline Order without_acquire(Order order) {
  return order == Order::acq_rel   ? Order::release
         : order == Order::acquire ? Order::relaxed
                                   : order;
}

/// Memory in which all operations are weakened.
struct Place {
  const void* first = nullptr;
  std::size_t bytes = 0;
  bool has(const void* cell) const { return address_of(cell) - address_of(first) < bytes; }
};
// Of a span; of a cache record and of the pool below.
inline Place word_of(standard::Span& span) {
  return {&span.word, sizeof(span.word)};
}
// The first line of a span's record is the owner's: a fork's child reads its lists.
inline Place owners_line_of(standard::Span& span) {
  return {&span, kCacheLine};
}

template <class Scene, auto kPlace, Order (*kWeaken)(Order)>
struct With : Scene {
  With() {
    for (std::uint32_t n = 0; n < kPlaces; ++n) places[n] = place(n);
    plant([](const void* cell, Access, Order order) {
      for (const Place& place : places) {
        if (place.has(cell)) return kWeaken(order);
      }
      return order;
    });
  }

 private:
  static constexpr std::uint32_t kPlaces = 4;
  // (None of this in the fault: to look an address up is an operation, too.)
  Place place(std::uint32_t n) { return kPlace(*this, n); }
  static inline Place places[kPlaces];
};
inline constexpr auto kWord = [](auto& world, std::uint32_t n) {
  return word_of(*world.pages().span(standard::SpanNumber{n + 1}).record);
};
inline constexpr auto kOwnersLine = [](auto& world, std::uint32_t n) {
  return owners_line_of(*world.pages().span(standard::SpanNumber{n + 1}).record);
};
inline constexpr auto kRecord = [](auto& world, std::uint32_t n) {
  auto& record = world.pages().caches[standard::CacheNumber{n}];
  return Place{&record, sizeof(record)};
};
// The links, where they are cleared in order.
inline constexpr auto kBlocks = [](auto& world, std::uint32_t n) {
  return Place{world.pages().address(standard::SpanNumber{n + 1}), world.kOne};
};
inline constexpr auto kPool = [](auto& world, std::uint32_t) {
  return Place{&world.heap().pool().stacks(), sizeof(world.heap().pool().stacks())};
};

}  // namespace spanalloc::model
