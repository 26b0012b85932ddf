// Walks everything the engine has and checks every invariant: bits, lists, caches and chunk table
// agree, and every object is in exactly one place. Exact while no other thread uses the heap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "os/os.hpp"
#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/chunk_table.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/engine/folio_heap.hpp"
#include "papers/supermalloc/engine/folios.hpp"
#include "papers/supermalloc/engine/huge_heap.hpp"
#include "papers/supermalloc/engine/large_heap.hpp"
#include "papers/supermalloc/engine/object_list.hpp"
#include "papers/supermalloc/engine/thread_caches.hpp"

namespace spanalloc::supermalloc {

struct Census {
  std::size_t chunks = 0;        // known: the sum of the five below
  std::size_t folio_chunks = 0;  // of small and medium objects
  std::size_t large_chunks = 0;
  std::size_t huge_chunks = 0;
  std::size_t free_chunks = 0;   // of free huge ranges
  std::size_t no_chunks = 0;     // foreign mappings', or lost to a fork
  std::size_t live_objects = 0;  // out, and in no cache
  std::size_t cached_objects = 0;
  std::size_t empty_folios = 0;
  std::size_t large_objects = 0;  // live
  std::size_t huge_objects = 0;
  std::size_t broken = 0;               // violated invariants
  const char* first_problem = nullptr;  // the first of them, and where
  std::uintptr_t at = 0;

  bool consistent() const {
    return broken == 0 &&
           chunks == folio_chunks + large_chunks + huge_chunks + free_chunks + no_chunks;
  }
  /// Nothing is in use. (Living threads may have objects in their caches.)
  bool all_returned() const { return live_objects == 0 && large_objects == 0 && huge_objects == 0; }
};

template <class Config>
class Walker {
  using TheBins = Bins<Config>;

 public:
  Walker(ChunkTable& chunks, FolioHeap<Config>& folios, LargeHeap<Config>& large, HugeHeap& huge,
         CpuCaches<Config>& cpus, ThreadCaches<Config>& caches, Secret secret)
      : chunks_(chunks),
        folios_(folios),
        large_(large),
        huge_(huge),
        cpus_(cpus),
        caches_(caches),
        secret_(secret) {}

  Census walk() {
    for (BinNumber b = 0; b < TheBins::kFirstLarge; ++b) walk_folios(b);
    for (BinNumber b = TheBins::kFirstLarge; b < TheBins::kCount; ++b) walk_large(b);
    walk_table();
    walk_caches();
    return census_;
  }

 private:
  void demand(bool holds, const char* what, std::uintptr_t at) {
    if (holds) return;
    if (census_.broken++ == 0) {
      census_.first_problem = what;
      census_.at = at;
    }
  }

  void walk_folios(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    std::size_t folios = 0;
    std::size_t committed = 0;
    std::size_t in_use = 0;
    folios_.for_each_chunk(b, [&](const ChunkHead* head) {
      ++census_.folio_chunks;
      const std::uintptr_t at = address_of(head);
      demand(head->bin == b && chunks_.at(head).bin() == b, "a bin's chunk is another's", at);
      demand(head->used_folios <= bin.folios, "a chunk has used more folios than it has", at);
      const FolioChunk chunk = FolioChunk::of(head, bin);
      for (std::uint32_t folio = bin.first_folio; folio < bin.folios; ++folio) {
        const FolioCell* cell = chunk.cell(folio);
        const std::uint32_t out = chunk.count_out(folio);
        if (folio >= head->used_folios) {
          demand(out == 0 && cell->state == FolioState::kWild, "an object lies in the wilderness",
                 at);
          continue;
        }
        demand(cell->out == out, "a folio does not count its bits", address_of(cell));
        demand(cell->state == FolioState::kListed, "a folio is in no list", address_of(cell));
        demand(cell->is_committed || out == 0, "a folio in use is said to be given back",
               address_of(cell));
        census_.live_objects += out;
        census_.empty_folios += out == 0;
        committed += cell->is_committed;
        in_use += out != 0;
        ++folios;
      }
    });
    demand(folios_.bytes_in_use(b) == in_use * bin.folio_bytes,
           "a bin's folios in use are miscounted", b);
    demand(folios_.committed_bytes(b) == committed * bin.folio_bytes,
           "committed folios are miscounted", b);
    std::size_t listed = 0;
    for (std::uint32_t list = 0; list <= bin.folio_objects; ++list) {
      const FolioCell* first = folios_.head_of(b, list);
      demand(folios_.lists(b).is_marked(list) == (first != nullptr),
             "a list is marked as what it is not", b);
      const FolioCell* before = nullptr;
      for (const FolioCell* cell = first; cell != nullptr; cell = cell->next) {
        demand(FolioHeap<Config>::list_of(bin, cell->out) == list, "a folio is in the wrong list",
               address_of(cell));
        demand(cell->previous == before, "a list's links disagree", address_of(cell));
        if (++listed > folios) return demand(false, "a list goes in a circle", address_of(cell));
        before = cell;
      }
    }
    demand(listed == folios, "a folio is in no list", b);
  }

