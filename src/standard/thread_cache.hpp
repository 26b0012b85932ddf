// The short paths of malloc and free: what one thread does in one heap.
//
// A span has one list of free blocks, in its record: malloc pops the list of the class's current
// span, free pushes on the list of the thread's span that the block lies in. So a free asks
// neither for a block's class nor whether its span is current: the map (thread_map.hpp) leads from
// the address to the span's record, where one multiplication tells whether this is a block of the
// span that was handed out. What else a call does begins in malloc_miss.hpp and free_miss.hpp.
#pragma once

#include "standard/free_miss.hpp"
#include "standard/heap_call.hpp"
#include "standard/in_hand.hpp"
#include "standard/malloc_miss.hpp"
#include "standard/resize.hpp"

namespace spanalloc::standard {

/// What the short paths find.
template <class Config>
struct ThreadState {
  // No cache record has the number whose bits are all ones.
  static constexpr std::uint64_t kNoIdentity = ~std::uint64_t{0} >> SpanWord::kIdentityShift;

  /// The current span of each class, or a batch that was lent for it: malloc takes from its list.
  /// kNoTarget: neither.
  /// (Entry 0 belongs to no class: it serves requests of size 0, and never holds a block.)
  FreeTarget* current[SizeClasses<Config>::kSmallClasses];
  /// The map of the thread's spans. kNoMap: it has made too few calls yet, or there was no memory
  /// for a map.
  ThreadMap* map;
  CacheRecord<Config>* cache;  ///< nullptr before the first allocation and after the end
  /// SpanWord::identity() of a span that this thread owns; without a cache record a value that no
  /// span has
  std::uint64_t owned_identity;
  // The same for operators (engine/operators.hpp); where they leave, kNoMap and nullptr
  ThreadMap* map_of_delete;
  CacheRecord<Config>* cache_of_new;

  constexpr ThreadState() { have_nothing(); }
  /// All calls leave the short paths.
  constexpr void have_nothing() {
    for (FreeTarget*& span : current) span = &kNoTarget;
    map = map_of_delete = &kNoMap;
    cache = cache_of_new = nullptr;
    owned_identity = kNoIdentity;
  }
  void set_map(ThreadMap& its_map) {
    map = &its_map;
    map_of_delete = operators_leave.read() ? &kNoMap : map;
  }
  void set_cache(CacheRecord<Config>* its_cache) {
    cache = its_cache;
    cache_of_new = operators_leave.read() ? nullptr : cache;
  }

  template <class Caller>
  SPANALLOC_INLINE ThreadMap& map_for() {
    if constexpr (OperatorDelete<Caller>) return *map_of_delete;
    return *map;
  }
  template <class Caller>
  SPANALLOC_INLINE CacheRecord<Config>* cache_for() {
    return OperatorNew<Caller> ? cache_of_new : cache;
  }
};

/// What one thread does in one heap. Only that thread calls it. For the default heap this is
/// initial-exec TLS, which must stay within 1 KiB in a library that dlopen may load.
template <class Config>
class ThreadCache : public ThreadState<Config> {
  using State = ThreadState<Config>;
  using Lookup = ClassLookup<Config>;
  using Classes = SizeClasses<Config>;
  using Life = ThreadLife<Config>;
  using MallocMiss = standard::MallocMiss<Config>;
  using FreeMiss = standard::FreeMiss<Config>;

 public:
  using State::current, State::map, State::cache, State::owned_identity;
  Heap<Config>* heap;        ///< constant
  PageLayer<Config>* pages;  ///< constant: the heap's
  /// The exit hook has run: the thread takes no cache record any more
  bool exited = false;
  std::uint8_t exit_round = 0;  ///< thread::ExitKey's
  std::uint8_t map_misses = 0;  ///< how many calls a map would have served, up to kMissesForMap
  std::uint8_t lone_frees = 0;  ///< frees of others' blocks without a record, up to kFreesForCache

  constexpr ThreadCache(Heap<Config>& the_heap, PageLayer<Config>& its_pages)
      : heap(&the_heap), pages(&its_pages) {}

