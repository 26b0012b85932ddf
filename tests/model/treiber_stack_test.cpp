// sync/treiber_stack.hpp under the checker: its tags, its orders, its chains.
#include "sync/treiber_stack.hpp"

#include "model_test.hpp"

namespace spanalloc::model {
namespace {

// The same stack without tags: the known trap.
class UntaggedStack {
 public:
  template <class Links>
  void push(std::uint32_t number, Links&& links) {
    std::uint32_t top = top_.load_relaxed();
    do {
      links(number).store_relaxed(top);
    } while (!top_.compare_exchange_weak_release(top, number));
  }
  template <class Links>
  std::uint32_t pop(Links&& links) {
    std::uint32_t top = top_.load_acquire();
    while (top != 0) {
      const std::uint32_t next = links(top).load_relaxed();
      if (top_.compare_exchange_weak_acq_rel(top, next)) return top;
    }
    return 0;
  }

 private:
  Atomic<std::uint32_t> top_{0};
};

// A stack whose push publishes nothing: the element's contents may arrive after it.
class UnorderedStack {
 public:
  template <class Links>
  void push(std::uint32_t number, Links&& links) {
    std::uint64_t top = top_.load_relaxed();
    do {
      links(number).store_relaxed(static_cast<std::uint32_t>(top));
    } while (!top_.compare_exchange_weak_relaxed(top, ((top >> 32) + 1) << 32 | number));
  }
  template <class Links>
  std::uint32_t pop(Links&& links) {
    std::uint64_t top = top_.load_acquire();
    while (static_cast<std::uint32_t>(top) != 0) {
      const std::uint32_t next = links(static_cast<std::uint32_t>(top)).load_relaxed();
      if (top_.compare_exchange_weak_acq_rel(top, ((top >> 32) + 1) << 32 | next)) {
        return static_cast<std::uint32_t>(top);
      }
    }
    return 0;
  }

 private:
  Atomic<std::uint64_t> top_{0};
};

constexpr unsigned kElements = 3;
constexpr int kInStack = -1;

// Elements 1..3, who holds each, and something in each that its holder alone may touch.
template <class Stack>
struct Elements {
  Stack stack;
  Atomic<std::uint32_t> links[kElements + 1];
  Plain<int> contents[kElements + 1];
  int holder[kElements + 1] = {};  // bookkeeping outside the model's memory

  auto link() {
    return [this](std::uint32_t n) -> Atomic<std::uint32_t>& { return links[n]; };
  }
  void hold(std::uint32_t n, unsigned self) {
    MODEL_CHECK(holder[n] == kInStack);
    holder[n] = static_cast<int>(self);
    contents[n].set(contents[n].get() + 1);
  }
  void push(std::uint32_t n) {
    contents[n].set(contents[n].get() + 1);
    holder[n] = kInStack;
    stack.push(n, link());
  }
  std::uint32_t pop(unsigned self) {
    const std::uint32_t n = stack.pop(link());
    MODEL_CHECK(n <= kElements);
    if (n != 0) hold(n, self);
    return n;
  }
  // Everything that nobody holds is in the stack, once.
  void check_at_rest() {
    for (std::uint32_t n = stack.pop(link()); n != 0; n = stack.pop(link())) {
      MODEL_CHECK(n <= kElements && holder[n] == kInStack);
      holder[n] = 0;
    }
    for (unsigned n = 1; n <= kElements; ++n) MODEL_CHECK(holder[n] != kInStack);
  }
};

// One thread pops; the other takes two elements and puts the first one back: A, B, A.
template <class Stack>
struct PopAgainstReuse : Elements<Stack> {
  static constexpr unsigned kThreads = 2;
  PopAgainstReuse() {
    for (std::uint32_t n = kElements; n >= 1; --n) this->push(n);
  }
  void thread(unsigned self) {
    const std::uint32_t first = this->pop(self);
    if (self == 0) return;
    this->pop(self);  // kept
    if (first != 0) this->push(first);
  }
  void at_rest() { this->check_at_rest(); }
};

using NaivePopAgainstReuse = PopAgainstReuse<UntaggedStack>;
using TreiberPopAgainstReuse = PopAgainstReuse<TreiberStack>;

TEST(TreiberStack, WithoutTagsAnElementIsHandedOutTwice) {
  EXPECT_FINDS(NaivePopAgainstReuse, "holder", {.memory = MemoryModel::interleaving});
  EXPECT_FINDS(NaivePopAgainstReuse, "holder", {.memory = MemoryModel::tso});
}

TEST(TreiberStack, PopAgainstReuse) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(TreiberPopAgainstReuse, {.memory = memory, .preemptions = bound(5, 8)});
  }
}

