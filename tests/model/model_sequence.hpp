// The model checker's stand-in for os/rseq.hpp: the same functions, step by step, on the CPUs of
// the running exploration. With one of `faults` they are what they must not be.
#pragma once

#include <csetjmp>
#include <cstdint>

#include "model_atomic.hpp"
#include "scheduler.hpp"

namespace spanalloc::model {

struct SequenceFaults {
  bool are_not_restarted = false;     // whoever has run on the CPU meanwhile
  bool end_with_plain_store = false;  // of a word that has been looked at before
  bool look_once_where_they_run = false;
  bool pops_do_not_look = false;  // at the word, before they read
};
inline SequenceFaults faults;

}  // namespace spanalloc::model

namespace spanalloc::os {

inline constexpr bool kHasSequences = true;
inline bool has_sequences() {
  return true;
}
struct TwoWords {
  std::uint64_t first;
  std::uint64_t second;
};

struct SequenceArea {};
inline volatile SequenceArea& sequence_area() {
  static volatile SequenceArea area;
  return area;
}
/// Where the running thread is; with `look_once_where_they_run` where it was when it
/// last came out of a sequence.
inline unsigned sequence_cpu(const volatile SequenceArea&) {
  return model::faults.look_once_where_they_run ? model::last_seen_cpu() : model::this_cpu();
}

template <class Moves>
bool run_sequence(unsigned cpu, void* word, std::uint64_t seen, std::uint64_t desired, bool looks,
                  Moves moves) {
  if (!model::modelled) {  // a constructor
    moves();
    *static_cast<std::uint64_t*>(word) = desired;
    return true;
  }
  std::jmp_buf exit;
  if (setjmp(exit) != 0) return false;
  if (!model::faults.are_not_restarted) model::begin_sequence(exit);
  bool done = false;
  // Acquire, as all loads of x86 are.
  if (model::this_cpu() == cpu &&
      (!looks || model::atomic_load(word, 8, model::Order::acquire) == seen)) {
    // Others may come between any two instructions.
    (void)model::atomic_load(word, 8, model::Order::relaxed);
    moves();
    if (model::faults.end_with_plain_store) {
      done = model::atomic_load(word, 8, model::Order::acquire) == seen;
      if (done) model::atomic_store(word, 8, desired, model::Order::release);
    } else if (model::atomic_read_for_update(word, 8, model::Order::seq_cst) == seen) {
      model::atomic_write_update(word, 8, desired, model::Order::seq_cst);
      done = true;
    } else {
      model::atomic_keep(word, 8, model::Order::seq_cst);
    }
  }
  model::end_sequence();
  return done;
}

template <class Place>
bool write_and_swap(volatile SequenceArea&, unsigned cpu, void* word, std::uint64_t seen,
                    std::uint64_t desired, Place* place, TwoWords value) {
  return run_sequence(cpu, word, seen, desired, true, [&] {
    if (model::modelled) model::plain_access(place, true);
    *reinterpret_cast<TwoWords*>(place) = value;
  });
}
template <class Place>
bool read_and_swap(volatile SequenceArea&, unsigned cpu, void* word, std::uint64_t seen,
                   std::uint64_t desired, const Place* place, TwoWords& value) {
  return run_sequence(cpu, word, seen, desired, !model::faults.pops_do_not_look, [&] {
    if (model::modelled) model::plain_access(place, false);
    value = *reinterpret_cast<const TwoWords*>(place);
  });
}

}  // namespace spanalloc::os
