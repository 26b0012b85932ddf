// The scalloc engine in a model: all of its production code, from allocate() and deallocate() down
// to the arena, with classes of one, three and four blocks a span. Here are only the threads'
// thread-local state (through per_thread_storage), a fresh heap for each execution, and books
// about who holds which block.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include "model_test.hpp"
#include "os_stub.hpp"
#include "papers/scalloc/engine/engine.hpp"

namespace spanalloc {

/// What the engine opens to tests: its private books, to start them afresh.
struct ScallocTestAccess {
  template <class Config>
  static void restart() {
    using Engine = ScallocEngine<Config>;
    // The pool is large, and one core's: emptied, not made anew.
    Engine::room_.pool.forget_all();
    for (scalloc::SharedLab& lab : Engine::room_.shared_labs) ::new (&lab) scalloc::SharedLab{};
    ::new (&Engine::heap_) typename Engine::Heap(Engine::room_, &Engine::find_thread);
    ::new (&Engine::thread_) typename Engine::Frontend(Engine::heap_);
  }
  /// Reserves the arena.
  template <class Config>
  static bool start() {
    return ScallocEngine<Config>::heap_.ensure_started();
  }
  /// What the running thread does last when memory is out, with no hot span of the class.
  template <class Config>
  static bool take_floating(scalloc::ClassId size_class) {
    auto& thread = ScallocEngine<Config>::frontend();
    const typename ScallocEngine<Config>::Frontend::Inside within(thread);
    return thread.take_floating(*thread.own_lab, size_class);
  }
};

namespace model {

struct ModelScalloc : Scalloc {
  static constexpr const char* kName = "scalloc-model";
  static constexpr unsigned kReusabilityPercent = 30;  // two of four blocks free, or one of three
  static constexpr bool kMadvise = false;
  static constexpr bool kStackPerCore = false;
};

/// With the paper's threshold a span of so few blocks is never reusable before it is empty: the way
/// by which hidden empty spans are found (suspects) shows.
struct ModelScallocSuspects : ModelScalloc {
  static constexpr const char* kName = "scalloc-model-suspects";
  static constexpr unsigned kReusabilityPercent = 80;
};

/// All threads allocate from one core's buffer, under its lock.
struct ModelScallocClab : ModelScalloc {
  static constexpr const char* kName = "scalloc-model-clab";
  static constexpr bool kCoreLocal = true;
};

template <class Config = ModelScalloc>
class ScallocWorld {
 public:
  using Engine = ScallocEngine<Config>;
  using Frontend = typename Engine::Frontend;
  using Span = scalloc::Span;
  using State = scalloc::State;
  using SpanWord = scalloc::SpanWord;

  static constexpr std::size_t kFour = 128 * kKiB;   // objects of a class with four blocks a span
  static constexpr std::size_t kThree = 256 * kKiB;  // three
  static constexpr std::size_t kOne = 1 * kMiB;      // one
  static constexpr unsigned kMaxSpans = 6;
  static constexpr std::uint32_t kMaxBlocks = 4;

  ScallocWorld() {
    forget_memory();
    ScallocTestAccess::restart<Config>();
    per_thread_storage(&Engine::frontend(), sizeof(Frontend));
    clear_the_arena();
  }

  // --- What threads do ---------------------------------------------------------------------------
  void* allocate(std::size_t size) {
    void* p = allocate_if_any(size);
    MODEL_CHECK(p != nullptr);
    return p;
  }
  /// nullptr when memory is out.
  void* allocate_if_any(std::size_t size) {
    void* p = Engine::allocate(size);
    if (p == nullptr) return nullptr;
    Entry& entry = entry_of(p, size);
    MODEL_CHECK(!entry.out);
    entry.out = true;
    entry.size = size;
    touch(entry);
    return p;
  }
  /// The last resort alone, as if memory were out, and a block from what it has found. The thread
  /// has no hot span of that class. nullptr: there is none.
  void* allocate_floating(std::size_t size) {
    const bool found = ScallocTestAccess::take_floating<Config>(scalloc::class_of(size));
    return found ? allocate(size) : nullptr;
  }
  void deallocate(void* p) {
    Entry& entry = entry_of(p, 0);
    MODEL_CHECK(entry.out);
    touch(entry);
    entry.out = false;
    Engine::deallocate(p);
  }
  /// The end of the running thread.
  void exit_thread() { MODEL_CHECK(Engine::frontend().leave().what == nullptr); }

