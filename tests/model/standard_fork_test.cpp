// The standard engine's span protocol when a fork leaves its threads behind, at any step of any of
// them. The child does what Heap::recover_in_child() does, with the production code for lists: it
// looks for what was in vanished threads' hands only if one of them was inside a call, and repairs
// the lists whose locks they held.
//
// Then every span is in the pool once, or parked on exactly one list of an abandoned list, or lost
// because it was hot; each block is in one place, or in none if a thread vanished with it; and when
// the child has freed all that is out, and has adopted what is reusable, a span of which nothing
// was lost is in the pool.
#include "standard_world.hpp"

namespace spanalloc::model {
namespace {

template <class Scene, unsigned kSpans = 1>
struct Forked : Scene {
  bool lost[kMaxSpans + 1] = {};
  bool found[kMaxSpans + 1] = {};  // given to the pool by the recovery

  void at_rest() {
    SpinLock::enter_child();
    this->believe_shown_blocks();
    if (this->someone_was_inside()) find_what_vanished_threads_had();
    for (const std::uint32_t cache : {1u, 2u, 3u}) this->adopted(cache);
    check_child();
    free_everything();
    // A block that its owner was just freeing counts as out until somebody adopts
    // the span, and counts anew.
    if (const std::uint32_t n = this->find_reusable(1); n != 0) this->share(n, 1);
    for (std::uint32_t n = 1; n <= this->spans(); ++n) {
      const bool is_free = this->span(n).word.load_relaxed().state() == SpanState::kFree;
      MODEL_CHECK(is_free || lost[n] || blocks_missing(n) != 0);
    }
  }

 private:
  void find_what_vanished_threads_had() {
    for (std::uint32_t cache = 0; cache < kLabs; ++cache)
      this->protocol().unlink_claimed(CacheNumber{cache});
    this->pool().take_all();
    for (std::uint32_t n = 1; n <= this->spans(); ++n) {
      Span& s = this->span(n);
      if (s.class_id() == ClassId::kNone) continue;
      const SpanWord word = s.word.load_relaxed();
      if (word.state() == SpanState::kOwned) {
        lose(n, word);
      } else if (word.state() == SpanState::kFree ||
                 (word.is_delayed() && s.list() != ListId::kNone &&
                  this->protocol().collect_on_list(this->ref(n)))) {
        this->put_in_pool(this->ref(n));
      }
    }
  }
  void lose(std::uint32_t n, SpanWord word) {
    this->span(n).word.set(word.with_state(SpanState::kShared).with_owner(kOrphanage));
    this->span(n).forget_list();
    lost[n] = true;
  }

  std::uint32_t blocks_missing(std::uint32_t n) {
    std::uint32_t missing = 0;
    for (std::uint32_t b = 1; b <= this->blocks_of(n); ++b) missing += this->places_of(n, b) == 0;
    return missing;
  }

  void check_child() {
    std::uint32_t pooled[kMaxSpans + 1] = {};
    for (std::uint32_t n = this->take_from_pool(); n != 0; n = this->take_from_pool()) ++pooled[n];
    for (std::uint32_t n = 1; n <= this->spans(); ++n) {
      if (this->span(n).class_id() == ClassId::kNone) continue;
      const SpanWord word = this->span(n).word.load_relaxed();
      // Nobody was inside: it stood in a thread cache
      if (word.state() == SpanState::kOwned) lose(n, word);
      const std::uint32_t listed = this->times_listed_anywhere(n);
      std::uint32_t out = 0;
      for (std::uint32_t b = 1; b <= this->blocks_of(n); ++b) out += this->is_out(n, b);
      if (word.state() == SpanState::kFree) {
        MODEL_CHECK(pooled[n] == 1);
        MODEL_CHECK(listed == 0 && out == 0);
        continue;
      }
      MODEL_CHECK(pooled[n] == 0);
      MODEL_CHECK(listed == (lost[n] ? 0 : 1));
      if (lost[n]) continue;
      for (std::uint32_t b = 1; b <= this->blocks_of(n); ++b)
        MODEL_CHECK(this->places_of(n, b) <= 1);
      MODEL_CHECK(blocks_missing(n) <= this->kThreads);
      MODEL_CHECK(this->cache(word.owner()).is_abandoned_list());
      MODEL_CHECK(this->span(n).uncollected() == 0);
      const std::uint32_t owners = 1;  // of whom one may have been in the middle of a free
      MODEL_CHECK(word.outstanding() <= out + blocks_missing(n) + owners &&
                  word.outstanding() >= out);
    }
  }

