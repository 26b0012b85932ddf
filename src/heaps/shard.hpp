// A shard of a heap: one lock, runs of slices, and the free blocks in them.
//
// Blocks of all sizes share a run (block.hpp). A request is served by
//
//   the index      a free block that fits (two_level_index.hpp); what is too much goes back to it
//   the top        what was never handed out of the newest run (top.hpp)
//   a new run      which becomes the top; what is left of the old one becomes a free block. It is
//                  taken without the lock: that may take system calls
//
// A block that is freed is merged with its free neighbours and with the top at once. A run whose
// blocks are all free is given back, but for the shard's first one, in which the shard itself
// stands; for that of the top; and for one more, kept so that a program that frees and allocates at
// such a border does not take and give a run each time. Blocks above kMostShared have one each.
//
// Invariants, under the lock:
//   (1) From its first block on, headers tile each shared run up to its end, or to the top.
//   (2) No two neighbours are free, and no free block borders on the top.
//   (3) A header has kPreviousFree exactly if the block before it is free; each free block is in
//       the index. (Not in retired runs.)
//   (4) runs_ has each run whose record says that it is this shard's.
// Each step that changes (1) is one store, of a header or of where the top begins, after all that
// it leads to. So what a vanished thread leaves in a fork's child satisfies (1), and repair() makes
// the rest anew.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/inspection_access.hpp"
#include "base/intrusive_list.hpp"
#include "heaps/block.hpp"
#include "heaps/config.hpp"
#include "heaps/heap_core.hpp"
#include "heaps/runs.hpp"
#include "heaps/top.hpp"
#include "heaps/two_level_index.hpp"
#include "os/os.hpp"
#include "pages/nested_blocks.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::heaps {

/// A block just allocated. `zero`: its bytes are known to be zero.
struct Allocated {
  void* p = nullptr;
  bool zero = false;
};

/// A report is made without the lock, and before anything has changed but that a damaged list is
/// dropped: a handler of SIGABRT may go on.
class Shard {
 public:
  /// Makes a shard that stands in `home`, with its blocks behind `first` bytes of it. The heap may
  /// publish it then, with attach_home().
  void start(HeapCore& core, Key key, Slice home, std::size_t first, bool zero) {
    core_ = &core;
    key_ = key;
    home_ = home;
    first_in_home_ = align_up(first, kGranule);
    begin_in_home(zero);
  }
  /// The home is this shard's from here on. Nobody else knows the shard.
  void attach_home() {
    runs.set_owner(home_, core_->home, address_of(this));
    runs_.push_front(home_, runs.links());
  }
  /// Forgets all blocks, of the home, too; the other runs are nobody's now. (By the heap's reset.)
  void restart(Key key) {
    key_ = key;
    runs.set_owner(home_, core_->home, address_of(this));  // a fork's child may have retired it
    begin_in_home(false);
  }

  // Constant.
  HeapCore& core() const { return *core_; }
  Slice home() const { return home_; }

  // --- The lock ----------------------------------------------------------------------------------

  /// False: somebody has it, or had it and did not come along a fork.
  SPANALLOC_INLINE bool try_lock() { return lock_.try_lock(); }
  SPANALLOC_COLD void lock() {
    // Nobody is called with the lock held but the program's visitor. And in a fork's child nobody
    // can tell the locks of all heaps that the thread which had one has vanished.
    if (lock_.is_mine_for_ever()) report("a heap is used by its own visitor, at", this);
    if (lock_.lock() == Locked::kOwnerDied) repair();
  }
  void unlock() { lock_.unlock(); }
  void lock_quickly() {
    if (SPANALLOC_UNLIKELY(!lock_.try_lock())) lock();
  }

  // --- Allocation --------------------------------------------------------------------------------

  /// Under the lock. A block of `bytes` (block_bytes()). None: grow() first.
  [[gnu::noinline]] Allocated allocate(std::size_t bytes) {
    Block* const found = index_.find(key_, bytes);
    return found != nullptr ? take_found(found, bytes) : take_top(bytes);
  }

