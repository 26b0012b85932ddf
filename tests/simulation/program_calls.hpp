// The calls of the library that the simulated program makes, each with its checks.
#pragma once

#include <cerrno>
#include <utility>

#include "engine.hpp"
#include "kernel.hpp"
#include "process.hpp"
#include "program_state.hpp"
#include "report.hpp"

namespace spanalloc::simulation::program {

/// Of a thread whose handler has allocated nothing is known. (It looks idle.)
[[noreturn]] void stop_for_ever();

/// Whether a call may give back what another one then has.
enum class Gives : bool { no, yes };

/// Around each call of the library.
class InCall {
 public:
  explicit InCall(int heap = kNoHeap, Gives gives = Gives::yes)
      : outer_(std::exchange(me().in_call, true)) {
    if (gives == Gives::yes) {
      me().gives = true;
      ++gifts_begun;
    }
    ++result->operations;
    if (!outer_) {
      scheduler.begin_operation();
      me().call = ++calls_begun;
      me().began_alone = ++calls_in_flight == 1;
    }
    if (heap != kNoHeap) {
      heap_ = heap;
      me().heap_in_call = heap;
      ++heaps[heap].calls;
      ++heaps[heap].begun;
    }
    if (!outer_ && plan->has(Feature::alone) && me().random.one_in(32)) {
      scheduler.run_alone();
      scheduler.look(true);
      // (A search for a large one waits for blocks that are in other threads' hands.)
      may_wait_ = me().bytes_in_call > kSmall || heap != kNoHeap ||
                  scheduler.do_others_hold_locks() || engine::may_wait_without_lock();
      scheduler.look(false);
      is_alone_ = true;
    }
    errno = kUntouched;
  }
  ~InCall() {
    if (heap_ != kNoHeap) {
      --heaps[heap_].calls;
      me().heap_in_call = kNoHeap;
    }
    if (outer_) return;
    if (me().misused) {
      --calls_in_flight;
      stop_for_ever();
    }
    // Only for who holds a lock, wherever the others are stopped.
    SIM_CHECK(!is_alone_ || may_wait_ || scheduler.yields_of_operation() == 0,
              "a call waits, though nobody holds a lock");
    scheduler.end_operation();
    scheduler.look(true);
    engine::check_quiet();
    scheduler.look(false);
    me().in_call = me().gives = false;
    me().bytes_in_call = SIZE_MAX;
    --calls_in_flight;
    SIM_CHECK(scheduler.locks_held() == 0, "a lock is held behind the call: %p",
              scheduler.lock_held());
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  const bool outer_;
  bool is_alone_ = false;
  bool may_wait_ = false;
  int heap_ = kNoHeap;
};

/// The kernel, or somebody else, may be the reason for a refusal.
bool may_be_refused();
void check_errno(bool succeeded);
/// What a call has returned for `bytes`. False: there is no memory.
bool accept(Block& block, void* p, std::size_t bytes, std::size_t alignment, bool may_fail);
void note_usable(Block& block);
std::size_t draw_size();

/// By malloc and the like. False: there is no memory.
bool allocate(Block& block);
/// The block is the program's no longer, whatever becomes of the call.
void release(Block block);
/// True: the block is there still, at its old or another place.
bool reallocate(Block& block, std::size_t bytes);
Block take_from(std::vector<Block>& blocks, Order order);

}  // namespace spanalloc::simulation::program
