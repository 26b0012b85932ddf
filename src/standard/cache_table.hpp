// The cache records of a heap, by number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inspection_access.hpp"
#include "os/os.hpp"
#include "pages/growing_table.hpp"
#include "standard/cache_record.hpp"
#include "thread/record_registry.hpp"

namespace spanalloc::standard {

/// Thread-safe, but for start() and destroy(). A record stays for ever; a thread's end leaves it to
/// the next one.
template <class Config>
class CacheTable : public thread::RecordRegistry<CacheRecord<Config>> {
  using Record = CacheRecord<Config>;
  using Registry = thread::RecordRegistry<Record>;

 public:
  constexpr explicit CacheTable(PageLayer<Config>& pages) : pages_(pages) {}
  bool start() { return records_.start(Config::kMostCaches, &pages_.arena.table_region()); }
  void destroy() {
    records_.destroy();
    Registry::destroy();
    end_.store_relaxed(0);
  }

  SPANALLOC_INLINE Record& operator[](CacheNumber number) { return records_[index_of(number)]; }
  bool has(CacheNumber number) const { return records_.has(index_of(number)); }
  /// Records with lower numbers were used at some time, but for gaps. Acquire: the table is open so
  /// far.
  CacheNumber end() const { return CacheNumber{end_.load_acquire()}; }
  /// False for kNobody.
  bool was_used(CacheNumber number) const { return number < end() && has(number); }

  /// For the calling thread; nullptr when there is none left.
  SPANALLOC_COLD Record* take() {
    Record* cache = Registry::take([this](bool) { return make(); });
    if (cache == nullptr) return nullptr;
    SPANALLOC_ASSERT(cache->thread.load_relaxed() == 0 && cache->owned.are_none());
    return cache;
  }
  SPANALLOC_COLD void give_back(Record* cache) {
    SPANALLOC_ASSERT(cache->owned.are_none());
    cache->inside.store_relaxed(0);
    cache->thread.store_relaxed(0);
    Registry::give_back(cache);
  }
  bool is_mine(const Record& cache) const {
    return cache.thread.load_relaxed() == address_of(os::thread_id()) &&
           cache.forks.load_relaxed() == forks;
  }
  /// The cache's thread has vanished in a fork, and nobody has taken its spans over yet; see
  /// fork_recovery.hpp. Acquire: sees the `forks` that the thread wrote when it took the cache.
  bool has_vanished(const Record& cache) const {
    return cache.thread.load_acquire() != 0 && cache.forks.load_relaxed() != forks;
  }

  /// Forks between the first process and this one. Written while there is one thread.
  std::uint32_t forks = 0;

 private:
  friend struct spanalloc::InspectionAccess;

  // Under the registry's lock.
  Record* make() {
    const std::uint32_t number = end_.load_relaxed();  // the next one's
    if (number >= Config::kMostCaches) return nullptr;
    const TableReach reach = pages_.reach_place(records_, number);
    if (reach.end == number) {
      if (reach.next == number) return nullptr;
      // A foreign mapping is in the way: these numbers are nobody's.
      end_.store_release(static_cast<std::uint32_t>(reach.next));
      return make();
    }
    Record& cache = records_[number];
    cache.number = CacheNumber{number};
    cache.large_spans.start(cache.number);
    end_.store_release(number + 1);  // release: pairs with end()
    return &cache;
  }

  PageLayer<Config>& pages_;
  GrowingTable<Record> records_;
  Atomic<std::uint32_t> end_{0};  // written under the registry's lock
};

}  // namespace spanalloc::standard