  // --- Before the threads start: as thread `t` ---------------------------------------------------
  /// Allocates `count` objects into objects[0 ..].
  void start_with(unsigned t, std::size_t size, unsigned count, void** objects) {
    as(t, [&] {
      for (unsigned i = 0; i < count; ++i) objects[i] = allocate(size);
    });
  }
  /// The thread has a LAB, but no span of the sizes in question.
  void start_with_lab(unsigned t) {
    as(t, [] { Engine::deallocate(Engine::allocate(16)); });
  }
  /// Its hot span of the size, which is full, floats.
  void start_without_hot(unsigned t, std::size_t size) {
    const std::size_t before = limit();
    limit_first_range(before * scalloc::kVirtualSpan);
    as(t, [&] { MODEL_CHECK(Engine::allocate(size) == nullptr); });
    limit_first_range((kMaxSpans + 1) * scalloc::kVirtualSpan);
  }
  void start_freed(unsigned t, void* p) {
    as(t, [&] { deallocate(p); });
  }
  void start_exited(unsigned t) {
    as(t, [&] { exit_thread(); });
  }
  /// From here on no fresh span is to be had.
  void start_without_memory() { limit_first_range(limit() * scalloc::kVirtualSpan); }

  // --- At rest -----------------------------------------------------------------------------------
  /// Every span is where its word says, every block in one place; an empty span is in the pool, in
  /// the hands of a LAB as its hot span, or at least listed where its owner finds it.
  void check_at_rest() {
    check_all();
    for (unsigned n = 1; n < limit(); ++n) {
      if (live(n) == 0 && word(n).is_idle()) MODEL_CHECK(word(n).listed());
    }
  }
  /// ... and after the slow paths of its threads no empty span is left but hot ones.
  void check_after_trim(unsigned threads) {
    check_at_rest();
    for (unsigned t = 0; t < threads; ++t) as(t, [] { Engine::trim(); });
    check_all();
    for (unsigned n = 1; n < limit(); ++n) {
      if (live(n) == 0) MODEL_CHECK(word(n).state() == State::kFree);
    }
  }
  /// In a fork's child, which may pool each span that it finds marked as free: it knows how far
  /// such a span was written.
  void check_free_spans_are_dirty() const {
    for (unsigned n = 1; n < limit(); ++n) {
      if (!directory().mark(scalloc::known_slice(n)).is_free()) continue;
      const scalloc::SizeClass& c = scalloc::info(span(n)->size_class.load_relaxed());
      MODEL_CHECK(span(n)->dirty_to >=
                  c.first_block + std::size_t{span(n)->carved.load_relaxed()} * c.block_size);
    }
  }
  /// The span that held this object is in the pool.
  bool is_free(const void* p) const { return word(number_of(p)).state() == State::kFree; }

 private:
  struct Entry {
    bool out = false;
    std::size_t size = 0;
    Plain<int> contents;
  };

  // In a constructor or at rest: f() as that thread.
  template <class F>
  static void as(unsigned t, F f) {
    act_as(t);
    f();
    act_as(kMaxThreads);
  }

  // The arena's memory is another execution's: as if it came from the kernel,
  // without headers and links.
  static void clear_the_arena() {
    if (!ScallocTestAccess::start<Config>()) fail("no memory to start with");
    for (unsigned n = 0; n <= kMaxSpans; ++n) {
      std::memset(static_cast<void*>(span(n)), 0, 4096);
      ::new (static_cast<void*>(span(n))) Span;
      for (const std::size_t size : {kFour, kThree, kOne}) {
        const scalloc::SizeClass& c = scalloc::info(scalloc::class_of(size));
        for (std::uint32_t i = 0; i < c.blocks; ++i) {
          span(n)->block_at(c.first_block + i * c.block_size)->clear_link();
        }
      }
      directory().set_mark(scalloc::known_slice(n), scalloc::Mark::nothing());
    }
  }

