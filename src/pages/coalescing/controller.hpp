// The controller decides which blocks are free (Leite & Rocha, ISMM'19, section 4.1, Listing 1).
//
//   paper                    here
//   ControllerAddBlock(b)    add(block)                 [, whether it is dirty]
//   ControllerRemoveBlock(b) remove(block)              [, hold]   exactly this block, if it is
//                                                                  free now
//   ControllerGetBlock(s)    take(size)                 [, alignment, how thoroughly, hold]
//
// The paper's manager (leite_rocha/paper_manager.hpp) needs the plain form. The longer form
// tells a manager more, and learns from a hold (hold_registry.hpp) which operation has the
// memory that is neither free nor handed out. A manager that proves the absence of memory
// needs that (manager.hpp). The type of the hold decides which form a controller has; the
// operations mean the same.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

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

/// The block in what take() has returned, which is a block or a claim; no block: there was none.
inline Block block_of(const Block& taken) {
  return taken;
}
inline Block block_of(const Claimed& taken) {
  return taken.block;
}

/// As in the paper. add() returns false if there is no memory for a node.
template <class C>
concept PlainController = requires(C& controller, Block block, std::size_t size) {
  { controller.add(block) } -> std::same_as<bool>;
  { controller.remove(block) } -> std::same_as<bool>;
  { controller.take(size) } -> std::same_as<Block>;
};

/// Never fails to add; remembers what is dirty; begins its caller's hold before it
/// claims or hides anything.
template <class C, class Hold>
concept HoldingController = requires(C& controller, Block block, std::size_t size,
                                     std::size_t alignment, Search search, Hold& hold) {
  { controller.add(block, true) } -> std::same_as<void>;
  { controller.remove(block, hold) } -> std::same_as<Claimed>;
  { controller.take(size, alignment, search, hold) } -> std::same_as<Claimed>;
};

/// Hold = void: the plain form.
template <class C, class Hold = void>
concept BlockController =
    (std::is_void_v<Hold> && PlainController<C>) || HoldingController<C, Hold>;

}  // namespace spanalloc::coalescing
