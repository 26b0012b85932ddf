// Counts the holds on free memory: a call that is about to report "out of
// memory" must know of them.
//
// An operation takes a *hold* before it takes a block away from the free ones for a while (to split
// it, to merge it, to purge it) or makes free blocks hard to find for a moment. It ends the hold
// when everything is findable again. The size of a held block says nothing: a thread that frees a
// block beside it leaves the merge to the holder, and the merged block may have any size.
//
// A word of the registry is {completed:32, held:32}, one for each shard; a hold adds 1, its end
// adds 2^32 - 1. Shards only spread the cache-line traffic. Any shard will do: so the caller's
// stack address chooses it, and no thread identity is needed.
//
// quiet_between(): if the words, read at t1, have no holds, and are unchanged when read again at
// t2, then no hold existed at any instant between the last read of t1 and the first read of t2: a
// hold would have changed its word between the two readings. (2^32 holds on one word between two
// readings could hide themselves.)
#pragma once

#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"

namespace spanalloc::coalescing {

template <unsigned kShards>
class HoldRegistry {
 public:
  /// All words as of one reading.
  struct Reading {
    // Sum over the words; each only grows, so equal sums mean equal words
    std::uint64_t completed = 0;
    bool held = false;
  };

  void begin(unsigned shard) { words_[shard].word.fetch_add_seq_cst(1); }
  void end(unsigned shard) {
    SPANALLOC_ASSERT(static_cast<std::uint32_t>(words_[shard].word.load_relaxed()) != 0);
    words_[shard].word.fetch_add_seq_cst((std::uint64_t{1} << 32) - 1);
  }

  Reading read() const {
    Reading reading;
    for (const Shard& shard : words_) {
      const std::uint64_t word = shard.word.load_seq_cst();
      reading.completed += word >> 32;
      reading.held = reading.held || static_cast<std::uint32_t>(word) != 0;
    }
    return reading;
  }
  static bool quiet_between(const Reading& first, const Reading& second) {
    return !first.held && !second.held && first.completed == second.completed;
  }

  /// In a fork's child: the holds of threads that are gone end.
  void reset() {
    for (Shard& shard : words_) shard.word.store_relaxed(0);
  }

  static unsigned shard_here() { return spread_by_stack() % kShards; }

 private:
  struct alignas(kCacheLine) Shard {
    Atomic<std::uint64_t> word;
  };
  Shard words_[kShards];
};

/// A thread's hold while it works on free memory; none at first, ended by the destructor.
template <class Registry>
class Hold {
 public:
  explicit Hold(Registry& registry) : registry_(registry), shard_(Registry::shard_here()) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { end(); }

  /// The thread has a hold from here on; nothing changes if it has one.
  void begin() {
    if (!held_) registry_.begin(shard_);
    held_ = true;
  }
  void end() {
    if (held_) registry_.end(shard_);
    held_ = false;
  }

 private:
  Registry& registry_;
  unsigned shard_;
  bool held_ = false;
};

}  // namespace spanalloc::coalescing
