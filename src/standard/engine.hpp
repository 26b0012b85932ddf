// The standard engine: what an engine offers (engine/engine.hpp), over one default heap.
#pragma once

#include <cstddef>
#include <new>

#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "standard/config.hpp"
#include "standard/description.hpp"
#include "standard/fork_recovery.hpp"
#include "standard/heap.hpp"
#include "standard/inspection.hpp"
#include "standard/inventory.hpp"
#include "standard/size_classes.hpp"
#include "standard/thread_cache.hpp"

namespace spanalloc {

/// The engine of a config. Its state is the default heap of that config, on a page layer of its
/// own.
template <class Config>
class StandardEngineOf {
  using Pages = standard::PageLayer<Config>;
  using Heap = standard::Heap<Config>;
  using ThreadCache = standard::ThreadCache<Config>;
  using Hidden = standard::ThreadState<Config>;
  static_assert(sizeof(Hidden) <= sizeof(os::HiddenThread));
  static_assert(standard::classes_hold<Config>() &&
                standard::ClassLookup<Config>::blocks_are_in_steps());
  static_assert(standard::SizeClasses<Config>::kSlice << Config::kMaxOrder <= standard::kMostSpan);
  static_assert(Config::kSliceBits == AllSpans::kSliceBits);

 public:
  static constexpr const char* kName = Config::kName;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE static void* allocate(std::size_t n) {
    return thread_cache.template allocate<Policy>(n);
  }
  template <class Caller = NoOperator>
  SPANALLOC_INLINE static void deallocate(void* p) {
    thread_cache.template deallocate<Caller>(p);
  }
  SPANALLOC_INLINE static void* allocate_aligned(std::size_t n, std::size_t alignment) {
    return thread_cache.allocate_aligned(n, alignment);
  }
  SPANALLOC_INLINE static void* allocate_zeroed(std::size_t n) {
    return thread_cache.allocate_zeroed(n);
  }
  static void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    return thread_cache.allocate_copy(n, from, bytes);
  }
  SPANALLOC_INLINE static std::size_t usable_size_at_once(const void* p) {
    return thread_cache.usable_size_at_once(p);
  }
  template <LeavesAlone Policy>
  SPANALLOC_INLINE static Resized resize_at_once(void* p, std::size_t n) {
    return thread_cache.template resize_at_once<Policy>(p, n);
  }
  static std::size_t usable_size(const void* p) { return thread_cache.usable_size(p); }
  template <LeavesAlone Policy = TakeAllBack>
  static Resized resize(void* p, std::size_t n) {
    return thread_cache.template resize<Policy>(p, n);
  }
  static bool owns(const void* p) { return thread_cache.owns(p); }
  static bool trim() { return thread_cache.trim(); }
  static standard::Inventory<Config> take_inventory() {
    return standard::Inventory<Config>(thread_cache);
  }
  static EngineStatistics statistics() { return take_inventory().totals; }
  static std::size_t resident_bytes() { return standard::resident_bytes(pages); }

  static constexpr std::size_t kLimitOfGroup = standard::MemoryReturn<Config>::kLimitOfGroup;
  static void set_soft_limit(std::size_t bytes) {
    pages.memory_return.want_soft_limit(bytes);
    // At once, if that may be: else with the next slow call.
    if (os::in_kernel_call() || !pages.is_started()) return;
    const auto inside = thread_cache.enter();
    pages.memory_return.look_at_soft_limit({0});
  }
  static std::size_t soft_limit() { return pages.memory_return.soft_limit_now(); }
  static bool is_near_soft_limit() {
    if (SPANALLOC_LIKELY(!pages.arena.shortage().is_watched())) return false;
    if (os::in_kernel_call() || !pages.is_started())
      return pages.memory_return.soft_limit.is_near();
    const auto inside = thread_cache.enter();
    return pages.memory_return.is_near_limit();
  }
  static void on_soft_limit(void (*f)(void*, std::size_t, std::size_t), void* context) {
    pages.memory_return.callback.set(f, context);
  }

  /// Called around what may be another library's code in the middle of a call; see
  /// os/kernel_call.hpp.
  static void hide_thread(os::HiddenThread& room) { thread_cache.hide(*new (room.room) Hidden); }
  static void show_thread(const os::HiddenThread& room) {
    thread_cache.show(*reinterpret_cast<const Hidden*>(room.room));
  }

  static void process_start() {
    heap.exit_key.prepare(heap.on_thread_exit);
    pages.start();
  }

  /// The background thread's body: passes the decay epochs when no other thread does.
  static void pass_epochs_in_background() {
    for (unsigned idle = 0; pages.memory_return.wait_for_epoch(idle);)
      idle = thread_cache.pass_epochs() ? 0 : idle + 1;
  }

  static constexpr void tell_layout(Inspection& out) { InspectionAccess::tell<Config>(out, pages); }

  // The default heap, its page layer, and the calling thread's cache for it.
  static Pages pages;
  static inline constinit Heap heap{pages, &ThreadCache::on_thread_exit};
  SPANALLOC_TLS static inline constinit thread_local ThreadCache thread_cache{heap, pages};
  // All thread-local storage of the library is at most 1,024 bytes, which check_library.py reads
  // from the file. This leaves 64 for the rest, whose variables are in six files.
  static_assert(sizeof(ThreadCache) <= 1024 - 64);
};

template <class Config>
constinit standard::PageLayer<Config> StandardEngineOf<Config>::pages{
    heap, &standard::ForkRecovery<Config>::enter_child, &standard::ForkRecovery<Config>::let_go,
    &pass_epochs_in_background, &standard::Description<Config>::describe};

using StandardEngine = StandardEngineOf<Standard>;

static_assert(Engine<StandardEngine> && HasSoftLimit<StandardEngine>);

}  // namespace spanalloc
