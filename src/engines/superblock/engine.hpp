// The superblock engine: the allocator of A. Jakop and M. Le Hoang's report (CSC469, 2016) after Hoard. Read
// DESIGN.md beside this file first; then block.hpp, superblock.hpp, heap.hpp, global_heap.hpp and this file,
// in that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/poison.hpp"
#include "base/signal_flag.hpp"
#include "engines/engine.hpp"
#include "engines/superblock/block.hpp"
#include "engines/superblock/census.hpp"
#include "engines/superblock/config.hpp"
#include "engines/superblock/global_heap.hpp"
#include "engines/superblock/heap.hpp"
#include "engines/superblock/heap_registry.hpp"
#include "engines/superblock/size_classes.hpp"
#include "engines/superblock/superblock.hpp"
#include "os/os.hpp"
#include "pages/large_objects.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc {

template <class Config = SuperblockReport>
class SuperblockEngine {
  using Heap = superblock::Heap<Config>;
  using Piece = superblock::Superblock<Config>;
  using Block = superblock::Block;
  using Kind = superblock::Kind;
  static constexpr std::size_t kPiece = superblock::kSuperblockBytes<Config>;
  static constexpr std::size_t kLargestSmall = superblock::kLargestInSuperblock<Config>;

 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  static void* allocate(std::size_t n) {
    void* p = SPANALLOC_UNLIKELY(n > kLargestSmall)
                  ? allocate_large(n, 1, nullptr)
                  : allocate_small({superblock::block_size_for(n), superblock::class_of<Config>(n), n, 1});
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }

