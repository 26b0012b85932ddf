// A coalescing arena whose kernel counts and refuses, and a tenant who checks
// every range that it gets.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "environment.hpp"
#include "pages/coalescing_arena.hpp"
#include "sanitizers.hpp"

namespace spanalloc {

/// The kernel, which refuses what a test tells it to. Calls are numbered from the last reset() on.
struct FaultyCalls {
  enum Kind {
    kReserve,
    kOpen,
    kReserveAt,
    kOpenAt,
    kClose,
    kRelease,
    kPurge,
    kRemap,
    kWouldGrant,
    kPrefer,
    kForbid,
    kKinds
  };
  struct Call {
    Kind kind;
    std::uintptr_t address;
    std::size_t bytes;
  };

  /// Does the kernel refuse this call? Set while no other thread is in the arena. A test in which
  /// nothing was refused has tested nothing: it fails as the next plan is set, or none.
  class Plan {
   public:
    using Function = std::function<bool(const Call&, std::size_t number)>;
    Plan() : must_(false), refused_(0) {}
    Plan& operator=(Function refuses) {
      // (Under thread sanitizer some of these plans meet no call.)
      EXPECT_TRUE(!must_ || refused_ != 0 || test::kUnderTsan)
          << "of all calls of the kernel none was refused";
      set(std::move(refuses), true);
      return *this;
    }
    /// What need not refuse anything: the test asks has_refused(), or only looks on.
    void may(Function refuses) { set(std::move(refuses), false); }
    bool has_refused() const { return refused_ != 0; }
    bool operator()(const Call& call, std::size_t number) {
      const bool refused = refuses_ && refuses_(call, number);
      if (refused) ++refused_;
      return refused;
    }

   private:
    void set(Function refuses, bool must) {
      must_ = must && refuses;
      refused_ = 0;
      refuses_ = std::move(refuses);
    }
    Function refuses_;
    bool must_;
    std::atomic<std::size_t> refused_;
  };
  static inline Plan refuses;
  /// Called behind each call of the first four kinds, before the caller knows.
  static inline std::function<void(const Call&, std::size_t number)> after;
  /// Called when pages have left their place, before anything is mapped there again.
  static inline std::function<void(void* place, std::size_t bytes)> in_the_hole;
  static inline bool all_is_resident = false;
  static inline std::atomic<std::size_t> calls{0};
  static inline std::atomic<std::size_t> count[kKinds];
  static inline std::atomic<std::size_t> renewals{0};  // also counted as kPurge
  static inline bool recording = false;
  static inline std::vector<Call> record;

  static void reset() {
    refuses = nullptr;
    in_the_hole = nullptr;
    after = nullptr;
    all_is_resident = recording = false;
    calls = renewals = 0;
    for (auto& n : count) n = 0;
    record.clear();
  }
  static void refuse_all(Kind kind) {
    refuses = [kind](const Call& call, std::size_t) { return call.kind == kind; };
  }
  /// The calls of one kind that f() makes.
  template <class F>
  static std::vector<Call> during(Kind kind, F f) {
    record.clear();
    recording = true;
    f();
    recording = false;
    std::vector<Call> found;
    for (const Call& call : record) {
      if (call.kind == kind) found.push_back(call);
    }
    return found;
  }
  /// Unmaps what arenas have reserved: they cannot be used any more.
  static void release_all() {
    for (const auto& [address, bytes] : reserved_) os::release(address, bytes);
    reserved_.clear();
  }

