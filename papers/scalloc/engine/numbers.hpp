// The numbers that the engine's parts name things by, each a type of its own.
#pragma once

#include <cstdint>

#include "base/number.hpp"

namespace spanalloc::scalloc {

/// A size class; see size_classes.hpp.
enum class ClassId : std::uint32_t { kNone = 0 };
/// A virtual span, by its place in the arena. 0 is never handed out.
enum class SliceNumber : std::uint32_t { kNone = 0 };

}  // namespace spanalloc::scalloc
