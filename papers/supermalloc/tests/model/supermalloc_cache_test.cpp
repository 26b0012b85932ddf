// A thread cache of the supermalloc engine (thread_cache.hpp) of which a fork's
// child finds any step half done: after clean_up() no object is in two places, each count is right,
// and nothing is in a list that a program has. A list or an object that its thread was just moving
// may be lost, nothing else.
#include <initializer_list>

#include "model_test.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/thread_cache.hpp"

namespace spanalloc::model {
namespace {

using supermalloc::BinNumber;
using supermalloc::end_of_list;
using supermalloc::FreeObject;
using supermalloc::is_end;
using supermalloc::ObjectList;
using supermalloc::Secret;

using Cache = supermalloc::ThreadCache<Supermalloc>;

// Two objects a list.
constexpr BinNumber kBin = [] {
  BinNumber b = 0;
  while (Cache::most(b) != 2) ++b;
  return b;
}();
constexpr std::size_t kTag = kBin + 1;
constexpr Secret kSecret = 0x5a5a5a5a5a5a5a5a;

/// A thread that allocates and frees as the allocator does when the caches behind it are
/// full, or empty; a scene says what. kInOrder: stores arrive as they are made, so that it is
/// known what cannot be lost.
template <class TheCache, bool kInOrder>
struct CacheWorld {
  static constexpr unsigned kThreads = 1;
  static constexpr unsigned kObjects = 5;
  enum Place : std::uint8_t { kProgram, kMoving, kCached };

  TheCache cache{nullptr};
  SetOnce secret;
  FreeObject objects[kObjects];
  Place places[kObjects] = {};  // as its thread knows it

  CacheWorld() {
    secret.set(kSecret);
    name_variable(&cache.first[kTag], "first");
    name_variable(&cache.room[kTag], "room");
    name_variable(&cache.spare[kBin].first, "spare.first");
    name_variable(&cache.spare[kBin].count, "spare.count");
    for (FreeObject& object : objects) scribble(&object);
  }

  void free(unsigned n) {
    places[n] = kMoving;
    FreeObject* object = &objects[n];
    if (!cache.push(kTag, object, secret)) {
      if (!cache.put_aside(kBin)) {
        leave(cache.spare[kBin].get());
        cache.take_spare(kBin);
        MODEL_CHECK(cache.put_aside(kBin));
      }
      MODEL_CHECK(cache.push(kTag, object, secret));
    }
    places[n] = kCached;
  }
  void free(std::initializer_list<unsigned> numbers) {
    for (const unsigned n : numbers) free(n);
  }
  void expect_allocated(unsigned n, ObjectList elsewhere = {}) {
    FreeObject* object = pop();
    if (object == nullptr && !cache.use_spare(kBin)) {
      cache.set_first(kBin, elsewhere);
      mark(elsewhere.first, kCached);
    }
    if (object == nullptr) object = pop();
    MODEL_CHECK(object == &objects[n]);
  }
  void flush() {
    leave({cache.first[kTag].load_relaxed(), 1});
    const std::uint32_t served = cache.take_first(kBin).count;
    leave(cache.spare[kBin].get());
    const std::uint32_t waited = cache.take_spare(kBin).count;
    MODEL_CHECK(served == 1 && waited == 2 && cache.is_empty(kBin) && cache.objects(kBin) == 0);
  }

  // In the child, before another thread has the cache.
  void at_rest() {
    cache.clean_up(kSecret);
    std::uint32_t found[kObjects] = {};
    const std::uint32_t serving = count(cache.first[kTag].load_relaxed(), found);
    const std::uint32_t waiting = count(cache.spare[kBin].get().first, found);
    MODEL_CHECK(cache.count_of_first(kBin) == serving && serving <= Cache::most(kBin));
    MODEL_CHECK(cache.spare[kBin].get().count == waiting && waiting <= Cache::most(kBin));
    for (unsigned n = 0; n < kObjects; ++n) {
      MODEL_CHECK(found[n] <= 1);
      if (places[n] == kProgram) MODEL_CHECK(found[n] == 0);
      if (kInOrder && places[n] == kCached) MODEL_CHECK(found[n] == 1);
    }
  }