  /// Without the lock, by a thread that is inside. Takes a run with room for a block of `bytes`
  /// and, with the lock, allocates it there. No block: memory is out, or the heap's limit is
  /// reached.
  SPANALLOC_COLD Allocated grow_and_allocate(std::size_t bytes) {
    const std::size_t least = (bytes + 2 * kHeader + Runs::kSlice - 1) >> HeapsConfig::kSliceBits;
    const std::size_t wanted =
        max_of(least, min_of(slices_.load_relaxed(), HeapsConfig::kMostRunSlices));
    Runs::Taken run = core_->take_run(wanted);
    if (run.first == 0 && wanted != least) run = core_->take_run(least);
    if (run.first == 0) return {};
    Block* const block = first_block(run.first, 0);
    Block* const end = end_of(run.first);
    block->set_tag(key_, Tag::of(bytes_between(block, end)));
    end->set_tag(key_, {Tag::kEnd});
    lock();
    retire_top();
    attach(run.first, 0);
    set_top(run.first, block, run.zero);
    const Allocated got = take_top(bytes);
    unlock();
    return got;
  }

  /// Without the lock, by a thread that is inside. A run for one block of n bytes at a multiple of
  /// `alignment`, a power of two.
  SPANALLOC_COLD Allocated allocate_large(std::size_t n, std::size_t alignment) {
    const Runs::Taken run = core_->take_run(slices_for(n), max_of(alignment / Runs::kSlice, 1));
    if (run.first == 0) return {};
    lock();
    attach(run.first, Run::kLarge);
    note_taken(runs.bytes_of(run.first));
    unlock();
    return {runs.address(run.first), run.zero};
  }

  /// Under the lock. Makes a block that begins at a multiple of `alignment` of one that was just
  /// allocated, with so much more room, and shortens it to `bytes`.
  SPANALLOC_COLD void* align(void* p, std::size_t alignment, std::size_t bytes) {
    Block* block = Block::of(p);
    std::uintptr_t aligned = align_up(address_of(p), alignment);
    if (aligned != address_of(p) && aligned - address_of(p) < kLeastBlock) aligned += alignment;
    const std::size_t gap = aligned - address_of(p);
    if (gap != 0) {
      Block* const behind = block->at(gap);
      const Tag tag = block->tag(key_);
      behind->set_tag(key_, Tag::of(tag.size() - gap));
      block->set_tag(key_, Tag::of(gap).with_previous_free(tag.previous_is_free()));
      blocks_.count_up();
      (void)free(block, run_of(block));
      block = behind;
    }
    shorten(block, bytes);
    return block->payload();
  }

  // --- Freeing -----------------------------------------------------------------------------------

  /// Under the lock. Frees the block in that run. Returns a run that is nobody's now: the caller,
  /// who is inside then, gives it back with HeapCore::give_detached(), without the lock. 0: none.
  Slice free(Block* block, Slice run) {
    const Tag tag = block->tag(key_);
    if (SPANALLOC_UNLIKELY(!tag.is_used())) report_no_block(block, tag);
    Block* const behind = block->at(tag.size());
    if (SPANALLOC_UNLIKELY(is_withdrawn(run))) return free_in_retired(block, tag);
    if (behind == top_.begin()) return free_before_top(block, tag), 0;
    const Tag next = behind->tag(key_);
    if (SPANALLOC_UNLIKELY(!next)) report("write beyond the end of the block at", block->payload());
    Block* start = block;
    std::size_t size = tag.size();
    Block* after = behind;
    Tag after_tag = next;
    if (next.is_free()) {
      after = behind->at(next.size());
      after_tag = after->tag(key_);
      // (Its list was damaged: its memory is lost, and nothing else.)
      if (SPANALLOC_UNLIKELY(!after_tag || !index_.remove(key_, behind, next.size())))
        report("free memory overwritten (write after free) at", behind->payload());
      size += next.size();
    }
    if (tag.previous_is_free()) {
      start = take_previous(block, run);
      size += bytes_between(start, block);
    }
    note_freed(tag.size());
    // The header stays, where it is merged: a second free finds it.
    if (start != block) block->set_tag(key_, {tag.word | Tag::kFree});
    start->become_free(key_, size);
    after->set_tag(key_, after_tag.with_previous_free(true));
    index_.insert(key_, start, size);
    if (SPANALLOC_LIKELY(!after_tag.is_end())) return 0;
    return start == first_block_of(run) ? note_empty(run) : 0;
  }

