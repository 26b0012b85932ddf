// The maps that lead threads from a block's address to their own spans (thread_map.hpp): which
// cache has one, and which spans it shows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "os/os.hpp"
#include "pages/growing_table.hpp"
#include "standard/cache_record.hpp"

namespace spanalloc::standard {

template <class Config>
class MapTable {
  using Record = CacheRecord<Config>;

 public:
  constexpr explicit MapTable(PageLayer<Config>& pages) : pages_(pages) {}
  void destroy() {
    maps_.destroy();
    end_ = 0;
  }

  static constexpr std::size_t kMapBytes = align_up(sizeof(ThreadMap), 4 * kKiB);

  /// The map that a cache has; kNoMap: none yet.
  static ThreadMap& of(const Record& cache) {
    ThreadMap* map = cache.map.load_relaxed();
    return map != nullptr ? *map : kNoMap;
  }
  /// Makes the map of a cache, for its thread; it stays with the cache for ever. kNoMap: no memory
  /// or mapping for one, or memory is locked, so that all of the map would be resident at once.
  SPANALLOC_COLD ThreadMap& make(Record& cache) {
    if (os::memory_is_locked()) return kNoMap;
    LockGuard guard(pages_.tables_lock);
    if (!maps_.start(Config::kMostMaps, pages_.arena.table_region())) return kNoMap;
    TableReach reach;
    for (; end_ < Config::kMostMaps; end_ = reach.next) {
      reach = maps_.reach(end_, end_ + 1);
      if (reach.end != end_) {
        Place& place = maps_[end_++];
        if (forbids_huge_pages()) os::forbid_huge_pages(&place, sizeof place);
        cache.map.store_release(&place.map);  // release: pairs with hide_from_owner()
        return place.map;
      }
      // A foreign mapping in the way is stepped over. What is refused now may be granted to a later
      // thread.
      if (reach.next == end_) {
        // Threads can do without maps; the heap needs its mappings to grow
        maps_.give_reservation_back();
        break;
      }
    }
    return kNoMap;
  }
  /// The thread that has the map: from now on what it frees or asks of the span's blocks finds this
  /// target. For a span of its own that is the record; the thread sets it when it becomes the
  /// owner, and when it finds it overwritten.
  void show(ThreadMap& map, SpanRef span, FreeTarget& target) {
    if (SPANALLOC_UNLIKELY(&map == &kNoMap)) return;
    for_each_slice(span, [&](std::uintptr_t a) { map.set(a, target); });
  }
  void hide(ThreadMap& map, SpanRef span, FreeTarget& target) {
    for_each_slice(span, [&](std::uintptr_t a) { map.clear(a, target); });
  }
  /// The span was the cache's, and is nobody else's yet.
  void hide_from_owner(Record& cache, SpanRef span) {
    ThreadMap* map = cache.map.load_acquire();  // acquire: the table is open so far
    if (map != nullptr) hide(*map, span, *span.record);
  }
  /// All spans have left the cache; its thread has vanished.
  SPANALLOC_COLD void clear(Record& cache) {
    ThreadMap* map = cache.map.load_relaxed();
    const bool whole_pages = sizeof(Place) % os::page_size() == 0;
    if (map == nullptr || (whole_pages && os::purge(map, sizeof(Place)))) return;
    for (Atomic<std::uint64_t>& entry : map->entries) {
      if (entry.load_relaxed() != 0) entry.store_relaxed(0);
    }
  }

 private:
  // Whole pages, where a page has 4 KiB.
  struct alignas(4 * kKiB) Place {
    ThreadMap map;
  };

  // Most maps are touched in few places only.
  bool forbids_huge_pages() const {
    const auto& arena = pages_.arena;
    const HugePageUse use = arena.huge_page_use();
    if (use == HugePageUse::kNever) return true;
    return use != HugePageUse::kSystem &&
           arena.limit() << Config::kSliceBits >= PagesConfig::kLeastAdvised;
  }
  template <class F>
  void for_each_slice(SpanRef span, F f) {
    const std::uintptr_t first = address_of(pages_.address(span.number));
    for (std::uintptr_t i = 0; i < (1u << span->order()); ++i) f(first + (i << Config::kSliceBits));
  }

  PageLayer<Config>& pages_;
  FrontedTable<Place, 1> maps_;  // grown under tables_lock
  std::size_t end_ = 0;          // changed under tables_lock
};

}  // namespace spanalloc::standard
