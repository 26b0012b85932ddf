// The search for an order of a history (block_history.hpp), on histories whose answer is known.
#include "block_history.hpp"

#include <gtest/gtest.h>

namespace spanalloc::test {
namespace {

Operation during(std::uint64_t began, std::uint64_t ended, Operation op) {
  op.began = began;
  op.ended = ended;
  return op;
}
Operation took(std::size_t first, std::size_t size, std::size_t alignment = 1) {
  return {
      .call = Call::allocate, .first = first, .size = size, .alignment = alignment, .done = true};
}
Operation refused(std::size_t size, std::size_t alignment = 1) {
  return {.call = Call::allocate, .size = size, .alignment = alignment};
}
Operation gave(std::size_t first, std::size_t had) {
  return {.call = Call::free, .first = first, .had = had, .done = true};
}
Operation grew(std::size_t first, std::size_t had, std::size_t size, bool done = true) {
  return {.call = Call::grow, .first = first, .size = size, .had = had, .done = done};
}
Operation shrank(std::size_t first, std::size_t had, std::size_t size) {
  return {.call = Call::shrink, .first = first, .size = size, .had = had, .done = true};
}
Operation extended(std::size_t first, std::size_t size, bool done = true) {
  return {.call = Call::extend, .first = first, .size = size, .done = done};
}
Operation purged() {
  return {.call = Call::purge, .done = true};
}

// Calls one after the other.
std::vector<Operation> in_turn(std::vector<Operation> calls) {
  std::uint64_t clock = 0;
  for (Operation& op : calls) {
    op.began = ++clock;
    op.ended = ++clock;
  }
  return calls;
}
bool holds(const std::vector<Operation>& history, std::size_t limit = 4, std::size_t capacity = 8) {
  return LinearizabilityCheck(history, limit, capacity).holds();
}

TEST(BlockHistory, OneThread) {
  EXPECT_TRUE(holds({}));
  EXPECT_TRUE(
      holds(in_turn({took(0, 2), took(2, 2), refused(1), gave(0, 2), took(0, 1), refused(2)})));
  EXPECT_TRUE(holds(in_turn({took(1, 3), took(0, 1)}))) << "any free units, not the lowest";
  EXPECT_TRUE(holds(in_turn({took(0, 1), refused(4, 1), refused(2, 4), took(2, 2, 2)})));
  EXPECT_FALSE(holds(in_turn({took(0, 2), took(1, 2)}))) << "handed out twice";
  EXPECT_FALSE(holds(in_turn({took(2, 3)}))) << "beyond the range";
  EXPECT_FALSE(holds(in_turn({took(1, 2, 2)}))) << "not aligned";
  EXPECT_FALSE(holds(in_turn({took(0, 1), refused(3)}))) << "refused though it is there";
  EXPECT_FALSE(holds(in_turn({took(0, 2), took(2, 2), gave(0, 2), gave(2, 2), refused(4)})))
      << "neighbours that were not joined";
  EXPECT_FALSE(holds(in_turn({took(0, 2), gave(1, 1)}))) << "no block begins there";
  EXPECT_FALSE(holds(in_turn({took(0, 2), gave(0, 2), gave(0, 2)}))) << "freed twice";
}

TEST(BlockHistory, OneThreadChangesSizes) {
  EXPECT_TRUE(holds(in_turn({took(0, 1), grew(0, 1, 3), refused(2), shrank(0, 3, 2), took(2, 2)})));
  EXPECT_TRUE(holds(in_turn({took(0, 1), took(1, 1), grew(0, 1, 2, false)})));
  EXPECT_FALSE(holds(in_turn({took(0, 1), took(1, 1), grew(0, 1, 2)}))) << "into its neighbour";
  EXPECT_FALSE(holds(in_turn({took(0, 1), grew(0, 1, 2, false)}))) << "refused in a quiet range";
  EXPECT_FALSE(holds(in_turn({took(0, 1), grew(0, 1, 5)}))) << "beyond the range";
  EXPECT_FALSE(holds(in_turn({took(0, 2), shrank(0, 2, 1), took(0, 1)})));
  EXPECT_TRUE(holds(in_turn(
      {took(0, 4), refused(1), extended(4, 4), took(4, 4), extended(8, 1, false), purged()})));
  EXPECT_FALSE(holds(in_turn({took(0, 4), extended(4, 4), refused(4)})));
  EXPECT_FALSE(holds(in_turn({extended(4, 5)}))) << "beyond the capacity";
}

TEST(BlockHistory, CallsAtOnceHaveAnyOrder) {
  // Three units: one of two calls for two is refused, but not both.
  EXPECT_TRUE(holds({during(1, 3, took(0, 2)), during(2, 4, refused(2))}, 3));
  EXPECT_FALSE(holds({during(1, 3, refused(2)), during(2, 4, refused(2))}, 3));
  EXPECT_FALSE(holds({during(1, 3, took(0, 2)), during(2, 4, refused(2))}, 4)) << "room for both";
  // What is freed meanwhile may or may not be there yet.
  const Operation all = during(1, 2, took(0, 4));
  EXPECT_TRUE(holds({all, during(3, 6, gave(0, 4)), during(4, 5, refused(1))}));
  EXPECT_TRUE(holds({all, during(3, 6, gave(0, 4)), during(4, 5, took(3, 1))}));
  EXPECT_FALSE(holds({all, during(3, 4, gave(0, 4)), during(5, 6, refused(1))}));
  // Of two that are freed meanwhile, a third call may see one but not the other; two
  // calls must agree in which.
  const std::vector<Operation> two = {during(1, 2, took(0, 2)), during(3, 4, took(2, 2)),
                                      during(5, 20, gave(0, 2)), during(5, 20, gave(2, 2))};
  std::vector<Operation> third = two;
  third.push_back(during(6, 7, took(2, 1)));
  third.push_back(during(8, 9, refused(2)));
  EXPECT_TRUE(holds(third));
  third.push_back(during(10, 11, took(0, 2)));
  third.push_back(during(12, 13, refused(1)));
  EXPECT_FALSE(holds(third)) << "both are there, so unit 3 is";
}

TEST(BlockHistory, AGrowMayBeRefusedWhileOthersWorkBehindIt) {
  const Operation first = during(1, 2, took(0, 1));
  EXPECT_TRUE(holds({first, during(3, 6, purged()), during(4, 5, grew(0, 1, 2, false))}));
  EXPECT_FALSE(holds({first, during(3, 4, purged()), during(5, 6, grew(0, 1, 2, false))}))
      << "the purge has ended";
  EXPECT_TRUE(holds({first, during(3, 6, took(3, 1)), during(4, 5, grew(0, 1, 2, false))}))
      << "the same free block was split";
  const Operation fence = during(3, 4, took(2, 1));
  EXPECT_FALSE(holds({first, fence, during(5, 8, took(3, 1)), during(6, 7, grew(0, 1, 2, false))}))
      << "another free block was";
  EXPECT_TRUE(holds({first, fence, during(5, 8, gave(2, 1)), during(6, 7, grew(0, 1, 2, false))}))
      << "merged with what is freed beside it";
  const Operation refusal = during(6, 7, grew(0, 1, 2, false));
  EXPECT_TRUE(holds({first, during(3, 8, extended(4, 2)), refusal}))
      << "about to be merged with what is added";
  EXPECT_TRUE(holds({first, during(3, 8, extended(4, 2)), during(4, 5, took(4, 2)), refusal}))
      << "held for a merger with what is added, though that is taken";
  EXPECT_FALSE(holds({first, during(3, 4, extended(4, 2)), refusal})) << "the extension has ended";
  EXPECT_FALSE(holds({first, during(3, 4, took(3, 1)), during(5, 8, extended(4, 2)), refusal}))
      << "another free block is extended";
}

TEST(BlockHistory, SaysWhereItCouldNotGoOn) {
  const std::vector<Operation> history = in_turn({took(0, 4), gave(0, 4), refused(1), took(0, 4)});
  LinearizabilityCheck check(history, 4, 4);
  EXPECT_FALSE(check.holds());
  EXPECT_NE(check.explain().find("up to: 5..6 allocate(1 at 1) refused"), std::string::npos)
      << check.explain();
}

}  // namespace
}  // namespace spanalloc::test