 private:
  FreeObject* pop() {
    if (FreeObject* top = cache.first[kTag].load_relaxed(); !is_end(top))
      places[top - objects] = kMoving;
    FreeObject* object = cache.pop(kTag, kSecret);
    if (object == nullptr) return nullptr;
    places[object - objects] = kProgram;
    scribble(object);
    return object;
  }
  // For the caches behind this one.
  void leave(ObjectList list) { mark(list.first, kMoving); }
  void mark(const FreeObject* list, Place place) {
    for (; !is_end(list); list = list->next) places[list - objects] = place;
  }
  // What a program may write.
  static void scribble(FreeObject* object) {
    object->next = object;
    object->seal = 17;
  }
  static std::uint32_t number_in(const FreeObject* object, const FreeObject* all) {
    return static_cast<std::uint32_t>(object - all);
  }
  std::uint32_t count(const FreeObject* list, std::uint32_t* found) const {
    std::uint32_t sum = 0;
    for (; !is_end(list) && sum <= kObjects; list = supermalloc::next_of(list, kSecret)) {
      ++found[number_in(list, objects)];
      ++sum;
    }
    return sum;
  }
};

// --- Scenes: what was before, what is done -------------------------------------------------------

template <class TheCache, bool kInOrder>
struct Frees : CacheWorld<TheCache, kInOrder> {
  Frees() { this->free(0); }
  void thread(unsigned) { this->free({1, 2}); }  // 1, 0 are put aside
};
template <class TheCache, bool kInOrder>
struct FreesTooMany : CacheWorld<TheCache, kInOrder> {
  FreesTooMany() { this->free({0, 1, 2, 3}); }
  void thread(unsigned) { this->free(4); }  // 1, 0 leave
};
template <class TheCache, bool kInOrder>
struct Allocates : CacheWorld<TheCache, kInOrder> {
  Allocates() { this->free({0, 1, 2}); }
  void thread(unsigned) {
    this->expect_allocated(2);
    this->expect_allocated(1);  // off the list that has waited
    this->expect_allocated(0);
  }
};
template <class TheCache, bool kInOrder>
struct Fetches : CacheWorld<TheCache, kInOrder> {
  Fetches() {
    this->free({0, 1, 2, 3, 4});
    for (const unsigned n : {4u, 3u, 2u}) this->expect_allocated(n);
  }
  void thread(unsigned) { this->expect_allocated(1, {&this->objects[1], 2}); }
};
template <class TheCache, bool kInOrder>
struct Flushes : CacheWorld<TheCache, kInOrder> {
  Flushes() { this->free({0, 1, 2}); }
  void thread(unsigned) { this->flush(); }
};
template <class TheCache, bool kInOrder>
struct Everything : CacheWorld<TheCache, kInOrder> {
  void thread(unsigned) {
    this->free({0, 1, 2, 3, 4});
    for (const unsigned n : {4u, 3u, 2u}) this->expect_allocated(n);
    this->expect_allocated(1, {&this->objects[1], 2});
    this->free({1, 3});
    this->flush();
  }
};

// --- Naive variants ------------------------------------------------------------------------------

struct UnsealsFirst : Cache {
  using Cache::Cache;
  FreeObject* pop(std::size_t tag, Secret its_secret) {
    FreeObject* const object = first[tag].load_relaxed();
    FreeObject* const next = object->next;
    if (!object->is_sealed(its_secret)) return nullptr;
    object->seal = 0;
    first[tag].store_relaxed(next);
    room[tag].count_up();
    return object;
  }
};
struct UnsealsInNoOrder : Cache {
  using Cache::Cache;
  FreeObject* pop(std::size_t tag, Secret its_secret) {
    FreeObject* const object = first[tag].load_relaxed();
    FreeObject* const next = object->next;
    if (!object->is_sealed(its_secret)) return nullptr;
    first[tag].store_relaxed(next);
    room[tag].count_up();
    object->seal = 0;
    return object;
  }
};
struct LinksLast : Cache {
  using Cache::Cache;
  bool push(std::size_t tag, FreeObject* object, const SetOnce& secret) {
    if (room[tag].load_relaxed() == 0) return false;
    FreeObject* const before = first[tag].load_relaxed();
    first[tag].store_release(object);
    room[tag].take_one();
    object->push_on(before, secret.read());
    return true;
  }
};
struct EmptiesFirst : Cache {
  using Cache::Cache;
  bool put_aside(BinNumber b) {
    if (!spare[b].is_empty()) return false;
    spare[b].set(take_first(b));
    return true;
  }
};
struct ForgetsFirst : Cache {
  using Cache::Cache;
  bool use_spare(BinNumber b) {
    if (spare[b].is_empty()) return false;
    set_first(b, take_spare(b));
    return true;
  }
};
struct ForgetsInNoOrder : Cache {
  using Cache::Cache;
  bool use_spare(BinNumber b) {
    if (spare[b].is_empty()) return false;
    set_first(b, spare[b].get());
    spare[b].set({});
    return true;
  }
};
// The spare list is stored in no order.
struct PutsAsideInNoOrder : Cache {
  using Cache::Cache;
  bool put_aside(BinNumber b) {
    if (!spare[b].is_empty()) return false;
    spare[b].first.store_relaxed(first[b + 1].load_relaxed());
    spare[b].count.store_relaxed(count_of_first(b));
    first[b + 1].store_release(&end_of_list);
    room[b + 1].store_relaxed(most(b));
    return true;
  }
};
struct BelievesBothLists : Cache {
  using Cache::Cache;
  void clean_up(Secret secret) {
    FreeObject* const serving = first[kTag].load_relaxed();
    FreeObject* const waiting = spare[kBin].get().first;
    spare[kBin].set({waiting, length(waiting, secret)});
    room[kTag].store_relaxed(most(kBin) - length(serving, secret));
  }
  static std::uint32_t length(const FreeObject* list, Secret secret) {
    std::uint32_t count = 0;
    for (; !is_end(list); list = supermalloc::next_of(list, secret)) ++count;
    return count;
  }
};
struct BelievesTheCounts : Cache {
  using Cache::Cache;
  void clean_up(Secret) {
    if (spare[kBin].get().first == first[kTag].load_relaxed()) spare[kBin].set({});
  }
};

// --- Threads without a cache ---------------------------------------------------------------------

// The first mallocs of two threads, before or while the process's secret is set: the cache of those
// that have none is empty and full, whichever secret they see, and the first one stays. (The
// allocator sets it under a lock.)
template <Secret kFirst, Secret kSecond>
struct FirstCalls {
  static constexpr unsigned kThreads = 2;
  Cache none;
  SetOnce secret;
  FirstCalls() { end_of_list.seal = 1; }  // a wrong one takes it off
  void thread(unsigned self) {
    FreeObject object{nullptr, 17};
    MODEL_CHECK(none.pop(kTag, secret.read()) == nullptr);
    MODEL_CHECK(!none.push(kTag, &object, secret));
    secret.set(self == 0 ? kFirst : kSecond);
    const Secret seen = secret.read();
    MODEL_CHECK(seen == kFirst || seen == kSecond);
    MODEL_CHECK(none.pop(kTag, seen) == nullptr);
    MODEL_CHECK(secret.read() == seen);
  }
  void at_rest() {
    MODEL_CHECK(is_end(none.first[kTag].load_relaxed()) && none.room[kTag].load_relaxed() == 0);
    MODEL_CHECK(end_of_list.next == nullptr && end_of_list.seal == 1);
  }
};

constexpr Options forked_in(MemoryModel memory) {
  return {.memory = memory, .forks = true};
}

TEST(SupermallocCache, OtherOrdersOfStoresAreFoundOut) {
  constexpr Options kInOrder = forked_in(MemoryModel::interleaving);
  constexpr Options kInAnyOrder = forked_in(MemoryModel::pso);
  expect_finds<Everything<UnsealsFirst, true>>("UnsealsFirst", kInOrder, "overwritten");
  expect_finds<Everything<LinksLast, true>>("LinksLast", kInOrder, "overwritten");
  expect_finds<Everything<EmptiesFirst, true>>("EmptiesFirst", kInOrder, "found[n] == 1");
  expect_finds<Everything<ForgetsFirst, true>>("ForgetsFirst", kInOrder, "found[n] == 1");
  expect_finds<Allocates<UnsealsInNoOrder, false>>("UnsealsInNoOrder", kInAnyOrder, "overwritten");
  expect_finds<Allocates<ForgetsInNoOrder, false>>("ForgetsInNoOrder", kInAnyOrder,
                                                   "found[n] <= 1");
  expect_finds<Frees<PutsAsideInNoOrder, false>>("PutsAsideInNoOrder", kInAnyOrder,
                                                 "found[n] <= 1");
}

TEST(SupermallocCache, EachPartOfCleaningUpIsNeeded) {
  constexpr Options kInOrder = forked_in(MemoryModel::interleaving);
  expect_finds<Everything<BelievesBothLists, true>>("BelievesBothLists", kInOrder, "found[n] <= 1");
  expect_finds<Everything<BelievesTheCounts, true>>("BelievesTheCounts", kInOrder,
                                                    "count_of_first");
}

TEST(SupermallocCache, AThreadWithoutOneHasNoneUnderAnySecret) {
  using Even = FirstCalls<kSecret, kSecret ^ 0xff0>;
  using Odd = FirstCalls<kSecret, 1>;  // would seal the end of lists
  EXPECT_FINDS(Odd, "nullptr", {.memory = MemoryModel::interleaving});
  EXPECT_HOLDS_EVERYWHERE(Even, 4, 3);
}

template <template <class, bool> class Scene>
void expect_whole(const char* name) {
  expect_holds<Scene<Cache, true>>(name, forked_in(MemoryModel::interleaving));
  expect_holds<Scene<Cache, false>>(name, forked_in(MemoryModel::tso));
  expect_holds<Scene<Cache, false>>(name, forked_in(MemoryModel::pso));
}

TEST(SupermallocCache, AForksChildFindsItsListsWhole) {
  expect_whole<Frees>("Frees");
  expect_whole<FreesTooMany>("FreesTooMany");
  expect_whole<Allocates>("Allocates");
  expect_whole<Fetches>("Fetches");
  expect_whole<Flushes>("Flushes");
  expect_holds<Everything<Cache, true>>("Everything", forked_in(MemoryModel::interleaving));
  expect_holds<Everything<Cache, false>>("Everything", forked_in(MemoryModel::tso));
}

}  // namespace
}  // namespace spanalloc::model