TEST(TreiberStack, SpuriousFailures) {
  EXPECT_HOLDS(TreiberPopAgainstReuse, {.preemptions = 3, .spurious_failures = 2});
}

// Elements that start in the hands of the threads.
template <class Stack>
struct HandOver : Elements<Stack> {
  static constexpr unsigned kThreads = 2;
  void thread(unsigned self) {
    if (self == 0) {
      this->push(1);
      this->push(2);
    } else {
      this->pop(self);
      this->pop(self);
    }
  }
  void at_rest() { this->check_at_rest(); }
};

using UnorderedHandOver = HandOver<UnorderedStack>;
using TreiberHandOver = HandOver<TreiberStack>;

TEST(TreiberStack, PushMustRelease) {
  EXPECT_FINDS(UnorderedHandOver, "data race", {.memory = MemoryModel::pso});
  EXPECT_FINDS(UnorderedHandOver, "", {.memory = MemoryModel::views});
}

TEST(TreiberStack, HandOver) {
  for (const MemoryModel memory : {MemoryModel::tso, MemoryModel::pso, MemoryModel::views}) {
    EXPECT_HOLDS(TreiberHandOver, {.memory = memory, .preemptions = bound(5, 8)});
  }
}

// Three threads, each pops and pushes back.
struct ThreeThreads : Elements<TreiberStack> {
  static constexpr unsigned kThreads = 3;
  ThreeThreads() {
    push(2);
    push(1);
    holder[3] = 2;
  }
  void thread(unsigned self) {
    if (self == 2) return push(3);
    const std::uint32_t n = pop(self);
    if (self == 0 && n != 0) push(n);
  }
  void at_rest() { check_at_rest(); }
};

TEST(TreiberStack, ThreeThreads) {
  EXPECT_HOLDS(ThreeThreads, {.memory = MemoryModel::tso, .preemptions = bound(3, 4)});
  EXPECT_HOLDS(ThreeThreads, {.memory = MemoryModel::pso, .preemptions = bound(3, 4)});
  EXPECT_HOLDS(ThreeThreads, {.memory = MemoryModel::views, .preemptions = bound(2, 3)});
}

// Chains: one thread takes everything and gives it back in one step, one pops, one pushes.
struct Chains : Elements<TreiberStack> {
  static constexpr unsigned kThreads = 3;
  Chains() {
    push(2);
    push(1);
  }
  void thread(unsigned self) {
    if (self == 0) {
      const std::uint32_t first = stack.take_all();
      std::uint32_t last = 0;
      for (std::uint32_t n = first; n != 0; n = links[n].load_relaxed()) {
        hold(n, self);
        last = n;
      }
      if (first == 0) return;
      for (std::uint32_t n = first; n != 0; n = n == last ? 0 : links[n].load_relaxed())
        holder[n] = kInStack;
      stack.push_chain(first, last, link());
    } else if (self == 1) {
      pop(self);
    } else {
      push(3);
    }
  }
  void at_rest() { check_at_rest(); }
};

TEST(TreiberStack, ChainsAreTakenAndGivenWhole) {
  EXPECT_HOLDS(Chains, {.memory = MemoryModel::tso, .preemptions = bound(3, 5)});
  EXPECT_HOLDS(Chains, {.memory = MemoryModel::pso, .preemptions = bound(2, 4)});
  EXPECT_HOLDS(Chains, {.memory = MemoryModel::views, .preemptions = bound(2, 3)});
}

}  // namespace
}  // namespace spanalloc::model