  /// Under the lock, by a thread that is inside. A run without a block in use, as free() returns
  /// one. Takes time in proportion to the runs, if there may be one.
  SPANALLOC_COLD Slice detach_unused() {
    spare_ = 0;
    Slice empty = 0;
    if (may_have_empty_) {
      for_each_run([&](Slice run) {
        if (run != home_ && run != top_.run() && is_empty(run)) empty = run;
      });
    }
    may_have_empty_ = empty != 0;
    if (empty != 0) return detach_empty(empty);
    const Slice run = top_.run();
    if (run == 0 || run == home_ || top_.begin() != first_block(run, 0)) return 0;
    detach(run);
    top_.forget();  // (in a fork's child, repair() does: the top's run is not the shard's)
    return run;
  }

  /// Under the lock. As free(), of the large block at p.
  SPANALLOC_COLD Slice free_large(void* p, Slice run) {
    check_large(p, run);
    note_freed(runs.bytes_of(run));
    return detach(run);
  }

  // --- Resizing and measuring --------------------------------------------------------------------

  /// Without the lock. Bytes of the block at exactly p; 0: none is there.
  SPANALLOC_COLD std::size_t usable_size(const void* p, Slice run) const {
    if ((runs[run].owner.load_relaxed() & Run::kLarge) != 0)
      return p == runs.address(run) ? runs.bytes_of(run) : 0;
    const Block* const block = Block::of(p);
    if (!Block::may_be_at(block)) return 0;
    const Tag tag = block->tag(key_);
    return tag.is_used() ? tag.size() - kHeader : 0;
  }

  /// Under the lock. Makes the block `bytes` long (block_bytes()) where it stands, or reports that
  /// there is none. False: no room behind it.
  SPANALLOC_COLD bool resize(Block* block, Slice run, std::size_t bytes) {
    const Tag tag = block->tag(key_);
    if (!tag.is_used()) report_no_block(block, tag);
    if (is_withdrawn(run)) return bytes <= tag.size();
    if (bytes > tag.size() && !lengthen(block, tag, bytes)) return false;
    shorten(block, bytes);
    return true;
  }
  /// Under the lock. The same of a large block, for n bytes of payload.
  SPANALLOC_COLD bool resize_large(void* p, Slice run, std::size_t n) {
    check_large(p, run);
    const std::size_t old = runs.bytes_of(run);
    const std::size_t bytes = slices_for(n) * Runs::kSlice;
    if (bytes == old) return true;
    if (bytes > old && !core_->book(bytes - old)) return false;
    if (!runs.resize(run, bytes >> HeapsConfig::kSliceBits)) {
      if (bytes > old) core_->unbook(bytes - old);
      return false;
    }
    if (bytes < old) core_->unbook(old - bytes);
    note_freed(old);
    note_taken(bytes);
    return true;
  }

  // --- All of it ---------------------------------------------------------------------------------

  /// Under the lock. Calls visit(p, bytes) for each block in use.
  template <class Visit>
  SPANALLOC_COLD void visit(Visit visit) {
    for_each_run([&](Slice run) {
      if ((runs[run].owner.load_relaxed() & Run::kLarge) != 0)
        return visit(runs.address(run), runs.bytes_of(run));
      const bool whole = walk(run, [&](Block* block, Tag tag) {
        if (tag.is_used()) visit(block->payload(), tag.size() - kHeader);
      });
      if (!whole) report("header of a block overwritten in the heap memory at", runs.address(run));
    });
  }
  struct Use {
    std::size_t blocks = 0;
    std::size_t bytes = 0;  // with headers
  };
  /// Of some moment each; exact under the lock.
  Use use() const { return {blocks_.load_relaxed(), bytes_.load_relaxed()}; }

  /// Under the lock, by a thread that is inside: all runs but the home become nobody's, and are
  /// given back. Takes time in proportion to their number.
  SPANALLOC_COLD void give_all_but_home() {
    Slice next = 0;
    for (Slice run = runs_.first(); run != 0; run = next) {
      next = runs[run].next;
      if (run == home_) continue;
      runs.clear_owner(run);
      core_->give_run(run);
    }
    runs_.forget();
    runs_.push_front(home_, runs.links());
  }

 private:
  friend struct ShardTestAccess;  // defined by unit tests only
  friend struct spanalloc::HeapsInspectionAccess;

  struct Memory {
    static bool may_have(const void* p) { return runs.contains(p); }
  };