  // --- Short paths. A miss gets the argument first: it is in that register already ---------------

  /// Any n.
  template <OutOfMemory Policy = ReturnNull>
  SPANALLOC_INLINE void* allocate(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > Lookup::kMostByByte)) return allocate_larger<Policy>(n, *this);
    return pop<Policy>(Lookup::by_byte[n], no_link_bits(Classes::kSlice), n);
  }

  /// The short path once more, for classes that are not looked up by the byte.
  template <class Policy>
  [[gnu::noinline]] static void* allocate_larger(std::size_t n, ThreadCache& self) {
    if (SPANALLOC_UNLIKELY(n > Config::kMaxSmall))
      return MallocMiss::template allocate_large<Policy>(n, self);
    const ClassId c = Lookup::small[n];
    return self.template pop<Policy>(c, Lookup::no_link_bits[index_of(c)], n);
  }

  template <class Caller = NoOperator>
  SPANALLOC_INLINE void deallocate(void* p) {
    const std::uintptr_t a = address_of(p);
    FreeTargetPointer target(this->template map_for<Caller>(), a);
    if (SPANALLOC_UNLIKELY(!FreeTarget::accepts(target, a))) {
      // Of no span of the thread's, or its entry is overwritten
      return missed<Caller>(p);
    }
    const Difference link = difference(address_of(target->free_list().first()), a);
    if (SPANALLOC_UNLIKELY(link.none))  // freed twice
      return missed<Caller>(p);
    auto* block = static_cast<Block*>(p);
    FreeMiss::poison_freed(block, *pages);
    if (SPANALLOC_UNLIKELY(FreeTarget::push(target, block, link.bits)))
      return FreeMiss::pass_event(p, *this, target.operator->());
  }

  // --- What else an engine offers; see engine/engine.hpp ----------------------------------------

  /// Aligned requests are common: the same short path (SizeClasses::multiples_are_aligned).
  SPANALLOC_INLINE void* allocate_aligned(std::size_t n, std::size_t alignment) {
    const std::size_t multiple = align_up(n, alignment);  // 0 if n is 0, or where it overflows
    if (SPANALLOC_UNLIKELY(multiple - 1 >= Lookup::kMostByByte))
      return MallocMiss::allocate_larger_aligned(*this, n, alignment);
    return allocate(multiple);
  }
  SPANALLOC_INLINE void* allocate_zeroed(std::size_t n) {
    if (SPANALLOC_UNLIKELY(n > Lookup::kMostByByte))
      return MallocMiss::allocate_filled(*this, n, Fill{nullptr, n});
    void* p = allocate(n);
    if (SPANALLOC_LIKELY(p != nullptr)) clear_block(p, n);
    return p;
  }
  void* allocate_copy(std::size_t n, const void* from, std::size_t bytes) {
    if (SPANALLOC_UNLIKELY(n > Lookup::kMostByByte))
      return MallocMiss::allocate_filled(*this, n, Fill{from, bytes});
    void* p = allocate(n);
    if (SPANALLOC_LIKELY(p != nullptr)) std::memcpy(p, from, bytes);
    return p;
  }
  SPANALLOC_INLINE std::size_t usable_size_at_once(const void* p) {
    return Resize<Config>::usable_size_at_once(*this, p);
  }
  template <LeavesAlone Policy>
  SPANALLOC_INLINE Resized resize_at_once(void* p, std::size_t n) {
    return Resize<Config>::template resize_at_once<Policy>(*this, p, n);
  }
  std::size_t usable_size(const void* p) { return Resize<Config>::usable_size(*this, p); }
  template <LeavesAlone Policy = TakeAllBack>
  Resized resize(void* p, std::size_t n) {
    return Resize<Config>::template resize<Policy>(*this, p, n);
  }
  bool owns(const void* p) { return Resize<Config>::owns(*this, p); }
  bool trim() { return Life::trim(*this); }
  bool pass_epochs() { return Life::pass_epochs(*this); }

  bool begin_with(CacheRecord<Config>* fresh) { return Life::begin_with(*this, fresh); }
  void detach() { Life::detach(*this); }
  void thread_exit() { Life::thread_exit(*this); }
  /// The thread's end calls it (thread::ExitKey); `state` is a ThreadCache.
  static void on_thread_exit(void* state) {
    auto* self = static_cast<ThreadCache*>(state);
    if (!self->heap->exit_key.comes_again(state, self->exit_round)) self->thread_exit();
  }

  /// Until show() the thread is one that has nothing.
  void hide(State& aside) {
    aside = *this;
    this->have_nothing();
  }
  void show(const State& aside) { static_cast<State&>(*this) = aside; }

  // --- For the parts that are given their thread's cache -----------------------------------------

  /// While it lives, the thread is in a call in which it may have a span that is in no place.
  SPANALLOC_INLINE HeapCall<Config> enter() { return {cache, *pages}; }
  /// While it lives, the thread has a span in hand.
  InHand::Taken take_in_hand() { return InHand::Taken(cache->in_hand); }
  bool has_nothing_in_hand() const { return cache == nullptr || cache->in_hand.is_nothing(); }
  /// While it lives, the thread gives its own spans or their blocks back.
  auto begin_work() { return typename TimedWork<Config>::Working(*this); }
  SPANALLOC_INLINE unsigned shard() const { return heap->shard_of(cache); }
  bool is_owned_here(SpanWord word) const { return word.identity() == owned_identity; }
  bool is_mine(SpanWord word) const {
    // Below 4: the owners are equal.
    return word.state() != SpanState::kFree && (word.identity() ^ owned_identity) < 4;
  }
  /// No span: the class has none. (It may have a batch.)
  SpanRef current_span(ClassId c) {
    FreeTarget* const target = current[index_of(c)];
    if (target == &kNoTarget || target->stock() == Stock::kBatch) return {};
    return pages->ref_of(*static_cast<Span*>(target));
  }
  FreeList& list_of(ClassId c) { return current[index_of(c)]->free_list(); }
  /// enter() for a miss of malloc: it flushes a batch, so that blocks do not stay there for ever.
  /// (Before it enters: the flush enters by itself, and blocks on their way count as out.)
  SPANALLOC_INLINE HeapCall<Config> enter_miss() {
    if (cache != nullptr) cache->batches.flush_one(*this);
    return enter();
  }
  void free_to_span(SpanRef span, Block* newest, Block* oldest, std::uint32_t count) {
    FreeMiss::free_to_span(*this, span, newest, oldest, count);
  }
  /// The caller's call would have been short if the map had led to the target.
  void miss_map(SpanRef span, FreeTarget& target) {
    if (SPANALLOC_UNLIKELY(map == &kNoMap && map_misses != Config::kMissesForMap)) {
      ++map_misses;
      if (map_misses == Config::kMissesForMap) this->set_map(pages->maps.make(*cache));
    }
    pages->maps.show(*map, span, target);
  }
  bool has_no_map_for_good() const { return map == &kNoMap && map_misses == Config::kMissesForMap; }

 private:
  template <class Caller>
  SPANALLOC_INLINE void missed(void* p) {
    if constexpr (OperatorDelete<Caller>)
      return FreeMiss::template leave_or_deallocate_missed<Caller>(p, *this);
    FreeMiss::deallocate_missed(p, *this);
  }
  // Takes the first block off the class's list, unless it is the last.
  template <class Policy>
  SPANALLOC_INLINE void* pop(ClassId c, std::uint64_t no_link, std::size_t n) {
    FreeTarget* const target = current[index_of(c)];
    Block* block = target->free_list().first();
    keep_in_result_register(block);
    const std::uint64_t link = block->template link<Policy>();
    if (SPANALLOC_UNLIKELY((link & no_link) != 0))
      return MallocMiss::template allocate_last<Policy>(n, *this, target, link);
    target->free_list().take_off(block, link);
    unpoison(block, Classes::info(c).block_size);
    return block;
  }
};

}  // namespace spanalloc::standard