  static const scalloc::Directory& directory() { return Engine::heap().backend().directory(); }
  static std::size_t limit() { return directory().limit.load_relaxed(); }
  static std::size_t number_of(const void* p) { return directory().slice_of(address_of(p)); }
  static Span* span(std::size_t n) { return directory().span(scalloc::known_slice(n)); }
  static SpanWord word(std::size_t n) { return SpanWord(span(n)->word.load_relaxed()); }

  Entry& entry_of(const void* p, std::size_t size) {
    const std::size_t n = number_of(p);
    MODEL_CHECK(n >= 1 && n <= kMaxSpans);
    if (size == 0) size = size_[n];
    size_[n] = size;
    const std::size_t offset = address_of(p) - span(n)->address() - 4096;
    MODEL_CHECK(offset % size == 0 && offset / size < kMaxBlocks);
    return entries_[n][offset / size];
  }
  static void touch(Entry& entry) { entry.contents.set(entry.contents.get() + 1); }

  std::uint32_t live(std::size_t n) const {
    std::uint32_t count = 0;
    for (const Entry& entry : entries_[n]) count += entry.out;
    return count;
  }

  void check_all() {
    unsigned pooled[kMaxSpans + 1] = {};
    unsigned listed[kMaxSpans + 1] = {};
    unsigned hot[kMaxSpans + 1] = {};
    MODEL_CHECK(limit() <= kMaxSpans + 1);
    Engine::heap().backend().for_each_pooled(
        [&](Span* s) { MODEL_CHECK(++pooled[number_of(s)] == 1); });
    Engine::heap().for_each_lab([&](scalloc::Lab& lab) {
      for (const scalloc::ClassId c : scalloc::kAllClasses) {
        count_list(lab, lab.set(c).first_reusable(), State::kReusable, listed);
        count_list(lab, lab.set(c).first_suspect(), State::kFloating, listed);
      }
    });
    for (unsigned t = 0; t < kMaxThreads; ++t) {
      as(t, [&] {
        for (const scalloc::ClassId c : scalloc::kAllClasses) {
          const Span* s = Engine::frontend().spans.hot[c];
          if (s != nullptr) ++hot[number_of(s)];
        }
      });
    }
    for (std::size_t n = 1; n < limit(); ++n) check_span(n, pooled[n], listed[n], hot[n]);
  }

  static void count_list(const scalloc::Lab& lab, const Span* s, State state, unsigned* listed) {
    for (; s != nullptr; s = s->set_next) {
      const std::size_t n = number_of(s);
      MODEL_CHECK(++listed[n] == 1);
      MODEL_CHECK(word(n).state() == state && word(n).listed());
      MODEL_CHECK(scalloc::lab_of(s->owner.load_relaxed()) == &lab);
    }
  }

  void check_span(std::size_t n, unsigned pooled, unsigned listed, unsigned hot) const {
    const SpanWord w = word(n);
    if (w.state() == State::kExpected) return;
    MODEL_CHECK(pooled == (w.state() == State::kFree ? 1u : 0u));
    MODEL_CHECK(listed == (w.listed() ? 1u : 0u));
    MODEL_CHECK(w.state() != State::kReusable || w.listed());
    if (w.state() == State::kHot) {
      MODEL_CHECK(hot == 1 || scalloc::lab_of(span(n)->owner.load_relaxed())->shared);
    } else {
      MODEL_CHECK(hot == 0);
    }
    if (w.state() == State::kFree) MODEL_CHECK(live(n) == 0);
    if (w.is_idle())
      MODEL_CHECK(live(n) == span(n)->blocks - w.count() - span(n)->local_free.load_relaxed());
  }

  std::size_t size_[kMaxSpans + 1] = {};
  Entry entries_[kMaxSpans + 1][kMaxBlocks];
};

}  // namespace model
}  // namespace spanalloc
