// The controller decides which blocks are free (Leite & Rocha, ISMM'19, section 4.1, Listing 1).
//
//   paper                    here
//   ControllerAddBlock(b)    add(block)                 [, whether it is dirty]
//   ControllerRemoveBlock(b) remove(block)              [, hold]   exactly this block, if it is
//                                                                  free now
//   ControllerGetBlock(s)    take(size)                 [, alignment, how thoroughly, hold]
//
// The paper's manager (papers/leite_rocha/manager/paper_manager.hpp) needs the plain form. The
// longer form, of static_controller.hpp, tells a manager more: it never fails to add, remembers
// what is dirty, and begins its caller's hold before it claims or hides anything. A manager that
// proves the absence of memory learns from a hold (hold_registry.hpp) that memory is neither free
// nor handed out. The operations mean the same.
#pragma once

#include <concepts>
#include <cstddef>

#include "pages/coalescing/mapper.hpp"

namespace spanalloc::coalescing {

/// A block that was claimed. `dirty`: as its header said.
struct Claimed {
  Block block;
  bool dirty = false;
  explicit operator bool() const { return static_cast<bool>(block); }
};

/// How thoroughly take() looks: at the first few blocks of each list, at more
/// of them, or at every one.
enum class Search { kQuick, kThorough, kExhaustive };

/// Which memory is wanted. Dirty memory has pages; clean memory has none yet,
/// and is known to be zero.
enum class Reuse { kDirtyFirst, kDirtyOnly, kCleanFirst };

/// The plain form, as in the paper. add() returns false if there is no memory for a node.
template <class C>
concept BlockController = requires(C& controller, Block block, std::size_t size) {
  { controller.add(block) } -> std::same_as<bool>;
  { controller.remove(block) } -> std::same_as<bool>;
  { controller.take(size) } -> std::same_as<Block>;
};

}  // namespace spanalloc::coalescing
