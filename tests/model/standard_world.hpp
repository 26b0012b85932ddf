// The standard engine in a model: all of its production code, from malloc and free down to the
// arena, with two to four blocks a span. Here are only the thread caches, a fresh heap for each
// execution, and books about who holds which block.
#pragma once

#include <cstdint>
#include <iterator>

#include "heap_walk.hpp"
#include "model_test.hpp"
#include "os_stub.hpp"
#include "standard/engine.hpp"

namespace spanalloc {

struct SpinLockTestAccess {
  static void begin_first_generation() { SpinLock::generation_ = 0; }
};

namespace model {

/// Spans of one slice with few blocks; a thread keeps two cached large spans, and a ready span of
/// each class. Others must have freed half of an away span before its thread takes it back.
struct ModelStandard : Standard {
  static constexpr const char* kName = "standard-model";
  static constexpr unsigned kMaxOrder = 0;
  static constexpr unsigned kWantedBlocks = 2;
  static constexpr unsigned kMinBlocks = 2;
  static constexpr std::size_t kMostOverheadPercent = 100;
  static constexpr std::size_t kMaxLinear = 16;
  static constexpr unsigned kStepsPerDoubling = 4;
  static constexpr unsigned kClassesByByte = 1;
  static constexpr std::size_t kReadyBytes = 0;
  static constexpr std::size_t kCachedLargeBytes = 128 * kKiB;
  static constexpr std::uint32_t kPartialPermille = 600;
  static constexpr std::uint32_t kMaxBatch = 2;
};
/// ... one block.
struct ModelEarlyPartial : ModelStandard {
  static constexpr const char* kName = "standard-model-early-partial";
  static constexpr std::uint32_t kPartialPermille = 125;
};
/// Threads have no spans of their own: they are lent blocks, two at a time.
struct ModelLending : ModelStandard {
  static constexpr const char* kName = "standard-model-lending";
  static constexpr std::size_t kAllOwnedBytes = 0;
  static constexpr std::uint32_t kMostLent = 2;
  static constexpr std::size_t kBytesLent = 64 * kKiB;
  static constexpr unsigned kCreditToOwn = 200;
};
/// ... but for the first batch of each class.
struct ModelLendingOnce : ModelLending {
  static constexpr const char* kName = "standard-model-lending-once";
  static constexpr unsigned kCreditToOwn = 1;
};

template <class TheConfig>
class StandardWorldOf {
 public:
  using Config = TheConfig;
  using ThreadCache = standard::ThreadCache<Config>;
  using Heap = standard::Heap<Config>;
  using Pages = standard::PageLayer<Config>;
  using Classes = standard::SizeClasses<Config>;
  using SpanRef = standard::SpanRef;
  using SpanNumber = standard::SpanNumber;
  using SpanState = standard::SpanState;
  using SpanWord = standard::SpanWord;

  // Sizes of blocks of which a span has so many.
  static constexpr std::size_t kFour = 16 * kKiB;
  static constexpr std::size_t kThree = 20 * kKiB;
  static constexpr std::size_t kTwo = 32 * kKiB;
  static constexpr std::size_t kOne = 64 * kKiB;
  static constexpr unsigned kMaxBlocks = 4;
  static constexpr unsigned kMaxSpans = 40;
  /// A thread that no scene has: it acts before the others start, or at rest.
  static constexpr unsigned kHelper = kMaxThreads - 1;

  /// So many threads can end at once.
  explicit StandardWorldOf(unsigned cpus = 1) {
    forget_memory();
    grant_purges();
    count_cpus(cpus);
    SpinLockTestAccess::begin_first_generation();
    standard::inside_without_cache.store_relaxed(nullptr);  // a failure may have come in a call
    per_thread_storage(&standard::inside_without_cache, sizeof(standard::inside_without_cache));
    if (!pages_.start()) fail("no memory to start with");
    name_variables();
  }

