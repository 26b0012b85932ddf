// A heap as an object: malloc and free on top of the global heap, the threads' heaps and the huge
// objects. Any number of them live side by side, of one config or of several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "engine/engine.hpp"
#include "engine/operators.hpp"
#include "os/os.hpp"
#include "pages/large_objects.hpp"
#include "pages/nested_blocks.hpp"
#include "papers/a2alloc/engine/block.hpp"
#include "papers/a2alloc/engine/census.hpp"
#include "papers/a2alloc/engine/config.hpp"
#include "papers/a2alloc/engine/global_heap.hpp"
#include "papers/a2alloc/engine/heap.hpp"
#include "papers/a2alloc/engine/heap_guard.hpp"
#include "papers/a2alloc/engine/size_classes.hpp"
#include "papers/a2alloc/engine/superblock.hpp"
#include "papers/a2alloc/engine/thread_heaps.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::a2alloc {

/// Zero-initialised but for pointers to itself: usable before any constructor runs, and
/// usable until the process ends, because nothing but destroy() takes it apart. The
/// functions: see engine/engine.hpp.
template <class Config>
class Allocator {
  using TheHeap = Heap<Config>;
  using Guard = HeapGuard<Config>;
  using Piece = Superblock<Config>;
  static constexpr std::size_t kPiece = kSuperblockBytes<Config>;
  static constexpr std::size_t kLargestSmall = kLargestInSuperblock<Config>;

 public:
  constexpr Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// The one that a library has.
  static Allocator default_instance;

  template <OutOfMemory Policy = ReturnNull>
  void* allocate(std::size_t n) {
    if constexpr (OperatorNew<Policy>) {
      if (SPANALLOC_UNLIKELY(os::in_kernel_call() || n > kLargestSmall) && Policy::leaves())
        return Policy::allocate_elsewhere(n);
    }
    void* p = SPANALLOC_UNLIKELY(os::in_kernel_call()) ? NestedBlocks::allocate(n, 1)
              : SPANALLOC_UNLIKELY(n > kLargestSmall)
                  ? allocate_large(n, 1).bytes
                  : allocate_small<Policy>({block_size_for(n), class_of<Config>(n), n, 1});
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }

  void* allocate_aligned(std::size_t n, std::size_t alignment) {
    if (alignment <= 16) return allocate(n);
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::allocate(n, alignment);
    if (n > kLargestSmall || alignment > kLargestSmall / 2)
      return allocate_large(n, alignment).bytes;
    // Room to move up to the next multiple, and to leave a block in front.
    const std::size_t size = block_size_for(n) + alignment + kLeastBlock;
    return allocate_small({size, kAnySize, n, alignment});
  }

