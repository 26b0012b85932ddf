// The paper's controller: a lock-free external binary search tree of free blocks,
// ordered by size, then address.
//
// Source: A. Natarajan, N. Mittal, "Fast Concurrent Lock-Free Binary Search Trees", PPoPP'14, as
// Leite & Rocha use it (ISMM'19, section 4.1); get-best-fit as the latter describe it.
//
// External: blocks are leaves, inner nodes only route: keys less than the node's are on its left.
// An edge is a word with the child's number and two marks:
//   flagged   the child, a leaf, is being removed: decided, and by whom (the linearisation point of
//             remove)
//   tagged    the edge's lower end stays where it is: its sibling leaf is being removed and the
//             edge will be moved up
// A marked edge never changes again. Removing a leaf flags its edge, tags the edge of its sibling,
// and swings the edge of the lowest untagged ancestor to the sibling, which may detach a chain of
// inner nodes whose other children are all leaves being removed. Whoever swings that edge retires
// the whole chain; others that were removing leaves of it find that their leaf is gone.
//
// Nodes are reclaimed by epochs, not by hazard pointers: a seek walks through edges of nodes that
// are already detached, so no single pointer to protect says that the next one is still good.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "pages/coalescing/mapper.hpp"
#include "papers/leite_rocha/manager/node_pool.hpp"

namespace spanalloc::coalescing {

/// Thread-safe and lock-free, as long as its pool has nodes.
template <class Chunks, std::size_t kChunkNodes = 1024, std::size_t kMaxChunks = 4096,
          unsigned kEpochSlots = 128>
class TreeController {
 public:
  /// Makes the empty tree. False when there is no memory for its five nodes. Before any other use.
  bool start() {
    Guard guard(pool_.epochs(), spread_by_stack());
    const std::uint32_t nodes[] = {pool_.take(), pool_.take(), pool_.take(), pool_.take(),
                                   pool_.take()};
    for (const std::uint32_t node : nodes) {
      if (node == 0) return false;
    }
    const auto& [root, second, low, middle, high] = nodes;
    make_leaf(low, {kInfinite, 0});
    make_leaf(middle, {kInfinite, 1});
    make_leaf(high, {kInfinite, 2});
    make_inner(second, {kInfinite, 1}, low, middle);
    make_inner(root, {kInfinite, 2}, second, high);
    root_ = root;
    second_ = second;
    return true;
  }

  /// The paper's ControllerAddBlock. False when there is no memory for nodes: the block
  /// is then in nobody's books.
  bool add(Block block) {
    const Key key = key_of(block);
    Guard guard(pool_.epochs(), spread_by_stack());
    const std::uint32_t leaf = pool_.take();
    const std::uint32_t inner = leaf == 0 ? 0 : pool_.take();
    if (inner == 0) {
      if (leaf != 0) pool_.give_back(leaf);
      return false;
    }
    make_leaf(leaf, key);
    for (;;) {
      const Seek found = seek(key);
      const Key other = pool_[found.leaf].key;
      if (key < other) {
        make_inner(inner, other, leaf, found.leaf);
      } else {
        make_inner(inner, key, found.leaf, leaf);
      }
      std::uint64_t expected = edge(found.leaf);
      Atomic<std::uint64_t>& child = edge_towards(found.parent, key);
      // Release half of the exchange: whoever reaches the new nodes finds them made.
      if (child.compare_exchange_strong_seq_cst(expected, edge(inner))) return true;
      if (child_of(expected) == found.leaf && is_marked(expected)) help(key, found);
    }
  }

  /// The paper's ControllerRemoveBlock: false when exactly this block is not in the tree.
  bool remove(Block block) {
    if (!block) return false;
    Guard guard(pool_.epochs(), spread_by_stack());
    return remove_key(key_of(block));
  }

  /// The paper's ControllerGetBlock: removes and returns the least block of at least `size` units.
  Block take(std::size_t size) {
    Guard guard(pool_.epochs(), spread_by_stack());
    Key wanted{size, 0};
    for (;;) {
      Key next{kInfinite, 0};
      const Key found = pool_[seek(wanted, &next).leaf].key;
      if (found < wanted) {
        // Every leaf from `next` on is larger than all that this path could see: look there.
        if (next.size == kInfinite) return {};
        wanted = next;
        continue;
      }
      if (found.size == kInfinite) return {};
      if (remove_key(found)) return {found.first, found.size};
      wanted = {size, 0};
    }
  }

  /// Calls visit(Block) for the blocks in the tree in order; for tests and statistics,
  /// while nothing else runs.
  template <class Visit>
  void for_each(Visit visit) {
    visit_below(root_, visit);
  }
  /// Gives the nodes' memory back. Nothing may use the tree any more.
  void release() { pool_.release(); }
  /// Nodes that memory was taken for.
  std::size_t nodes() const { return pool_.nodes(); }
  void reset_after_fork() { pool_.epochs().reset_after_fork(); }

 private:
  static constexpr std::size_t kInfinite = SIZE_MAX;
  struct Key {
    std::size_t size = 0;
    std::size_t first = 0;
    bool operator<(const Key& other) const {
      return size != other.size ? size < other.size : first < other.first;
    }
    bool operator==(const Key&) const = default;
  };
  struct Node {
    Key key;                     // constant while the node can be reached
    Atomic<std::uint64_t> left;  // shared edges; both 0 in a leaf
    Atomic<std::uint64_t> right;
    Atomic<std::uint32_t> link;  // the pool's
  };
  using Pool = NodePool<Node, Chunks, kChunkNodes, kMaxChunks, kEpochSlots>;
  using Guard = typename Pool::Guard;