  // --- What threads do ---------------------------------------------------------------------------
  void* malloc(std::size_t size) {
    void* p = malloc_if_any(size);
    MODEL_CHECK(p != nullptr);
    return p;
  }
  /// nullptr when memory is out.
  void* malloc_if_any(std::size_t size) {
    void* p = cache().allocate(size);
    if (p == nullptr) return nullptr;
    Entry& entry = entry_of(p);
    MODEL_CHECK(!entry.out);
    entry.block = p;
    entry.set_out(true, order_of_out);
    entry.touch();
    return p;
  }
  void free(void* p) {
    Entry& entry = entry_of(p);
    MODEL_CHECK(entry.out);
    entry.touch();
    entry.set_out(false);
    cache().deallocate(p);
  }
  /// The end of the running thread. (What it allocates afterwards is lent to it block by block.)
  void end() { cache().thread_exit(); }
  void trim() { cache().trim(); }
  /// What other threads' decay epochs and misses do to all threads' spans.
  void take_large_spans() {
    const standard::HeapCall<Config> inside(cache().cache, pages());
    heap_.pool_large_spans(0);
  }
  /// What a purge of an abandoned span's pages does to its word.
  void hold_abandoned(SpanRef span) {
    const standard::HeapCall<Config> inside(cache().cache, pages());
    if (heap_.protocol().with_abandoned(span, [](SpanWord) {}) == standard::Freed::kEmptied)
      heap_.put_in_pool(span, 0);
  }
  /// What a purge does that meets an owned span without a block out.
  void claim_if_away(SpanRef span) {
    const standard::HeapCall<Config> inside(cache().cache, pages());
    if (heap_.protocol().claim_if_away(span)) heap_.put_in_pool(span, 0);
  }

  // --- Before the threads start, or at rest ------------------------------------------------------
  /// f() as thread t.
  template <class F>
  static void as(unsigned t, F f) {
    act_as(t);
    f();
    act_as(kMaxThreads);
  }
  /// Thread t allocates blocks[0], blocks[1] ...
  template <std::size_t kCount>
  void start_with(unsigned t, std::size_t size, void* (&blocks)[kCount]) {
    as(t, [&] {
      for (void*& block : blocks) block = malloc(size);
    });
  }
  /// Thread t has a cache, but no span of several blocks.
  void start_attached(unsigned t) {
    as(t, [&] { free(malloc(kOne)); });
  }
  void start_freed(unsigned t, void* p) {
    as(t, [&] { free(p); });
  }
  void start_ended(unsigned t) {
    as(t, [&] { end(); });
  }
  /// The current and ready spans of thread t are nobody's.
  void start_given_up(unsigned t) {
    as(t, [&] { trim(); });
  }
  /// Thread t has allocated all blocks of a span, blocks[0], blocks[1] ..., which is away.
  template <std::size_t kCount>
  void start_away(unsigned t, std::size_t size, void* (&blocks)[kCount]) {
    start_with(t, size, blocks);
    as(t, [&] {
      void* const next = malloc(size);
      MODEL_CHECK(span_of(blocks[0])->is_away() && !span_of(next)->is_away());
      free(next);
    });
  }
  /// Thread t has a map, as one that has freed much.
  void start_mapped(unsigned t) {
    as(t, [&] {
      for (int i = 0; i < 100; ++i) free(malloc(kFour));
      MODEL_CHECK(cache().cache->map.load_relaxed() != nullptr);
      trim();
    });
  }
  /// From here on there is no memory but what spans of several blocks have.
  void start_without_memory() {
    refuse_memory();
    as(kHelper, [&] {
      while (malloc_if_any(kOne) != nullptr) {
      }
    });
  }

  // --- What is looked at -------------------------------------------------------------------------
  SpanRef span_of(const void* p) {
    return pages_.span(SpanNumber{static_cast<std::uint32_t>(pages_.slice_of(address_of(p)))});
  }
  SpanWord word_of(const void* p) { return span_of(p)->load_word(); }
  bool is_free(const void* p) { return word_of(p).state() == SpanState::kFree; }

