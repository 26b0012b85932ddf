// standard/thread_map.hpp under the checker: an entry leads to a span exactly as long as
// the map's thread owns it, while others claim the thread's empty spans, and pass them on.
#include "standard/thread_map.hpp"

#include "model_test.hpp"
#include "sync/treiber_stack.hpp"

namespace spanalloc::model {
namespace {

using standard::FreeTarget;

// Two spans whose addresses share an entry, one more that does not; two threads' maps. Who owns a
// span says `owner`, changed by whoever has it; a pool passes spans on.
template <class Map>
struct MapWorld {
  static constexpr std::uintptr_t kAddresses[] = {0, 0x10000, 0x30000,
                                                  0x20000};  // of spans 1 to 3; 1, 2 share
  FreeTarget spans[4]{};
  Plain<std::uint32_t> owner[4];
  Atomic<std::uint32_t> links[4];
  Map maps[2]{};
  TreiberStack pool;

  auto link() {
    return [this](std::uint32_t n) -> Atomic<std::uint32_t>& { return links[n]; };
  }
  void own(unsigned self, unsigned n) {
    owner[n] = self + 1;
    maps[self].set(kAddresses[n], spans[n]);
  }
  // By whoever has claimed the span, which was thread `from`'s.
  void pass_on(unsigned from, unsigned n) {
    owner[n] = 0;
    maps[from].clear(kAddresses[n], spans[n]);
    pool.push(n, link());
  }
  unsigned take(unsigned self) {
    const unsigned n = pool.pop(link());
    if (n != 0) own(self, n);
    return n;
  }
  void check_at_rest() {
    for (unsigned self = 0; self < 2; ++self) {
      for (unsigned n = 1; n <= 3; ++n) {
        const bool shown =
            maps[self].entry(kAddresses[n]).load_relaxed() == maps[self].offset_of(spans[n]);
        if (shown) MODEL_CHECK(owner[n] == self + 1);
      }
    }
    // Of one's own spans that share an entry the one that was shown last is shown.
    for (unsigned self = 0; self < 2; ++self) {
      if (owner[3] == self + 1) {
        MODEL_CHECK(maps[self].entry(kAddresses[3]).load_relaxed() ==
                    maps[self].offset_of(spans[3]));
      }
    }
  }
};

using Map = standard::ThreadMapOf<2>;

// Thread 1 has claimed two of thread 0's spans, and passes them on; thread 0 takes what it finds,
// and shows another span at the same entry meanwhile.
template <class M>
struct ClaimedAndTakenBack : MapWorld<M> {
  static constexpr unsigned kThreads = 2;
  ClaimedAndTakenBack() {
    this->own(0, 1);
    this->own(0, 3);
  }
  void thread(unsigned self) {
    if (self == 1) {
      this->pass_on(0, 1);
      this->pass_on(0, 3);
      this->take(1);
      return;
    }
    this->take(0);
    this->own(0, 2);
    this->take(0);
  }
  void at_rest() {
    this->check_at_rest();
    // Span 2 was never given away: if it is not shown, span 1 came later.
    const bool shown = this->maps[0].entry(this->kAddresses[2]).load_relaxed() ==
                       this->maps[0].offset_of(this->spans[2]);
    MODEL_CHECK(shown || this->owner[1] == 1);
  }
};

// Clears what it has seen, whatever stands there by now.
struct ClearsBlindly : Map {
  void clear(std::uintptr_t a, const FreeTarget& target) {
    if (entry(a).load_relaxed() == offset_of(target)) entry(a).store_relaxed(0);
  }
};
// Passes the span on before the entry is cleared.
struct PassesOnFirst : MapWorld<Map> {
  static constexpr unsigned kThreads = 2;
  PassesOnFirst() { own(0, 3); }
  void thread(unsigned self) {
    if (self == 0) {
      take(0);
      return;
    }
    owner[3] = 0;
    pool.push(3, link());
    maps[0].clear(kAddresses[3], spans[3]);
  }
  void at_rest() { check_at_rest(); }
};

using Blindly = ClaimedAndTakenBack<ClearsBlindly>;
using Carefully = ClaimedAndTakenBack<Map>;

TEST(ThreadMap, ClearingWhatAnotherSpanHasTakenIsFoundOut) {
  EXPECT_FINDS(Blindly, "shown", {.memory = MemoryModel::interleaving, .preemptions = 4});
}

TEST(ThreadMap, ClearingAfterTheSpanWasPassedOnIsFoundOut) {
  EXPECT_FINDS(PassesOnFirst, "offset_of", {.memory = MemoryModel::interleaving, .preemptions = 3});
}

TEST(ThreadMap, AnEntryLeadsToAnOwnSpanOnly) {
  EXPECT_HOLDS_EVERYWHERE(Carefully, 5, 4);
}

}  // namespace
}  // namespace spanalloc::model