  static std::size_t slices_for(std::size_t n) {
    return (n + Runs::kSlice - 1) >> HeapsConfig::kSliceBits;
  }
  static std::size_t bytes_between(const void* from, const void* to) {
    return address_of(to) - address_of(from);
  }
  static Slice run_of(const Block* block) {
    return runs[static_cast<Slice>(runs.slice_of(block))].first.load_relaxed();
  }
  /// The first block's header stands 8 bytes behind a multiple of 16, as all do.
  static Block* first_block(Slice run, std::size_t behind) {
    return pointer_to<Block>(address_of(runs.address(run)) + behind + kHeader);
  }
  Block* first_block_of(Slice run) const {
    return first_block(run, run == home_ ? first_in_home_ : 0);
  }
  static Block* end_of(Slice run) {
    return pointer_to<Block>(address_of(runs.address(run)) + runs.bytes_of(run) - kHeader);
  }
  bool is_withdrawn(Slice run) const {
    return (runs[run].owner.load_relaxed() & Run::kRetired) != 0;
  }

  // --- Lists -------------------------------------------------------------------------------------

  SPANALLOC_COLD void attach(Slice run, std::uint64_t kind) {
    runs.set_owner(run, core_->home, address_of(this) | kind);
    runs_.push_front(run, runs.links());
    if (kind == 0)
      slices_.store_relaxed(slices_.load_relaxed() + runs.bytes_of(run) / Runs::kSlice);
  }
  /// Returns the run, which is nobody's now.
  SPANALLOC_COLD Slice detach(Slice run) {
    runs.enter();
    if ((runs[run].owner.load_relaxed() & Run::kLarge) == 0)
      slices_.store_relaxed(slices_.load_relaxed() - runs.bytes_of(run) / Runs::kSlice);
    runs_.remove(run, runs.links());
    runs.clear_owner(run);
    return run;
  }
  template <class F>
  void for_each_run(F&& f) {
    for (Slice run = runs_.first(); run != 0; run = runs[run].next) f(run);
  }
  void note_taken(std::size_t bytes) {
    blocks_.count_up();
    bytes_.add(bytes);
  }
  void note_freed(std::size_t bytes) {
    blocks_.add(-std::size_t{1});
    bytes_.add(-bytes);
  }

  void forget_taken() {
    blocks_.store_relaxed(0);
    bytes_.store_relaxed(0);
  }

  // --- The top -----------------------------------------------------------------------------------

  SPANALLOC_COLD void begin_in_home(bool zero) {
    index_.forget();
    slices_.store_relaxed(runs.bytes_of(home_) / Runs::kSlice);
    spare_ = 0;
    forget_taken();
    Block* const first = first_block_of(home_);
    end_of(home_)->set_tag(key_, {Tag::kEnd});
    set_top(home_, first, zero);
  }
  void set_top(Slice run, Block* begin, bool zero) { top_.set(run, begin, end_of(run), zero); }
  /// What is left of the top becomes a free block.
  SPANALLOC_COLD void retire_top() {
    Block* const left = top_.begin();
    const std::size_t bytes = top_.bytes();
    if (bytes != 0) left->become_free(key_, bytes);
    top_.retire();
    if (bytes == 0) return;
    top_.end()->set_tag(key_, {Tag::kEnd | Tag::kPreviousFree});
    index_.insert(key_, left, bytes);
    may_have_empty_ = true;
  }
  SPANALLOC_INLINE Allocated take_top(std::size_t bytes) {
    const Top::Cut cut = top_.cut(key_, bytes);
    if (SPANALLOC_UNLIKELY(cut.block == nullptr)) return {};
    note_taken(cut.bytes);
    return {cut.block->payload(), cut.zero};
  }
  void free_before_top(Block* block, Tag tag) {
    Block* start = block;
    if (tag.previous_is_free()) start = take_previous(block, top_.run());
    note_freed(tag.size());
    block->set_tag(key_, {tag.word | Tag::kFree});
    top_.move_down(start);
  }

  // --- Free blocks -------------------------------------------------------------------------------