  void walk_large(BinNumber b) {
    const Bin& bin = TheBins::of(b);
    std::size_t used = 0;
    std::size_t out = 0;
    large_.for_each_chunk(b, [&](const ChunkHead* head) {
      ++census_.large_chunks;
      demand(head->bin == b && chunks_.at(head).bin() == b, "a bin's chunk is another's",
             address_of(head));
      const FolioChunk chunk = FolioChunk::of(head, bin);
      for (std::uint32_t object = 0; object < bin.objects; ++object) {
        demand(object < head->used_folios || !chunk.is_out(object),
               "a large object lies in the wilderness", address_of(head));
        out += chunk.is_out(object);
      }
      used += head->used_folios;
    });
    std::size_t free = 0;
    std::size_t kept = 0;
    large_.for_each_free(b, [&](const FolioChunk& chunk, std::uint32_t object) {
      kept += LargeHeap<Config>::is_kept(chunk, object);
      demand(!chunk.is_out(object), "a large object in use is in the list of free ones",
             chunk.address());
      return ++free <= used;
    });
    demand(free + out == used, "a large object is in no list", b);
    demand(large_.out(b) == out, "large objects are miscounted", b);
    demand(large_.kept(b) == kept, "large objects that the kernel did not take back are miscounted",
           b);
    census_.large_objects += out;
  }

  void walk_table() {
    std::size_t bins_chunks = 0;
    std::size_t huge_pages = 0;
    for (ChunkNumber number = 1; number < chunks_.limit();) {
      const ChunkEntry entry = chunks_.entry(number);
      ChunkNumber count = 1;
      if (entry.is_huge()) {
        ++census_.huge_objects;
        huge_pages += entry.pages();
        count = walk_range(number, HugeHeap::order_of(entry.pages()));
        census_.huge_chunks += count;
      } else if (entry.word() == 0) {
        ++census_.no_chunks;
      } else if (entry.is_free()) {
        ++census_.free_chunks;  // of how many more it is its list says
      } else {
        demand(entry.bin() < TheBins::kCount, "a chunk is nothing that there is",
               chunks_.address(number));
        ++bins_chunks;
      }
      number += count;
    }
    census_.chunks = chunks_.limit() == 0 ? 0 : chunks_.limit() - 1;
    std::size_t unlisted = census_.free_chunks;
    std::size_t kept = 0;
    for (unsigned order = 0; order <= ChunkTable::kMaxOrder; ++order) {
      for (ChunkNumber first = huge_.first_free(order); first != 0;
           first = chunks_.entry(first).next()) {
        if (first >= chunks_.limit() || !chunks_.entry(first).is_free())
          return demand(false, "what is not free is in a list of free ranges",
                        chunks_.address(first));
        if (unlisted-- == 0)
          return demand(false, "a free range is in two lists", chunks_.address(first));
        // Its other chunks have been counted as none.
        const ChunkNumber count = walk_range(first, order);
        census_.no_chunks -= count - 1;
        census_.free_chunks += count - 1;
        if (chunks_.entry(first).is_dirty()) kept += count;
      }
    }
    demand(huge_.kept_bytes() == kept * kChunk,
           "ranges that the kernel did not take back are miscounted", 0);
    demand(bins_chunks == census_.folio_chunks + census_.large_chunks, "a bin lacks chunks", 0);
    demand(huge_.objects() == census_.huge_objects && huge_.bytes() == huge_pages * kPage,
           "huge objects are miscounted", 0);
  }