  void* allocate_zeroed(std::size_t n) {
    const Large object = n > kLargestSmall ? allocate_large(n, 1) : Large{allocate(n), false};
    if (object.bytes != nullptr && !object.is_zero) std::memset(object.bytes, 0, n);
    return object.bytes;
  }

  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    void* p = allocate(n);
    return p == nullptr ? nullptr : std::memcpy(p, from, bytes);
  }

  void deallocate(void* p) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
    Piece* piece = global_.piece_of(p);
    if (SPANALLOC_UNLIKELY(piece == nullptr)) return deallocate_outside(p);
    TheHeap* heap = piece->heap.load_acquire();
    if (SPANALLOC_UNLIKELY(heap == nullptr)) {
      if (!is_lost(piece) && !global_.free_large(piece, p)) name_bad_pointer(piece, p);
      return;
    }
    {
      const Guard guard(*heap, global_);
      if (SPANALLOC_UNLIKELY(is_lost(piece))) return;  // since the guard was there
      Block* block = demand_live(*heap, piece, p);
      if (SPANALLOC_LIKELY(!heap->put(piece, block))) return;
      heap->evict(piece);
      global_.put(piece);
    }
    global_.settle(1);
  }

  std::size_t usable_size(const void* p) {
    if (p == nullptr) return 0;
    Piece* piece = global_.piece_of(p);
    if (TheHeap* heap = piece != nullptr ? piece->heap.load_acquire() : nullptr; heap != nullptr) {
      const Guard guard(*heap, global_);
      if (!is_lost(piece)) return demand_live(*heap, piece, p)->size() - sizeof(Block);
    }
    if (is_lost(piece)) return Block::of(p)->size() - sizeof(Block);
    const std::size_t size = piece != nullptr ? global_.large_size(piece, p) : huge_.usable_size(p);
    if (size == 0) name_bad_pointer(piece, p);
    return size;
  }

  /// The same of a live block, which nobody frees meanwhile, for who may hold any lock: what tells
  /// the size is its user's to change.
  std::size_t size_without_lock(const void* p) {
    const Piece* piece = global_.piece_of(p);
    // Under whose lock nobody waits for anything
    if (piece == nullptr) return huge_.usable_size(p);
    if (piece->heap.load_acquire() == nullptr && !is_lost(piece)) return piece->count * kPiece;
    return Block::of(p)->size() - sizeof(Block);
  }

  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n) {
    Piece* piece = global_.piece_of(p);
    if (TheHeap* heap = piece != nullptr ? piece->heap.load_acquire() : nullptr; heap != nullptr) {
      const Guard guard(*heap, global_);
      if (!is_lost(piece)) {
        Block* block = demand_live(*heap, piece, p);
        const std::size_t usable = block->size() - sizeof(Block);
        const bool stays = Policy::leaves_alone(n, usable) || resize_small(*heap, piece, block, n);
        return {stays ? p : nullptr, usable};
      }
    }
    const std::size_t usable = usable_size(p);  // ends the process unless there is an object
    if (Policy::leaves_alone(n, usable)) return {p, usable};
    return {n > kMaxRequest || is_lost(piece) ? nullptr : resize_large(piece, p, n), usable};
  }

  bool owns(const void* p) {
    Piece* piece = global_.piece_of(p);
    if (piece == nullptr) return huge_.usable_size(p) != 0;
    return piece->kind.load_relaxed() == Kind::kSuperblock || is_lost(piece) ||
           global_.large_size(piece, p) != 0;
  }

  bool trim() {
    if (!global_.is_started()) return false;
    heaps_.evict_everywhere();
    return global_.purge();
  }

  EngineStatistics statistics() {
    EngineStatistics result;
    const ArenaStatistics arena = global_.arena_statistics();
    const PieceCounts pieces = global_.counts();
    const LargeObjectStatistics huge = huge_.statistics();
    result.reserved_bytes = arena.reserved_bytes;
    result.opened_bytes = arena.opened_bytes;
    result.small_bytes_carved = pieces.superblocks * kPiece;
    result.pooled_bytes = (pieces.free + pieces.purging) * kPiece;
    result.dirty_bytes = pieces.dirty * kPiece;
    result.clean_bytes = result.pooled_bytes - min_of(result.pooled_bytes, result.dirty_bytes);
    result.live_bytes = heaps_.used_bytes();
    result.free_bytes =
        result.small_bytes_carved - min_of(result.small_bytes_carved, result.live_bytes);
    result.large_bytes = pieces.large * kPiece + huge.bytes;
    result.large_objects = pieces.large_objects + huge.objects;
    result.spans_lost_to_fork = pieces.lost_to_fork;
    result.live_threads = heaps_.live();
    return result;
  }

  /// Every invariant checked, everything counted; exact while no other thread uses the heap.
  Census census() {
    heaps_.repair_all();
    (void)global_.counts();  // that is repaired, too
    return Walker<Config>::walk(global_, heaps_);
  }

  /// Registers the fork handler, once: from the library's constructor or with the first allocation.
  void process_start() {
    if (registered_.exchange_acq_rel(1) != 0) return;
    heaps_.prepare();
    thread::watch_forks(fork_watch_);
  }

  /// Gives everything back to the process: all objects, address space, the key. Only while nobody
  /// uses the heap or anything from it, and no fork is in progress; never the default instance. (A
  /// thread that has used it may live on.) Afterwards the heap is a fresh one.
  void destroy() {
    if (registered_.load_acquire() != 0) thread::unwatch_forks(fork_watch_);
    heaps_.destroy();
    huge_.destroy();
    global_.destroy();
    new (this) Allocator;
  }

  // --- For the parts, and for those who look inside.

  const ThreadHeaps<Config>& thread_heaps() const { return heaps_; }
  /// The record of the piece of the arena that p lies in; nullptr: none is.
  Piece* piece_of(const void* p) { return global_.piece_of(p); }
  GlobalHeap<Config>& global_heap() { return global_; }

 private:
  struct Watch : thread::ForkWatch {
    Allocator* allocator;
  };

  /// What allocate_small is asked for: a block of `size`, then cut to n bytes at a
  /// multiple of `alignment`.
  struct Request {
    std::size_t size;
    SizeClass size_class;
    std::size_t n;
    std::size_t alignment;
  };

  struct Large {
    void* bytes = nullptr;
    bool is_zero = false;
  };

  template <class Policy = ReturnNull>
  void* allocate_small(Request request) {
    if constexpr (Config::kSizeClasses) {
      if (!request.size_class.is_any_size())
        request.size = block_size_for(request.size_class.bytes());
    }
    TheHeap* heap = heaps_.template known<Policy>();
    if constexpr (OperatorNew<Policy>) {
      if (SPANALLOC_UNLIKELY(heap == nullptr) && Policy::leaves())
        return Policy::allocate_elsewhere(request.n);
    }
    if (SPANALLOC_UNLIKELY(heap == nullptr)) heap = find_heap();
    if (SPANALLOC_UNLIKELY(heap == nullptr)) return nullptr;
    {
      const Guard guard(*heap, global_);
      if (void* p = take(*heap, request); SPANALLOC_LIKELY(p != nullptr)) return p;
    }
    return allocate_from_fresh(*heap, request);
  }

  // nullptr: there is no memory at all.
  SPANALLOC_COLD TheHeap* find_heap() { return ensure_started() ? heaps_.find() : nullptr; }

  static void* take(TheHeap& heap, const Request& request) {
    const Found<Config> found = heap.take(request.size, request.size_class);
    if (SPANALLOC_UNLIKELY(found.block == nullptr)) return nullptr;
    if (SPANALLOC_LIKELY(request.alignment == 1)) return found.block->bytes();
    return heap.change(found.superblock, [&](Piece* piece) {
      Block* block = piece->shift(found.block, request.alignment);
      piece->shrink(block, block_size_for(request.n));
      return block->bytes();
    });
  }

  // No superblock of the heap has room: one from the global heap.
  SPANALLOC_COLD void* allocate_from_fresh(TheHeap& heap, const Request& request) {
    free_put_off();
    global_.settle(0);
    for (bool again = false;; again = true) {
      {
        // Held all the way, so that no fork finds a superblock between two heaps.
        const Guard guard(heap, global_);
        if (Piece* piece = global_.take(Kind::kSuperblock, 1).first; piece != nullptr) {
          heap.add(piece, request.size_class);
          return take(heap, request);
        }
      }
      // Memory is out: what other heaps keep may do, whoever of the threads without memory has
      // brought it to the global heap.
      if (again) return nullptr;
      heaps_.evict_everywhere();
    }
  }

  SPANALLOC_COLD Large allocate_large(std::size_t n, std::size_t alignment) {
    if (n > kMaxRequest) return {};
    if (SPANALLOC_UNLIKELY(os::in_kernel_call()))
      return {NestedBlocks::allocate(n, alignment), false};
    if (!ensure_started()) return {};
    free_put_off();
    if (n == 0) n = 1;
    if (n > kLargestInGlobalHeap || alignment > kLargestInGlobalHeap) {
      return {global_.ask_within_limits([=, this] { return huge_.allocate(n, alignment); }), true};
    }
    global_.settle(0);
    const std::size_t count = pieces_for(n);
    Run<Config> run = global_.take(Kind::kLarge, count, alignment);
    if (run.first == nullptr) {
      heaps_.evict_everywhere();
      run = global_.take(Kind::kLarge, count, alignment);
    }
    if (run.first == nullptr) return {};
    unpoison(pointer_to(run.first->start), count * kPiece);
    return {pointer_to(run.first->start), run.is_zero};
  }

  SPANALLOC_COLD void deallocate_outside(void* p) {
    if (p != nullptr && !huge_.free(p) && !NestedBlocks::free(p)) name_bad_pointer(nullptr, p);
  }
  void free_put_off() {
    NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  }

  void* resize_large(Piece* piece, void* p, std::size_t n) {
    if (n <= kLargestSmall) return nullptr;
    const bool is_huge = n > kLargestInGlobalHeap;
    if (piece == nullptr) {
      return is_huge ? global_.ask_within_limits([=, this] { return huge_.resize(p, n); })
                     : nullptr;
    }
    return !is_huge && global_.resize_large(piece, p, pieces_for(n)) ? p : nullptr;
  }

  static bool resize_small(TheHeap& heap, Piece* piece, Block* block, std::size_t n) {
    if (n > kLargestSmall) return false;
    const std::size_t size = block_size_for(n);
    // A block of a size class cannot be cut: a smaller one serves better once less
    // than half of it is needed.
    if (!piece->merges()) return size <= block->size() && size > block->size() / 2;
    return heap.change(piece, [&](Piece* the_piece) {
      if (size > block->size()) return the_piece->grow(block, size);
      the_piece->shrink(block, size);
      return true;
    });
  }

  // With the heap's lock. A live block's superblock stays in its heap, so one that has left had
  // none.
  static Block* demand_live(const TheHeap& heap, Piece* piece, const void* p) {
    SPANALLOC_ASSERT(heap.lock.is_mine());
    if (SPANALLOC_UNLIKELY(piece->heap.load_relaxed() != &heap)) name_bad_pointer(piece, p);
    return piece->demand_live(p);
  }

  // For what lies in no superblock of a heap.
  [[noreturn]] SPANALLOC_COLD static void name_bad_pointer(const Piece* piece, const void* p) {
    if (piece == nullptr) os::fatal("pointer is none of this heap's:", p);
    const Kind kind = piece->kind.load_relaxed();
    if (kind == Kind::kFree || kind == Kind::kFreeTail || kind == Kind::kPurging) {
      os::fatal("memory is free already (double free, or use after free):", p);
    }
    os::fatal("pointer is not the start of an object:", p);
  }

  // Of its blocks those that the program has stay usable; freed ones are not used again.
  static bool is_lost(const Piece* piece) {
    return piece != nullptr && piece->kind.load_relaxed() == Kind::kLost;
  }

  static std::size_t pieces_for(std::size_t n) { return (n + kPiece - 1) / kPiece; }

  bool ensure_started() {
    if (SPANALLOC_LIKELY(global_.is_started())) return true;
    process_start();
    return global_.start();
  }

  static void enter_child(thread::ForkWatch* watch) {
    Allocator& self = *static_cast<Watch*>(watch)->allocator;
    self.global_.enter_child();
    self.huge_.enter_child();
    self.heaps_.enter_child();
  }

  // Superblocks that a misuse was found in may be half changed: the next one to take the heap's
  // lock looks, and those that are not whole are lost, as after a fork.
  static void leave(thread::ForkWatch* watch) {
    static_cast<Watch*>(watch)->allocator->heaps_.leave_all();
  }

  GlobalHeap<Config> global_;
  ThreadHeaps<Config> heaps_{global_};
  LargeObjects<> huge_;
  Watch fork_watch_{{&enter_child, &leave}, this};
  Atomic<std::uint32_t> registered_{0};  // the fork watch
};

template <class Config>
constinit Allocator<Config> Allocator<Config>::default_instance{};

}  // namespace spanalloc::a2alloc
