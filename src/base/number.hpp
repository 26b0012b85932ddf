// Numbers that are types of their own: scoped enumerations, so that one kind
// never passes for another.
#pragma once

#include <type_traits>

namespace spanalloc {

/// The number as an index or for arithmetic.
template <class Number>
  requires std::is_enum_v<Number>
constexpr std::underlying_type_t<Number> index_of(Number number) {
  return static_cast<std::underlying_type_t<Number>>(number);
}

}  // namespace spanalloc
