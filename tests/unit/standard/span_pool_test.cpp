#include "standard/span_pool.hpp"
#include "threads.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace spanalloc {
namespace {

enum class Number : std::uint32_t { kNone = 0 };

struct LinkTable {
  explicit LinkTable(std::size_t n) : cells(new Atomic<std::uint32_t>[n + 1]) {}
  Atomic<std::uint32_t>& operator()(Number n) { return cells[index_of(n)]; }
  std::unique_ptr<Atomic<std::uint32_t>[]> cells;
};

TEST(SpanPool, OwnStackIsLastInFirstOut) {
  auto pool = std::make_unique<SpanPool<Number, 2>>();
  LinkTable links(8);
  pool->set_shards(4);
  pool->put(1, 2, Number{5}, links);
  pool->put(1, 2, Number{6}, links);
  EXPECT_EQ(pool->get_local(0, 2, links), Number::kNone);
  EXPECT_EQ(pool->get_local(1, 3, links), Number::kNone);
  EXPECT_EQ(pool->get_local(1, 2, links), Number{6});
  EXPECT_EQ(pool->get_local(1, 2, links), Number{5});
  EXPECT_EQ(pool->get_local(1, 2, links), Number::kNone);
}

TEST(SpanPool, SearchesTheOtherCoresStartingAfterItsOwn) {
  auto pool = std::make_unique<SpanPool<Number, 1>>();
  LinkTable links(8);
  pool->set_shards(4);
  for (std::uint32_t shard = 0; shard < 4; ++shard) pool->put(0, shard, Number{shard + 1}, links);
  EXPECT_EQ(pool->get_from_other_shard(0, 2, links), Number{4});
  EXPECT_EQ(pool->get_from_other_shard(0, 2, links), Number{1});
  EXPECT_EQ(pool->get_from_other_shard(0, 2, links), Number{2});
  EXPECT_EQ(pool->get_from_other_shard(0, 2, links), Number::kNone)
      << "the own stack is not searched";
  EXPECT_EQ(pool->get_local(0, 2, links), Number{3});
}

TEST(SpanPool, CoresAreCappedAndNeverZero) {
  auto pool = std::make_unique<SpanPool<Number, 1, 8>>();
  EXPECT_EQ(pool->shards(), 1u);
  pool->set_shards(0);
  EXPECT_EQ(pool->shards(), 1u);
  pool->set_shards(1000);
  EXPECT_EQ(pool->shards(), 8u);
  EXPECT_EQ(pool->shard_of(13), 5u);
}

TEST(SpanPool, TakeAllHandsOutTheWholeChain) {
  auto pool = std::make_unique<SpanPool<Number, 1>>();
  LinkTable links(8);
  for (std::uint32_t span = 1; span <= 5; ++span) pool->put(0, 0, Number{span}, links);
  std::vector<std::uint32_t> seen;
  for (Number n = pool->take_all(0, 0); n != Number::kNone; n = pool->next_of(n, links)) {
    seen.push_back(index_of(n));
  }
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{5, 4, 3, 2, 1}));
  EXPECT_EQ(pool->take_all(0, 0), Number::kNone);
}

TEST(SpanPool, ForgetAllTellsWhetherASpanWasThere) {
  auto pool = std::make_unique<SpanPool<Number, 2>>();
  LinkTable links(8);
  pool->set_shards(4);
  EXPECT_FALSE(pool->forget_all());
  pool->put(1, 3, Number{5}, links);
  EXPECT_TRUE(pool->forget_all());
  EXPECT_FALSE(pool->forget_all());
  EXPECT_EQ(pool->get_local(1, 3, links), Number::kNone);
}

TEST(SpanPool, EachStackHasItsOwnCacheLine) {
  EXPECT_GE(sizeof(SpanPool<Number, 3, 16>), 3 * 16 * kCacheLine);
  EXPECT_EQ(alignof(SpanPool<Number, 3, 16>), kCacheLine);
}

// Threads put and get at random; every span is held by at most one thread at a
// time and none gets lost.
TEST(SpanPool, NothingIsLostOrInventedUnderContention) {
  constexpr std::uint32_t kSpans = 64;
  constexpr unsigned kThreads = 4;
  auto pool = std::make_unique<SpanPool<Number, 1>>();
  LinkTable links(kSpans);
  std::vector<Atomic<std::uint32_t>> holders(kSpans + 1);
  pool->set_shards(2);
  for (std::uint32_t span = 1; span <= kSpans; ++span) pool->put(0, span % 2, Number{span}, links);

  Atomic<std::uint32_t> errors{0};
  test::in_threads(kThreads, [&](unsigned t) {
    const unsigned shard = pool->shard_of(t);
    for (int i = 0; i < 50000; ++i) {
      Number span = pool->get_local(0, shard, links);
      if (span == Number::kNone) span = pool->get_from_other_shard(0, shard, links);
      if (span == Number::kNone) continue;
      if (holders[index_of(span)].fetch_add_relaxed(1) != 0) errors.fetch_add_relaxed(1);
      holders[index_of(span)].fetch_sub_relaxed(1);
      pool->put(0, shard, span, links);
    }
  });
  EXPECT_EQ(errors.load_relaxed(), 0u);
  std::vector<bool> seen(kSpans + 1);
  for (unsigned shard = 0; shard < 2; ++shard) {
    while (const std::uint32_t span = index_of(pool->get_local(0, shard, links))) {
      EXPECT_FALSE(seen[span]) << span;
      seen[span] = true;
    }
  }
  for (std::uint32_t span = 1; span <= kSpans; ++span) EXPECT_TRUE(seen[span]) << span;
}

}  // namespace
}  // namespace spanalloc
