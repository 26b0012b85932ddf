// Is a history of calls to a manager of blocks linearizable? Found out by search.
//
// A history is what several threads called, what they were answered, and when each call began and
// ended. It is linearizable if the calls can be put into one order, in which a call that ended
// before another one began comes first, such that a sequential manager would have given the same
// answers (Herlihy & Wing, 1990). The search is Wing and Gong's (1993), with the calls taking
// effect as late as they can and states that were seen before cut off (Lowe, "Testing for
// linearizability", 2017).
//
// The sequential manager knows the blocks that are handed out and how many units there are, and
// nothing else: what a thread has claimed in the middle of a call is free here, for a
// sequential call has no middle.
//   allocate   a block of n free units at a multiple of the alignment: any. Refused only if there
//              is none.
//   free       refused exactly where no block begins
//   shrink     refused exactly where no block that large begins
//   grow       the units behind the block must be free. Refused if they are not; or if another call
//              works on the run of free units behind the block meanwhile: purges, extends it, or
//              takes from it or gives to it (then the run may be in that thread's hands, even if
//              what was added is taken since).
//   purge      changes nothing
//   extend     adds free units at the end. Refused beyond the capacity.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

namespace spanalloc::test {

enum class Call : std::uint8_t { allocate, free, grow, shrink, purge, extend, walk };

/// One call and its answer. Units are below 63.
struct Operation {
  Call call{};
  std::size_t first =
      0;  // where the block begins: as answered by allocate, as asked otherwise; extend: the limit
  std::size_t size = 0;       // units asked for; free: 0
  std::size_t alignment = 1;  // allocate
  std::size_t had = 0;        // free, grow, shrink: units of the block before
  bool done = false;          // it was not refused
  // From one clock: a call that ended before another one began has ended < began.
  std::uint64_t began = 0;
  std::uint64_t ended = 0;
};

inline std::string to_string(const Operation& op) {
  constexpr const char* kNames[] = {"allocate", "free",   "grow", "shrink",
                                    "purge",    "extend", "walk"};
  std::string text = std::to_string(op.began) + ".." + std::to_string(op.ended) + " " +
                     kNames[static_cast<unsigned>(op.call)];
  if (op.call == Call::allocate) {
    text += "(" + std::to_string(op.size) + " at " + std::to_string(op.alignment) + ")";
    return text + (op.done ? " -> " + std::to_string(op.first) : " refused");
  }
  if (op.call == Call::extend)
    return text + "(" + std::to_string(op.size) + ")" + (op.done ? "" : " refused");
  if (op.call == Call::purge || op.call == Call::walk) return text;
  text += "(" + std::to_string(op.first) + ", " + std::to_string(op.had) + " units";
  if (op.call != Call::free) text += " to " + std::to_string(op.size);
  return text + (op.done ? ")" : ") refused");
}
inline std::string to_string(std::span<const Operation> history) {
  std::string text;
  for (const Operation& op : history) text += to_string(op) + "\n";
  return text;
}

class LinearizabilityCheck {
 public:
  /// At most 64 calls, on a range of at most `capacity` (up to 63) units,
  /// `limit` free ones at first.
  LinearizabilityCheck(std::span<const Operation> history, std::size_t limit, std::size_t capacity)
      : history_(history), capacity_(capacity), start_{.limit = limit} {
    for (std::size_t i = 0; i < history.size(); ++i) by_end_.push_back(i);
    std::sort(by_end_.begin(), by_end_.end(),
              [&](std::size_t a, std::size_t b) { return history[a].ended < history[b].ended; });
  }

  /// True if there is an order. Otherwise explain() names the first call that
  /// nothing can come before.
  bool holds() {
    seen_.clear();
    furthest_ = 0;
    return holds_from(0, 0, start_);
  }
  std::string explain() const {
    return "no order explains the answers of the calls up to: " +
           to_string(history_[by_end_[furthest_]]) + "\n" + to_string(history_);
  }
  std::size_t states() const { return seen_.size(); }

 private:
  struct State {
    std::uint64_t used = 0;    // a bit a unit: handed out
    std::uint64_t starts = 0;  // a bit a unit: a block begins here
    std::size_t limit = 0;
    bool operator==(const State&) const = default;
  };
  struct Visit {
    std::uint64_t effective;  // calls that have taken effect
    State state;
    bool operator==(const Visit&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Visit& visit) const {
      std::uint64_t hash = visit.effective;
      for (const std::uint64_t part : {visit.state.used, visit.state.starts, visit.state.limit}) {
        hash = (hash ^ part) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
      }
      return hash;
    }
  };