  SPANALLOC_INLINE Allocated take_found(Block* block, std::size_t bytes) {
    const Tag tag = block->tag(key_);
    const std::size_t size = tag.size();
    Block* const behind = block->at(size);
    if (SPANALLOC_UNLIKELY(!tag.is_free() || size < bytes || size > Index::kMostBytes ||
                           !index_.remove(key_, block, size))) {
      index_.drop_list_of(block);
      report("free memory overwritten (write after free) at", block->payload());
    }
    if (size - bytes >= kLeastBlock) {
      Block* const rest = block->at(bytes);
      rest->become_free(key_, size - bytes);
      block->set_tag(key_, Tag::of(bytes));
      index_.insert(key_, rest, size - bytes);
      note_taken(bytes);
    } else {
      const Tag next = behind->tag(key_);
      if (SPANALLOC_UNLIKELY(!next))
        report("free memory overwritten (write after free) at", block->payload());
      block->set_tag(key_, Tag::of(size));
      behind->set_tag(key_, next.with_previous_free(false));
      note_taken(size);
    }
    return {block->payload(), false};
  }
  /// Takes the free block before `block` off the index.
  Block* take_previous(Block* block, Slice run) {
    Block* const first = first_block_of(run);
    Block* const previous = block->previous_free(key_, bytes_between(first, block));
    if (SPANALLOC_UNLIKELY(previous == nullptr ||
                           !index_.remove(key_, previous, bytes_between(previous, block))))
      report("free memory overwritten (write after free) before the block at", block->payload());
    return previous;
  }
  /// The run's one block is free, and in the index.
  SPANALLOC_COLD Slice note_empty(Slice run) {
    if (run == home_) return 0;
    may_have_empty_ = true;
    if (spare_ == 0 || spare_ == run || !is_empty(spare_)) {
      spare_ = run;
      return 0;
    }
    if (os::in_kernel_call()) return 0;  // it is found when it is empty again
    return detach_empty(run);
  }
  SPANALLOC_COLD Slice detach_empty(Slice run) {
    Block* const block = first_block(run, 0);
    if (!index_.remove(key_, block, bytes_between(block, end_of(run))))
      report("free memory overwritten (write after free) at", block->payload());
    return detach(run);
  }
  bool is_empty(Slice run) const {
    if (runs[run].owner.load_relaxed() != address_of(this)) return false;  // (shared, not retired)
    const Block* const block = first_block(run, 0);
    const Tag tag = block->tag(key_);
    return tag.is_free() && block->at(tag.size()) == end_of(run);
  }
  SPANALLOC_COLD Slice free_in_retired(Block* block, Tag tag) {
    note_freed(tag.size());
    block->set_tag(key_, {tag.word | Tag::kFree});
    return 0;
  }
  /// Gives what a block in use has beyond `bytes` back, if that can be a block.
  SPANALLOC_COLD void shorten(Block* block, std::size_t bytes) {
    const Tag tag = block->tag(key_);
    if (tag.size() < bytes + kLeastBlock) return;
    Block* const rest = block->at(bytes);
    rest->set_tag(key_, Tag::of(tag.size() - bytes));
    block->set_tag(key_, Tag::of(bytes).with_previous_free(tag.previous_is_free()));
    blocks_.count_up();
    (void)free(rest, run_of(block));  // its run is not empty
  }
  /// False: the top or the free block behind it has not enough room.
  SPANALLOC_COLD bool lengthen(Block* block, Tag tag, std::size_t bytes) {
    Block* const behind = block->at(tag.size());
    if (behind == top_.begin()) {
      const std::size_t more = bytes - tag.size();
      const std::size_t left = top_.bytes();
      if (left < more) return false;
      const std::size_t added = Top::with_rest(more, left);
      // First the header: until the top has moved it is not looked at (walk()).
      join(block, tag, added);
      top_.move_up(block->at(tag.size() + added));
      return true;
    }
    const Tag next = behind->tag(key_);
    if (!next) report("write beyond the end of the block at", block->payload());
    if (!next.is_free() || tag.size() + next.size() < bytes) return false;
    Block* const after = behind->at(next.size());
    const Tag after_tag = after->tag(key_);
    if (!after_tag || !index_.remove(key_, behind, next.size()))
      report("free memory overwritten (write after free) at", behind->payload());
    join(block, tag, next.size());
    after->set_tag(key_, after_tag.with_previous_free(false));
    return true;
  }
  void join(Block* block, Tag tag, std::size_t added) {
    block->set_tag(key_, Tag::of(tag.size() + added).with_previous_free(tag.previous_is_free()));
    bytes_.add(added);
  }

  // --- Reports -----------------------------------------------------------------------------------

