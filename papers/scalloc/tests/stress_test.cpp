// Random local and remote frees from several threads, contents checked, threads ending in
// between; then the census: after all is freed and trim() was called no span is anywhere but in
// the pool or an empty hot span.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine_configs.hpp"
#include "engine_list.hpp"
#include "papers/scalloc/tests/test_support.hpp"
#include "seed_report.hpp"

namespace spanalloc {
namespace {

struct Random {  // xorshift32
  std::uint32_t state;
  std::uint32_t operator()() {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  }
};

struct Object {
  unsigned char* p = nullptr;
  std::uint32_t size = 0;
  unsigned char fill = 0;
};

template <class E>
struct Exchange {
  static constexpr std::size_t kSlots = 512;
  SpinLock locks[kSlots];
  Object slots[kSlots];

  static void check_and_free(const Object& object) {
    if (object.p == nullptr) return;
    // Whole small blocks; of large ones each page's first bytes and the end.
    for (std::size_t i = 0; i < object.size; i += i % 4096 == 63 && object.size > 2048 ? 4033 : 1) {
      if (object.p[i] != object.fill) {
        ADD_FAILURE() << "block " << static_cast<void*>(object.p) << " of " << object.size << " at "
                      << i;
        break;
      }
    }
    if (!E::owns(object.p)) ADD_FAILURE() << "not ours";
    E::deallocate(object.p);
  }

  static Object make(Random& random) {
    Object object;
    const unsigned kind = random() % 100;
    std::uint32_t size = 1 + random() % 256;
    if (kind >= 70) size = 1 + random() % 4096;
    if (kind >= 95) size = 1 + random() % 65536;
    if (kind == 99 && random() % 4 == 0) size = 1 + random() % (2 * kMiB);
    object.size = size;
    object.fill = static_cast<unsigned char>(random());
    if (random() % 16 == 0) {
      const std::size_t alignment = std::size_t{1} << (random() % 16);
      object.p = static_cast<unsigned char*>(E::allocate_aligned(size, alignment));
      if (address_of(object.p) % alignment != 0) ADD_FAILURE() << "alignment " << alignment;
    } else if (random() % 16 == 0) {
      object.p = static_cast<unsigned char*>(E::allocate_zeroed(size));
      for (std::uint32_t i = 0; i < size; ++i) {
        if (object.p[i] != 0) {
          ADD_FAILURE() << "not zero at " << i << " of " << size;
          break;
        }
      }
    } else {
      object.p = static_cast<unsigned char*>(E::allocate(size));
    }
    if (object.p == nullptr) {
      ADD_FAILURE() << "out of memory";
      object.size = 0;
      return object;
    }
    if (E::usable_size(object.p) < size) ADD_FAILURE() << "usable size of " << size;
    std::memset(object.p, object.fill, size);
    return object;
  }

  void step(Random& random) {
    const std::size_t i = random() % kSlots;
    Object fresh = random() % 8 == 0 ? Object{} : make(random);
    {
      LockGuard guard(locks[i]);
      std::swap(fresh, slots[i]);
    }
    check_and_free(fresh);  // often another thread's
  }

  void drain() {
    for (Object& object : slots) {
      check_and_free(object);
      object = Object{};
    }
  }
};

template <class E>
class ScallocStress : public testing::Test {};

using Engines = std::conditional_t<SPANALLOC_TEST_SCALLOC_ABLATIONS,
                                   test::EnginesOf<ScallocEngine, test::configs::scalloc>,
                                   testing::Types<ScallocEngine<Scalloc>>>;
TYPED_TEST_SUITE(ScallocStress, Engines);

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowdown = 10;
#else
constexpr int kSlowdown = 1;
#endif

TYPED_TEST(ScallocStress, RandomFreesLeaveNothingBehind) {
  using E = TypeParam;
  constexpr bool kMain = std::is_same_v<E, ScallocEngine<Scalloc>>;
  constexpr int kGenerations = kMain ? 10 : 2;
  auto exchange = std::make_unique<Exchange<E>>();
  for (int generation = 0; generation < kGenerations; ++generation) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&exchange, seed = static_cast<unsigned>(generation) * 100 + t] {
        const auto drawn = static_cast<std::uint32_t>(test::seed_of(seed + 1));
        Random random{drawn == 0 ? 1 : drawn};
        for (int i = 0; i < (kMain ? 60000 : 25000) / kSlowdown; ++i) exchange->step(random);
      });
    }
    for (auto& thread : threads) thread.join();  // their spans are orphans now
  }
  exchange->drain();
  expect_nothing_held<E>();
  EXPECT_EQ(E::statistics().large_objects, 0u);
}

// Few-block spans, where one free crosses several thresholds and the last two frees often come
// from two threads at once.
TYPED_TEST(ScallocStress, FewBlockSpans) {
  using E = TypeParam;
  for (const std::size_t size : {std::size_t{kMiB}, 512 * kKiB, 128 * kKiB, 64 * kKiB}) {
    for (int round = 0; round < 400 / kSlowdown; ++round) {
      std::vector<void*> blocks;
      for (int i = 0; i < 9; ++i) blocks.push_back(E::allocate(size));
      std::thread other([&] {
        for (std::size_t i = 0; i < blocks.size(); i += 2) E::deallocate(blocks[i]);
      });
      for (std::size_t i = 1; i < blocks.size(); i += 2) E::deallocate(blocks[i]);
      other.join();
    }
  }
  expect_nothing_held<E>();
}

// Producers and consumers, all frees remote.
TYPED_TEST(ScallocStress, ProducerConsumer) {
  using E = TypeParam;
  for (int round = 0; round < 20 / kSlowdown + 1; ++round) {
    std::vector<void*> blocks(20000);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = E::allocate(16 + 16 * (i % 20));
    std::vector<std::thread> consumers;
    for (std::size_t t = 0; t < 3; ++t) {
      consumers.emplace_back([&blocks, t] {
        for (std::size_t i = t; i < blocks.size(); i += 3) E::deallocate(blocks[i]);
      });
    }
    for (auto& thread : consumers) thread.join();
  }
  expect_nothing_held<E>();
}

}  // namespace
}  // namespace spanalloc