  static void* reserve(std::size_t bytes, std::size_t alignment) {
    if (refused({kReserve, 0, bytes})) return nullptr;
    void* address = os::reserve(bytes, alignment);
    if (address != nullptr) reserved_.emplace_back(address, bytes);
    done({kReserve, address_of(address), bytes});
    return address;
  }
  static os::Placed reserve_at(void* address, std::size_t bytes) {
    if (refused({kReserveAt, address_of(address), bytes})) return os::Placed::kRefused;
    const os::Placed placed = os::reserve_at(address, bytes);
    if (placed == os::Placed::kYes) reserved_.emplace_back(address, bytes);
    done({kReserveAt, address_of(address), bytes});
    return placed;
  }
  static bool open(void* address, std::size_t bytes) {
    const bool opened = !refused({kOpen, address_of(address), bytes}) && os::open(address, bytes);
    done({kOpen, address_of(address), bytes});
    return opened;
  }
  static os::Placed open_at(void* address, std::size_t bytes) {
    if (refused({kOpenAt, address_of(address), bytes})) return os::Placed::kRefused;
    const os::Placed placed = os::open_at(address, bytes);
    if (placed == os::Placed::kYes) reserved_.emplace_back(address, bytes);
    done({kOpenAt, address_of(address), bytes});
    return placed;
  }
  static bool close(void* address, std::size_t bytes) {
    return !refused({kClose, address_of(address), bytes}) && os::close(address, bytes);
  }
  static bool release(void* address, std::size_t bytes) {
    const Call call{kRelease, address_of(address), bytes};
    const bool released = !refused(call) && os::release(address, bytes);
    done(call);
    return released;
  }
  static bool purge(void* address, std::size_t bytes) {
    return !refused({kPurge, address_of(address), bytes}) && os::purge(address, bytes);
  }
  static bool renew(void* address, std::size_t bytes) {
    if (refused({kPurge, address_of(address), bytes})) return false;
    ++renewals;
    return os::renew(address, bytes);
  }
  static void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes) {
    if (refused({kRemap, address_of(address), old_bytes})) return nullptr;
    void* to = os::remap(address, old_bytes, new_bytes);
    if (to != nullptr) reserved_.emplace_back(to, new_bytes);
    if (to != nullptr && in_the_hole) in_the_hole(address, old_bytes);
    return to;
  }
  static void prefer_huge_pages(void* address, std::size_t bytes) {
    if (!refused({kPrefer, address_of(address), bytes})) os::prefer_huge_pages(address, bytes);
  }
  static void forbid_huge_pages(void* address, std::size_t bytes) {
    if (!refused({kForbid, address_of(address), bytes})) os::forbid_huge_pages(address, bytes);
  }
  static bool can_be_read(const std::uint32_t* word) { return os::can_be_read(word); }
  static std::size_t resident_pages(void* address, std::size_t bytes) {
    return all_is_resident ? bytes / os::page_size() : os::resident_pages(address, bytes);
  }
  static bool would_grant(std::size_t bytes) {
    return !refused({kWouldGrant, 0, bytes}) && os::would_grant(bytes);
  }

 private:
  static void done(const Call& call) {
    if (after) after(call, calls - 1);
  }
  static bool refused(const Call& call) {
    const std::size_t number = calls.fetch_add(1);
    ++count[call.kind];
    if (recording) record.push_back(call);
    return refuses(call, number);
  }
  static inline std::vector<std::pair<void*, std::size_t>> reserved_;
};

using FaultyArena = CoalescingArena<16, HugePages::kKernelDefault, FaultyCalls>;
using Taken = FaultyArena::Taken;
inline constexpr std::size_t kSlice = FaultyArena::kSlice;

/// A side table that reaches as far as is asked for.
inline constexpr auto kAnyUse = [](std::size_t end) { return TableReach{end, end}; };

/// Takes ranges, marks each page of them, and finds the marks when it gives them back.
class ArenaTenant {
 public:
  explicit ArenaTenant(FaultyArena& arena) : arena_(arena) {}