  static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    if (alignment <= 16) return allocate(n);
    if (n > kLargestSmall || alignment > kLargestSmall / 2) return allocate_large(n, alignment, nullptr);
    // Room to move up to the next multiple, and to leave a block in front.
    const std::size_t size = superblock::block_size_for(n) + alignment + superblock::kLeastBlock;
    return allocate_small({size, superblock::kAnySize, n, alignment});
  }

  static void* allocate_zeroed(std::size_t n) {
    bool zero = false;
    void* p = n > kLargestSmall ? allocate_large(n, 1, &zero) : allocate(n);
    if (p != nullptr && !zero) std::memset(p, 0, n);
    return p;
  }

  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    void* p = allocate(n);
    return p == nullptr ? nullptr : std::memcpy(p, from, bytes);
  }

  static void deallocate(void* p) {
    Piece* piece = global_.piece_of(p);
    if (SPANALLOC_UNLIKELY(piece == nullptr)) return deallocate_outside(p);
    Heap* heap = piece->heap.load_acquire();
    if (SPANALLOC_UNLIKELY(heap == nullptr)) {
      if (!is_lost(piece) && !global_.free_large(piece, p)) name_bad_pointer(piece, p);
      return;
    }
    HeapGuard guard(*heap);
    if (SPANALLOC_UNLIKELY(is_lost(piece))) return;  // since the guard was there
    Block* block = demand_live(*heap, piece, p);
    if (SPANALLOC_UNLIKELY(heap->put(piece, block))) {
      heap->evict(piece);
      global_.put(piece);
    }
  }

  static std::size_t usable_size(const void* p) {
    if (p == nullptr) return 0;
    Piece* piece = global_.piece_of(p);
    if (Heap* heap = piece != nullptr ? piece->heap.load_acquire() : nullptr; heap != nullptr) {
      HeapGuard guard(*heap);
      if (!is_lost(piece)) return demand_live(*heap, piece, p)->size() - sizeof(Block);
    }
    if (is_lost(piece)) return Block::of(p)->size() - sizeof(Block);
    const std::size_t size = piece != nullptr ? global_.large_size(piece, p) : huge_.usable_size(p);
    if (size == 0) name_bad_pointer(piece, p);
    return size;
  }

  static void* resize(void* p, std::size_t n) {
    Piece* piece = global_.piece_of(p);
    if (Heap* heap = piece != nullptr ? piece->heap.load_acquire() : nullptr; heap != nullptr) {
      HeapGuard guard(*heap);
      if (is_lost(piece)) return nullptr;
      return resize_small(*heap, piece, demand_live(*heap, piece, p), n) ? p : nullptr;
    }
    (void)usable_size(p);  // ends the process unless there is an object
    if (n <= kLargestSmall || is_lost(piece)) return nullptr;
    const bool is_huge = n > superblock::kLargestInGlobalHeap;
    if (piece == nullptr) return is_huge ? huge_.resize(p, n) : nullptr;
    return !is_huge && global_.resize_large(piece, p, pieces_for(n)) ? p : nullptr;
  }

  static bool owns(const void* p) {
    Piece* piece = global_.piece_of(p);
    if (piece == nullptr) return huge_.usable_size(p) != 0;
    return piece->kind.load_relaxed() == Kind::kSuperblock || is_lost(piece) ||
           global_.large_size(piece, p) != 0;
  }

  static bool trim() {
    if (!global_.is_started()) return false;
    evict_everywhere();
    return global_.purge();
  }

  static EngineStatistics statistics() {
    EngineStatistics result;
    const ArenaStatistics arena = global_.arena_statistics();
    const superblock::PieceCounts pieces = global_.counts();
    const LargeObjectStatistics huge = huge_.statistics();
    result.reserved_bytes = arena.reserved_bytes;
    result.opened_bytes = arena.opened_bytes;
    result.small_bytes_carved = pieces.superblocks * kPiece;
    result.pooled_bytes = pieces.free * kPiece;
    result.large_bytes = pieces.large * kPiece + huge.bytes;
    result.large_objects = pieces.large_objects + huge.objects;
    result.spans_lost_to_fork = pieces.lost_to_fork;
    registry_.for_each([&](Heap& heap) {
      HeapGuard guard(heap);
      result.live_labs += heap.has_thread;
    });
    return result;
  }

  /// Every invariant checked, everything counted; exact while no other thread uses the heap.
  static superblock::Census census() {
    // In a fork's child: what vanished threads left half changed is repaired by whoever takes the lock.
    registry_.for_each([](Heap& heap) { HeapGuard guard(heap); });
    {
      HeapGuard guard(common_);
    }
    (void)global_.counts();
    return superblock::Walker<Config>::walk(global_, registry_, common_);
  }

  /// Registers the fork handler, once: from the library's constructor or with the first allocation.
  static void process_start() {
    if (registered_.exchange_acq_rel(1) != 0) return;
    exit_key_.prepare(&on_thread_exit);
    thread::watch_forks(fork_watch_);
  }

 private:
  struct ThreadState {
    Heap* heap = nullptr;
    bool without_heap = false;    // the thread is past its exit hook, or no hook could be had
    std::uint8_t exit_round = 0;  // thread::ExitKey's
    SignalFlag in_registry;       // looked at by this thread's signal handlers, if they fork
  };

  /// Holds a heap's lock; its superblocks are whole.
  class [[nodiscard]] HeapGuard {
   public:
    explicit HeapGuard(Heap& heap) : guard_(heap.lock) {
      if (SPANALLOC_UNLIKELY(guard_.owner_died())) repair(heap);
    }

   private:
    LockGuard guard_;
  };

  /// What allocate_small is asked for: a block of `size`, then cut to n bytes at a multiple of `alignment`.
  struct Request {
    std::size_t size;
    unsigned size_class;
    std::size_t n;
    std::size_t alignment;
  };

  static void* allocate_small(Request request) {
    if constexpr (Config::kSizeClasses) {
      if (request.size_class != superblock::kAnySize) {
        request.size = superblock::block_size_for(superblock::class_bytes(request.size_class));
      }
    }
    Heap* heap = thread.heap;
    if (SPANALLOC_UNLIKELY(heap == nullptr)) heap = find_heap();
    if (SPANALLOC_UNLIKELY(heap == nullptr)) return nullptr;
    {
      HeapGuard guard(*heap);
      if (void* p = take(*heap, request); SPANALLOC_LIKELY(p != nullptr)) return p;
    }
    return allocate_from_fresh(*heap, request);
  }

  static void* take(Heap& heap, const Request& request) {
    const superblock::Found<Config> found = heap.take(request.size, request.size_class);
    if (SPANALLOC_UNLIKELY(found.block == nullptr)) return nullptr;
    if (SPANALLOC_LIKELY(request.alignment == 1)) return found.block->bytes();
    return heap.change(found.superblock, [&](Piece* piece) {
      Block* block = piece->shift(found.block, request.alignment);
      piece->shrink(block, superblock::block_size_for(request.n));
      return block->bytes();
    });
  }

  // No superblock of the heap has room: one from the global heap.
  SPANALLOC_COLD static void* allocate_from_fresh(Heap& heap, const Request& request) {
    for (bool again = false;; again = true) {
      {
        // Held all the way, so that no fork finds a superblock between two heaps.
        HeapGuard guard(heap);
        if (Piece* piece = global_.take(Kind::kSuperblock, 1); piece != nullptr) {
          heap.add(piece, request.size_class);
          return take(heap, request);
        }
      }
      // Memory is out: what other heaps keep may do.
      if (again || !evict_everywhere()) return nullptr;
    }
  }

  SPANALLOC_COLD static void* allocate_large(std::size_t n, std::size_t alignment, bool* zero) {
    if (n > kMaxRequest || !ensure_started()) return nullptr;
    if (n == 0) n = 1;
    if (n > superblock::kLargestInGlobalHeap || alignment > superblock::kLargestInGlobalHeap) {
      void* p = huge_.allocate(n, alignment);
      if (p != nullptr && zero != nullptr) *zero = true;
      return p;
    }
    const std::size_t count = pieces_for(n);
    Piece* piece = global_.take(Kind::kLarge, count, alignment, zero);
    if (piece == nullptr && evict_everywhere()) piece = global_.take(Kind::kLarge, count, alignment, zero);
    if (piece == nullptr) return nullptr;
    unpoison(pointer_to(piece->start), count * kPiece);
    return pointer_to(piece->start);
  }

  SPANALLOC_COLD static void deallocate_outside(void* p) {
    if (p != nullptr && !huge_.free(p)) name_bad_pointer(nullptr, p);
  }

  static bool resize_small(Heap& heap, Piece* piece, Block* block, std::size_t n) {
    if (n > kLargestSmall) return false;
    const std::size_t size = superblock::block_size_for(n);
    // A block of a size class cannot be cut: a smaller one serves better once less than half of it is needed.
    if (piece->size_class != superblock::kAnySize) return size <= block->size() && size > block->size() / 2;
    return heap.change(piece, [&](Piece* the_piece) {
      if (size > block->size()) return the_piece->grow(block, size);
      the_piece->shrink(block, size);
      return true;
    });
  }

  // With the heap's lock. A live block's superblock stays in its heap, so one that has left had none.
  static Block* demand_live(const Heap& heap, Piece* piece, const void* p) {
    if (SPANALLOC_UNLIKELY(piece->heap.load_relaxed() != &heap)) name_bad_pointer(piece, p);
    return piece->demand_live(p);
  }

  // For what lies in no superblock of a heap.
  [[noreturn]] SPANALLOC_COLD static void name_bad_pointer(const Piece* piece, const void* p) {
    if (piece == nullptr) os::fatal("pointer is none of this heap's:", p);
    const Kind kind = piece->kind.load_relaxed();
    if (kind == Kind::kFree || kind == Kind::kFreeTail) {
      os::fatal("memory is free already (double free, or use after free):", p);
    }
    os::fatal("pointer is not the start of an object:", p);
  }

  // Of its blocks those that the program has stay usable; freed ones are not used again.
  static bool is_lost(const Piece* piece) {
    return piece != nullptr && piece->kind.load_relaxed() == Kind::kLost;
  }

  static std::size_t pieces_for(std::size_t n) { return (n + kPiece - 1) / kPiece; }

  // --- Heaps and threads.

  // The calling thread's heap, made with its first use; the common one for a thread that can have none of its
  // own. nullptr: there is no memory at all.
  SPANALLOC_COLD static Heap* find_heap() {
    if (!ensure_started()) return nullptr;
    if (!Config::kHeapPerThread) return thread.heap = &common_;
    if (thread.without_heap) return &common_;
    const InRegistry in_registry;
    Heap* heap = registry_.take();
    if (heap == nullptr) return &common_;
    {
      HeapGuard guard(*heap);
      heap->has_thread = true;
    }
    thread.heap = heap;  // before the hook is set, which may call malloc
    if (exit_key_.watch_this_thread(&thread, &on_thread_exit)) return heap;
    thread_exit();
    return &common_;
  }

  static void on_thread_exit(void* state) {
    if (!exit_key_.comes_again(state, thread.exit_round)) thread_exit();
  }
  static void thread_exit() {
    const InRegistry in_registry;
    Heap* heap = thread.heap;
    thread.heap = nullptr;
    thread.without_heap = true;
    {
      HeapGuard guard(*heap);
      heap->has_thread = false;
      evict_empty(*heap);
    }
    registry_.give_back(heap);
  }

  static bool evict_empty(Heap& heap) {
    return heap.evict_empty([](Piece* piece) { global_.put(piece); });
  }

  // No heap's lock may be held.
  SPANALLOC_COLD static bool evict_everywhere() {
    bool any = false;
    const auto evict = [&](Heap& heap) {
      HeapGuard guard(heap);
      any |= evict_empty(heap);
    };
    registry_.for_each(evict);
    evict(common_);
    return any;
  }

  static bool ensure_started() {
    if (SPANALLOC_LIKELY(global_.is_started())) return true;
    process_start();
    return global_.start();
  }

  // --- Fork ---------------------------------------------------------------------------------------------
  //
  // A fork takes no lock (sync/spin_lock.hpp). In the child, whoever is the first to take a lock that a
  // vanished thread held repairs what it guards.

  // While it lives, the calling thread is at the list of idle heaps. If its signal handler forks meanwhile,
  // the child first comes out of it before that list is made anew.
  class [[nodiscard]] InRegistry {
   public:
    InRegistry() : outer_(thread.in_registry.enter()) {}
    ~InRegistry() {
      thread.in_registry.leave(outer_);
      if (SPANALLOC_UNLIKELY(recovery_is_due_.load_relaxed() != 0) && !outer_) recover_in_child();
    }
    InRegistry(const InRegistry&) = delete;
    InRegistry& operator=(const InRegistry&) = delete;

   private:
    bool outer_;
  };

  static void enter_child(thread::ForkWatch*) {
    registry_.enter_child();
    common_.lock.abandon_if_owner_died();
    global_.enter_child();
    huge_.enter_child();
    recovery_is_due_.store_relaxed(1);
    if (!thread.in_registry.is_set()) recover_in_child();
  }
  static void recover_in_child() {
    // A signal handler that forks meanwhile leaves its child's recovery to this one, which goes on there.
    while (recovery_is_due_.load_relaxed() != 0) {
      const bool outer = thread.in_registry.enter();
      recovery_is_due_.store_relaxed(0);
      registry_.keep_only(thread.heap);
      thread.in_registry.leave(outer);
    }
  }

  // With the lock of a heap that a vanished thread was changing: it has the superblocks that say so and are
  // whole.
  SPANALLOC_COLD static void repair(Heap& heap) {
    heap.forget_all();
    global_.for_each_superblock_of(heap, [&](Piece* piece) {
      if (piece->recount()) return heap.take_back(piece);
      // In this order: who still finds the heap waits for its lock and then sees that the piece is lost.
      global_.lose(piece);
      piece->heap.store_release(nullptr);
    });
  }

  SPANALLOC_TLS static inline constinit thread_local ThreadState thread{};
  static inline constinit superblock::GlobalHeap<Config> global_{};
  static inline constinit superblock::HeapRegistry<Config> registry_{global_};
  static inline constinit Heap common_{!Config::kHeapPerThread};
  static inline constinit LargeObjects<> huge_{};
  static inline constinit thread::ExitKey exit_key_{};
  static inline constinit thread::ForkWatch fork_watch_{&enter_child};
  static inline constinit Atomic<std::uint32_t> registered_{0};       // the fork handler
  static inline constinit Atomic<std::uint32_t> recovery_is_due_{0};  // in a fork's child
};

}  // namespace spanalloc
