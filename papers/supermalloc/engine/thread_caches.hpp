// Which cache a thread has: one of its own, taken with its first use, flushed and left to the next
// thread at its end. A thread that can have none, and one past its end, works without.
//
// A thread finds its cache in the allocator that a library has by a thread_local variable,
// in any other one by a key of the process's (thread::ExitKey), whose destructor tells
// either of the thread's end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "engine/operators.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "papers/supermalloc/engine/thread_cache.hpp"
#include "thread/lifecycle.hpp"
#include "thread/record_chunks.hpp"
#include "thread/record_registry.hpp"

namespace spanalloc::supermalloc {

template <class Config>
class Allocator;

/// Zero-initialisable but for the reference.
template <class Config>
class ThreadCaches {
  using Cache = ThreadCache<Config>;

 public:
  explicit constexpr ThreadCaches(Allocator<Config>& allocator) : allocator_(allocator) {}

  /// The calling thread's cache; none() where it has none, yet or any more.
  template <class Caller = NoOperator>
  SPANALLOC_INLINE Cache& known() {
    if (is_default()) {
      if constexpr (Operator<Caller>) return *cache_of_operators_;
      return *my_cache_;
    }
    auto* cache = static_cast<Cache*>(exit_key_.find());
    return cache == nullptr || thread::ExitKey::has_left(cache) ? none_ : *cache;
  }
  static Cache& none() { return none_; }

  /// For a thread that has none: one, or none() again. The allocator has been started.
  SPANALLOC_COLD Cache& find() {
    // A thread past its end would not be told of another one. And libc may call malloc to note the
    // cache: if this is its malloc it comes back to here.
    if (has_ended_ || is_visited()) return none_;
    if (!is_default() && thread::ExitKey::has_left(exit_key_.find())) return none_;
    const Visit visit(*this);
    void* owner = this;
    Cache* cache = registry_.take([&](bool) { return chunks_.make(owner); });
    if (cache == nullptr) return none_;
    if (cache->is_left_behind) {
      clean_up(*cache);  // what it has may have been wished for since
    } else {
      cache->flushed_at = allocator_.wishes();  // it is empty
    }
    cache->has_thread.store_relaxed(true);
    cache->exit_round = 0;
    if (cache->random == 0) cache->random = os::random_place_bits() | 1;
    if (is_default()) set_my_cache(cache);  // before the key, which may call malloc
    if (exit_key_.watch_this_thread(cache, &on_thread_exit)) return *cache;
    leave(*cache);
    return none_;
  }

  /// Until show() a thread of a library finds no cache here: each of its mallocs and
  /// frees leaves the short path.
  static void hide(os::HiddenThread&) {
    hidden_cache_ = my_cache_;
    my_cache_ = cache_of_operators_ = &none_;
  }
  static void show(const os::HiddenThread&) {
    set_my_cache(hidden_cache_);
    hidden_cache_ = nullptr;
  }

  /// Takes the process's key already, where a library is started.
  void prepare() { exit_key_.prepare(&on_thread_exit); }

  /// Caches that have a thread. Any time.
  std::size_t live() const {
    std::size_t count = 0;
    registry_.for_each([&](const Cache& cache) { count += cache.has_thread.load_relaxed(); });
    return count;
  }
  /// f(Cache&) for every cache, idle ones too.
  template <class F>
  void for_each(F&& f) const {
    registry_.for_each(f);
  }

  /// f(Cache&) for every cache that a fork left behind and no thread has taken since, cleaned
  /// up: f leaves nothing in it.
  template <class F>
  void for_each_left_behind(F&& f) {
    if (SPANALLOC_LIKELY(left_behind_.load_relaxed() == 0) || is_visited()) return;
    const Visit visit(*this);
    // All that are idle, chained by the registry's link, which is of use to nobody meanwhile.
    Cache* taken = nullptr;
    while (Cache* cache = registry_.take([](bool) -> Cache* { return nullptr; })) {
      if (cache->is_left_behind) {
        clean_up(*cache);
        f(*cache);
      }
      cache->next_idle = taken;
      taken = cache;
    }
    while (taken != nullptr) {
      Cache* const cache = taken;
      taken = cache->next_idle;
      registry_.give_back(cache);
    }
  }

  /// In a fork's child, first of all.
  void enter_child() {
    registry_.enter_child();
    recovery_is_due_.store_relaxed(1);
    if (!is_visited()) recover_in_child();
  }

  /// The calling thread is in none of them any more: before a misuse is reported.
  void leave_all() { innermost_ = nullptr; }