  char* address(std::uint32_t first) const {
    return pointer_to<char>(arena_.base() + std::size_t{first} * kSlice);
  }
  Taken take(std::size_t count, std::size_t alignment = 1,
             FaultyArena::Reuse reuse = FaultyArena::Reuse::kDirtyFirst) {
    return accept(arena_.take(count, alignment, reuse), count, alignment);
  }
  /// From what is open or beyond it.
  Taken take_growing(std::size_t count, std::size_t alignment = 1) {
    Taken taken = arena_.take(count, alignment);
    if (taken.first == 0) taken = arena_.take_growing(count, alignment, kAnyUse);
    return accept(taken, count, alignment);
  }
  void give(std::uint32_t first) {
    expect_marks(first);
    live_.erase(first);
    arena_.give(first);
  }
  void give_zero(std::uint32_t first) {
    const std::size_t count = live_.at(first).count;
    live_.erase(first);
    std::memset(address(first), 0, count * kSlice);
    arena_.give(first, true);
  }
  /// What has left without a word.
  void forget(std::uint32_t first) { live_.erase(first); }
  void give_all() {
    while (!live_.empty()) give(live_.begin()->first);
  }
  bool resize(std::uint32_t first, std::size_t count) {
    Range& range = live_.at(first);
    if (!arena_.resize_in_place(first, count)) return false;
    const std::size_t old = std::exchange(range.count, count);
    expect_marks(first, min_of(old, count));
    mark(first);
    return true;
  }
  /// Moves what is at `first` out, with room of as much again; the tenant has it no more.
  /// `may_be_lost`: the range.
  bool move_out(std::uint32_t first, bool may_be_lost = false) {
    const Range range = live_.at(first);
    unsigned told = 0;
    const auto moved =
        arena_.move_out(first, range.count, 2 * range.count * kSlice, [&](const void*) {
          ++told;
          EXPECT_GE(arena_.statistics().lost_bytes, range.count * kSlice) << "anybody may take it";
        });
    EXPECT_EQ(told, moved.to == nullptr ? 0u : 1u);
    if (moved.to == nullptr) {
      expect_marks(first);
      return false;
    }
    EXPECT_TRUE(moved.left_a_range || may_be_lost);
    const char* to = static_cast<char*>(moved.to);
    for (std::size_t at = 0; at < 2 * range.count * kSlice; at += kStep) {
      const std::uint64_t mark = *reinterpret_cast<const std::uint64_t*>(to + at + 1024);
      EXPECT_EQ(mark, at < range.count * kSlice ? range.seed + at : 0) << at;
    }
    live_.erase(first);
    if (moved.left_a_range) {
      expect_zero(first, range.count);
      arena_.give(first, true);
    }
    return true;
  }

  struct Range {
    std::size_t count;
    std::uint64_t seed;
  };
  const std::map<std::uint32_t, Range>& live() const { return live_; }
  std::size_t taken() const {
    std::size_t sum = 0;
    for (const auto& [first, range] : live_) sum += range.count;
    return sum;
  }
  void expect_contents() const {
    for (const auto& [first, range] : live_) expect_marks(first);
  }

 private:
  static constexpr std::size_t kStep = 4 * kKiB;

  Taken accept(Taken taken, std::size_t count, std::size_t alignment) {
    if (taken.first == 0) return taken;
    EXPECT_EQ(address_of(address(taken.first)) % (alignment * kSlice), 0u);
    EXPECT_EQ(arena_.count_of(taken.first), count);
    EXPECT_LE(taken.first + count, arena_.limit());
    if (taken.zero) expect_zero(taken.first, count);
    EXPECT_TRUE(live_.emplace(taken.first, Range{count, ++seed_}).second) << "handed out twice";
    mark(taken.first);
    return taken;
  }
  void expect_zero(std::uint32_t first, std::size_t count) const {
    for (std::size_t at = 0; at < count * kSlice; at += kStep) ASSERT_EQ(word(first, at), 0u) << at;
  }
  void mark(std::uint32_t first) {
    const Range& range = live_.at(first);
    for (std::size_t at = 0; at < range.count * kSlice; at += kStep)
      word(first, at) = range.seed + at;
  }
  void expect_marks(std::uint32_t first) const { expect_marks(first, live_.at(first).count); }
  void expect_marks(std::uint32_t first, std::size_t count) const {
    const std::uint64_t seed = live_.at(first).seed;
    for (std::size_t at = 0; at < count * kSlice; at += kStep)
      ASSERT_EQ(word(first, at), seed + at) << at;
  }
  // Not at the page's beginning: a page's first bytes are where everybody writes.
  std::uint64_t& word(std::uint32_t first, std::size_t at) const {
    return *reinterpret_cast<std::uint64_t*>(address(first) + at + 1024);
  }