  // Of how many chunks it is. It is aligned, and only its first chunk's entry says anything.
  ChunkNumber walk_range(ChunkNumber first, unsigned order) {
    const ChunkNumber count = ChunkNumber{1} << order;
    bool is_whole = first % count == 0 && count <= chunks_.limit() - first;
    for (ChunkNumber i = 1; is_whole && i < count; ++i)
      is_whole = chunks_.entry(first + i).word() == 0;
    demand(is_whole, "a range is out of place, or has another's chunk in it",
           chunks_.address(first));
    return count;
  }

  // Each object in a cache is out by its bit, sealed, and in no other cache.
  void walk_caches() {
    const std::size_t bytes = max_of(census_.chunks + 1, 1) * (kChunk / kLeastObject / 8);
    seen_ = static_cast<std::uint64_t*>(os::map(bytes, os::page_size()));
    if (seen_ == nullptr) return demand(false, "no memory for the census", 0);
    for (BinNumber b = 0; b < TheBins::kCount; ++b) {
      cpus_.for_each_chain(b, [&](const Chain& chain) {
        demand(chain.count() <= TheBins::of(b).chain_lists, "a chain has too many lists", b);
        for (std::uint32_t i = 0; i < chain.count(); ++i) {
          const ObjectList list = chain.heads()[i];
          walk_list(b, list.first, list.count);
        }
      });
      demand(cpus_.is_global_in_order(b), "a global cache miscounts its chains", b);
      if (b >= TheBins::kFirstLarge) continue;
      caches_.for_each([&](const ThreadCache<Config>& cache) {
        // (One that a fork left behind is cleaned up when it is used again.)
        if (cache.is_left_behind) return;
        walk_list(b, cache.first[b + 1].load_relaxed(), cache.count_of_first(b));
        walk_list(b, cache.spare[b].get().first, cache.spare[b].count.load_relaxed());
      });
    }
    os::release(seen_, bytes);
  }

  void walk_list(BinNumber b, const FreeObject* list, std::size_t count) {
    const bool is_large = TheBins::of(b).is_large();
    demand(count <= TheBins::of(b).list_objects, "a list counts too many objects", b);
    for (; !is_end(list); list = list->next) {
      if (chunks_.at(list).bin() != b)
        return demand(false, "a cache has another bin's object", address_of(list));
      const bool is_out = is_large ? LargeHeap<Config>::cell_at(b, list) != nullptr
                                   : FolioHeap<Config>::is_out(b, list);
      if (!is_out) return demand(false, "a cache has an object that is free", address_of(list));
      if (!list->is_sealed(secret_))
        return demand(false, "a free object is overwritten", address_of(list));
      const std::size_t place = (address_of(list) - chunks_.address(1)) / kLeastObject;
      if ((seen_[place / 64] >> (place % 64) & 1) != 0)
        return demand(false, "an object is in two places", address_of(list));
      seen_[place / 64] |= std::uint64_t{1} << (place % 64);
      ++census_.cached_objects;
      --(is_large ? census_.large_objects : census_.live_objects);
      if (count-- == 0)
        return demand(false, "a list has more objects than it counts", address_of(list));
    }
    demand(count == 0, "a list has fewer objects than it counts", b);
  }

  ChunkTable& chunks_;
  FolioHeap<Config>& folios_;
  LargeHeap<Config>& large_;
  HugeHeap& huge_;
  CpuCaches<Config>& cpus_;
  ThreadCaches<Config>& caches_;
  const Secret secret_;
  std::uint64_t* seen_ = nullptr;
  Census census_;
};

}  // namespace spanalloc::supermalloc