  static std::uint64_t units(std::size_t first, std::size_t size) {
    return (size >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << size) - 1) << first;
  }
  static std::uint64_t bit(std::size_t index) { return std::uint64_t{1} << index; }

  // `ended` calls have ended, in the order of by_end_; the next one to end must
  // have taken effect before.
  bool holds_from(std::size_t ended, std::uint64_t effective, const State& state) {
    while (ended < by_end_.size() && (effective & bit(by_end_[ended])) != 0) ++ended;
    if (ended == by_end_.size()) return true;
    furthest_ = std::max(furthest_, ended);
    if (!seen_.insert({effective, state}).second) return false;
    const std::uint64_t now = history_[by_end_[ended]].ended;
    // The call that is about to end first: mostly that is all there is to it.
    for (std::size_t i = ended; i < by_end_.size(); ++i) {
      const std::size_t call = by_end_[i];
      if ((effective & bit(call)) != 0 || history_[call].began > now) continue;
      State after = state;
      if (takes_effect(history_[call], after) && holds_from(ended, effective | bit(call), after))
        return true;
    }
    return false;
  }

  // What the sequential manager makes of a call: false if its answer would have been another one.
  bool takes_effect(const Operation& op, State& state) const {
    switch (op.call) {
      case Call::allocate:
        return allocate(op, state);
      case Call::extend:
        if (op.done != (op.size <= capacity_ - state.limit)) return false;
        if (op.done) state.limit += op.size;
        return true;
      case Call::free:
      case Call::grow:
      case Call::shrink:
        return change(op, state);
      case Call::purge:
      case Call::walk:
        return true;
    }
    return false;
  }
  bool allocate(const Operation& op, State& state) const {
    if (!op.done) {
      for (std::size_t first = 0; first + op.size <= state.limit; first += op.alignment) {
        if ((state.used & units(first, op.size)) == 0) return false;
      }
      return true;
    }
    if (op.first % op.alignment != 0 || op.first + op.size > state.limit) return false;
    if ((state.used & units(op.first, op.size)) != 0) return false;
    state.used |= units(op.first, op.size);
    state.starts |= bit(op.first);
    return true;
  }
  bool change(const Operation& op, State& state) const {
    const std::size_t size = size_at(op.first, state);
    if (op.call == Call::free) {
      if (op.done != (size != 0)) return false;
      state.used &= ~units(op.first, size);
      if (op.done) state.starts &= ~bit(op.first);
      return true;
    }
    if (size == 0) return !op.done;
    if (op.size <= size) {
      if (op.done != (op.size != 0)) return false;
      if (op.done) state.used &= ~units(op.first + op.size, size - op.size);
      return true;
    }
    if (op.call == Call::shrink) return !op.done;
    const std::size_t end = op.first + size;
    const std::uint64_t added = units(end, op.size - size);
    const bool room = op.first + op.size <= state.limit && (state.used & added) == 0;
    if (!op.done) return !room || is_worked_on(op, end, state);
    state.used |= added;
    return room;
  }
  static std::size_t size_at(std::size_t first, const State& state) {
    if (first >= state.limit || (state.starts & bit(first)) == 0) return 0;
    std::size_t end = first + 1;
    while (end < state.limit && (state.used & bit(end)) != 0 && (state.starts & bit(end)) == 0)
      ++end;
    return end - first;
  }
  // Does another call that was under way during `grow` work on the run of free units at `first`?
  bool is_worked_on(const Operation& grow, std::size_t first, const State& state) const {
    std::size_t end = first;
    while (end < state.limit && (state.used & bit(end)) == 0) ++end;
    const std::uint64_t run = units(first, end + 1 - first);  // and what comes next to it
    return std::any_of(history_.begin(), history_.end(), [&](const Operation& op) {
      if (&op == &grow || op.ended < grow.began || grow.ended < op.began || !op.done) return false;
      switch (op.call) {
        case Call::purge:
          return true;
        case Call::extend:
          return (units(op.first, op.size) & run) != 0;
        case Call::allocate:
          return (units(op.first, op.size) & run) != 0;
        case Call::free:
          return (units(op.first, op.had) & run) != 0;
        case Call::shrink:
          return (units(op.first + op.size, op.had - op.size) & run) != 0;
        default:
          return false;
      }
    });
  }

  std::span<const Operation> history_;  // the caller's
  std::size_t capacity_;
  State start_;
  std::vector<std::size_t> by_end_;  // calls in the order in which they ended
  std::unordered_set<Visit, Hash> seen_;
  std::size_t furthest_ = 0;
};

}  // namespace spanalloc::test
