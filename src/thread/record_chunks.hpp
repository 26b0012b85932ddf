// Memory of a heap's bookkeeping records, LABs and threads' states: carved from chunks, given back
// all at once. The caller's lock gives access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "os/os.hpp"

namespace spanalloc::thread {

/// Zero-initialisable.
template <class Record>
class RecordChunks {
 public:
  /// A new record, made from `arguments`; nullptr when memory is out.
  template <class... Arguments>
  Record* make(Arguments&... arguments) {
    // A fork's child may find this half done: then a record or a chunk is lost,
    // none is handed out twice.
    std::uintptr_t place = end_.load_relaxed();
    if (place == 0 || place + sizeof(Record) > chunk_of(place) + kChunk) {
      const std::uintptr_t chunk = address_of(os::map(kChunk, kChunk));
      if (chunk == 0) return nullptr;
      pointer_to<Header>(chunk)->before = place;
      place = chunk + kFirst;
    }
    end_.store_release(place + sizeof(Record));
    return new (pointer_to(place)) Record(arguments...);
  }

  /// While nobody uses a record. Afterwards records can be made again.
  void destroy() {
    for (std::uintptr_t end = end_.load_relaxed(); end != 0;) {
      const std::uintptr_t chunk = chunk_of(end);
      end = pointer_to<Header>(chunk)->before;
      os::unmap(pointer_to(chunk), kChunk);
    }
    end_.store_relaxed(0);
  }

 private:
  struct Header {
    std::uintptr_t before;  // end_ of the chunk before
  };
  static constexpr std::size_t kChunk = 64 * kKiB;
  static constexpr std::size_t kFirst = align_up(sizeof(Header), alignof(Record));
  static_assert(kFirst + sizeof(Record) <= kChunk);

  // Of a chunk's last byte in use: the end of a full chunk is not the next one's start.
  static std::uintptr_t chunk_of(std::uintptr_t end) { return align_down(end - 1, kChunk); }

  // Of what is used of the last chunk, which is aligned to its size
  Atomic<std::uintptr_t> end_{0};
};

}  // namespace spanalloc::thread