  /// No thread's end is told any more. While nobody uses the caches; the object is used up.
  void destroy() {
    // What threads of a library keep in their variables would outlive it.
    SPANALLOC_ASSERT(!is_default() && !is_visited());
    exit_key_.remove();
    chunks_.destroy();
  }

 private:
  // While it lives, the calling thread is at the list of idle caches. If its signal handler forks
  // meanwhile, the child first comes out of it before that list is made anew.
  class [[nodiscard]] Visit {
   public:
    explicit Visit(ThreadCaches& caches) : caches_(caches), outer_(innermost_) {
      barrier();
      innermost_ = this;
      barrier();
    }
    ~Visit() {
      barrier();
      innermost_ = outer_;
      if (SPANALLOC_UNLIKELY(caches_.recovery_is_due_.load_relaxed() != 0) &&
          !caches_.is_visited()) {
        caches_.recover_in_child();
      }
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

    bool is_of(const ThreadCaches& caches) const { return &caches_ == &caches; }
    const Visit* outer() const { return outer_; }

   private:
    // For this thread's signal handlers: the processor shows a thread its own stores in order.
    static void barrier() { asm volatile("" ::: "memory"); }

    ThreadCaches& caches_;
    Visit* const outer_;
  };

  bool is_visited() const {
    for (const Visit* visit = innermost_; visit != nullptr; visit = visit->outer()) {
      if (visit->is_of(*this)) return true;
    }
    return false;
  }

  void recover_in_child() {
    // A handler that forks meanwhile leaves its child's recovery to this visit's end.
    const Visit visit(*this);
    recovery_is_due_.store_relaxed(0);
    // (A handler may have forked in a kernel call.)
    const Cache* mine = is_default() && hidden_cache_ != nullptr ? hidden_cache_ : &known();
    registry_.recover_in_child([&](Cache& cache) {
      if (&cache == mine) return false;
      if (cache.has_thread.load_relaxed()) cache.has_thread.store_relaxed(false);
      if (!cache.is_left_behind) cache.is_left_behind = true;
      return true;
    });
    std::uint32_t left_behind = 0;
    registry_.for_each([&](const Cache& cache) { left_behind += cache.is_left_behind ? 1 : 0; });
    left_behind_.store_relaxed(left_behind);
  }
  void clean_up(Cache& cache) {
    cache.clean_up(allocator_.secret());
    left_behind_.fetch_sub_relaxed(1);
  }

  // The one that a library has. Its address is constant, so that this costs nothing there.
  bool is_default() const { return this == &Allocator<Config>::default_instance.thread_caches(); }

  static void on_thread_exit(void* kept) {
    if (thread::ExitKey::has_left(kept)) return thread::ExitKey::stay_away(kept);
    Cache& cache = *static_cast<Cache*>(kept);
    auto& caches = *static_cast<ThreadCaches*>(cache.owner);
    if (caches.exit_key_.comes_again(&cache, cache.exit_round)) return;
    if (caches.is_default()) has_ended_ = true;
    caches.leave(cache);
    if (!caches.is_default()) caches.exit_key_.leave();
  }
  void leave(Cache& cache) {
    const Visit visit(
        *this);  // first: of a cache's last objects, too, a handler's fork may find some in no list
    allocator_.flush(cache);
    if (is_default()) set_my_cache(&none_);
    SPANALLOC_ASSERT(cache.has_thread.load_relaxed());
    cache.has_thread.store_relaxed(false);
    registry_.give_back(&cache);
  }

  static void set_my_cache(Cache* cache) {
    my_cache_ = cache;
    cache_of_operators_ = operators_leave.read() ? &none_ : cache;
  }

  static inline constinit Cache none_{};
  // In the default allocator; and what operators find there, none_ where one leaves
  // (engine/operators.hpp)
  SPANALLOC_TLS static inline constinit thread_local Cache* my_cache_ = &none_;
  SPANALLOC_TLS static inline constinit thread_local Cache* cache_of_operators_ = &none_;
  SPANALLOC_TLS static inline constinit thread_local Cache* hidden_cache_ = nullptr;
  // Of the calling thread: the last round of its destructors that leaves caches to
  // others has come; where it is.
  SPANALLOC_TLS static inline constinit thread_local bool has_ended_ = false;
  SPANALLOC_TLS static inline constinit thread_local Visit* volatile innermost_ = nullptr;

  Allocator<Config>& allocator_;
  thread::RecordRegistry<Cache> registry_;
  thread::RecordChunks<Cache> chunks_;  // under the registry's lock
  thread::ExitKey exit_key_;
  Atomic<std::uint32_t> recovery_is_due_{0};  // in a fork's child
  Atomic<std::uint32_t> left_behind_{0};      // caches, by a fork
};

}  // namespace spanalloc::supermalloc
