// A heap as an object: malloc and free over the three levels of caches and what lies behind them.
// Any number of them live side by side.
//
// An allocation asks, in the paper's order, the thread's cache, its CPU's, the global
// one, the bin's folios; a free goes the same way (section 8). DESIGN.md beside this
// file walks through both.
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
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"
#include "papers/supermalloc/engine/big_objects.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/books.hpp"
#include "papers/supermalloc/engine/census.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/engine/folio_heap.hpp"
#include "papers/supermalloc/engine/giving_back.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "papers/supermalloc/engine/thread_cache.hpp"
#include "papers/supermalloc/engine/thread_caches.hpp"
#include "sync/spin_lock.hpp"
#include "thread/lifecycle.hpp"

namespace spanalloc::supermalloc {

/// Zero-initialised but for pointers to itself: usable before any constructor runs, and
/// usable until the process ends, because nothing but destroy() takes it apart. The
/// functions: see engine/engine.hpp.
template <class Config>
class Allocator {
  using TheBins = Bins<Config>;
  using Cache = ThreadCache<Config>;
  using Folios = FolioHeap<Config>;

 public:
  constexpr Allocator() = default;
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// The one that a library has.
  static Allocator default_instance;

  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE void* allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > TheBins::kLargestWithFolios)) return allocate_beyond<Policy>(n);
    const std::size_t tag = TheBins::tag_for_folios(n);
    if (FreeObject* object = caches_.template known<Policy>().pop(tag, secret());
        SPANALLOC_LIKELY(object != nullptr)) {
      return handed_out(object, bin_of(tag));
    }
    return allocate_slow<Policy>(tag, n);
  }

  void* allocate_aligned(std::size_t n, std::size_t alignment) {
    if (alignment <= TheBins::kQuantum) return allocate(n);
    if (alignment <= kPage) {
      const BinNumber b = TheBins::for_aligned(n, alignment);
      if (b != TheBins::kCount) {
        FreeObject* object = caches_.known().pop(b + 1, secret());
        return object != nullptr ? handed_out(object, b) : allocate_slow(b);
      }
      if (n <= TheBins::kLargest) return allocate_large(n, alignment, false).bytes;
    }
    return allocate_huge(n, alignment).bytes;
  }

  void* allocate_zeroed(std::size_t n) {
    const BigObject object =
        n > TheBins::kLargestWithFolios ? allocate_beyond(n) : BigObject{allocate(n), false};
    if (object.bytes != nullptr && !object.is_zero) std::memset(object.bytes, 0, n);
    return object.bytes;
  }

  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    void* p = allocate(n);
    return p == nullptr ? nullptr : std::memcpy(p, from, bytes);
  }

  template <class Caller = NoOperator>
  SPANALLOC_INLINE void deallocate(void* p) {
    const std::size_t tag = chunks_.tag_at(p);
    auto* object = static_cast<FreeObject*>(p);
    if (SPANALLOC_UNLIKELY(!Folios::is_out_by_tag(tag, p) || object->is_sealed(secret()))) {
      if constexpr (OperatorDelete<Caller>) return leave_or_deallocate_other<Caller>(p, *this);
      return deallocate_other(p, *this);
    }
    poison_free(object, bin_of(tag));
    if (SPANALLOC_UNLIKELY(!caches_.template known<Caller>().push(tag, object, secret_))) {
      if constexpr (OperatorDelete<Caller>) return leave_or_deallocate<Caller>(object, tag, *this);
      deallocate_slow(object, tag, *this);
    }
  }

  std::size_t usable_size(const void* p) {
    if (p == nullptr) return 0;
    const BinNumber b = chunks_.at(p).bin();
    if (b < TheBins::kFirstLarge) {
      if (!Folios::is_out(b, p) || static_cast<const FreeObject*>(p)->is_sealed(secret()))
        name_bad_pointer(p);
      return TheBins::of(b).size;
    }
    const std::size_t size = big_.usable_size(p);
    if (size == 0) name_bad_pointer(p);
    return size;
  }

  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n) {
    const std::size_t usable = usable_size(p);  // ends the process unless there is an object
    if (Policy::leaves_alone(n, usable)) return {p, usable};
    if (n > kMaxRequest) return {nullptr, usable};
    if (chunks_.at(p).bin() >= TheBins::kFirstLarge) return {big_.resize(p, usable, n), usable};
    return {n <= usable && n > usable / 2 ? p : nullptr, usable};
  }

  bool owns(const void* p) {
    const ChunkEntry entry = chunks_.at(p);
    return entry.is_bin() || (entry.bin() >= TheBins::kFirstLarge && big_.usable_size(p) != 0);
  }

  /// What caches hold goes back to the folios, and their empty ones to the kernel: the calling
  /// thread's at once, the CPUs', the global one's, and what ended threads have left; other living
  /// threads follow with their next slow path.
  bool trim() {
    if (!is_started()) return false;
    Cache& cache = caches_.known();
    return giving_back_.trim(is_none(cache) ? nullptr : &cache) != 0;
  }

  EngineStatistics statistics() { return books().statistics(big_.outside().statistics()); }
  /// What malloc_info tells of the engine: see Books.
  template <class F, class G>
  void describe(F&& f, G&& g) {
    if (is_started()) books().describe(f, g);
  }

  /// Every invariant checked, everything counted; exact while no other thread uses the heap.
  Census census() {
    if (!is_started()) return {};
    for (BinNumber b = 0; b < TheBins::kFirstLarge; ++b) folios_.repair(b);
    big_.repair();
    return Walker<Config>(chunks_, folios_, big_.large(), big_.huge(), cpus_, caches_, secret())
        .walk();
  }

  /// Registers the fork handler, once: from the library's constructor or with the first allocation.
  void process_start() {
    if (registered_.exchange_acq_rel(1) != 0) return;
    caches_.prepare();
    thread::watch_forks(fork_watch_);
  }

  /// Gives everything back to the process: all objects, address space, the key. Only while
  /// nobody uses the heap or anything from it, and no fork is in progress; never the default
  /// instance. Then it is fresh.
  void destroy() {
    if (registered_.load_acquire() != 0) thread::unwatch_forks(fork_watch_);
    caches_.destroy();
    cpus_.destroy();
    big_.destroy();
    chunks_.destroy();
    new (this) Allocator;
  }

  // --- For the parts, and for those who look inside.

  const ThreadCaches<Config>& thread_caches() const { return caches_; }
  ChunkTable& chunks() { return chunks_; }
  Folios& folios() { return folios_; }
  LargeHeap<Config>& large() { return big_.large(); }
  HugeHeap& huge() { return big_.huge(); }
  CpuCaches<Config>& cpu_caches() { return cpus_; }
  Secret secret() const { return secret_.read(); }
  /// Counts requests to give memory back.
  std::uint32_t wishes() const { return giving_back_.wishes(); }

  /// All that a thread's cache holds goes to its CPU's cache where lists are
  /// full, else to the folios.
  void flush(Cache& cache) {
    if (!is_none(cache)) giving_back_.flush(cache);
  }

 private:
  struct Watch : thread::ForkWatch {
    Allocator* allocator;
  };

  static bool is_none(const Cache& cache) { return &cache == &ThreadCaches<Config>::none(); }
  static BinNumber bin_of(std::size_t tag) { return static_cast<BinNumber>(tag - 1); }

  static void* handed_out(FreeObject* object, BinNumber b) {
    if constexpr (kPoisons) unpoison(object, TheBins::of(b).size);
    return object;
  }
  static void poison_free(FreeObject* object, BinNumber b) {
    if constexpr (kPoisons) poison(object + 1, TheBins::of(b).size - sizeof(FreeObject));
  }

  // --- Small and medium, when the thread's cache does not do ---

  template <OutOfMemory Policy>
  [[gnu::noinline]] void* allocate_slow(std::size_t tag, std::size_t n) {
    if constexpr (OperatorNew<Policy>) {
      if (SPANALLOC_UNLIKELY(Policy::leaves())) return Policy::allocate_elsewhere(n);
    }
    Cache& cache = caches_.known();
    if (SPANALLOC_LIKELY(cache.is_empty(bin_of(tag)) && cache.use_spare(bin_of(tag)))) {
      if (FreeObject* object = cache.pop(tag, secret()); SPANALLOC_LIKELY(object != nullptr)) {
        return handed_out(object, bin_of(tag));
      }
    }
    void* p = allocate_slow(bin_of(tag));
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }
  template <OutOfMemory Policy>
  SPANALLOC_COLD void* allocate_beyond(std::size_t n) {
    if constexpr (OperatorNew<Policy>) {
      if (Policy::leaves()) return Policy::allocate_elsewhere(n);
    }
    void* p = allocate_beyond(n).bytes;
    return SPANALLOC_LIKELY(p != nullptr) ? p : Policy::out_of_memory(n);
  }

  // nullptr when memory is out.
  SPANALLOC_COLD void* allocate_slow(BinNumber b) {
    if (os::in_kernel_call()) {
      const std::size_t size = TheBins::of(b).size;  // aligned as the bin's objects are
      return NestedBlocks::allocate(size, min_of(size & (0 - size), kPage));
    }
    free_put_off();
    Cache* cache = &caches_.known();
    if (SPANALLOC_UNLIKELY(is_none(*cache))) {
      if (!ensure_started()) return nullptr;
      cache = &caches_.find();
      if (is_none(*cache)) return allocate_uncached(b);
    }
    giving_back_.follow_wish(*cache);
    // (A thread that just got its cache may have found it filled by the last one's.)
    if (cache->is_empty(b) && !cache->use_spare(b)) {
      const ObjectList list = fetch(b, Cache::most(b));
      if (list.is_empty()) return nullptr;
      cache->set_first(b, list);
    }
    FreeObject* object = cache->pop(b + 1, secret());
    if (object == nullptr) broken_object(cache->take_first(b).first);
    return handed_out(object, b);
  }

  // A thread without a cache takes single objects.
  void* allocate_uncached(BinNumber b) {
    ObjectList list = fetch(b, 1);
    if (list.is_empty()) return nullptr;
    FreeObject* object = list.first;
    FreeObject* rest = next_of(object, secret());
    object->seal = 0;
    if (!is_end(rest)) giving_back_.put_away(b, {rest, list.count - 1});
    return handed_out(object, b);
  }

  // From the CPU's cache, the global one, the folios; when memory is out, from
  // what caches hold elsewhere.
  ObjectList fetch(BinNumber b, std::uint32_t most) {
    ObjectList list = cpus_.take(b);
    if (list.is_empty()) list = folios_.take(b, most, secret());
    if (!list.is_empty()) return list;
    giving_back_.find_memory();  // or another thread has, meanwhile
    return folios_.take(b, most, secret());
  }

  // What operator delete ends in, in the place of the two below.
  template <OperatorDelete Caller>
  SPANALLOC_COLD static void leave_or_deallocate(FreeObject* object, std::size_t tag,
                                                 Allocator& self) {
    if (Caller::leaves()) return Caller::free_elsewhere(object);
    deallocate_slow(object, tag, self);
  }
  template <OperatorDelete Caller>
  SPANALLOC_COLD static void leave_or_deallocate_other(void* p, Allocator& self) {
    if (Caller::leaves()) return Caller::free_elsewhere(p);
    deallocate_other(p, self);
  }

  // What the short path of free ends in: the thread's first list is full. It waits, and the one
  // that has waited goes. Static, so that the object stays in the register where it came.
  [[gnu::noinline]] static void deallocate_slow(FreeObject* object, std::size_t tag,
                                                Allocator& self) {
    Cache& cache = self.caches_.known();
    if (SPANALLOC_UNLIKELY(is_none(cache))) return self.deallocate_first(tag, object);
    self.make_room(cache, bin_of(tag));
    cache.push(tag, object, self.secret_);
  }
  void make_room(Cache& cache, BinNumber b) {
    if (cache.put_aside(b)) return;
    giving_back_.follow_wish(cache);
    giving_back_.put_away(b, cache.take_spare(b));
    cache.put_aside(b);
  }
  // Of a thread that has no cache, yet or any more.
  SPANALLOC_COLD void deallocate_first(std::size_t tag, FreeObject* object) {
    if (os::in_kernel_call()) return NestedBlocks::put_off(object);
    Cache& cache = caches_.find();
    if (is_none(cache)) {
      object->push_on(&end_of_list, secret());
      folios_.put(bin_of(tag), {object, 1}, secret());
      return;
    }
    if (!cache.has_room(bin_of(tag))) make_room(cache, bin_of(tag));
    cache.push(tag, object, secret_);
  }

  // --- Large and huge ---

  SPANALLOC_COLD BigObject allocate_beyond(std::size_t n) {
    return n <= TheBins::kLargest ? allocate_large(n, 1, Config::kRandomOffset)
                                  : allocate_huge(n, 1);
  }
  // Of at most a page's alignment. Where its bin has none free, and gets no chunk, a range that
  // huge objects have left does as well, or a mapping of its own.
  BigObject allocate_large(std::size_t n, std::size_t alignment, bool at_random_line) {
    if (os::in_kernel_call()) return {NestedBlocks::allocate(n, alignment), false};
    free_put_off();
    if (!ensure_started()) return {};
    std::uint32_t line = 0;
    if (at_random_line) {
      Cache* cache = &caches_.known();
      if (is_none(*cache)) cache = &caches_.find();
      if (!is_none(*cache)) line = cache->random_line();
    }
    const BigObject object =
        big_.allocate_large(n, line, [this] { return giving_back_.find_memory(); });
    return SPANALLOC_LIKELY(object.bytes != nullptr) ? object : allocate_huge(n, alignment);
  }
  BigObject allocate_huge(std::size_t n, std::size_t alignment) {
    if (os::in_kernel_call()) return {NestedBlocks::allocate(n, alignment), false};
    free_put_off();
    if (n > kMaxRequest || alignment > kMaxRequest || !ensure_started()) return {};
    return big_.allocate_huge(n, alignment);
  }

  SPANALLOC_COLD static void deallocate_other(void* p, Allocator& self) {
    if (SPANALLOC_UNLIKELY(os::in_kernel_call())) return NestedBlocks::put_off(p);
    if (p != nullptr && !self.big_.free(p) && !NestedBlocks::free(p)) self.name_bad_pointer(p);
  }
  void free_put_off() {
    NestedBlocks::free_put_off([this](void* p) { deallocate(p); });
  }

  // Of what is no object in use, and no large one.
  [[noreturn]] SPANALLOC_COLD void name_bad_pointer(const void* p) const {
    const ChunkEntry entry = chunks_.at(p);
    if (entry.is_free()) name_free_already(p);
    if (!entry.is_bin())
      os::fatal("pointer is none of this heap's, or not the start of an object:", p);
    const bool is_start = entry.bin() < TheBins::kFirstLarge && Folios::is_out(entry.bin(), p);
    if (is_start) name_free_already(p);  // it is sealed
    os::fatal("pointer is no object in use (not the start of one, or freed long ago):", p);
  }

  Books<Config> books() { return {chunks_, folios_, big_.large(), big_.huge(), cpus_, caches_}; }

  // --- Start, fork ---

  bool is_started() const { return cpus_.is_started(); }
  bool ensure_started() { return SPANALLOC_LIKELY(is_started()) || start(); }
  SPANALLOC_COLD bool start() {
    process_start();
    const LockGuard guard(start_lock_);
    if (secret() == 0) secret_.set((os::random_bits() | 3) - 1);
    big_.start();
    return chunks_.start() && cpus_.start();
  }

  static void enter_child(thread::ForkWatch* watch) {
    Allocator& self = *static_cast<Watch*>(watch)->allocator;
    self.start_lock_.abandon_if_owner_died();
    self.chunks_.enter_child();
    self.folios_.enter_child();
    self.big_.enter_child();
    self.cpus_.enter_child();
    self.caches_.enter_child();
  }

  // (Misuse is reported where no lock is held.)
  static void leave(thread::ForkWatch* watch) {
    static_cast<Watch*>(watch)->allocator->caches_.leave_all();
  }

  // What the fast paths read, and nothing writes once the allocator is started.
  SetOnce secret_;
  ChunkTable chunks_;
  ThreadCaches<Config> caches_{*this};
  CpuCaches<Config> cpus_;
  Folios folios_{chunks_};
  BigObjects<Config> big_{chunks_, cpus_, secret_};
  GivingBack<Config> giving_back_{cpus_, folios_, big_.large(), big_.huge(), caches_, secret_};
  WakingLock start_lock_;
  // For the line that reports a misuse.
  SPANALLOC_COLD static bool describe(thread::ForkWatch* watch, const void* p,
                                      os::AddressFacts& out) {
    const ChunkTable& chunks = static_cast<Watch*>(watch)->allocator->chunks_;
    const ChunkEntry entry = chunks.at(p);
    if (entry.word() == 0) return false;
    out.range = "chunk";
    out.range_number = chunks.number_of(p);
    out.range_at = chunks.address(chunks.number_of(p));
    out.state = entry.is_free() ? "free" : entry.is_bin() ? "objects of one size" : "a huge object";
    if (!entry.is_bin() || entry.bin() >= TheBins::kCount) return true;
    const Bin& bin = TheBins::of(entry.bin());
    const std::size_t place = address_of(p) - out.range_at - bin.origin;  // wraps: bookkeeping
    if (place / bin.size < bin.first || place / bin.size >= bin.objects) return true;
    out.block = address_of(p) - place % bin.size;
    out.block_bytes = bin.size;
    return true;
  }

  Watch fork_watch_{{&enter_child, &leave, &describe}, this};
  Atomic<std::uint32_t> registered_{0};  // the fork watch
};

template <class Config>
constinit Allocator<Config> Allocator<Config>::default_instance{};

}  // namespace spanalloc::supermalloc