  /// Each span is in one place, and all books agree.
  void check() { MODEL_CHECK(walk().broken == 0); }
  /// ... and when all that is out is freed and all threads have ended, every span is in the pool.
  void check_to_the_end() {
    check();
    as(kHelper, [&] { free_all(); });
    for (unsigned t = 0; t < kMaxThreads; ++t) start_ended(t);
    check();
    as(kHelper, [&] { trim(); });
    const test::HeapWalk last = walk();
    MODEL_CHECK(last.consistent() && last.carved == last.in_pool);
  }

  Heap& heap() { return heap_; }
  Pages& pages() { return pages_; }

 protected:
  Order order_of_out = Order::release;

  ThreadCache& cache() { return caches_[acting_thread()]; }
  test::HeapWalk walk() { return standard::HeapWalker<Config>(pages_).walk(); }

  void free_all() {
    for_each_entry([&](Entry& entry) {
      if (entry.out) free(entry.block);
    });
  }
  /// In a fork's child: what had reached memory.
  void believe_what_was_shown() {
    for_each_entry([](Entry& entry) { entry.out = entry.shown.load_relaxed() != 0; });
  }
  /// How many blocks of a span of several are in no place: on none of its lists, and not untouched.
  std::uint32_t blocks_missing(SpanRef span) {
    const standard::ClassInfo& info = Classes::info(span->class_id());
    std::uint32_t found = span->count_unlisted(info);
    // (Purged blocks are on a list without being counted there.)
    found += pages_.list_length(span, span->free_list().first());
    if (const standard::BlockOffset head = span->load_word().head();
        head != standard::BlockOffset::kNone) {
      found += pages_.list_length(span, pages_.block_at_offset(span, head));
    }
    MODEL_CHECK(found <= info.blocks);
    return info.blocks - found;
  }

 private:
  struct Entry {
    void* block = nullptr;
    bool out = false;            // as the threads know it,
    Atomic<std::uint8_t> shown;  // and as a fork's child does
    Plain<int> contents;         // for the block's own bytes

    // `order`: as programs do, a thread may note with less than release that it has a block now.
    void set_out(bool value, Order order = Order::release) {
      out = value;
      if (!explores_forks()) return;
      if (order == Order::relaxed) return shown.store_relaxed(value);
      shown.store_release(value);
    }
    void touch() { contents.set(contents.get() + 1); }
  };

  Entry& entry_of(const void* p) {
    const std::size_t slice = pages_.slice_of(address_of(p));
    MODEL_CHECK(slice >= 1 && slice <= kMaxSpans);
    return entries_[slice - 1][address_of(p) % Classes::kSlice / kFour];
  }
  template <class F>
  void for_each_entry(F f) {
    for (auto& span : entries_) {
      for (Entry& entry : span) f(entry);
    }
  }

  void name_variables() {
    static constexpr const char* kWords[] = {"span1.word", "span2.word", "span3.word"};
    for (std::uint32_t n = 1; n <= std::size(kWords); ++n) {
      const SpanRef span = pages_.span(SpanNumber{n});
      name_variable(&span->word, kWords[n - 1]);
    }
  }

  Pages pages_{heap_, &standard::ForkRecovery<Config>::enter_child,
               &standard::ForkRecovery<Config>::let_go};
  Heap heap_{pages_, &ThreadCache::on_thread_exit};
  ThreadCache caches_[kMaxThreads] = {
      {heap_, pages_}, {heap_, pages_}, {heap_, pages_}, {heap_, pages_}};
  Entry entries_[kMaxSpans][kMaxBlocks];
};

using StandardWorld = StandardWorldOf<ModelStandard>;
using EarlyPartialWorld = StandardWorldOf<ModelEarlyPartial>;
using LendingWorld = StandardWorldOf<ModelLending>;
using LendingOnceWorld = StandardWorldOf<ModelLendingOnce>;

}  // namespace model
}  // namespace spanalloc