  void free_everything() {
    for (std::uint32_t n = 1; n <= this->spans(); ++n) {
      for (std::uint32_t b = 1; b <= this->blocks_of(n); ++b) {
        if (this->span(n).class_id() != ClassId::kNone && this->is_out(n, b))
          this->free_remote(n, b);
      }
    }
  }
};

// The owner and another thread free the last blocks of a parked span, which is
// settled, listed, claimed.
template <std::uint32_t kReuse>
struct LastFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  LastFrees() : StandardWorld({.capacity = 3, .partial_outstanding = kReuse, .forks = true}) {
    start_parked(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 3);
    free_any(1, 1, 1);
    free_any(1, 2, 1);
  }
};
struct TwoRemoteFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  TwoRemoteFrees() : StandardWorld({.capacity = 3, .partial_outstanding = 1, .forks = true}) {
    start_parked(1, 1, 2);
  }
  void thread(unsigned self) { free_remote(1, self + 1); }
};
struct ParkUnderFrees : StandardWorld {
  static constexpr unsigned kThreads = 2;
  ParkUnderFrees() : StandardWorld({.capacity = 3, .partial_outstanding = 1, .forks = true}) {
    start_hot(1, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    free_any(1, 2, 1);
    share(1, 1);
  }
};
struct OwnerSettles : StandardWorld {
  static constexpr unsigned kThreads = 2;
  OwnerSettles() : StandardWorld({.capacity = 4, .partial_outstanding = 1, .forks = true}) {
    start_parked(1, 1, 4);
    free_any(1, 4, 1);  // uncollected
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    if (find_reusable(1) != 0) share(1, 1);
  }
};
struct ThreadEnds : StandardWorld {
  static constexpr unsigned kThreads = 2;
  ThreadEnds() : StandardWorld({.capacity = 3, .partial_outstanding = 1, .forks = true}) {
    start_parked(1, 1, 2);
    free_any(1, 1, 1);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 2);
    adopted(1);
  }
};
struct Adoption : StandardWorld {
  static constexpr unsigned kThreads = 2;
  Adoption() : StandardWorld({.capacity = 3, .partial_outstanding = 1, .forks = true}) {
    start_parked(1, 3, 2);
    adopted(3);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    if (const std::uint32_t number = find_reusable(1); number != 0) allocate_hot(number);
  }
};
// One thread takes its span off a list whose neighbour another's free moves.
struct Neighbours : StandardWorld {
  static constexpr unsigned kThreads = 2;
  Neighbours()
      : StandardWorld({.spans = 2, .capacity = 3, .partial_outstanding = 1, .forks = true}) {
    start_parked(1, 1, 3);
    start_parked(2, 1, 3);
  }
  void thread(unsigned self) {
    if (self == 1) return free_remote(1, 1);
    free_any(2, 1, 1);
    free_any(2, 2, 1);
  }
};

// What must not be left out of the recovery: each of these children is found broken without it.
template <class Scene>
struct ListsAreBelieved : Forked<Scene> {
  void at_rest() {
    for (std::uint32_t cache = 0; cache < kLabs; ++cache) this->cache(cache).lock.reset();
    Forked<Scene>::at_rest();
  }
};
template <class Scene>
struct HandsAreForgotten : Forked<Scene> {
  bool someone_was_inside() const { return false; }
  void at_rest() {
    SpinLock::enter_child();
    for (const std::uint32_t cache : {1u, 2u, 3u}) this->adopted(cache);
    for (std::uint32_t n = 1; n <= this->spans(); ++n) {
      const bool is_free = this->span(n).word.load_relaxed().state() == SpanState::kFree;
      if (is_free) MODEL_CHECK(this->take_from_pool() != 0);
    }
  }
};

template <class World>
void expect_holds_when_forked(const char* name, unsigned preemptions) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso}) {
    expect_holds<World>(name, {.memory = memory,
                               .preemptions = bound(preemptions, preemptions + 1),
                               .max_steps = 20'000,
                               .forks = true});
  }
}

TEST(StandardFork, SpansAreWhereTheyBelong) {
  expect_holds_when_forked<Forked<LastFrees<0>>>("LastFrees, nearly_full", 2);
  expect_holds_when_forked<Forked<LastFrees<1>>>("LastFrees", 2);
  expect_holds_when_forked<Forked<LastFrees<2>>>("LastFrees, partial", 2);
  expect_holds_when_forked<Forked<TwoRemoteFrees>>("TwoRemoteFrees", 3);
  expect_holds_when_forked<Forked<ParkUnderFrees>>("ParkUnderFrees", 2);
  expect_holds_when_forked<Forked<OwnerSettles>>("OwnerSettles", 2);
  expect_holds_when_forked<Forked<ThreadEnds>>("ThreadEnds", 2);
  expect_holds_when_forked<Forked<Adoption>>("Adoption", 2);
  expect_holds_when_forked<Forked<Neighbours>>("Neighbours", 2);
}

TEST(StandardFork, EachPartOfTheRecoveryIsNeeded) {
  const Options options{.memory = MemoryModel::tso, .max_steps = 20'000, .forks = true};
  expect_finds<ListsAreBelieved<Neighbours>>("ListsAreBelieved<Neighbours>", options, "");
  expect_finds<HandsAreForgotten<TwoRemoteFrees>>("HandsAreForgotten<TwoRemoteFrees>", options,
                                                  "take_from_pool");
}

}  // namespace
}  // namespace spanalloc::model