  FaultyArena& arena_;
  std::map<std::uint32_t, Range> live_;
  std::uint64_t seed_ = address_of(this);
};

struct ArenaBooks {
  std::size_t taken = 0;
  std::size_t free = 0;
  std::size_t out_of_sight = 0;  ///< decommitted or lost: what the walk leaves out
};

struct CoalescingArenaTestAccess {
  template <class Arena>
  static bool books_add_up(const Arena& arena) {
    return arena.books_add_up();
  }
};

/// At rest: the books that the arena keeps are what a walk finds. The walk shows what is handed out
/// as in use and nothing else, no two free neighbours, in address order; and what is open is slice
/// 0, taken, free or `target_lost`.
inline ArenaBooks expect_books(FaultyArena& arena, const ArenaTenant& tenant,
                               std::size_t target_lost = 0) {
  ArenaBooks books;
  std::size_t at = 1;
  bool free_before = false;
  std::set<std::uint32_t> seen;
  arena.walk([&](std::uint32_t first, std::size_t count, bool free) {
    EXPECT_GE(first, at) << "ranges overlap";
    if (first != at) free_before = false;
    books.out_of_sight += first - at;
    at = first + count;
    (free ? books.free : books.taken) += count;
    EXPECT_FALSE(free && free_before) << "free neighbours at " << first;
    free_before = free;
    if (free) return;
    const auto known = tenant.live().find(first);
    EXPECT_EQ(known == tenant.live().end() ? 0 : known->second.count, count) << "at " << first;
    seen.insert(first);
  });
  EXPECT_LE(at, arena.limit());
  books.out_of_sight += arena.limit() - at;
  EXPECT_EQ(seen.size(), tenant.live().size());
  EXPECT_EQ(arena.statistics().opened_bytes, (1 + books.taken + books.free + target_lost) * kSlice);
  EXPECT_GE(books.out_of_sight * kSlice, arena.statistics().lost_bytes);
  EXPECT_TRUE(CoalescingArenaTestAccess::books_add_up(arena));
  EXPECT_GE(arena.held(), books.taken);
  EXPECT_LE(arena.held(), books.taken + books.free);
  tenant.expect_contents();
  return books;
}

class CoalescingArenaTest : public testing::Test {
 protected:
  CoalescingArenaTest() { FaultyCalls::reset(); }
  ~CoalescingArenaTest() override {
    FaultyCalls::reset();
    FaultyCalls::release_all();
  }
  void set_bits(const char* bits) { bits_.set(bits); }
  /// An arena of 1 GiB; what the start has called is not counted.
  static constexpr bool kReserved = true;
  void start(bool reserved = false) {
    arena = std::make_unique<FaultyArena>();
    tenant = std::make_unique<ArenaTenant>(*arena);
    FaultyCalls::reset();
    // Without a place anywhere it is reserved.
    if (reserved) FaultyCalls::refuse_all(FaultyCalls::kReserveAt);
    ASSERT_TRUE(arena->start(kSlice << 2));
    FaultyCalls::reset();
  }
  std::size_t in_use() const { return arena->limit() - 1; }
  std::size_t opened_slices() const { return arena->statistics().opened_bytes / kSlice; }

  std::unique_ptr<FaultyArena> arena;
  std::unique_ptr<ArenaTenant> tenant;

 private:
  test::Variable bits_{"SPANALLOC_ARENA_BITS", "30"};
};

}  // namespace spanalloc