  SPANALLOC_COLD [[noreturn]] void report(const char* what, const void* address) {
    unlock();
    os::fatal(what, address);
  }
  SPANALLOC_COLD [[noreturn]] void report_no_block(Block* block, Tag tag) {
    if (tag.is_free()) report("double free of", block->payload());
    report("pointer is not the start of a live block of its heap (freed long ago, or overwritten):",
           block->payload());
  }
  void check_large(void* p, Slice run) {
    // (Two threads that free it at once both come here.)
    if (runs[run].owner.load_relaxed() != (address_of(this) | Run::kLarge))
      report("double free of", p);
    if (p != runs.address(run)) report("pointer is not the start of a live block of its heap:", p);
  }

  // --- Fork --------------------------------------------------------------------------------------

  /// Calls f(block, tag) for the blocks of a shared run, in order. False: a header was overwritten.
  template <class F>
  SPANALLOC_COLD bool walk(Slice run, F&& f) {
    Block* const end = run == top_.run() ? top_.begin() : end_of(run);
    Block* const last = end_of(run);
    for (Block* block = first_block_of(run); block != end;) {
      const Tag tag = block->tag(key_);
      if (!tag || tag.is_end() || tag.size() > bytes_between(block, last)) return false;
      Block* const next = block->at(tag.size());
      // (In a fork's child the top may not have moved yet behind a block that has grown into it.)
      if (next > end) top_.move_up(next);
      f(block, tag);
      if (next >= end) break;
      block = next;
    }
    return true;
  }

  /// In a fork's child: the thread that had the lock has vanished. All but (1) is made anew.
  SPANALLOC_COLD void repair() {
    index_.forget();
    runs_.forget();
    spare_ = 0;
    may_have_empty_ = true;
    forget_taken();
    std::size_t slices = 0;
    bool has_top = false;
    runs.for_runs([&](Slice run, std::uint64_t owner) {
      if ((owner & ~Run::kKinds) != address_of(this)) return;
      runs_.push_front(run, runs.links());
      if ((owner & Run::kLarge) != 0) return note_taken(runs.bytes_of(run));
      slices += runs.bytes_of(run) / Runs::kSlice;
      if ((owner & Run::kRetired) != 0) return;
      if (!repair(run)) return runs.set_owner(run, core_->home, address_of(this) | Run::kRetired);
      has_top = has_top || run == top_.run();
    });
    slices_.store_relaxed(slices);
    // The thread was between two runs, or its last one is damaged: the next request takes one.
    if (!has_top) top_.forget();
  }
  SPANALLOC_COLD bool repair(Slice run) {
    Block* free = nullptr;  // the free block, or row of them, that ends where the walk is
    std::size_t free_bytes = 0;
    const auto list = [&] {
      if (free == nullptr) return;
      free->become_free(key_, free_bytes);
      index_.insert(key_, free, free_bytes);
      free = nullptr;
      free_bytes = 0;
    };
    const bool whole = walk(run, [&](Block* block, Tag tag) {
      if (tag.is_free()) {
        block->clear_links();  // of the list that it was in
        if (free == nullptr) free = block;
        free_bytes += tag.size();
        return;
      }
      block->set_tag(key_, tag.with_previous_free(free != nullptr));
      list();
      note_taken(tag.size());
    });
    if (!whole) return false;
    if (run == top_.run()) {
      if (free != nullptr) top_.move_down(free);
    } else {
      end_of(run)->set_tag(key_, Tag{Tag::kEnd}.with_previous_free(free != nullptr));
      list();
    }
    return true;
  }

  using Index = TwoLevelIndex<Memory>;

  SpinLock lock_;                  // gives access to all that is not constant
  HeapCore* core_ = nullptr;       // constant
  Key key_;                        // constant from one reset of the heap to the next
  Slice home_ = 0;                 // constant
  std::size_t first_in_home_ = 0;  // constant: bytes of the home before its first block
  IntrusiveList<Slice> runs_;
  Slice spare_ = 0;              // a run that was empty once; 0: none
  bool may_have_empty_ = false;  // runs without a block in use, beside the home and the top's
  Top top_;
  Atomic<std::size_t> slices_{0};  // of shared runs; grow_and_allocate() looks without the lock
  // Written under the lock; statistics read them without.
  OwnersWord blocks_;  // in use
  OwnersWord bytes_;   // of them, with headers
  Index index_;
};

}  // namespace spanalloc::heaps