  static constexpr std::uint64_t kFlagged = 1;
  static constexpr std::uint64_t kTagged = 2;
  static constexpr std::uint64_t edge(std::uint32_t child) { return std::uint64_t{child} << 2; }
  static constexpr std::uint32_t child_of(std::uint64_t edge) {
    return static_cast<std::uint32_t>(edge >> 2);
  }
  static constexpr bool is_marked(std::uint64_t edge) { return (edge & (kFlagged | kTagged)) != 0; }
  static Key key_of(Block block) { return {block.size, block.first}; }

  void make_leaf(std::uint32_t node, Key key) {
    pool_[node].key = key;
    pool_[node].left.store_relaxed(0);
    pool_[node].right.store_relaxed(0);
  }
  void make_inner(std::uint32_t node, Key key, std::uint32_t left, std::uint32_t right) {
    pool_[node].key = key;
    pool_[node].left.store_relaxed(edge(left));
    pool_[node].right.store_relaxed(edge(right));
  }
  Atomic<std::uint64_t>& edge_towards(std::uint32_t node, Key key) {
    return key < pool_[node].key ? pool_[node].left : pool_[node].right;
  }

  // Where a search for a key ended. `ancestor` -> `successor` is the last untagged edge above
  // `parent`; all edges between successor and parent are tagged, so swinging that one edge removes
  // everything down to `parent`.
  struct Seek {
    std::uint32_t ancestor, successor, parent, leaf;
  };

  // `above`, if given, receives the least routing key above `key` on the path.
  Seek seek(Key key, Key* above = nullptr) {
    Seek at{root_, second_, second_, 0};
    std::uint64_t to_leaf = pool_[second_].left.load_seq_cst();  // edge parent -> leaf
    at.leaf = child_of(to_leaf);
    if (above != nullptr && key < pool_[second_].key && pool_[second_].key < *above)
      *above = pool_[second_].key;
    for (;;) {
      const std::uint64_t below = edge_towards(at.leaf, key).load_seq_cst();
      if (child_of(below) == 0) return at;
      if (above != nullptr && key < pool_[at.leaf].key) *above = pool_[at.leaf].key;
      if ((to_leaf & kTagged) == 0) {
        at.ancestor = at.parent;
        at.successor = at.leaf;
      }
      at.parent = at.leaf;
      at.leaf = child_of(below);
      to_leaf = below;
    }
  }

  bool remove_key(Key key) {
    std::uint32_t mine = 0;  // the leaf whose edge this call has flagged
    for (;;) {
      const Seek found = seek(key);
      if (mine != 0) {
        // Another thread has detached it with a chain of its own, or this thread does now.
        if (found.leaf != mine || help(key, found)) return true;
        continue;
      }
      if (!(pool_[found.leaf].key == key)) return false;
      std::uint64_t expected = edge(found.leaf);
      if (edge_towards(found.parent, key)
              .compare_exchange_strong_seq_cst(expected, expected | kFlagged)) {
        mine = found.leaf;
        if (help(key, found)) return true;
      } else if (child_of(expected) == found.leaf && is_marked(expected)) {
        help(key, found);
      }
    }
  }

  // Finishes the removal at found.parent: of the leaf towards `key`, or of its sibling. True if
  // this thread swung the edge.
  bool help(Key key, const Seek& found) {
    Node& parent = pool_[found.parent];
    const bool left = key < parent.key;
    Atomic<std::uint64_t>& towards = left ? parent.left : parent.right;
    Atomic<std::uint64_t>& other = left ? parent.right : parent.left;
    const bool removes_towards = (towards.load_seq_cst() & kFlagged) != 0;
    Atomic<std::uint64_t>& staying = removes_towards ? other : towards;
    const std::uint64_t stays = staying.fetch_or_seq_cst(kTagged) | kTagged;
    std::uint64_t expected = edge(found.successor);
    // The flag of the staying edge moves up with it: its leaf is being removed too.
    if (!edge_towards(found.ancestor, key)
             .compare_exchange_strong_seq_cst(expected, stays & ~kTagged))
      return false;
    retire_chain(key, found, child_of(stays));
    return true;
  }

  // Everything from successor to parent but `stays`: at each inner node the child off the path
  // is a leaf being removed.
  void retire_chain(Key key, const Seek& found, std::uint32_t stays) {
    for (std::uint32_t node = found.successor;;) {
      const std::uint32_t left = child_of(pool_[node].left.load_seq_cst());
      const std::uint32_t right = child_of(pool_[node].right.load_seq_cst());
      const bool last = node == found.parent;
      const std::uint32_t next = last ? stays : (key < pool_[node].key ? left : right);
      pool_.retire(next == left ? right : left);
      pool_.retire(node);
      if (last) return;
      node = next;
    }
  }

  template <class Visit>
  void visit_below(std::uint32_t node, Visit& visit) {
    const std::uint32_t left = child_of(pool_[node].left.load_seq_cst());
    if (left == 0) {
      const Key key = pool_[node].key;
      if (key.size != kInfinite) visit(Block{key.first, key.size});
      return;
    }
    visit_below(left, visit);
    visit_below(child_of(pool_[node].right.load_seq_cst()), visit);
  }

  Pool pool_;
  std::uint32_t root_ = 0;    // constant after start()
  std::uint32_t second_ = 0;  // constant after start()
};

}  // namespace spanalloc::coalescing
